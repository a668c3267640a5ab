"""Records: the entries of a row that lie side by side, as numpy's structured arrays, and as a checkpoint has them.

Shapes: `T` time, `N` envs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict

from mhrl.functional import tensordict_of

Key: TypeAlias = str | tuple[str, ...]

Field: TypeAlias = tuple[tuple[str, ...], str, tuple[int, ...]]
"""One entry of a row: its key, its dtype in numpy's short notation, its shape."""


def saved_rows(records: Sequence[Mapping[str, Any]]) -> TensorDict:
    """The rows `[T, N]` of what `Ring.saved` returned, at least one record: views."""
    entries = {
        name: torch.from_numpy(column)
        for saved in records
        for name, column in columns_of(saved_fields(saved), saved_record(saved)).items()
    }
    return tensordict_of(entries, records[0]["bytes"].shape[:2])


def saved_fields(saved: Mapping[str, Any]) -> list[Field]:
    """The fields of one saved record."""
    return [(tuple(key), dtype, tuple(shape)) for key, dtype, shape in saved["fields"]]


def saved_record(saved: Mapping[str, Any]) -> np.ndarray:
    """The rows `[T, N]` of one saved record, as numpy's structured array."""
    return saved["bytes"].numpy().view(record_dtype(saved_fields(saved)))[..., 0]


def record_dtype(fields: Sequence[Field]) -> np.dtype:
    """Of a record: fields called by their numbers."""
    return np.dtype([(str(i), dtype, shape) for i, (_, dtype, shape) in enumerate(fields)], align=True)


def columns_of(fields: Sequence[Field], record: np.ndarray) -> dict[Key, np.ndarray]:
    """The fields of a record by key: views."""
    return {name if len(name) > 1 else name[0]: record[str(i)] for i, (name, _, _) in enumerate(fields)}
