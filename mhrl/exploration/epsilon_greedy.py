"""Epsilon-greedy: the greedy action, and now and then a random one."""

from dataclasses import dataclass
from typing import final

from mhrl.exploration.base import HeadNoise


@final
@dataclass(frozen=True)
class EpsilonGreedy(HeadNoise):
    """With probability `epsilon` a random action, as in Mnih et al. (2015); else the greedy one.

    Drawn for each env and head by itself: where there are several heads, one may act at random and the others not. A
    `std` above 0 makes the rest of the actions noisy, as `Gaussian` does.
    """

    std: float = 0.0
    epsilon: float = 0.1

    @property
    def decay(self) -> float:
        """No memory."""
        return 0.0

    @property
    def gain(self) -> float:
        """All of it is new in every step."""
        return 1.0
