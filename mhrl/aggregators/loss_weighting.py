"""Rules that act on the losses: a factor on each, the gradients are added."""

from abc import ABC

from torch import Tensor

from mhrl.aggregators.base import BackwardAggregator


class LossWeighting(BackwardAggregator, ABC):
    """Add the rows; what differs is the factor that each loss has in the one backward."""

    def combine(self, rows: Tensor) -> Tensor:
        """`[K, N]` to `[N]`: the sum of the rows."""
        return rows.sum(0)
