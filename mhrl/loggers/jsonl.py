"""`metrics.jsonl`: one JSON object a line, always written, readable while the run goes on."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, final

from mhrl.files import written_whole
from mhrl.loggers.base import Logger, Outcome, Row, RunInfo


@final
class JsonlLogger(Logger):
    """Appends each row to `<run_dir>/metrics.jsonl`. NaN and infinities become null.

    A row that cannot be written (a full disk) is lost as a whole; later ones are written again once they can be.

    Args:
        keep_until: On resume, the checkpoint's `frames`: older rows stay and those past it are cut, so that each
            `frames` occurs once. Left out, whatever is in the file stays.
    """

    def __init__(self, keep_until: int | None = None) -> None:
        self._keep_until = keep_until
        self._path: Path | None = None
        self._file: FileIO | None = None

    def start(self, info: RunInfo) -> None:
        """Opens the file in `info.run_dir`."""
        self._path = info.run_dir / "metrics.jsonl"
        self._file = self._open(self._path)

    def log(self, row: Row) -> None:
        """Writes one line."""
        if self._path is None:
            raise RuntimeError("log() before start()")
        file = self._file = self._file or self._open(self._path)
        line = json.dumps({key: _finite(value) for key, value in row.items()}, allow_nan=False).encode() + b"\n"
        end = os.fstat(file.fileno()).st_size
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            with suppress(OSError):
                file.truncate(end)  # half a line would spoil the next one
            raise

    def finish(self, outcome: Outcome) -> None:
        """Syncs and closes the file."""
        file, self._file = self._file, None
        if file is not None:
            with file:
                os.fsync(file.fileno())

    def _open(self, path: Path) -> FileIO:
        if self._keep_until is not None and path.exists():
            cut_rows(path, self._keep_until)
        return FileIO(path, "a")


def cut_rows(path: Path, frames: int) -> None:
    """Rewrites a metrics file, in one step, without the rows past `frames` and without torn lines.

    Where `frames` goes back, as after a resume that cut nothing, the newer rows stay.
    """
    kept: list[tuple[int, bytes]] = []
    for row, line in _rows(path):
        while kept and kept[-1][0] >= row["frames"]:
            kept.pop()
        if row["frames"] <= frames:
            kept.append((row["frames"], line + b"\n"))
    with written_whole(path) as file:
        file.writelines(line for _, line in kept)


def best_evaluation(path: Path, until: int | None = None) -> tuple[float, int] | None:
    """The highest `eval/return_mean` of a metrics file and the `frames` of its first row; None without one.

    Args:
        path: The file; it need not exist.
        until: Reads no rows past these `frames`.
    """
    best = None
    for row, _ in _rows(path) if path.exists() else ():
        value = row.get("eval/return_mean")
        inside = until is None or row["frames"] <= until
        if inside and value is not None and (best is None or value > best[0]):
            best = (value, row["frames"])
    return best


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each row with its line; lines that are torn, as a kill or a power cut leaves them, are passed over."""
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("frames"), int):
                yield row, line


def _finite(value: float) -> int | float | None:
    return value if math.isfinite(value) else None
