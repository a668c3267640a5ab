"""What every replay is: a ring of transitions, laid out in time by env.

Shapes: `T` time, `N` envs, `B` batch.
"""

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import TensorDictBase

from mhrl.functional import cut_episodes
from mhrl.replay.memory import check_fits, free_disk, free_memory
from mhrl.replay.ring import Ring

Storage = Literal["memory", "memmap"]


class Replay(ABC):
    """A ring of transitions.

    Stored as `[capacity / N, N]`, time first: one env's trajectory is contiguous in its column. The first rollout
    fixes each entry's dtype, and a rollout's dtypes are the spaces' own.

    Args:
        capacity: transitions, whatever `num_envs` is; rounded down to a multiple of it.
        batch_size: `B`.
        num_envs: `N`.
        seed: of the sampler's own generator.
        storage: `memory`, or `memmap`: files, of which the system keeps in memory what it has room for.
        scratch_dir: where `memmap` makes a folder of its own, which is gone at exit; None is the system's place
            for temporary files.
        row_bytes: bytes of a transition, where they are known beforehand; then a capacity that does not fit is
            refused before anything is allocated.

    Raises:
        ValueError: if `capacity` holds less than one transition per env or does not fit, `batch_size` is not positive,
            `storage` is unknown, or `scratch_dir` cannot be used.
    """

    INDEX_BYTES = 0
    """What the sampler holds in memory for each transition."""

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        num_envs: int,
        seed: int,
        storage: Storage = "memory",
        scratch_dir: str | None = None,
        row_bytes: int = 0,
    ) -> None:
        if capacity != int(capacity) or capacity < num_envs:
            raise ValueError(f"replay.capacity is {capacity}: a whole number >= num_envs, {num_envs}, is expected")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: a positive number is expected")
        if storage not in ("memory", "memmap"):
            raise ValueError(f"replay.storage is {storage!r}: memory or memmap is expected")
        self.batch_size = batch_size
        self.num_envs = num_envs
        self._length = int(capacity) // num_envs  # in time
        self.capacity = self._length * num_envs
        in_memory = self.INDEX_BYTES + (row_bytes if storage == "memory" else 0)
        check_fits(self.capacity, in_memory, free_memory(), num_envs, "memory")
        folder = None
        if storage == "memmap":
            folder = _make_scratch(scratch_dir)
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # at exit, too
            check_fits(self.capacity, row_bytes, free_disk(folder), num_envs, f"disk below {folder.parent}")
        self._ring = Ring(self._length, num_envs, folder)
        self._generator = torch.Generator().manual_seed(seed)
        self._written = 0  # in time, overwritten rows included

    def batches(self, count: int) -> Iterator[TensorDictBase]:
        """Draw `count` batches `[B]`.

        Raises:
            ValueError: if nothing is held.
        """
        if count > 0 and not len(self):
            raise ValueError("replay is empty: there is nothing to sample")
        yield from self._batches(count)

    @abstractmethod
    def _batches(self, count: int) -> Iterator[TensorDictBase]:
        """Draw `count` batches `[B]` of rows that there are."""

    @abstractmethod
    def update_priority(self, batch: TensorDictBase) -> None:
        """Take in what the update on a drawn `batch` `[B]` wrote there as `priority` `[B]`."""

    def __len__(self) -> int:
        """Transitions held."""
        return self._held * self.num_envs

    @property
    def _held(self) -> int:
        """Rows held, in time."""
        return min(self._written, self._length)

    def extend(self, rollout: TensorDictBase) -> None:
        """Append a rollout `[T, N]`, `T` >= 0, over the oldest rows once the ring is full.

        Raises:
            ValueError: if there are rows of another number of envs, or other entries than those of the rows held.
        """
        if not len(rollout):
            return
        if rollout.shape[1] != self.num_envs:
            raise ValueError(f"rows of {self.num_envs} envs are expected, got {rollout.shape[1]}")
        while len(rollout) > (room := self._length - self._written % self._length):
            self._write(rollout[:room])
            rollout = rollout[room:]
        self._write(rollout)

    def _write(self, rows: TensorDictBase) -> None:
        """Append rows `[T, N]` for which there is room before the end of the ring."""
        self._ring.write(self._written % self._length, rows)
        self._written += len(rows)

    def cut(self) -> None:
        """End every env's episode with its newest row: truncated and done, unless it is done already."""
        if len(self):
            cut_episodes(self._ring.at((self._written - 1) % self._length))

    def state_dict(self) -> dict[str, Any]:
        """The rows, the write position and the generator, as plain values and tensors.

        The rows are those held and no copies: save them before the next `extend`. `saved_rows` reads them.
        """
        return {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "written": self._written,
            "generator": self._generator.get_state(),
            "rows": self._ring.saved(self._held),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was called.

        Raises:
            ValueError: if another capacity or number of envs was saved.
        """
        for name in ("capacity", "num_envs"):
            if state[name] != getattr(self, name):
                raise ValueError(f"the saved replay has {name} {state[name]}, this one has {getattr(self, name)}")
        self._ring.restore(state["rows"])
        self._written = state["written"]
        self._generator.set_state(state["generator"])


def _make_scratch(parent: str | None) -> Path:
    """A new folder below `parent`."""
    try:
        if parent is not None:
            os.makedirs(parent, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="mhrl_replay_", dir=parent))
    except OSError as error:
        raise ValueError(f"replay.scratch_dir is {parent!r}: a folder to write to is expected ({error})") from error
