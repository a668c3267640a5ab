"""Trees over the priorities of a replay: sums, least and largest.

Shapes: `B` batch.
"""

from typing import final

import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import prioritized

TORCH = "2.14.1"
"""The torch that the compiled part of torchrl 0.14.1 is built for."""


@final
class Trees:
    """torchrl's compiled trees in float64, over the leaves `(p + eps)^alpha` that `put` is given.

    Not its sampler: that draws in float32, too coarse for a million rows, and its new rows enter with the largest
    priority that there ever was, at least 1. A tree of float64 holds no rounding error beyond that of one sum: each
    node is the sum of its two children, never a running total.

    Args:
        capacity: number of leaves.

    Raises:
        ValueError: if torchrl's compiled part does not load.
    """

    def __init__(self, capacity: int) -> None:
        if prioritized.SumSegmentTreeFp64 is None:
            raise ValueError(
                f"prioritised replay needs the compiled part of torchrl, which loads with torch {TORCH} and not with "
                f"{torch.__version__}"
            )
        self._capacity = capacity
        self._sum = prioritized.SumSegmentTreeFp64(capacity)
        self._min = prioritized.MinSegmentTreeFp64(capacity)
        self._max = prioritized.MinSegmentTreeFp64(capacity)  # of the negatives
        self._any = False

    @property
    def largest(self) -> float:
        """The largest leaf; 1 where there is none."""
        return -self._max.query(0, self._capacity) if self._any else 1.0

    def put(self, places: Tensor, leaves: Tensor) -> None:
        """Set leaves `[B]` float64 at `places` `[B]`."""
        if len(places):
            self._sum[places] = leaves
            self._min[places] = leaves
            self._max[places] = -leaves
            self._any = True

    def leaves(self, count: int) -> Tensor:
        """The first `count` leaves."""
        return self._sum[torch.arange(count)] if count else torch.zeros(0, dtype=torch.float64)

    def draw(self, mass: Tensor, count: int, beta: float) -> tuple[Tensor, Tensor]:
        """Places `[B]` among the first `count` leaves, and their weights `[B]` float64.

        Args:
            mass: uniform in [0, 1), float64 `[B]`.
            count: of leaves, at least 1.
            beta: exponent of the weights.
        """
        total, least = (tree.query(0, count) for tree in (self._sum, self._min))
        places = self._sum.scan_lower_bound(mass * total).clamp_max_(count - 1)
        return places, (self._sum[places] / least) ** -beta
