"""How time is taken: what is compared takes turns in short rounds, so that the machine's mood hits all alike."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from types import SimpleNamespace

Clock = Callable[[], float]


def clock_of(threads: int) -> Clock:
    """CPU time of the process, which other work on the machine hardly changes; wall-clock time for several threads."""
    return time.process_time if threads == 1 else time.perf_counter


def name_of(threads: int) -> str:
    """What `clock_of` measures."""
    return "CPU" if threads == 1 else "wall-clock"


def take_turns(
    actions: Mapping[str, Callable[[], object]], rounds: int, each: int, clock: Clock
) -> dict[str, list[float]]:
    """Milliseconds of one of the `each` things that an action does, for each round, by action.

    Args:
        actions: by name; each call is a whole turn.
        rounds: turns of each, A B A B.
        each: what the milliseconds of a turn are divided by.
        clock: see `clock_of`.
    """
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            start = clock()
            action()
            found[name].append((clock() - start) / each * 1e3)
    return found


def repeated(update: Callable[[], object], times: int) -> Callable[[], None]:
    """An action of `times` updates."""

    def repeat() -> None:
        for _ in range(times):
            update()

    return repeat


def compared(
    updates: Mapping[str, Callable[[], object]], warm_up: int, options: SimpleNamespace
) -> dict[str, list[float]]:
    """`take_turns` of `options.updates` updates each, after `warm_up` of them: the first ones allocate, or compile."""
    for update in updates.values():
        repeated(update, warm_up)()
    turns = {name: repeated(update, options.updates) for name, update in updates.items()}
    return take_turns(turns, options.rounds, options.updates, clock_of(options.threads))


def in_turns(rounds: int, each: int | str, things: str) -> str:
    """How the figures of `take_turns` are to be read."""
    return f"Medians of {rounds} rounds of {each} {things} each in turn; a ratio is the median of the rounds' ratios."


def ratio(of: list[float], over: list[float]) -> float:
    """The median of the ratios round by round."""
    return median(a / b for a, b in zip(of, over, strict=True))
