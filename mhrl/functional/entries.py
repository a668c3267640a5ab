"""Tensors by key as one TensorDict.

Shapes: `*` any batch shape.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

_CPU = torch.device("cpu")


def tensordict_of(entries: Mapping[str | tuple[str, ...], Tensor], batch_size: Sequence[int]) -> TensorDict:
    """Entries `[*, ...]` by key, on the CPU, as a TensorDict of batch size `[*]` that shares their memory.

    Nothing is checked: the public constructor looks at every shape, which takes longer than to collect or to draw what
    is in it.
    """
    nested: dict[str, Any] = {}
    for key, entry in entries.items():
        if isinstance(key, str):
            nested[key] = entry
            continue
        node = nested
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = entry
    return TensorDict._new_unsafe(nested, batch_size=torch.Size(batch_size), device=_CPU)
