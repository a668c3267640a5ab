"""The log of `mhrl` and Python's warnings, for the time of one run."""

import logging
import sys
from contextlib import suppress
from typing import final

from rich.console import Console
from rich.text import Text

from mhrl.loggers.base import RunInfo


@final
class LogCapture:
    """Sends the log of `mhrl` and Python's warnings to `train.log` and to the screen, until closed."""

    def __init__(self, info: RunInfo, screen: Console) -> None:
        self.file = logging.FileHandler(info.run_dir / "train.log", encoding="utf-8")
        self.file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        handlers = [self.file, _ScreenHandler(screen)]
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
