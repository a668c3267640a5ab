"""Gaussian noise without memory."""

from dataclasses import dataclass
from typing import final

from mhrl.exploration.base import Memoryless


@final
@dataclass(frozen=True)
class Gaussian(Memoryless):
    """Gaussian noise, independent per env, dimension and step; `std` is its standard deviation in half-ranges.

    With `redraw=True` and `round=False` it is the exploration of the code released with Tavakoli, Pardo & Kormushev
    (2018), "Action branching architectures for deep reinforcement learning".

    Attributes:
        redraw: noise that would leave the range is drawn again, so that the action is of a truncated normal
            distribution; by default the action is clipped, which puts probability on the bounds.
        round: a branch of a continuous dimension executes the one of its values that is nearest to the noisy one.
            False: it executes the noisy one itself, and learns as if it had been the nearest. Without effect on
            discrete leaves, which have nothing between two values.
    """

    std: float = 0.1
    redraw: bool = False
    round: bool = True

    @property
    def redraws(self) -> bool:
        """As `redraw` says."""
        return self.redraw

    @property
    def rounds(self) -> bool:
        """As `round` says."""
        return self.round
