"""The terminal and `train.log`: what the run is, a line per row, and how it ended."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import final

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mhrl.loggers._capture import LogCapture
from mhrl.loggers._sheet import Sheet, duration
from mhrl.loggers.base import Logger, Outcome, Row, RunInfo

_FILE_WIDTH = 120
_CLOSED = (OSError, ValueError)  # what writing to a terminal that has gone raises
_PLAIN = {"markup": False, "emoji": False, "highlight": False}


@final
class ConsoleLogger(Logger):
    """Says a run on the terminal, and the same as plain text in `<run_dir>/train.log`.

    On a terminal a progress bar stays below the rows; piped, there are only clean lines. From `start` to `finish`
    the log of `mhrl` and Python's warnings go to both too (tracebacks to the file only), so log an exception
    before `finish`. A terminal that goes away is no reason to stop: the file goes on.
    """

    def __init__(self) -> None:
        self._screen = _Screen()
        self._progress: Progress | None = None
        self._log_capture: LogCapture | None = None
        self._frames_per_s = 0.0
        self._updating = False  # whether the rows' speed is that of frames with updates, as most are

    def start(self, info: RunInfo) -> None:
        """Shows the first block."""
        self._info = info
        self._log_capture = LogCapture(info, self._screen)
        file = Console(file=self._log_capture.file, width=_FILE_WIDTH, color_system=None, **_PLAIN)  # type: ignore[arg-type]
        self._in_file, self._on_screen = Sheet(file, info), Sheet(self._screen, info)
        for part in _first_block(info):
            self._say(part)
        if self._screen.is_interactive and self._screen.file.isatty():
            self._progress = Progress(
                TextColumn("{task.fields[frames]}", style="dim"),
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>3.0f} %", style="dim"),
                TimeElapsedColumn(),
                console=self._screen,
                transient=True,
                expand=True,
                refresh_per_second=2,
            )
            frames = self._counted(info.frames) if info.frames else "starting"
            self._task = self._progress.add_task("", total=info.total_frames, completed=info.frames, frames=frames)
            self._progress.start()

    def log(self, row: Row) -> None:
        """Adds a line to the table; columns that the row lacks show `-`.

        So does the ETA until a row whose speed is one with updates from first to last: warm-up is much faster.
        """
        if self._updating:
            self._frames_per_s = float(row.get("perf/frames_per_s", self._frames_per_s))
        self._updating = self._updating or ("perf/frames_per_s" in row and row["updates"] > 0)
        left = self._info.total_frames - row["frames"]
        eta = duration(left / self._frames_per_s) if self._frames_per_s > 0 else "-"
        with suppress(*_CLOSED):
            self._on_screen.add(row, eta)
        self._in_file.add(row, eta)
        if self._progress is not None:
            self._progress.update(self._task, completed=row["frames"], frames=self._counted(row["frames"]))

    def finish(self, outcome: Outcome) -> None:
        """Shows the last block and lets the log and the terminal go."""
        if self._progress is not None:
            with suppress(*_CLOSED):
                self._progress.stop()
            self._progress = None
        if self._log_capture is not None:
            for part in _last_block(outcome):
                self._say(part)
            self._log_capture.close()
            self._log_capture = None

    def _counted(self, frames: float) -> str:
        return f"{frames:,} / {self._info.total_frames:,} frames"

    def _say(self, part: RenderableType) -> None:
        soft_wrap = isinstance(part, Text)  # commands and paths stay in one piece
        with suppress(*_CLOSED):
            self._screen.print(part, soft_wrap=soft_wrap)
        self._in_file.console.print(part, soft_wrap=soft_wrap)


class _Screen(Console):
    """A stdout that may close, be narrow, or lack the characters."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        super().__init__(**_PLAIN)  # type: ignore[arg-type]

    def on_broken_pipe(self) -> None:
        with suppress(SystemExit):  # rich would end the program, as if the run were only its output
            super().on_broken_pipe()


def _first_block(info: RunInfo) -> list[RenderableType]:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, value in {
        "env": info.env,
        "frames": f"{info.total_frames:,}",
        "seed": str(info.seed),
        "device": info.device,
        "aggregator": info.aggregator,
        "W&B": info.wandb,
        "run": _short(info.run_dir),
    }.items():
        if value:
            facts.add_row(f"  {name}", value)
    heads = _table("head", "kind", "covers", "reads", "lr >")
    for head in info.heads:
        heads.add_row(head.name, head.kind, head.covers, head.reads, f"{head.lr:g}")
    losses = _table("loss", "trains", "weight >", "trunk factor >", "row")
    for loss in info.losses:
        factor = "-" if loss.trunk_factor is None else f"{loss.trunk_factor:g}"
        weight = f"{loss.weight:g} x {loss.rule}" if loss.rule else f"{loss.weight:g}"
        losses.add_row(loss.name, _few(loss.trains), weight, factor, loss.row)
    title = Text.assemble((f"mhrl {info.version}", "bold"), f"  {info.experiment}")
    resumed = [] if info.resumed is None else [Text(f"resumed from {info.resumed} at {info.frames:,} frames")]
    notes = [Text(f"  note: {note}", style="yellow") for note in info.notes]
    tables = [Padding(table, (1, 0, 0, 1), expand=False) for table in (heads, losses) if table.row_count]
    return [title, *resumed, facts, *tables, *([Text()] if notes else []), *notes]


def _last_block(outcome: Outcome) -> list[RenderableType]:
    style = {"finished": "bold green", "interrupted": "bold yellow"}.get(outcome.status, "bold red")
    counts = f" in {duration(outcome.seconds)}: {outcome.frames:,} frames, {outcome.updates:,} updates"
    parts: list[RenderableType] = [Text(), Text.assemble((outcome.status, style), counts)]
    if outcome.best_return is not None:
        where = "" if outcome.best_frames is None else f" at {outcome.best_frames:,} frames"
        parts.append(Text.assemble("best eval return ", (f"{outcome.best_return:.6g}", "bold"), where))
    if outcome.next_commands:
        parts += [Text("next"), *(Text(f"  {command}", style="cyan") for command in outcome.next_commands)]
    return parts


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1))
    for title in titles:
        table.add_column(title.removesuffix(" >"), justify="right" if title.endswith(" >") else "left", overflow="fold")
    return table


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _few(names: Sequence[str], limit: int = 4) -> str:
    more = f", +{len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
