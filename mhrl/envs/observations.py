"""The observation side: a Box, a Discrete or a nested Dict of these as leaves, and values in their spaces' dtypes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from mhrl.envs.spaces import Leaf, children, leaves_of, storable


def observation_leaves(space: Space[Any]) -> tuple[Leaf, ...]:
    """Return the leaves of an env's observation space, sorted by path.

    A Box or Discrete is one leaf named and keyed `observation`; a (nested) Dict of these has one leaf a part, keyed
    `("observation", name)`. uint16 and uint32 become the next wider signed type, which torch can index.

    Raises:
        ValueError: If a part is neither Box nor Discrete, has no elements, is of a dtype that torch has not, or shares
            its name with another.
    """
    return leaves_of(space, "observation", (spaces.Dict,), _held)


def key_paths(space: Space[Any], keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where a value of `space` has each leaf: the keys themselves, in the order of `observation_leaves`."""
    if not isinstance(space, spaces.Dict):
        yield keys
        return
    for key, _, part in children(space):
        yield from key_paths(part, (*keys, key))


def at(observation: Any, keys: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """Return the part of an env's observation that lies at `keys`.

    Raises:
        ValueError: If the observation lacks it.
    """
    value = observation
    for depth, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            missing = ".".join(map(str, ("observation", *keys[: depth + 1])))
            raise ValueError(f"{missing}: the env's observation space has it, its observation lacks it: {observation}")
        value = value[key]
    return value


def own(leaf: Leaf, value: Any) -> np.ndarray:  # noqa: ANN401
    """Return a contiguous copy of `value` in exactly the dtype and shape of the leaf's space.

    Raises:
        ValueError: If it has another shape, or the cast would change its kind or its integers.
    """
    array = np.array(value, order="C")
    space: Any = leaf.space
    if array.dtype == space.dtype and array.shape == space.shape:
        return array
    if array.shape == space.shape and np.can_cast(array.dtype, space.dtype, "same_kind"):
        cast = array.astype(space.dtype)
        # "same_kind" lets a wide integer wrap round in a narrow one.
        if cast.dtype.kind == "f" or (cast == array).all():
            return cast
    got = f"{array.dtype} of shape {array.shape}: {value!r}"
    raise ValueError(f"{leaf.path}: expected {space.dtype} of shape {space.shape} ({space}), got {got}")


def _held(here: str, part: Space[Any]) -> Space[Any]:
    match part:
        case spaces.Box():
            return storable(here, part)
        case spaces.Discrete():
            return part
    raise ValueError(f"{here}: only Box, Discrete and Dicts of them are supported as observation, got {part}")
