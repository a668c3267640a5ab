"""`metrics.jsonl`: one JSON object a line, always written, readable while the run goes on."""

import json
import math
import os
from pathlib import Path
from typing import TextIO, final

from mhrl.loggers.base import Logger, Outcome, Row, RunInfo


@final
class JsonlLogger(Logger):
    """Appends each row to `<run_dir>/metrics.jsonl` and flushes it. NaN and infinities become null.

    Args:
        keep_until: On resume, the checkpoint's `frames`: older rows stay and those past it are cut, so that each
            `frames` occurs once. Left out, whatever is in the file stays.
    """

    def __init__(self, keep_until: int | None = None) -> None:
        self._keep_until = keep_until
        self._file: TextIO | None = None

    def start(self, info: RunInfo) -> None:
        """Opens the file in `info.run_dir`."""
        path = info.run_dir / "metrics.jsonl"
        if self._keep_until is not None and path.exists():
            cut_rows(path, self._keep_until)
        self._file = path.open("a", encoding="utf-8")

    def log(self, row: Row) -> None:
        """Writes one line."""
        if self._file is None:
            raise RuntimeError("log() before start()")
        self._file.write(json.dumps({key: _plain(value) for key, value in row.items()}, allow_nan=False) + "\n")
        self._file.flush()

    def finish(self, outcome: Outcome) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def cut_rows(path: Path, frames: int) -> None:
    """Removes the rows of a metrics file that lie past `frames`, and a last line that a kill left half written."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            keep = json.loads(line)["frames"] <= frames
        except ValueError:
            keep = False
        if keep:
            kept.append(line + "\n")
    partial = path.with_name(path.name + ".tmp")
    partial.write_text("".join(kept), encoding="utf-8")
    os.replace(partial, path)


def _plain(value: float) -> int | float | None:
    if isinstance(value, int):
        return value
    number = float(value)  # numpy's and torch's scalars too
    return number if math.isfinite(number) else None
