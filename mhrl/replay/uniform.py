"""Uniform replay.

Shapes: `B` batch.
"""

from collections.abc import Iterator
from typing import final

from tensordict import TensorDictBase
from torchrl.data.replay_buffers.samplers import RandomSampler, Sampler

from mhrl.replay.base import Replay

SAMPLE_BYTES = 64 * 2**20
"""Bound on what one `sample` call may gather."""


@final
class UniformReplay(Replay):
    """Every transition held is equally likely, with replacement; arguments as in `Replay`."""

    def _sampler(self) -> Sampler:
        return RandomSampler()

    def batches(self, count: int) -> Iterator[TensorDictBase]:
        """Draw `count` batches `[B]`, many in one call: gathering is much cheaper in bulk.

        Raises:
            ValueError: if nothing is held.
        """
        if count > 0 and not len(self):
            raise ValueError("replay is empty: there is nothing to sample")
        at_once = max(1, SAMPLE_BYTES // max(1, self._row_bytes * self.batch_size))
        while count > 0:
            drawn = min(count, at_once)
            rows = self._buffer.sample(drawn * self.batch_size)
            yield from [rows] if drawn == 1 else rows.split(self.batch_size)
            count -= drawn

    def update_priority(self, batch: TensorDictBase) -> None:
        """Uniform replay has no priorities."""
