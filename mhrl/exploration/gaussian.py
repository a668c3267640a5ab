"""Gaussian noise without memory."""

from dataclasses import dataclass
from typing import final

from mhrl.exploration.base import HeadNoise


@final
@dataclass(frozen=True)
class Gaussian(HeadNoise):
    """Gaussian noise, independent per env, dimension and step; `std` is its standard deviation in half-ranges."""

    std: float = 0.1

    @property
    def decay(self) -> float:
        """No memory."""
        return 0.0

    @property
    def gain(self) -> float:
        """All of it is new in every step."""
        return 1.0
