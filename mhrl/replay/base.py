"""What every replay is: a ring of transitions in torchrl's buffer, laid out in time by env.

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
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler

from mhrl.functional import cut_episodes
from mhrl.replay.memory import check_fits, free_disk, free_memory

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
        self._ring = int(capacity) // num_envs  # in time
        self.capacity = self._ring * num_envs
        in_memory = self.INDEX_BYTES + (row_bytes if storage == "memory" else 0)
        check_fits(self.capacity, in_memory, free_memory(), num_envs, "memory")
        if storage == "memmap":
            # A folder of ours: torchrl would clean up its own by handlers on the process's signals.
            scratch = _make_scratch(scratch_dir)
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)  # at exit, too
            check_fits(self.capacity, row_bytes, free_disk(scratch), num_envs, f"disk below {scratch.parent}")
            memory = LazyMemmapStorage(self.capacity, ndim=2, scratch_dir=scratch, auto_cleanup=False)
        else:
            memory = LazyTensorStorage(self.capacity, ndim=2)
        self._generator = torch.Generator().manual_seed(seed)
        self._buffer = ReplayBuffer(storage=memory, sampler=self._sampler(), dim_extend=0, generator=self._generator)
        self._written = 0  # in time, overwritten rows included
        self._row_bytes = 0  # of one transition, once there is one
        self._fits = False  # whether a rollout's entries were compared with those held

    @abstractmethod
    def _sampler(self) -> Sampler:
        """What chooses rows; called once."""

    @abstractmethod
    def batches(self, count: int) -> Iterator[TensorDictBase]:
        """Draw `count` batches `[B]`.

        Raises:
            ValueError: if nothing is held.
        """

    @abstractmethod
    def update_priority(self, batch: TensorDictBase) -> None:
        """Take in what the update on a drawn `batch` `[B]` wrote there as `priority` `[B]`."""

    def __len__(self) -> int:
        """Transitions held."""
        return len(self._buffer)

    def extend(self, rollout: TensorDictBase) -> None:
        """Append a rollout `[T, N]`, `T` >= 0, over the oldest rows once the ring is full.

        Raises:
            ValueError: if the first rollout, or the first after `load_state_dict`, has another number of envs or other
                entries than the rows held.
        """
        if not len(rollout):
            return
        if not self._fits:
            self._admit(rollout)
            self._fits = True
        for part in [rollout] if len(rollout) <= self._ring else rollout.split(self._ring):
            self._buffer.extend(part)
            self._written += len(part)

    def cut(self) -> None:
        """End every env's episode with its newest row: truncated and done, unless it is done already."""
        if len(self):
            cut_episodes(self._rows()[(self._written - 1) % self._ring])

    def state_dict(self) -> dict[str, Any]:
        """The rows, the write position and the generator, as plain values and tensors.

        The rows are those held and no copies: save them before the next `extend`.
        """
        return {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "written": self._written,
            "generator": self._generator.get_state(),
            "rows": self._rows().apply(_compact).to_dict() if len(self) else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was called.

        Raises:
            ValueError: if another capacity or number of envs was saved, or other rows than are held.
        """
        for name in ("capacity", "num_envs"):
            if state[name] != getattr(self, name):
                raise ValueError(f"the saved replay has {name} {state[name]}, this one has {getattr(self, name)}")
        held = min(state["written"], self._ring)
        rows = TensorDict(state["rows"], [held, self.num_envs])
        if held:
            self._admit(rows)
        self._buffer.empty()
        if held:
            self._buffer.extend(rows)
        self._written, self._fits = state["written"], False
        self._buffer.writer.load_state_dict({"_cursor": self._written % self._ring})
        self._generator.set_state(state["generator"])

    def _rows(self) -> TensorDictBase:
        """The rows held `[T, N]`, in the ring's order: a view."""
        return self._buffer.storage[:]

    def _admit(self, rows: TensorDictBase) -> None:
        """Refuse rows `[T, N]` that do not fit those held: storage would cast them, or fail without a name."""
        if rows.shape[1] != self.num_envs:
            raise ValueError(f"rows of {self.num_envs} envs are expected, got {rows.shape[1]}")
        self._row_bytes = rows.bytes() // rows.numel()
        held, new = _layout(self._rows() if len(self) else rows), _layout(rows)
        for key in sorted(held.keys() | new.keys()):
            if held.get(key) != new.get(key):
                raise ValueError(f"replay holds {key} as {held.get(key)}, the new rows have it as {new.get(key)}")


def _make_scratch(parent: str | None) -> Path:
    """A new folder below `parent`."""
    try:
        if parent is not None:
            os.makedirs(parent, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="mhrl_replay_", dir=parent))
    except OSError as error:
        raise ValueError(f"replay.scratch_dir is {parent!r}: a folder to write to is expected ({error})") from error


def _compact(tensor: Tensor) -> Tensor:
    """The same memory as a plain tensor that knows of no more: `torch.save` writes what lies behind a view, too."""
    return torch.from_numpy(tensor.numpy())


def _layout(rows: TensorDictBase) -> dict[str, str]:
    """`{entry: dtype and shape}` of the rows `[N]` of one time step."""
    return {
        key if isinstance(key, str) else ".".join(key): f"{entry.dtype} {list(entry.shape[1:])}"
        for key, entry in rows.items(include_nested=True, leaves_only=True)
    }
