"""Uncertainty weighting: factors from log-variances that are learned with the network."""

import math
from typing import Any, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from mhrl.aggregators.adaptive_weighting import AdaptiveWeighting


@final
class Uncertainty(AdaptiveWeighting):
    """Minimise `sum_i v_i (1/2 exp(-s_i) L_i + 1/2 s_i)` over the network and the log-variances s_i, which begin at 0.

    Kendall et al. (2018), "Multi-task learning using uncertainty to weigh losses", section 3.2; v_i are the static
    weights. The factor on loss i is v_i/2 exp(-s_i), the gradient of s_i is v_i/2 (1 - exp(-s_i) L_i); at rest s_i is
    log L_i, and the factor v_i / (2 L_i). The s_i are this module's parameters: put them into the optimizer, in a group
    of their own without weight decay; a bound on the norm of the whole gradient counts them in. A loss that is not
    computed gives its s_i no gradient.

    Args:
        *arguments, **options: those of `AdaptiveWeighting`; no weight is negative, since its s_i would run away.
        lr: the learning rate of the s_i, for whoever makes the optimizer; None leaves it to the optimizer's own.

    Raises:
        ValueError: if `lr` or a weight is negative.
    """

    name = "uncertainty"

    def __init__(self, *arguments: Any, lr: float | None = None, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        if lr is not None and not 0 <= lr < math.inf:
            raise ValueError(f"lr is {lr}: a number >= 0 or null is expected")
        for loss in self.losses:
            if self.weight(loss) < 0:
                raise ValueError(f"the weight of {loss} is {self.weight(loss)}: {self.name} needs weights >= 0")
            self.register_parameter(f"log_variance_{loss}", nn.Parameter(torch.zeros(())))
        self.lr = lr

    def log_variance(self, loss: str) -> nn.Parameter:
        """`s_i`."""
        return self.get_parameter(f"log_variance_{loss}")

    def adaptive(self) -> Tensor:
        """`1/2 exp(-s_i)`, `[L]`."""
        return 0.5 * torch.exp(-torch.stack([self.log_variance(loss).detach() for loss in self.losses]).double())

    def adapted(self, losses: TensorDictBase) -> TensorDict:
        """Each loss with a term whose gradient, times the factor on the loss, is that of its s_i."""
        s = [*map(self.log_variance, losses.keys())]
        values = torch.stack([loss.detach() for loss in losses.values()])
        slopes = (torch.stack([one.detach() for one in s]).exp() - values).to(s[0])
        terms = zip(losses.items(), s, slopes, strict=True)
        return TensorDict({name: loss + slope * one for (name, loss), one, slope in terms})
