"""Timers around methods, each method's time without that of the timed methods that it calls."""

import time
from collections.abc import Callable, Iterator
from typing import Any


class Timers:
    """CPU seconds of the process by name.

    Attributes:
        seconds: in each, without what other timers inside it took.
        calls: how often a timer was read out.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls = 0
        self._inside = [0.0]  # seconds that timers took, by depth of nesting

    def clear(self) -> None:
        """Begin again."""
        self.seconds, self.calls = dict.fromkeys(self.seconds, 0.0), 0

    def wrap(self, owner: Any, method: str, name: str) -> None:  # noqa: ANN401
        """Time calls of a method of one object."""
        setattr(owner, method, self.timed(getattr(owner, method), name))

    def wrap_iterator(self, owner: Any, method: str, name: str) -> None:  # noqa: ANN401
        """Time the steps of the iterators that a method returns."""
        make = getattr(owner, method)
        self.seconds[name] = 0.0

        def iterate(*arguments: Any) -> Iterator[Any]:  # noqa: ANN401
            step = self.timed(make(*arguments).__next__, name)
            while True:
                try:
                    value = step()
                except StopIteration:
                    return
                yield value

        setattr(owner, method, iterate)

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`call`, timed."""
        self.seconds.setdefault(name, 0.0)
        inside, clock = self._inside, time.process_time

        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            inside.append(0.0)
            start = clock()
            try:
                return call(*arguments, **named)
            finally:
                took = clock() - start
                self.seconds[name] += took - inside.pop()
                inside[-1] += took
                self.calls += 1

        return timed


def cost(times: int = 20_000) -> float:
    """Seconds that one timed call takes more than a bare one."""
    timers = Timers()
    timed = timers.timed(_nothing, "")
    laps = []
    for call in (_nothing, timed):
        start = time.process_time()
        for _ in range(times):
            call()
        laps.append(time.process_time() - start)
    return (laps[1] - laps[0]) / times


def _nothing() -> None:
    pass
