"""The log of `mhrl` and Python's warnings, for the time of one run."""

import io
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import final

from rich.console import Console
from rich.text import Text

from mhrl.loggers.base import RunInfo


@final
class LogCapture:
    """Sends the log of `mhrl` and Python's warnings to `train.log` and to the screen, until closed."""

    def __init__(self, info: RunInfo, screen: Console) -> None:
        self.file = _LogFile(info.run_dir / "train.log")
        to_file = logging.StreamHandler(self.file)
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        handlers = [to_file, _ScreenHandler(screen)]
        # A handler of the root that writes to the terminal would say everything twice, and through the progress bar.
        streams = [getattr(handler, "stream", None) for handler in logging.getLogger().handlers]
        twice = any(stream is not None and stream in (sys.stdout, sys.stderr) for stream in streams)
        self._undo = []
        for logger in (logging.getLogger("mhrl"), logging.getLogger("py.warnings")):
            self._undo.append((logger, handlers, logger.propagate, logger.level))
            for handler in handlers:
                logger.addHandler(handler)
            logger.propagate = logger.propagate and not twice
            logger.setLevel(logging.INFO)
        logging.captureWarnings(True)

    def close(self) -> None:
        logging.captureWarnings(False)
        for logger, handlers, propagate, level in self._undo:
            for handler in handlers:
                logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)
        self.file.close()


@final
class _LogFile(io.TextIOBase):
    """Appends text to a file, unbuffered. What cannot be written (a full disk) is lost, and said once.

    A buffer would keep what failed, and raise it again when it is closed or collected.
    """

    def __init__(self, path: Path) -> None:
        self._raw = io.FileIO(path, "a")
        self._failed = False

    def write(self, text: str) -> int:
        try:
            self._raw.write(text.encode("utf-8", "replace"))
        except OSError as error:
            if not self._failed:
                self._failed = True
                logging.getLogger("mhrl").warning("train.log lacks lines from here on: %s", error)
        return len(text)

    def close(self) -> None:
        with suppress(OSError):
            self._raw.close()


@final
class _ScreenHandler(logging.Handler):
    """Shows log messages above the progress bar, in short."""

    def __init__(self, screen: Console) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        style = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}.get(record.levelname, "dim")
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        with suppress(OSError, ValueError):
            first = record.getMessage().partition("\n")[0]  # a warning's second line is its source code
            self._screen.print(Text(prefix + first, style=style), soft_wrap=True)
