"""SIGINT and SIGTERM as a wish to stop: the first is remembered, the second ends the process at once."""

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, final


@final
class StopSignals:
    """Listens while it is entered; outside the main thread, where Python allows no handlers, it hears nothing.

    Attributes:
        received: the first signal's number, or None.
        pass_on: called with it at once, for processes of one's own that have to hear it, too.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.pass_on: Callable[[int], None] = _nobody
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """The first signal's name; empty if none came."""
        return signal.Signals(self.received).name if self.received else ""

    def __enter__(self) -> Self:
        try:
            self._before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            self._before = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.pass_on(number)
        for each in self._before:  # the system's own reaction: it waits for nothing
            signal.signal(each, signal.SIG_DFL)
        name = signal.Signals(number).name
        text = f"\n{name}: a checkpoint is saved at the next rollout end, then the run stops; again: it ends at once\n"
        os.write(2, text.encode())  # straight to stderr: a logger may be what was interrupted


def _nobody(number: int) -> None:
    """There is nobody else to tell."""
