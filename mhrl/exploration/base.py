"""What every kind of noise is: two numbers of a first-order recursion, and a linear schedule over frames."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class HeadNoise(ABC):
    """One head's noise, `x <- decay * x + gain * std * eps` with `eps ~ N(0, 1)`, added to the greedy action.

    Attributes:
        std: standard deviation at frame 0, in half-ranges of each dimension.
        std_end: standard deviation from `anneal_frames` on; None keeps `std`.
        anneal_frames: length of the linear schedule in env transitions.

    Raises:
        ValueError: if a standard deviation is negative or the schedule has no length.
    """

    std: float
    std_end: float | None = None
    anneal_frames: int = 0

    def __post_init__(self) -> None:
        for name, std in (("std", self.std), ("std_end", self.end)):
            if not 0 <= std < float("inf"):
                raise ValueError(f"exploration.{name} is {std}: a number >= 0 is expected")
        least = 0 if self.std_end is None else 1
        if self.anneal_frames != int(self.anneal_frames) or self.anneal_frames < least:
            raise ValueError(
                f"exploration.anneal_frames is {self.anneal_frames}: a whole number >= {least} is expected"
            )

    @property
    def end(self) -> float:
        """The standard deviation that the schedule ends at."""
        return self.std if self.std_end is None else self.std_end

    @property
    @abstractmethod
    def decay(self) -> float:
        """How much of the last step's noise is left in this one; 0 has no memory."""

    @property
    @abstractmethod
    def gain(self) -> float:
        """Standard deviation of what is new in one step, in units of `std`."""
