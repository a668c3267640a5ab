"""GradNorm: factors that bring the norms of the rows' gradients to a common scale.

Shapes: `L` losses, `l` of them in one backward, `R` rows that take part in it, `K` rows, `N` numbers in all outputs of
the trunk together.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from mhrl.aggregators.adaptive_weighting import AdaptiveWeighting
from mhrl.functional import inner_products


@final
class GradNorm(AdaptiveWeighting):
    """Learn a factor w_i for each row, so that its gradient's norm goes to the rows' mean times (pace_i)^alpha.

    Chen et al. (2018), "GradNorm: gradient normalization for adaptive loss balancing in deep multitask networks",
    eq. 1 and 2, with norms taken at the trunk's output, where the one backward has them anyway. With n_i the norm of
    row i's gradient and n its mean over rows,

        Lgrad = sum_i |n_i - n (pace_i)^alpha|,      pace_i = (L_i / L_i(0)) / mean_j (L_j / L_j(0))

    and after each backward `log w` goes a step of length `lr` down the gradient of Lgrad, the second term held fixed;
    then the w of the losses that took part are scaled to the sum that they had before, so that the w of all losses sum
    to their number. The n_i are those of rows with their w, but without static weights and `trunk_grad`, which act on
    top: a loss of twice the weight has a row of twice the norm. Losses that share a row have one w; L is their sum.
    Rows that nothing reads, and rows of zeros, take no part. L_i(0) is the first loss above 0. With `alpha` 0 no loss
    is looked at.

    Args:
        *arguments, **options: those of `AdaptiveWeighting`.
        lr: length of a step of `log w`.
        alpha: how much a loss that has fallen less than others may weigh on the trunk; 0 makes all norms equal.

    Raises:
        ValueError: if `lr` is not positive, or `alpha` is negative.
    """

    name = "gradnorm"
    balances = True

    factor: Tensor
    """`w` of each loss, `[L]`."""
    initial: Tensor
    """`L(0)` of each loss, `[L]`; NaN where there is none yet."""

    def __init__(self, *arguments: Any, lr: float = 0.025, alpha: float = 0.0, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        if not 0 < lr < math.inf:
            raise ValueError(f"lr is {lr}: a positive number is expected")
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha is {alpha}: a number >= 0 is expected")
        self.lr, self.alpha = lr, alpha
        size = len(self.losses)
        self.register_buffer("factor", torch.ones(size, dtype=torch.float64))
        self.register_buffer("initial", torch.full((size,), math.nan, dtype=torch.float64))

    @property
    def label(self) -> str:
        """`gradnorm@features`."""
        return f"{self.name}@features"

    @property
    def positive(self) -> bool:
        """See `AdaptiveWeighting.positive`."""
        return self.alpha > 0

    def adaptive(self) -> Tensor:
        """`w`, `[L]`."""
        return self.factor

    def probe(self, rows: Sequence[str], like: Tensor) -> Tensor:
        """See `BackwardAggregator.probe`."""
        return torch.zeros(len(rows), len(rows), dtype=like.dtype, device=like.device, requires_grad=True)

    def cotangent(self, rows: Tensor, names: tuple[str, ...], outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The sum of the rows, and their Gram matrix."""
        return self.combine(rows), inner_products(rows)

    def observe(self, losses: TensorDictBase, rows: tuple[str, ...], gram: Tensor | None) -> None:
        """See `BackwardAggregator.observe`.

        Raises:
            ValueError: for a row that no loss has, as far as `row_of` says.
        """
        names = list(losses.keys())
        values = torch.stack([*losses.values()]).to(self.factor)
        if gram is None or not (gram.isfinite().all() and values.isfinite().all()):
            return
        norms = gram.diagonal().to(self.factor).clamp(min=0).sqrt()
        of_row = {row: [self.row_of.get(name, name) == row for name in names] for row in rows}
        for row, norm in zip(rows, norms.tolist(), strict=True):
            if norm > 0 and not any(of_row[row]):
                raise ValueError(f"row {row!r} is that of no loss in {', '.join(names)}: row_of says which are")
        part = norms > 0
        member = torch.tensor([*of_row.values()], dtype=norms.dtype, device=norms.device)[part]  # [R, l]
        static = [abs(self.weight(name)) for name in names]
        on_row = (member * norms.new_tensor(static)).sum(1) / member.sum(1)
        on_row = on_row * norms.new_tensor([abs(self.trunk_grad(row)) for row in rows])[part]
        self._step(names, norms[part] / on_row, member, self._pace(names, values, member))

    def _pace(self, names: Sequence[str], values: Tensor, member: Tensor) -> Tensor | float:
        """`(pace)^alpha` of each row, `[R]`; keeps the first loss above 0."""
        if self.alpha == 0:
            return 1.0
        at = self.at(names)
        first = torch.where(self.initial[at].isnan() & (values > 0), values, self.initial[at])
        self.initial[at] = first
        now, then = member @ values, member @ first.nan_to_num(0.0)
        ratio = torch.where(then > 0, now / then, 1.0)
        return (ratio / ratio.mean().clamp(min=torch.finfo(ratio.dtype).tiny)) ** self.alpha

    def _step(self, names: Sequence[str], norms: Tensor, member: Tensor, pace: Tensor | float) -> None:
        """One step of `log w`, and the scaling to the old sum."""
        slope = torch.sign(norms - norms.mean() * pace) * norms  # d Lgrad / d log w
        length = slope.norm()
        if len(norms) < 2 or length == 0:
            return
        at, part = self.at(names), member.any(0)
        before = self.factor[at]
        after = before * torch.exp(-self.lr / length * (slope @ member))
        after = after * before[part].sum() / after[part].sum()
        self.factor[at] = torch.where(part, after, before)
