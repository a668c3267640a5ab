"""The memory of a replay: a ring of rows, whose small entries lie side by side.

Shapes: `T` time, `N` envs, `B` batch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from mhrl.functional import tensordict_of
from mhrl.replay.records import Field, Key, columns_of, record_dtype, saved_fields, saved_record

PACKED_BYTES = 1024
"""Entries of a row of up to so many bytes are held together, in one record."""

Layout: TypeAlias = dict[Key, tuple[np.dtype, tuple[int, ...]]]
"""Dtype and shape `[N, ...]` of each entry."""


@final
class Ring:
    """Rows `[length, N]`, time first. The first ones written fix which entries there are, their dtypes and shapes.

    A draw waits for memory, not for arithmetic: a row that is one piece takes a few cache lines, one that is scattered
    over an array for each entry takes some for each. So small entries are the fields of one record, and a large one,
    such as an image, is a record of its own.

    Args:
        length: in time.
        num_envs: `N`.
        folder: where each record is a file; None: they are in memory.
    """

    def __init__(self, length: int, num_envs: int, folder: Path | None = None) -> None:
        self._shape, self._folder = (length, num_envs), folder
        self._records: list[tuple[list[Field], np.ndarray]] = []
        self._columns: dict[Key, np.ndarray] = {}  # views of the records: entries `[length, N, ...]`
        self._layout: Layout = {}
        self.row_bytes = 0  # of one transition, once there is one

    def write(self, at: int, rows: TensorDictBase) -> None:
        """Copy rows `[T, N]` to the places from `at` on, up to the end of the ring at most.

        Raises:
            ValueError: naming an entry that the first rows had not, or had with another dtype or shape; then nothing
                is written.
        """
        entries = {key: entry.numpy() for key, entry in rows.items(include_nested=True, leaves_only=True)}
        if not self._records:
            self._allocate(entries)
        if (layout := _layout(entries)) != self._layout:  # numpy would cast and broadcast in silence
            key = min((key for key in layout | self._layout if layout.get(key) != self._layout.get(key)), key=_shown)
            held, new = (_described(one.get(key)) for one in (self._layout, layout))
            raise ValueError(f"replay holds {_shown(key)} as {held}, the new rows have it as {new}")
        for key, column in self._columns.items():
            column[at : at + len(rows)] = entries[key]

    def take(self, places: Tensor) -> TensorDict:
        """Copies `[B]` of the rows at `places` `[B]`, counted row-major over time and env."""
        numbers = places.numpy()
        entries: dict[Key, Tensor] = {}
        for fields, record in self._records:
            drawn = record.take(numbers)
            entries |= {
                name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in columns_of(fields, drawn).items()
            }
        return tensordict_of(entries, places.shape)

    def at(self, time: int) -> TensorDict:
        """The rows `[N]` at one time: a view."""
        views = {key: torch.from_numpy(column[time]) for key, column in self._columns.items()}
        return tensordict_of(views, self._shape[1:])

    def saved(self, count: int) -> list[dict[str, Any]]:
        """The first `count` rows as plain values and tensors: a view, to be saved before the next `write`.

        A dict for each record: its `fields`, and its `bytes`, uint8 `[count, N, bytes of one]`; see `saved_rows`.
        """
        return [
            {
                "fields": [[list(name), dtype, list(shape)] for name, dtype, shape in fields],
                "bytes": torch.from_numpy(record[:count, :, None].view(np.uint8)),
            }
            for fields, record in self._records
        ]

    def restore(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Hold what `saved` returned as the first rows, and nothing else."""
        self._records, self._columns, self._layout, self.row_bytes = [], {}, {}, 0
        for saved in records:
            self._add(saved_fields(saved))
            _, record = self._records[-1]
            record[: len(saved["bytes"])] = saved_record(saved)

    def _allocate(self, entries: Mapping[Key, np.ndarray]) -> None:
        """Make the records in which rows `[T, N]` like these fit."""
        small: list[Field] = []
        large: list[list[Field]] = []
        for key, values in entries.items():
            field: Field = ((key,) if isinstance(key, str) else key, values.dtype.str, values.shape[2:])
            if values[0, 0].nbytes > PACKED_BYTES:
                large.append([field])
            else:
                small.append(field)
        small.sort(key=lambda field: (-np.dtype(field[1]).itemsize, field))  # no gaps between fields
        for fields in ([small] if small else []) + large:
            self._add(fields)

    def _add(self, fields: list[Field]) -> None:
        """Make one record; what lies between its fields is 0."""
        dtype = record_dtype(fields)
        if self._folder is None:
            record = np.zeros(self._shape, dtype)
        else:
            file = self._folder / f"{len(self._records)}.rows"
            record = np.asarray(np.memmap(file, dtype, "w+", shape=self._shape))
        self._records.append((fields, record))
        self._columns |= columns_of(fields, record)
        self._layout = _layout(self._columns)
        self.row_bytes += dtype.itemsize


def _layout(columns: Mapping[Key, np.ndarray]) -> Layout:
    """That of entries `[T, N, ...]`."""
    return {key: (column.dtype, column.shape[1:]) for key, column in columns.items()}


def _described(entry: tuple[np.dtype, tuple[int, ...]] | None) -> str | None:
    return None if entry is None else f"{entry[0]} {list(entry[1])}"


def _shown(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)
