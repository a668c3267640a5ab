"""The weighted sum: the plain gradient of `sum_i weight_i * loss_i`."""

from typing import final

from torch import Tensor

from mhrl.aggregators.base import BackwardAggregator


@final
class WeightedSum(BackwardAggregator):
    """Add the rows. With `trunk_grad` 1/K for each of K losses the trunk receives their mean."""

    def combine(self, rows: Tensor) -> Tensor:
        """`[K, *, F]` to `[*, F]`: the sum of the rows."""
        return rows.sum(0)
