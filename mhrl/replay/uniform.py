"""Uniform replay.

Shapes: `B` batch.
"""

from collections.abc import Iterator
from typing import final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from mhrl.replay.base import Replay

SAMPLE_BYTES = 64 * 2**20
"""Bound on what is gathered at once."""


@final
class UniformReplay(Replay):
    """Every transition held is equally likely, with replacement; arguments as in `Replay`."""

    def _batches(self, count: int) -> Iterator[TensorDictBase]:
        """Draw `count` batches `[B]`, many at once: gathering is much cheaper in bulk."""
        at_once = max(1, SAMPLE_BYTES // max(1, self._ring.row_bytes * self.batch_size))
        while count > 0:
            drawn = min(count, at_once)
            rows = self._ring.take(self._draw(drawn * self.batch_size))
            yield from [rows] if drawn == 1 else rows.split(self.batch_size)
            count -= drawn

    def update_priority(self, batch: TensorDictBase) -> None:
        """Uniform replay has no priorities."""

    def _draw(self, count: int) -> Tensor:
        """Places `[count]` of rows, counted row-major over time and env."""
        time = torch.randint(self._held, (count,), generator=self._generator)
        env = torch.randint(self.num_envs, (count,), generator=self._generator)
        return time.mul_(self.num_envs).add_(env)
