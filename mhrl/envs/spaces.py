"""Spaces as flat tuples of named leaves.

Everything downstream (storage, heads, metrics) names a part of an observation or action by its `Leaf`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
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

    @cached_property
    def box(self) -> spaces.Box:
        """The space, where it is known to be a Box, as that of an action leaf is.

        Raises:
            TypeError: If it is another space.
        """
        if not isinstance(self.space, spaces.Box):
            raise TypeError(f"{self.name}: a Box is expected, got {self.space}")
        return self.space

    @cached_property
    def discrete(self) -> bool:
        """Whether its dtype is an integer one: then each element of an action leaf is a branch of its own."""
        return np.dtype(self.space.dtype).kind in "iu"

    @property
    def size(self) -> int:
        """Number of elements; 1 for shape `()`."""
        return prod(self.space.shape or ())

    def branch_name(self, element: int) -> str:
        """What the branch of an element (row-major) of an action leaf is called, if nobody says otherwise."""
        return f"{self.name}_{element}" if self.space.shape else self.name

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each branch of a discrete leaf, row-major: `low` to `high`, both included."""
        low, high = self.box.low.reshape(-1), self.box.high.reshape(-1)
        return tuple(int(last) - int(first) + 1 for first, last in zip(low, high, strict=True))


@dataclass(frozen=True)
class EnvSpaces:
    """The leaves of one env.

    Attributes:
        observations: What the trunk reads, sorted by path.
        masks: One for each discrete action leaf, in the order of `actions`, if the env says which actions are legal;
            else none.
        actions: Sorted by path.
    """

    observations: tuple[Leaf, ...]
    masks: tuple[Leaf, ...]
    actions: tuple[Leaf, ...]

    @property
    def seen(self) -> tuple[Leaf, ...]:
        """What an observation of the canonical env consists of: `observations`, then `masks`."""
        return self.observations + self.masks


def children(space: Space[Any]) -> list[tuple[Any, str, Space[Any]]]:
    """Return `(key, word, subspace)` for the parts of a Dict, sorted by word, or of a Tuple, in order; else nothing.

    `word` is the key as it enters a leaf's name; the position `i` of a Tuple becomes `item_<i>`.
    """
    if isinstance(space, spaces.Dict):
        parts: list[tuple[Any, str, Space[Any]]] = [(key, str(key), part) for key, part in space.spaces.items()]
        return sorted(parts, key=lambda part: part[1])
    if isinstance(space, spaces.Tuple):
        return [(i, f"item_{i}", part) for i, part in enumerate(space.spaces)]
    return []


def label(root: str, words: Sequence[str]) -> str:
    """A path as one word, for messages: `action.arm.item_0`."""
    return ".".join((root, *words))


def leaf_name(root: str, words: Sequence[str]) -> str:
    """The path joined by `_`; where the space itself is the leaf, `root`."""
    return "_".join(words) or root


def parts(
    space: Space[Any], root: str, containers: tuple[type[Space[Any]], ...], words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Space[Any]]]:
    """Yield `(path, subspace)` for each part of a nested space that is no container itself, sorted by path.

    Raises:
        ValueError: If a container is empty.
    """
    if not isinstance(space, containers):
        yield words, space
        return
    if not children(space):
        raise ValueError(f"{label(root, words)}: the {type(space).__name__} space is empty: {space}")
    for _, word, part in children(space):
        yield from parts(part, root, containers, (*words, word))


def leaves_of(
    space: Space[Any],
    root: str,
    containers: tuple[type[Space[Any]], ...],
    held: Callable[[str, Space[Any]], Space[Any]],
) -> tuple[Leaf, ...]:
    """Return the leaves of a space, sorted by path, so that nothing depends on the order of a Dict's keys.

    Args:
        space: Of an observation or an action.
        root: `observation` or `action`: the key and name where the space itself is the leaf, else the key's first part.
        containers: The kinds of space that have parts.
        held: Called with a part's label and the part; returns the space in which its values are held, or raises.

    Raises:
        ValueError: If a container is empty, a part has no elements, or two parts share a name.
    """
    leaves: dict[str, Leaf] = {}
    labels: dict[str, str] = {}
    for words, part in parts(space, root, containers):
        here, name = label(root, words), leaf_name(root, words)
        _refuse_zero_size(here, part)
        if name in leaves:
            raise ValueError(f"{here}: {labels[name]} is named {name!r} too; rename one of them: {space}")
        leaves[name], labels[name] = Leaf(name, (root, name) if words else root, held(here, part)), here
    return tuple(leaves.values())


def storable(here: str, space: spaces.Box) -> spaces.Box:
    """Return `space` in a dtype that torch can index: uint16 and uint32 become the next wider signed type.

    Raises:
        ValueError: If there is none.
    """
    if space.dtype.name in _HELD:
        return space
    if space.dtype.name not in _WIDER:
        raise ValueError(f"{here}: dtype {space.dtype} is not supported in {space}")
    wider: Any = _WIDER[space.dtype.name]
    return spaces.Box(space.low.astype(wider), space.high.astype(wider), dtype=wider)


def split(observation: Any, leaves: Sequence[Leaf]) -> list[np.ndarray]:  # noqa: ANN401
    """Return the arrays of a canonical env's observation, or of a batch of them, in the order of its leaves."""
    if len(leaves) == 1 and leaves[0].key == "observation":
        return [observation]
    return [observation[leaf.name] for leaf in leaves]


def join(arrays: Sequence[np.ndarray], leaves: Sequence[Leaf]) -> Any:  # noqa: ANN401
    """Return arrays in the order of the action leaves, or batches of them, as the action of a canonical env.

    That is the array itself where the space itself is the leaf, else `{"action": {name: array}}`.
    """
    if leaves[0].key == "action":
        return arrays[0]
    return {"action": {leaf.name: array for leaf, array in zip(leaves, arrays, strict=True)}}


def next_key(key: Key) -> Key:
    """Return the key of what comes after an observation leaf, in a row or a batch."""
    return ("next", key) if isinstance(key, str) else ("next", *key)


def _refuse_zero_size(here: str, space: Space[Any]) -> None:
    if 0 in (space.shape or ()):
        raise ValueError(f"{here}: the space has no elements (a zero in its shape): {space}")
