"""Replay: torchrl's buffer, laid out in time by env.

Shapes: `T` time, `N` envs, `B` batch.
"""

from collections.abc import Iterator
from typing import final

import torch
from tensordict import TensorDictBase
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler

SAMPLE_BYTES = 64 * 2**20
"""Bound on what one `sample` call may gather."""


@final
class UniformReplay:
    """A ring of transitions with uniform sampling, in memory.

    Stored as `[capacity / N, N]`, time first: one env's trajectory is contiguous in its column. The first rollout
    fixes each entry's dtype, and a rollout's dtypes are the spaces' own.

    Args:
        capacity: transitions, whatever `num_envs` is; rounded down to a multiple of it.
        batch_size: `B`.
        num_envs: `N`.
        seed: of the sampler's own generator.

    Raises:
        ValueError: if `capacity` holds less than one transition per env, or `batch_size` is not positive.
    """

    def __init__(self, capacity: int, batch_size: int, num_envs: int, seed: int) -> None:
        if capacity != int(capacity) or capacity < num_envs:
            raise ValueError(f"replay.capacity is {capacity}: a whole number >= num_envs, {num_envs}, is expected")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: a positive number is expected")
        self.batch_size = batch_size
        self._buffer = ReplayBuffer(
            storage=LazyTensorStorage(int(capacity) // num_envs * num_envs, ndim=2),
            sampler=RandomSampler(),
            dim_extend=0,
            generator=torch.Generator().manual_seed(seed),
        )
        self._row_bytes = 0  # of one transition, once there is one

    def __len__(self) -> int:
        """Transitions held."""
        return len(self._buffer)

    def extend(self, rollout: TensorDictBase) -> None:
        """Append a rollout `[T, N]`, over the oldest rows once the ring is full."""
        self._buffer.extend(rollout)
        if not self._row_bytes:
            self._measure()

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

    def state_dict(self) -> dict:
        """The rows, the write position and the sampler's generator."""
        return self._buffer.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Restore what `state_dict` returned."""
        self._buffer.load_state_dict(state)
        if len(self):
            self._measure()

    def _measure(self) -> None:
        """Take the size of a transition from what is stored."""
        held = self._buffer.storage[:]
        self._row_bytes = held.bytes() // held.numel()
