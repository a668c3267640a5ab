"""Uniform actions, over a leaf's box or over what a mask allows."""

import numpy as np

from mhrl.envs.actions import conform
from mhrl.envs.masks import MASK
from mhrl.envs.spaces import Leaf


class EmptyMaskError(Exception):
    """An env that is to act allows no value of some branch.

    Args:
        env: Which env.
        head: The branch: the leaf's name, or `<leaf>_<i>` for the row-major element `i` of a leaf with a shape.

    Attributes:
        env: Which env.
        head: The branch.
    """

    def __init__(self, env: int, head: str) -> None:
        super().__init__(env, head)
        self.env, self.head = env, head

    def __str__(self) -> str:
        return (
            f"env {self.env}: {MASK} allows nothing for head {self.head!r}, and the episode has not terminated there; "
            "a truncated state needs a legal action too, for its value is used"
        )


def uniform_actions(rng: np.random.Generator, leaf: Leaf, num_envs: int, mask: np.ndarray | None = None) -> np.ndarray:
    """Draw actions, each element independently.

    Args:
        rng: Draws.
        leaf: An action leaf. A continuous one is drawn uniformly over its box, both bounds included; each element of a
            discrete one over its values.
        num_envs: N.
        mask: `[N, sum of the branches' sizes]` bool: only these values are drawn. For a discrete leaf only.

    Returns:
        `[N, *shape]` in the dtype of the leaf's space.

    Raises:
        EmptyMaskError: If a mask allows no value of a branch.
    """
    space = leaf.box
    shape = (num_envs, *space.shape)
    if not leaf.discrete:
        # Integers, because `random()` never draws 1: both bounds can be drawn, and no width can overflow.
        unit = rng.integers(2**53, size=shape, endpoint=True) / 2**53
        return conform((1 - unit) * space.low + unit * space.high, space)
    if mask is None:
        return rng.integers(space.low, space.high, size=shape, endpoint=True, dtype=space.dtype)  # type: ignore[arg-type]
    check_mask(mask, leaf)
    index = np.empty((num_envs, leaf.size), np.int64)
    for i, allowed in enumerate(_by_branch(mask, leaf)):
        # The place of the k-th value that is allowed.
        index[:, i] = (allowed.cumsum(-1) > rng.integers(allowed.sum(-1))[:, None]).argmax(-1)
    return (space.low + index.reshape(shape)).astype(space.dtype)


def check_mask(mask: np.ndarray, leaf: Leaf, over: np.ndarray | None = None) -> None:
    """Refuse a mask that allows some branch nothing.

    Args:
        mask: `[N, sum of the branches' sizes]` bool.
        leaf: A discrete action leaf.
        over: `[N]` bool, the envs whose episodes have terminated: these need no legal action. None: no env.

    Raises:
        EmptyMaskError: Naming the first env and branch.
    """
    for i, allowed in enumerate(_by_branch(mask, leaf)):
        empty = ~allowed.any(-1) if over is None else ~(allowed.any(-1) | over)
        if empty.any():
            raise EmptyMaskError(int(empty.argmax()), leaf.branch_name(i))


def _by_branch(mask: np.ndarray, leaf: Leaf) -> list[np.ndarray]:
    return np.split(mask, np.cumsum(leaf.sizes)[:-1], axis=-1)
