"""Ornstein-Uhlenbeck noise: Gaussian noise that remembers."""

import math
from dataclasses import dataclass
from typing import final

from mhrl.exploration.base import HeadNoise


@final
@dataclass(frozen=True)
class OrnsteinUhlenbeck(HeadNoise):
    """Noise that drifts back to 0, after Uhlenbeck & Ornstein (1930), as in Lillicrap et al. (2016), section 7.

    The process `dx = -theta x dt + std dW`, by Euler-Maruyama steps

        x <- x - theta * dt * x + std * sqrt(dt) * eps,    eps ~ N(0, 1)

    from `x = 0` at the start of each episode, one `x` per env and dimension. Here `std` is the diffusion, in
    half-ranges per square root of time, not the spread of the noise: after many steps `x` has the standard deviation
    `std / sqrt(theta * (2 - theta * dt))`, which is 1.9 times `std` by default, and the autocorrelation
    `(1 - theta * dt) ** k` at lag `k`.

    Attributes:
        theta: rate of the pull towards 0, per unit of time.
        dt: time of one env step.

    Raises:
        ValueError: if `theta` or `dt` is not positive, or their product is above 1, where the steps would overshoot.
    """

    std: float = 0.2
    theta: float = 0.15
    dt: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("theta", self.theta), ("dt", self.dt)):
            if not 0 < value < math.inf:
                raise ValueError(f"exploration.{name} is {value}: a number > 0 is expected")
        if self.theta * self.dt > 1:
            raise ValueError(f"exploration.theta * dt is {self.theta * self.dt}: a number <= 1 is expected")

    @property
    def decay(self) -> float:
        """`1 - theta * dt`."""
        return 1 - self.theta * self.dt

    @property
    def gain(self) -> float:
        """`sqrt(dt)`."""
        return math.sqrt(self.dt)
