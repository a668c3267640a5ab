"""What a replay takes, and what there is for it."""

import math
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil

from mhrl.envs import Leaf

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
GIB = 2**30

FLAG_BYTES = 4
"""`is_init`, `terminated`, `truncated`, `done`."""

REWARD_BYTES = 4
NUMBER_BYTES = 8
"""`("collector", "traj_ids")`, and `steps_to_next_obs` where there is one."""


def transition_bytes(observations: Iterable[Leaf], actions: Iterable[Leaf], n_steps: int = 1) -> int:
    """Bytes of one row of replay: two observations, the action, reward, flags, and a number or two; and gaps."""
    leaves = [*observations, *observations, *actions]
    arrays = sum(math.prod(leaf.space.shape or ()) * np.dtype(leaf.space.dtype).itemsize for leaf in leaves)
    row = arrays + REWARD_BYTES + FLAG_BYTES + NUMBER_BYTES * (1 if n_steps == 1 else 2)
    return -(-row // NUMBER_BYTES) * NUMBER_BYTES  # so that every number lies at a multiple of its size


def free_memory() -> int:
    """Bytes that this process may still take: the machine's, or its control group's (cgroup v2) if that is less."""
    return min([psutil.virtual_memory().available, *_group_memory()])


def free_disk(folder: Path) -> int:
    """Bytes that are free where `folder` lies."""
    return shutil.disk_usage(folder).free


def check_fits(capacity: int, bytes_each: int, free: int, num_envs: int, where: str) -> None:
    """Refuse a capacity that does not fit.

    Args:
        capacity: transitions.
        bytes_each: bytes of one.
        free: bytes there are.
        num_envs: the capacity is a multiple of it.
        where: of what the bytes are, for the message.

    Raises:
        ValueError: naming both numbers and the largest capacity that fits.
    """
    if (needed := capacity * bytes_each) > free:
        most = free // bytes_each // num_envs * num_envs
        raise ValueError(
            f"replay.capacity is {capacity}: its rows take {needed / GIB:.2f} GiB of {where}, {free / GIB:.2f} GiB "
            f"are free; {most} rows fit"
        )


def _group_memory() -> list[int]:
    """What is left to this process's control group and to each group above it."""
    try:
        membership = MEMBERSHIP.read_text()
    except OSError:  # no Linux
        return []
    path = next((line.removeprefix("0::/") for line in membership.splitlines() if line.startswith("0::/")), None)
    if path is None:
        return []
    group = CGROUPS / path
    return [left for part in (group, *group.parents) if part.is_relative_to(CGROUPS) for left in _left(part)]


def _left(group: Path) -> list[int]:
    """Limit less use of one group, file pages that can be dropped not counted; nothing where there is no limit."""
    try:
        limit = (group / "memory.max").read_text().strip()
        current = int((group / "memory.current").read_text())
        pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return []
    return [] if limit == "max" else [max(0, int(limit) - current + int(pages.get("inactive_file", 0)))]
