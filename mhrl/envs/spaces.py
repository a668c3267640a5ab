"""Spaces as flat tuples of named leaves, and actions that are inside their space.

Everything downstream (storage, heads, metrics) names a part of an observation or action by its `Leaf`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces

Key: TypeAlias = str | tuple[str, ...]

_HELD = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_WIDER = {"uint16": np.int32, "uint32": np.int64}


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action.

    Attributes:
        name: What users call it; for a nested space its key path joined by `_`.
        key: Where it lives in a TensorDict.
        space: Its own space (shape, dtype, bounds).
    """

    name: str
    key: Key
    space: Space[Any]

    @property
    def path(self) -> str:
        """The key as one word, for messages: `observation.img`."""
        return self.key if isinstance(self.key, str) else ".".join(self.key)

    @property
    def box(self) -> spaces.Box:
        """The space, where it is known to be a Box.

        Raises:
            TypeError: If it is another space.
        """
        if not isinstance(self.space, spaces.Box):
            raise TypeError(f"{self.name}: a Box is expected, got {self.space}")
        return self.space


def leaf_paths(space: Space[Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Space[Any]]]:
    """Yield `(key path, subspace)` for every part of a nested Dict that is no Dict itself, in the Dict's own order.

    Raises:
        ValueError: If a Dict is empty.
    """
    if not isinstance(space, spaces.Dict):
        yield path, space
        return
    if not space.spaces:
        raise ValueError(f"{_label('observation', path)}: the Dict space is empty: {space}")
    for key, subspace in space.spaces.items():
        yield from leaf_paths(subspace, (*path, key))


def observation_leaves(space: Space[Any]) -> tuple[Leaf, ...]:
    """Return the leaves of an observation space.

    A Box or Discrete is one leaf named and keyed `observation`; a (nested) Dict of these has one leaf a part, keyed
    `("observation", name)`. uint16 and uint32 become the next wider signed type, which torch can index. A canonical
    env's space has the same leaves as the space of the env it wraps.

    Raises:
        ValueError: If a part is neither Box nor Discrete, has no elements, is of a dtype that torch has not, or shares
            its name with another.
    """
    leaves: dict[str, Leaf] = {}
    for path, part in leaf_paths(space):
        label = _label("observation", path)
        if not isinstance(part, (spaces.Box, spaces.Discrete)):
            raise ValueError(f"{label}: only Box, Discrete and Dicts of them are supported as observation, got {part}")
        _refuse_zero_size(label, part)
        name = "_".join(map(str, path)) or "observation"
        if name in leaves:
            raise ValueError(f"{label}: another part of the observation is named {name!r} too; rename one: {space}")
        leaves[name] = Leaf(name, ("observation", name) if path else "observation", _storable(label, part))
    return tuple(leaves.values())


def split(observation: Any, leaves: Sequence[Leaf]) -> list[np.ndarray]:  # noqa: ANN401
    """Return the arrays of a canonical env's observation, or of a batch of them, in the order of its leaves."""
    return [observation if leaf.key == "observation" else observation[leaf.name] for leaf in leaves]


def action_leaves(space: Space[Any]) -> tuple[Leaf, ...]:
    """Return the leaves of an action space: today a float Box, named and keyed `action`.

    Raises:
        ValueError: If the space is not a float Box, has no elements, or is not bounded in some dimension; the message
            gives the row-major index of each such dimension.
    """
    if not isinstance(space, spaces.Box):
        raise ValueError(f"action: only Box actions are supported by this version, got {space}")
    if space.dtype.kind != "f":
        raise ValueError(f"action: only Box actions of a float dtype are supported by this version, got {space}")
    _refuse_zero_size("action", space)
    _refuse_unbounded(space)
    _refuse_unresolvable(space)
    return (Leaf("action", "action", space),)


def conform(action: np.ndarray, space: spaces.Box) -> np.ndarray:
    """Return a copy of `action` that `space` contains: its dtype, inside its bounds.

    Args:
        action: Floats in env units, `[*shape]` or `[N, *shape]`. NaN passes through: check for it before.
        space: A Box of float dtype.
    """
    # Clip after the cast: float32(0.3) lies above the bound of a float64 Box that ends at 0.3.
    inside = np.array(action, dtype=space.dtype, order="C")
    np.maximum(inside, space.low, out=inside)
    np.minimum(inside, space.high, out=inside)
    return inside


def _storable(label: str, space: Space[Any]) -> Space[Any]:
    # torch indexes no unsigned integers but bytes: the next wider signed type holds the same numbers.
    if not isinstance(space, spaces.Box) or space.dtype.name in _HELD:
        return space
    if space.dtype.name not in _WIDER:
        raise ValueError(f"{label}: dtype {space.dtype} is not supported in {space}")
    wider = _WIDER[space.dtype.name]
    return spaces.Box(space.low.astype(wider), space.high.astype(wider), dtype=wider)


def _refuse_zero_size(label: str, space: Space[Any]) -> None:
    if 0 in (space.shape or ()):
        raise ValueError(f"{label}: the space has no elements (a zero in its shape): {space}")


def _refuse_unbounded(space: spaces.Box) -> None:
    # Networks scale actions in float32, so a width that overflows there is unbounded too. One test covers infinities,
    # NaN, overflow and swapped bounds; a zero width is a constant and passes.
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        width = high.astype(np.float32) - low.astype(np.float32)
        bad = np.flatnonzero(~(np.isfinite(width) & (width >= 0)))
    if bad.size:
        dims = ", ".join(f"dimension {i} [{low[i]}, {high[i]}]" for i in bad)
        raise ValueError(
            f"action: every dimension needs finite bounds with low <= high, but {space} has {dims}. Bound it in the "
            "env's factory, e.g. gymnasium.wrappers.TransformAction(env, lambda action: action, "
            "gymnasium.spaces.Box(low, high, shape=..., dtype=...)) with bounds that suit the task."
        )


def _refuse_unresolvable(space: spaces.Box) -> None:
    # Networks act in float32: far from 0 its steps can be as wide as the box.
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    step = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32)).astype(np.float64)
    if (bad := np.flatnonzero((high > low) & (high - low < 100 * step))).size:
        dims = ", ".join(f"dimension {i} [{low[i]}, {high[i]}]" for i in bad)
        raise ValueError(
            f"action: {space} is too narrow for float32 at its distance from 0, in {dims}. Shift it in the env's "
            "factory, e.g. with gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)"
        )


def _label(root: str, path: tuple[Any, ...]) -> str:
    return ".".join([root, *map(str, path)])
