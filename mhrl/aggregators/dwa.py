"""Dynamic weight average: a loss that falls more slowly than the others gets more weight.

Shapes: `L` losses.
"""

import math
from typing import Any, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from mhrl.aggregators.adaptive_weighting import AdaptiveWeighting


@final
class DWA(AdaptiveWeighting):
    """`w_i = K softmax_i(r_i / T)`, where `r_i` is the mean of loss i in the last window over that in the one before.

    Liu et al. (2019), "End-to-end multi-task learning with attention", eq. 7; a window stands for their epoch. K is the
    number of losses whose static weight is not 0. In the first two windows all w_i are 1. A mean is over the backward
    passes that had the loss; a window that had none leaves its r_i as it is. A pass with a loss that is not finite does
    not count.

    Args:
        *arguments, **options: those of `AdaptiveWeighting`.
        window: backward passes in a window.
        temperature: `T`; the larger, the more alike the weights.

    Raises:
        ValueError: if `window` or `temperature` is not positive.
    """

    name = "dwa"

    passes: Tensor
    """Backward passes in the window under way, a scalar."""
    total: Tensor
    """Sum of each loss over them, `[L]`."""
    count: Tensor
    """How many of them had it, `[L]`."""
    means: Tensor
    """Means of the last two windows, the older one first, `[2, L]`; NaN where there is none yet."""

    def __init__(self, *arguments: Any, window: int = 1000, temperature: float = 2.0, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        if window < 1:
            raise ValueError(f"window is {window}: a positive whole number is expected")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature is {temperature}: a positive number is expected")
        self.window, self.temperature = window, temperature
        size = len(self.losses)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("means", torch.full((2, size), math.nan, dtype=torch.float64))

    def adaptive(self) -> Tensor:
        """`w_i`, `[L]`."""
        before, last = self.means
        ratio = torch.where((before > 0) & last.isfinite(), last / before, 1.0)
        live = torch.tensor([self.weight(loss) != 0 for loss in self.losses], device=ratio.device)
        shares = torch.softmax((ratio / self.temperature).masked_fill(~live, -math.inf), 0)
        return torch.where(live, live.sum() * shares, 1.0)

    def observe(self, losses: TensorDictBase, rows: tuple[str, ...], gram: Tensor | None) -> None:
        """See `BackwardAggregator.observe`."""
        at = self.at(losses.keys())
        values = torch.stack([*losses.values()]).to(self.total)
        if not values.isfinite().all():
            return
        self.total[at] += values
        self.count[at] += 1
        self.passes += 1
        if self.passes >= self.window:
            seen, mean = self.count > 0, self.total / self.count
            self.means.copy_(torch.where(seen, torch.stack([self.means[1], mean]), self.means))
            for buffer in (self.passes, self.total, self.count):
                buffer.zero_()
