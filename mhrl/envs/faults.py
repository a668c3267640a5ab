"""Faults of envs: whatever an env raises, or how long it is silent, becomes an `EnvError` with the env's index."""

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, final

CLOSE_TIMEOUT = 5.0
"""Seconds that an env has to close."""


@final
class EnvError(ValueError):
    """An env raised, fell silent or died.

    Attributes:
        index: which env of the vector env.
    """

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(index, problem)
        self.index, self.problem = index, problem

    def __str__(self) -> str:
        return f"env {self.index}: {self.problem}"


class _Overdue(BaseException):
    """Raised inside an env that is silent; no `Exception`, so that an env which retries does not swallow it."""


class _Watchdog:
    """A thread that wakes the main thread, by SIGALRM, out of an env call that is overdue.

    One thread for the process, because an alarm per call would cost two system calls each, and would take the process's
    only timer from whoever else uses it.

    Attributes:
        deadline: when the env call under way is overdue, on `time.perf_counter`; infinite when there is none.
    """

    def __init__(self) -> None:
        self.deadline = float("inf")
        self._users = 0
        self._period = 1.0
        self._previous: Any = None
        self._stop = threading.Event()

    def start(self, timeout: float) -> Callable[[], None]:
        """Watch from now on, for one more user, until the returned function is called.

        Where it is impossible (in another thread than the main one, without POSIX signals) nothing is watched.
        """
        here = threading.current_thread() is threading.main_thread() and hasattr(signal, "pthread_kill")
        if not here or timeout == float("inf"):
            return lambda: None
        self._users += 1
        self._period = min(self._period, timeout / 4)
        if self._users == 1:
            self._previous = signal.signal(signal.SIGALRM, self._wake)
            self._stop = threading.Event()
            threading.Thread(target=self._watch, args=(self._stop,), name="env-watchdog", daemon=True).start()
        return self._end

    def _end(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._stop.set()
            self._period = 1.0
            with contextlib.suppress(ValueError):  # from another thread: the handler stays, and passes alarms on
                if signal.getsignal(signal.SIGALRM) == self._wake:
                    signal.signal(signal.SIGALRM, self._previous)

    def _watch(self, stop: threading.Event) -> None:
        main = threading.main_thread().ident
        while not stop.wait(self._period):
            if main is not None and time.perf_counter() >= self.deadline:
                signal.pthread_kill(main, signal.SIGALRM)

    def _wake(self, number: int, frame: FrameType | None) -> None:
        if time.perf_counter() >= self.deadline:
            raise _Overdue
        if callable(self._previous):
            self._previous(number, frame)


WATCHDOG = _Watchdog()


@final
class Guard:
    """A context for calls into one env: an error in it, `SystemExit` too, becomes an `EnvError`.

    With a timeout, and while `WATCHDOG` runs, a call that takes longer is interrupted. That works in the main thread,
    and for Python code and system calls; a call that hangs inside a C library cannot be interrupted from within its
    process, only an env in a worker process can.

    Args:
        index: which env of the vector env.
        timeout: seconds that a call may take; infinite for no limit.
    """

    def __init__(self, index: int, timeout: float = float("inf")) -> None:
        self.index, self.timeout = index, timeout

    def __enter__(self) -> None:
        WATCHDOG.deadline = time.perf_counter() + self.timeout

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        WATCHDOG.deadline = float("inf")
        if error is None or isinstance(error, (KeyboardInterrupt, EnvError)):
            return
        frames = [frame for frame in traceback.extract_tb(trace) if frame.filename != __file__]
        where = f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}"
        if isinstance(error, _Overdue):
            raise EnvError(self.index, f"no answer within {self.timeout:g} s, interrupted in {where}") from None
        raise EnvError(self.index, f"{type(error).__name__}: {error} ({where})") from error
