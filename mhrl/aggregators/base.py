"""The backward aggregator: how per-head losses become one gradient.

Shapes: `*` batch, `F` features, `K` rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from mhrl.aggregators.fan_out import FanOut

PerLoss = float | Mapping[str, float]


class BackwardAggregator(nn.Module, ABC):
    """Turn a TensorDict of named losses into gradients with one backward.

    Used in three places of an update: `active` before the forward pass, `fan_out` at the trunk's output,
    `backward` on the losses. A rule is one file that defines `combine`.

    Args:
        weights: factor on a loss, on its head and on the trunk; one number for all or one per loss (default 1).
        trunk_grad: factor on a row, on the trunk only; one number for all or one per row (default 1).

    Raises:
        ValueError: if a weight or `trunk_grad` is not finite.
    """

    balances: bool = False
    """Whether `combine` is anything else than the plain sum (and so needs every row's gradient)."""

    probe: Tensor | None = None
    """`[K, K]` zeros that require grad, set where the Gram matrix of the rows is wanted as their gradient."""

    def __init__(self, weights: PerLoss = 1.0, trunk_grad: PerLoss = 1.0) -> None:
        super().__init__()
        for option, factors in (("weights", weights), ("trunk_grad", trunk_grad)):
            for name, factor in factors.items() if isinstance(factors, Mapping) else [("every loss", factors)]:
                if not math.isfinite(factor):
                    raise ValueError(f"{option} of {name} is {factor}: a finite number is expected")
        self._weights = weights
        self._trunk_grad = trunk_grad

    def weight(self, loss: str) -> float:
        """The static weight of `loss`."""
        return self._weights.get(loss, 1.0) if isinstance(self._weights, Mapping) else self._weights

    def trunk_grad(self, row: str) -> float:
        """The factor on `row`'s gradient on its way into the trunk."""
        return self._trunk_grad.get(row, 1.0) if isinstance(self._trunk_grad, Mapping) else self._trunk_grad

    def active(self, losses: Iterable[str], frames: int = 0) -> tuple[str, ...]:
        """Those of `losses` that are to be computed at `frames`: a loss of weight 0 is dropped, not multiplied."""
        return tuple(name for name in losses if self.weight(name) != 0)

    def fan_out(self, features: Tensor, rows: Iterable[str]) -> dict[str, Tensor]:
        """Give each row its alias of the features.

        Args:
            features: `[*, F]`, the trunk's output.
            rows: the rows' names (any iterable of names, a `ModuleDict` of heads for instance).

        Returns:
            `{row: [*, F]}`, all views of one memory: do not modify them in place. A row whose `trunk_grad` is 0 reads
            detached features. Where nothing balances or measures them, rows of equal `trunk_grad` are one tensor.
        """
        names = list(rows)
        if not features.requires_grad:
            return dict.fromkeys(names, features)
        factors = {name: self.trunk_grad(name) for name in names}
        live = [name for name in names if factors[name] != 0]
        apart = self.balances or self.probe is not None
        # Nobody looks at the rows: those of one factor are one tensor, so that heads on it can be computed together.
        alias_of = {name: name if apart else factors[name] for name in live}
        distinct = dict(zip(alias_of.values(), (factors[name] for name in live), strict=True))
        if not apart and set(distinct.values()) <= {1.0}:  # the plain sum needs no FanOut
            fanned = tuple(features.view_as(features) for _ in distinct)
        elif distinct:
            at = [names.index(name) for name in live]
            probe = None if self.probe is None else self.probe[at][:, at]
            scale = torch.tensor(list(distinct.values()), dtype=features.dtype, device=features.device)
            fanned = FanOut.apply(features, probe, scale, self.combine, len(distinct))
        aliases = dict(zip(distinct, fanned, strict=True)) if distinct else {}
        detached = features.detach()
        return {name: aliases[alias_of[name]] if name in alias_of else detached for name in names}

    def weights(self, losses: TensorDictBase) -> TensorDict:
        """The factor of each loss, in the losses' shape."""
        return TensorDict({name: torch.full_like(loss, self.weight(name)) for name, loss in losses.items()})

    def backward(self, losses: TensorDictBase) -> None:
        """Differentiate all losses at once: one `torch.autograd.backward`.

        A loss of weight 0 is left out: 0 times NaN is NaN, and a gradient of zero still moves Adam.

        Args:
            losses: named scalars that require grad.

        Raises:
            ValueError: if a loss is no scalar, or carries no gradient (it would be ignored in silence).
        """
        losses = losses.select(*self.active(losses.keys()))
        for name, loss in losses.items():
            if loss.dim():
                raise ValueError(f"loss {name!r} has shape {tuple(loss.shape)}: a scalar is expected, reduce it")
            if not loss.requires_grad:
                raise ValueError(f"loss {name!r} does not require grad: nothing that it depends on can be trained")
        if not losses.is_empty():
            losses.backward(gradient=self.weights(losses))

    @abstractmethod
    def combine(self, rows: Tensor) -> Tensor:
        """The rule: the rows' gradients `[K, *, F]` to the trunk's cotangent `[*, F]`; pure tensor mathematics."""


def row_statistics(gram: Tensor, rows: Iterable[str]) -> dict[str, Tensor]:
    """What the rows' Gram matrix says about them, at the features.

    Args:
        gram: `[K, K]`, inner products of the rows' gradients as the trunk receives them.
        rows: the `K` names.

    Returns:
        `trunk/grad_norm/<row>`; `trunk/grad_share/<row>`, the norm over the sum of norms;
        `trunk/grad_cos/<a>__<b>`, the cosine of two rows (0 where one of them is zero).
    """
    names = list(rows)
    norms = gram.diagonal().clamp(min=0).sqrt()
    shares = norms / norms.sum().clamp(min=torch.finfo(gram.dtype).tiny)
    cosines = gram / (norms[:, None] * norms).clamp(min=torch.finfo(gram.dtype).tiny)
    statistics = {f"trunk/grad_norm/{name}": norms[i] for i, name in enumerate(names)}
    statistics |= {f"trunk/grad_share/{name}": shares[i] for i, name in enumerate(names)}
    statistics |= {
        f"trunk/grad_cos/{a}__{b}": cosines[i, i + 1 + j]
        for i, a in enumerate(names)
        for j, b in enumerate(names[i + 1 :])
    }
    return statistics
