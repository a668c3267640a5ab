"""Rules as one operation of a traced graph: what they do with a Gram matrix may branch as it likes.

Shapes: `K` rows.
"""

import itertools
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor


class Weigher(Protocol):
    """What finds weights for a Gram matrix."""

    def weigh(self, gram: Tensor, names: Sequence[str] = ()) -> Tensor:
        """`[K, K]` and the rows' names to `[K]`."""


_count = itertools.count()
_numbers: WeakKeyDictionary[Weigher, int] = WeakKeyDictionary()
_weighers: WeakValueDictionary[int, Weigher] = WeakValueDictionary()


def weigh(weigher: Weigher, gram: Tensor, names: Sequence[str]) -> Tensor:
    """`weigher.weigh(gram, names)`: `[K]`; in a traced graph it is called anew in every run of the graph."""
    if weigher not in _numbers:  # not `id`, for in the next process a cached graph has to find its equal
        _numbers[weigher] = next(_count)
        _weighers[_numbers[weigher]] = weigher
    return torch.ops.mhrl.weigh.default(gram, _numbers[weigher], list(names))


def _weigh(gram: Tensor, weigher: int, names: Sequence[str]) -> Tensor:
    """The operation; a graph holds numbers and text only."""
    return _weighers[weigher].weigh(gram, names)


# Not `torch.library.custom_op`, which functorch's transforms refuse.
_library = torch.library.Library("mhrl", "DEF")
_library.define("weigh(Tensor gram, int weigher, str[] names) -> Tensor")
_library.impl("weigh", _weigh, "CompositeExplicitAutograd")
torch.library.register_fake("mhrl::weigh", lambda gram, weigher, names: gram.new_empty(len(gram)), lib=_library)
