"""The table of rows: columns that fit the console, a header now and then, numbers that fit their column."""

from collections.abc import Sequence
from typing import NamedTuple, final

from rich.console import Console
from rich.text import Text

from mhrl.loggers.base import Row, RunInfo

_HEADER_EVERY = 30


class _Column(NamedTuple):
    title: str
    key: str
    width: int


@final
class Sheet:
    """The table of rows on one console, laid out anew at each header for the width of that moment."""

    def __init__(self, console: Console, info: RunInfo) -> None:
        self.console = console
        self._left = [
            _Column("frames", "frames", max(6, len(f"{info.total_frames:,}"))),
            _Column("eval return", "eval/return_mean", 14),
            _Column("episode", "episode/return", 7),
        ]
        self._losses = [
            _Column(name, f"loss/{name}", min(max(7, len(name)), 12)) for name in (loss.name for loss in info.losses)
        ]
        # Where not all fit, one loss of each row comes before the many that share a row.
        rows = [loss.row for loss in info.losses]
        order = sorted(range(len(rows)), key=lambda i: rows.index(rows[i]) != i)
        self._by_interest = [self._losses[i] for i in order]
        self._right = [_Column("frames/s", "perf/frames_per_s", 8), _Column("ETA", "", 6)]
        self._columns: list[_Column] = []
        self._lines = 0
        self._width = 0

    def add(self, row: Row, eta: str) -> None:
        if self._lines % _HEADER_EVERY == 0 or self.console.width != self._width:
            self._header()
        self._lines += 1
        self._print([_cell(row, column) if column.key else eta for column in self._columns])

    def _header(self) -> None:
        self._lines, self._width = 0, self.console.width
        room = self._width + 1 - sum(column.width + 2 for column in self._left + self._right)
        shown: list[_Column] = []
        for column in self._by_interest:
            room -= column.width + 2
            if room < 0:
                break
            shown.append(column)
        self._columns = [*self._left, *(column for column in self._losses if column in shown), *self._right]
        while sum(column.width + 2 for column in self._columns) > self._width + 1 and len(self._columns) > 1:
            self._columns.pop()
        hidden = len(self._losses) - len(shown)
        self.console.print()
        if hidden:
            losses = "loss" if hidden == 1 else "losses"
            self.console.print(Text(f" +{hidden} more {losses} in metrics.jsonl", style="dim"))
        self._print([_cut(column.title, column.width) for column in self._columns], "bold")

    def _print(self, cells: Sequence[str], style: str = "") -> None:
        line = "".join(f"  {cell:>{c.width}}" for cell, c in zip(cells, self._columns, strict=True))
        self.console.print(Text(line[1:], style=style), soft_wrap=True)


def _cell(row: Row, column: _Column) -> str:
    value = row.get(column.key)
    if value is None:
        return "-"
    if column.key == "frames":
        return f"{value:,}"
    if column.key == "perf/frames_per_s":
        return _fit(column.width, f"{value:,.0f}", f"{value:.1e}")
    if column.key == "episode/return":
        return _fit(column.width, _number(value), f"{value:.0f}", f"{value:.1e}")
    if column.key == "eval/return_mean":
        std = row.get("eval/return_std")
        if std is None:
            return _number(value)
        short = f"{value:.0f} ± {std:.0f}" if abs(value) >= 100 else f"{value:.3g} ± {std:.2g}"
        return _fit(column.width, f"{_number(value)} ± {_number(std)}", short, f"{value:.1e}")
    return _fit(column.width, *(f"{value:{form}}" for form in (".4g", ".3g", ".2g", ".1e", ".0e")))


def _number(value: float) -> str:
    """One decimal, or four significant digits where that would hide a small number."""
    return f"{value:.1f}" if abs(value) >= 10 or value == 0 else f"{value:.4g}"


def _fit(width: int, *texts: str) -> str:
    """The first text that fits, else the last: a number is never cut, as it would read as another one."""
    return next((text for text in texts if len(text) <= width), texts[-1])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def duration(seconds: float) -> str:
    """`42s`, `3m07s`, `2h05m`, `3d04h`."""
    for big, small, unit in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if seconds >= big:
            return f"{int(seconds // big)}{unit[0]}{int(seconds % big // small):02d}{unit[1]}"
    return f"{max(0, int(seconds))}s"
