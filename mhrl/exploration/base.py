"""What every kind of noise is: a first-order recursion, random actions, and a linear schedule over frames."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class HeadNoise(ABC):
    """One head's exploration: noise around its greedy action, and with probability `epsilon` a random action instead.

    The noise is `x <- decay * x + gain * std * eps` with `eps ~ N(0, 1)`. The random action is uniform over the head's
    box, or over the allowed values of its branch.

    Attributes:
        std: standard deviation up to frame `anneal_start`, in half-ranges of each dimension; of a branch of n values,
            in units of (n - 1) / 2 values.
        std_end: standard deviation from `anneal_start + anneal_frames` on; None keeps `std`.
        anneal_frames: length of the linear schedule in env transitions; the same for `std` and `epsilon`.
        epsilon: probability of a random action up to frame `anneal_start`, per env and step.
        epsilon_end: probability at the end of the schedule; None keeps `epsilon`.
        anneal_start: frame at which the schedule begins.

    Raises:
        ValueError: if a standard deviation is negative, a probability is outside [0, 1], or the schedule has no length
            or starts before frame 0.
    """

    std: float
    std_end: float | None = None
    anneal_frames: int = 0
    epsilon: float = 0.0
    epsilon_end: float | None = None
    anneal_start: int = 0

    def __post_init__(self) -> None:
        for name, std in (("std", self.std), ("std_end", self.last_std)):
            if not 0 <= std < float("inf"):
                raise ValueError(f"exploration.{name} is {std}: a number >= 0 is expected")
        for name, epsilon in (("epsilon", self.epsilon), ("epsilon_end", self.last_epsilon)):
            if not 0 <= epsilon <= 1:
                raise ValueError(f"exploration.{name} is {epsilon}: a number from 0 to 1 is expected")
        constant = self.std_end is None and self.epsilon_end is None
        for name, frames, least in (
            ("anneal_frames", self.anneal_frames, 0 if constant else 1),
            ("anneal_start", self.anneal_start, 0),
        ):
            if frames != int(frames) or frames < least:
                raise ValueError(f"exploration.{name} is {frames}: a whole number >= {least} is expected")
        if self.anneal_start and constant:
            raise ValueError(f"exploration.anneal_start is {self.anneal_start}, but nothing changes: set an end")

    @property
    def last_std(self) -> float:
        """The standard deviation that the schedule ends at."""
        return self.std if self.std_end is None else self.std_end

    @property
    def last_epsilon(self) -> float:
        """The probability of a random action that the schedule ends at."""
        return self.epsilon if self.epsilon_end is None else self.epsilon_end

    @property
    def redraws(self) -> bool:
        """Whether noise that leaves the range is drawn again; else the action is clipped."""
        return False

    @property
    def rounds(self) -> bool:
        """Whether a branch of a continuous dimension executes one of its values only, none between two of them."""
        return True

    @property
    @abstractmethod
    def decay(self) -> float:
        """How much of the last step's noise is left in this one; 0 has no memory."""

    @property
    @abstractmethod
    def gain(self) -> float:
        """Standard deviation of what is new in one step, in units of `std`."""


class Memoryless(HeadNoise, ABC):
    """Noise that is new in every step."""

    @property
    def decay(self) -> float:
        """No memory."""
        return 0.0

    @property
    def gain(self) -> float:
        """All of it is new in every step."""
        return 1.0
