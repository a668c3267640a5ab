"""What a run tells the world, and the fan-out that keeps one broken listener from ending the run."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import numpy as np

Row = Mapping[str, int | float]

_log = logging.getLogger("mhrl")


@dataclass(frozen=True)
class HeadRow:
    """One line of the start-up table of heads.

    Attributes:
        name: The head's name.
        kind: Its kind, as in `configs/head/`.
        covers: What it decides (a leaf, some dimensions of it, or a branch), for people.
        reads: Its input keys, for people.
        lr: The learning rate of its own parameters.
    """

    name: str
    kind: str
    covers: str
    reads: str
    lr: float


@dataclass(frozen=True)
class LossRow:
    """One line of the start-up table of losses.

    Attributes:
        name: The loss's name.
        trains: The modules it trains.
        weight: The static factor on the whole loss.
        trunk_factor: The further factor on its row, on the trunk only; None when no trunk parameters are shared.
        row: The row through which it reads the features.
        rule: What the aggregator itself puts on the whole loss, beside `weight`, for people; empty if nothing.
    """

    name: str
    trains: tuple[str, ...]
    weight: float
    trunk_factor: float | None
    row: str
    rule: str = ""


@dataclass(frozen=True)
class RunInfo:
    """What is known before the first env step.

    `wandb` is a sentence: the mode and why. `tags` are words by which a run is found among others, `seed:0`. `resumed`
    is the checkpoint with which the run goes on, at `frames`. `aggregator` is its label, `upgrad@features`.
    """

    version: str
    experiment: str
    env: str
    seed: int
    device: str
    total_frames: int
    wandb: str
    run_dir: Path
    config: dict[str, Any] = field(default_factory=dict)
    heads: tuple[HeadRow, ...] = ()
    losses: tuple[LossRow, ...] = ()
    notes: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    resumed: str | None = None
    frames: int = 0
    aggregator: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `status` is finished, interrupted or failed; `seconds` is wall-clock time.

    `checkpoints` are those that are worth keeping elsewhere, too: the best one and the newest one.
    """

    status: str
    frames: int
    updates: int
    seconds: float
    best_return: float | None = None
    best_frames: int | None = None
    next_commands: tuple[str, ...] = ()
    checkpoints: tuple[Path, ...] = ()


class Logger(ABC):
    """A listener of one run: `start` once, `log` per row, `video` per film, `finish` once.

    A row holds `frames` (env transitions) and `updates` (gradient updates), both int, and metrics such as
    `eval/return_mean` or `loss/value`; all values are plain Python numbers.
    """

    @abstractmethod
    def start(self, info: RunInfo) -> None:
        """Opens whatever the listener writes to."""

    @abstractmethod
    def log(self, row: Row) -> None:
        """Takes one row."""

    def video(self, path: Path, frames: int) -> None:  # noqa: B027 (most listeners have no use for it)
        """Takes the film of an evaluation at `frames`, a finished file."""

    def histograms(self, values: Mapping[str, "np.ndarray"], frames: int) -> None:  # noqa: B027
        """Takes distributions at `frames`: arrays of any shape by name, to be read at once and not kept."""

    @abstractmethod
    def finish(self, outcome: Outcome) -> None:
        """Closes it; may come without a `start`."""


@final
class Loggers(Logger):
    """Several listeners as one. An exception in one is counted, warned about once, and never ends the run.

    They are finished in reverse order, so the first one given (the console) can still show the others' last words.

    Args:
        *loggers: The listeners, in the order in which they are started.
        after: On resume, the checkpoint's `frames`: the axis goes on past it.

    Attributes:
        errors: How many calls to a listener have failed.
    """

    def __init__(self, *loggers: Logger, after: int = -1) -> None:
        self.loggers = loggers
        self.errors = 0
        self._warned: set[int] = set()
        self._last_frames = after

    def start(self, info: RunInfo) -> None:
        """Starts every listener."""
        for logger in self.loggers:
            self._guard(logger, logger.start, info)

    def log(self, row: Row) -> None:
        """Passes the row to every listener, as plain numbers: a tensor would keep its graph alive.

        Raises:
            ValueError: `frames` or `updates` is no int, or `frames` does not exceed the last row's: all axes
                count env transitions, and each point of an axis is written once. A value is no single number.
        """
        for key in ("frames", "updates"):
            if not isinstance(row.get(key), int):
                raise ValueError(f"a row needs an int '{key}', got {row.get(key)!r}")
        frames = int(row["frames"])
        if frames <= self._last_frames:
            raise ValueError(f"a row at frames={frames} after one at frames={self._last_frames}: frames only grow")
        self._last_frames = frames
        plain = {key: _plain(key, value) for key, value in row.items()}
        for logger in self.loggers:
            self._guard(logger, logger.log, plain)

    def video(self, path: Path, frames: int) -> None:
        """Passes a film to every listener."""
        for logger in self.loggers:
            self._guard(logger, logger.video, path, frames)

    def histograms(self, values: Mapping[str, "np.ndarray"], frames: int) -> None:
        """Passes distributions to every listener."""
        for logger in self.loggers:
            self._guard(logger, logger.histograms, values, frames)

    def finish(self, outcome: Outcome) -> None:
        """Finishes every listener, the first one last."""
        for logger in reversed(self.loggers):
            self._guard(logger, logger.finish, outcome)

    def _guard(self, logger: Logger, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self.errors += 1
            if id(logger) not in self._warned:
                self._warned.add(id(logger))
                text = "%s failed, the run goes on without it: %s: %s"
                _log.warning(text, type(logger).__name__, type(error).__name__, error, exc_info=True)


def _plain(key: str, value: Any) -> int | float:  # noqa: ANN401
    """A number of Python, numpy or torch as Python's own."""
    if isinstance(value, int | float):
        return value
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"metric {key!r} is {value!r}: one number is expected") from error
