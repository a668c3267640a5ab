"""What a benchmark says: its settings and machine before, its figures after, on the terminal and as JSON."""

import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from _bench_options import shown
from rich.console import Console
from rich.table import Column, Table

from mhrl.files import written_whole

PACKAGES = (
    *("mhrl", "torch", "numpy", "gymnasium", "mujoco", "tensordict", "torchrl"),
    *("stable-baselines3", "skrl", "tianshou", "torchjd"),
)

Row = dict[str, str | float | None]


@dataclass
class Result:
    """The figures of a command.

    Attributes:
        rows: of the table, all with the same columns; the first names the row. What is not finite is no figure: `-`
            on the terminal, null in the file.
        notes: printed below it.
    """

    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def begin(command: str, options: SimpleNamespace) -> None:
    """Bound torch's threads and print the settings; see that `out` can be written, and leave it as it is.

    Raises:
        SystemExit: if it cannot.
    """
    if options.out:
        _try_out(Path(options.out).resolve(), options.out)
    torch.set_num_threads(options.threads)
    console = _console()
    console.print(f"{command} {' '.join(shown(vars(options)))}", style="bold", highlight=False, markup=False)
    found = machine()
    console.print(f"{found['cpu']}, {found['cores']} cores, Python {found['python']}", highlight=False, markup=False)


def show(command: str, options: SimpleNamespace, result: Result) -> dict[str, Any]:
    """Print the table, write `out` whole or not at all, and return what it holds."""
    rows = [{name: _finite(value) for name, value in row.items()} for row in result.rows]
    first, *rest = rows[0]
    table = Table(Column(first, no_wrap=True), *(Column(name, justify="right") for name in rest))
    for row in rows:
        table.add_row(*map(_text, row.values()))
    console = _console()
    console.print(table)
    for note in result.notes:
        console.print(note, highlight=False, markup=False)
    kept = versions()
    console.print(
        ", ".join(f"{name} {number}" for name, number in kept.items()), style="dim", highlight=False, markup=False
    )
    whole: dict[str, Any] = {"command": command, "settings": vars(options), "machine": machine(), "versions": kept}
    whole |= {"rows": rows, "notes": result.notes}
    if options.out:
        with written_whole(Path(options.out).resolve()) as file:
            file.write((json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
    return whole


def spread(unit: str, values: Sequence[float]) -> Row:
    """Median, least and greatest of what the rounds measured."""
    return {unit: median(values), "min": min(values), "max": max(values)}


def machine() -> dict[str, Any]:
    """The processor, its cores, Python."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    return {"cpu": f"{cpu} ({capability})", "cores": os.cpu_count(), "python": platform.python_version()}


def versions() -> Mapping[str, str]:
    """Of what is installed of the packages that matter."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _try_out(path: Path, shown_as: str) -> None:
    """Refuse what is no file, or is in a folder where none can be made."""
    try:
        if path.exists() and not path.is_file():
            raise SystemExit(f"error: out={shown_as}: not a file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SystemExit(f"error: out={shown_as}: {error.strerror}") from None


def _finite(value: str | float | None) -> str | float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _console() -> Console:
    """The terminal; in a file lines are long enough for a table."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _text(value: str | float | None) -> str:
    """A cell: four significant digits, thousands whole."""
    if value is None:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
