"""The action side: any nesting of Dict, Tuple, Box, Discrete, MultiDiscrete and MultiBinary as leaves, and back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from mhrl.envs.spaces import Leaf, children, label, leaf_name, leaves_of, storable

MAX_VALUES = 100_000
"""Values that a dimension of an integer Box may have: each becomes an output of a head."""


def action_leaves(space: Space[Any]) -> tuple[Leaf, ...]:
    """Return the leaves of an env's action space, sorted by path; the space of each is a Box.

    A float dtype means continuous; an integer one discrete, with a branch for each element (row-major), whose values
    are low, low + 1, ..., high:

    - `Discrete(n, start)`: start to start + n - 1, of shape `()`;
    - `MultiDiscrete(nvec, start)`: start to start + nvec - 1, of the shape of nvec;
    - `MultiBinary(n)`: 0 to 1, int8;
    - a Box of either kind: itself (a bool one as int8).

    uint16 and uint32 become the next wider signed type. A space that is a leaf itself is named and keyed `action`;
    the parts of Dicts and Tuples are named by their path, `arm_item_0`, and keyed `("action", name)`.

    Raises:
        ValueError: With the space printed, if a part is of another kind, has no elements, is of a dtype that torch has
            not, or shares its name with another; if a name has a dot; if a float Box is not bounded in some dimension
            or too narrow for float32 there, or an integer Box is not bounded or has more than `MAX_VALUES` values.
    """
    leaves = leaves_of(space, "action", (spaces.Dict, spaces.Tuple), _held)
    if dotted := [leaf.name for leaf in leaves if "." in leaf.name]:
        raise ValueError(f"action: a name with a dot cannot name a head: {', '.join(dotted)} in {space}")
    return leaves


def canonical_action_space(leaves: Sequence[Leaf]) -> Space[Any]:
    """Return the action space of a canonical env, whose values `join` makes.

    Nested under `action`, so that torchrl's `GymWrapper` writes no leaf over an observation of the same name.
    """
    if leaves[0].key == "action":
        return leaves[0].space
    return spaces.Dict({"action": spaces.Dict([(leaf.name, leaf.space) for leaf in leaves])})


def to_native(space: Space[Any]) -> Callable[[Any], Any]:
    """Return what turns a canonical action into one of `space`, the env's own.

    It has exactly the native types: an int for Discrete; arrays of the native dtype and shape, which are contiguous and
    the env's own; dicts in the order of the space; tuples. It raises ValueError for an array of another shape.
    """
    if not children(space):
        return _converter(space, "action")
    build = _builder(space, ())
    return lambda action: build(action["action"])


def conform(action: np.ndarray, space: spaces.Box) -> np.ndarray:
    """Return a copy of `action` that `space` contains: its dtype, inside its bounds.

    Args:
        action: Numbers in env units, `[*shape]` or `[N, *shape]`; for an integer Box, floats are rounded to the nearest
            integer. NaN passes through a float Box: check for it before.
        space: The Box of an action leaf.
    """
    if space.dtype.kind == "f":
        # Clip after the cast: float32(0.3) lies above the bound of a float64 Box that ends at 0.3.
        inside = np.array(action, dtype=space.dtype, order="C")
        return inside.clip(space.low, space.high, out=inside)
    whole = np.rint(action) if np.asarray(action).dtype.kind == "f" else action
    # Clip before the cast: what is too large for a narrow dtype would wrap round.
    return np.array(np.clip(whole, space.low, space.high), dtype=space.dtype, order="C")


def _builder(space: Space[Any], words: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Any]:
    """Return what builds the part of a native action at `words` from `{leaf name: array}`."""
    builders = {key: _builder(part, (*words, word)) for key, word, part in children(space)}
    match space:
        case spaces.Dict():
            ordered = {key: builders[key] for key in space.spaces}
            return lambda arrays: {key: build(arrays) for key, build in ordered.items()}
        case spaces.Tuple():
            return lambda arrays: tuple(build(arrays) for build in builders.values())
    name, convert = leaf_name("action", words), _converter(space, label("action", words))
    return lambda arrays: convert(arrays[name])


def _converter(space: Space[Any], here: str) -> Callable[[Any], Any]:
    """Return what turns the array of one leaf into the env's own type."""
    dtype, shape = space.dtype, space.shape

    def array(action: Any) -> np.ndarray:  # noqa: ANN401
        value = np.array(action, dtype=dtype, order="C")
        if value.shape == shape:
            return value
        if shape == () and value.shape == (1,):  # torchrl's `GymWrapper` has no shape ()
            return value.reshape(())
        raise ValueError(f"{here}: expected shape {shape}, got {value.shape}")

    return (lambda action: int(array(action))) if isinstance(space, spaces.Discrete) else array


def _held(here: str, part: Space[Any]) -> spaces.Box:
    dtype: Any = part.dtype
    match part:
        case spaces.Box() if part.dtype.kind == "f":
            _refuse_unbounded(here, part)
            _refuse_unresolvable(here, part)
            return storable(here, part)
        case spaces.Box() if part.dtype.kind == "b":
            values = spaces.Box(part.low.astype(np.int8), part.high.astype(np.int8), dtype=np.int8)
        case spaces.Box():
            values = part
        case spaces.Discrete():
            values = spaces.Box(int(part.start), int(part.start) + int(part.n) - 1, (), dtype)
        case spaces.MultiDiscrete():
            first = part.start.astype(np.int64)
            values = spaces.Box(first, first + part.nvec.astype(np.int64) - 1, dtype=dtype)
        case spaces.MultiBinary():
            values = spaces.Box(0, 1, part.shape, np.int8)
        case _:
            raise ValueError(
                f"{here}: only Box, Discrete, MultiDiscrete, MultiBinary, and Dicts and Tuples of them are supported "
                f"as action, got {part}"
            )
    _refuse_many_values(here, values, part)
    return storable(here, values)


def _refuse_many_values(here: str, space: spaces.Box, native: Space[Any]) -> None:
    bounded = (space.bounded_below & space.bounded_above).reshape(-1)
    ranges = zip(space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist(), strict=True)
    bad = [i for i, (low, high) in enumerate(ranges) if not 0 <= high - low < MAX_VALUES or not bounded[i]]
    if bad:
        raise ValueError(
            f"{here}: every discrete dimension needs bounds with low <= high and at most {MAX_VALUES} values, each an "
            f"output of a head, but {native} has {_dimensions(bad, space)}. Bound it in the env's factory, e.g. "
            "gymnasium.wrappers.TransformAction(env, lambda action: action, gymnasium.spaces.Box(low, high, shape=..., "
            "dtype=...)), or make it a float Box and round in the env"
        )


def _refuse_unbounded(here: str, space: spaces.Box) -> None:
    # Networks scale actions in float32, so a width that overflows there is unbounded too. One test covers infinities,
    # NaN, overflow and swapped bounds; a zero width is a constant and passes.
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        width = high.astype(np.float32) - low.astype(np.float32)
        bad = np.flatnonzero(~(np.isfinite(width) & (width >= 0)))
    if bad.size:
        raise ValueError(
            f"{here}: every dimension needs finite bounds with low <= high and a width that float32 holds, but {space} "
            f"has {_dimensions(bad, space)}. Bound it in the "
            "env's factory, e.g. gymnasium.wrappers.TransformAction(env, lambda action: action, "
            "gymnasium.spaces.Box(low, high, shape=..., dtype=...)) with bounds that suit the task."
        )


def _refuse_unresolvable(here: str, space: spaces.Box) -> None:
    # Networks act in float32: far from 0 its steps can be as wide as the box.
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    step = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32)).astype(np.float64)
    if (bad := np.flatnonzero((high > low) & (high - low < 100 * step))).size:
        raise ValueError(
            f"{here}: {space} is too narrow for float32 at its distance from 0, in {_dimensions(bad, space)}. Shift it "
            "in the env's factory, e.g. with gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)"
        )


def _dimensions(which: Iterable[int], space: spaces.Box) -> str:
    """Some dimensions of a Box with their bounds, in words."""
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    return ", ".join(f"dimension {i} [{low[i]}, {high[i]}]" for i in which)
