"""Epsilon-greedy: the greedy action, and now and then a random one."""

from dataclasses import dataclass
from typing import final

from mhrl.exploration.base import Memoryless


@final
@dataclass(frozen=True)
class EpsilonGreedy(Memoryless):
    """With probability `epsilon` a random action, as in Mnih et al. (2015); else the greedy one.

    Drawn for each env and head by itself: where there are several heads, one may act at random and the others not. A
    `std` above 0 makes the rest of the actions noisy, as `Gaussian` does.
    """

    std: float = 0.0
    epsilon: float = 0.1
