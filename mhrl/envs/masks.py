"""Action masks: which values of each discrete action leaf are legal, as an env says it, one flat array a leaf.

Shapes: a leaf with branches of `n_1, ..., n_K` values has a mask of width `n_1 + ... + n_K`, branch after branch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from mhrl.envs.spaces import Key, Leaf, children, label, leaf_name

MASK = "action_mask"
"""The entry of an env's info, and the name and key of the mask of a leaf that is the whole action."""


def mask_key(leaf: Leaf) -> Key:
    """Return the key of the mask of a discrete action leaf: `action_mask`, or `("action_mask", name)`."""
    return MASK if leaf.key == "action" else (MASK, leaf.name)


class MaskReader:
    """Reads what an env says about its legal actions.

    It may say it as one array, where only one leaf is discrete; as mappings and sequences nested like the action space;
    or as a mapping by leaf name. An array is the leaf's whole mask of 0s and 1s; in its place a sequence, nested like
    the leaf's shape, may have an array for each branch, as gymnasium's masks of a MultiDiscrete do. A missing entry, or
    None, allows everything.

    Args:
        space: The env's own action space.
        actions: Its leaves.

    Raises:
        ValueError: If no leaf is discrete.

    Attributes:
        leaves: A leaf of bools for each discrete action leaf, in their order.
    """

    def __init__(self, space: Space[Any], actions: Sequence[Leaf]) -> None:
        self._space = space
        self._actions = {leaf.name: leaf for leaf in actions}
        self._sizes = {leaf.name: leaf.sizes for leaf in actions if leaf.discrete}
        if not self._sizes:
            raise ValueError(f"env.action_mask is set, but nothing in the action space is discrete: {space}")
        self._names = {name: MASK if self._actions[name].key == "action" else f"{MASK}_{name}" for name in self._sizes}
        # By key, for a key may be a leaf's name too, which means the same.
        nested = children(space) if isinstance(space, spaces.Dict) else []
        self._top = {key: (part, (word,)) for key, word, part in nested}
        self._widths = {name: sum(sizes) for name, sizes in self._sizes.items()}
        self.leaves = tuple(
            Leaf(self._names[name], mask_key(self._actions[name]), spaces.Box(0, 1, (width,), np.bool_))
            for name, width in self._widths.items()
        )

    def read(self, said: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        """Return the masks by name, bool arrays that are the caller's own.

        Raises:
            ValueError: Naming the leaf, if something else was said; an empty mask is none of our business here.
        """
        masks = {self._names[name]: np.ones(width, np.bool_) for name, width in self._widths.items()}
        for name, value in self._by_leaf(said):
            if value is None:
                continue
            if name not in self._sizes:
                raise ValueError(f"{MASK}.{name}: a leaf of {self._actions[name].space} has no mask, got {value!r}")
            masks[self._names[name]] = self._mask(name, value)
        return masks

    def _by_leaf(self, said: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
        """Yield each leaf's name and mask."""
        if isinstance(said, Mapping):
            for key, value in said.items():
                if key in self._top:
                    yield from self._nested(value, *self._top[key])
                elif key in self._actions:
                    yield key, value
                else:
                    raise self._misplaced(said, self._space, ())
        elif len(self._sizes) == 1 and (isinstance(said, np.ndarray) or not isinstance(self._space, spaces.Tuple)):
            yield next(iter(self._sizes)), said
        else:
            yield from self._nested(said, self._space, ())

    def _nested(self, said: Any, space: Space[Any], words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
        """Yield each leaf's name and mask of what is nested like `space`."""
        found: dict[Any, Any]
        match space:
            case spaces.Dict() | spaces.Tuple() if said is None:
                return
            case spaces.Dict() if isinstance(said, Mapping) and set(said) <= set(space.spaces):
                found = {key: said.get(key) for key in space.spaces}
            case spaces.Tuple() if isinstance(said, Sequence) and len(said) == len(space.spaces):
                found = dict(enumerate(said))
            case spaces.Dict() | spaces.Tuple():
                raise self._misplaced(said, space, words)
            case _:
                yield leaf_name("action", words), said
                return
        for key, word, part in children(space):
            yield from self._nested(found[key], part, (*words, word))

    def _misplaced(self, said: Any, space: Space[Any], words: tuple[str, ...]) -> ValueError:  # noqa: ANN401
        names = ", ".join(self._sizes)
        return ValueError(
            f"{label(MASK, words)}: expected masks by leaf name ({names}) or nested like {space}, got {said!r}"
        )

    def _mask(self, name: str, value: Any) -> np.ndarray:  # noqa: ANN401
        """Return one leaf's mask, `[width]` bool."""
        sizes, shape = self._sizes[name], self._actions[name].space.shape or ()
        branches = list(_branches(value, shape))
        widths = [branch.shape for branch in branches]
        if widths in ([(sum(sizes),)], [(size,) for size in sizes]):
            given = np.concatenate(branches)
            mask = given.astype(np.bool_)
            if (mask == given).all():
                return mask
        got = f"of shape {widths[0]}" if len(widths) == 1 else f"of shapes {widths}"
        raise ValueError(
            f"{MASK}.{name}: expected 0s and 1s of shape ({sum(sizes)},), or an array for each branch of shapes "
            f"{[(size,) for size in sizes]}, got {got}: {value!r}"
        )


def _branches(value: Any, shape: tuple[int, ...]) -> Iterator[np.ndarray]:  # noqa: ANN401
    """Yield the arrays of a sequence that is nested like `shape`, or the one array that `value` is."""
    is_array = isinstance(value, np.ndarray) and value.ndim < 2
    if is_array or not shape or not isinstance(value, (Sequence, np.ndarray)) or all(map(np.isscalar, value)):
        yield np.asarray(value)
        return
    for one in value:
        yield from _branches(one, shape[1:])
