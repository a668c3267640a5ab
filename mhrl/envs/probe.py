"""Tiny envs whose every number can be worked out by hand, for tests and first experiments.

All take actions in `Box(-1, 1)` and refuse any that the space does not contain, so that they also check the caller.
"""

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box

End = Literal["terminated", "truncated"]


class _Timed(gymnasium.Env[np.ndarray, np.ndarray]):
    """An episode of `length` steps, ended by `end`; observation 0 and reward 1 unless a subclass says otherwise."""

    def __init__(self, length: int, end: End, action_size: int = 1) -> None:
        if length < 1 or end not in ("terminated", "truncated"):
            raise ValueError(f"need length >= 1 and end 'terminated' or 'truncated', got {length} and {end!r}")
        self.length, self.end, self.t = length, end, 0
        self.observation_space = Box(-1e6, 1e6, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (action_size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode at `t = 0`."""
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance `t` by one.

        Raises:
            ValueError: If the action space does not contain `action`.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        self.t += 1
        over = self.t >= self.length
        terminated, truncated = over and self.end == "terminated", over and self.end == "truncated"
        return self._observation(), self._reward(action), terminated, truncated, {}

    def _observation(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def _reward(self, action: np.ndarray) -> float:
        return 1.0


class Counter(_Timed):
    """Observes `[start + t]`; reward 1 a step.

    With discount `gamma` the state value at `t` is `(1 - gamma**(length - t)) / (1 - gamma)` where the end is
    `terminated`.

    Args:
        length: Steps in an episode.
        start: First observation of an episode.
        end: What the last step reports.
    """

    def __init__(self, length: int, start: int = 0, end: End = "terminated") -> None:
        super().__init__(length, end)
        self.start = start

    def _observation(self) -> np.ndarray:
        return np.array([self.start + self.t], np.float32)


class ConstObs(_Timed):
    """Observes `[0]` always; reward 1 a step.

    Ended by `truncated`, its state value is `1 / (1 - gamma)` whatever `length` is. One-step episodes that are
    `terminated` have value 1.

    Args:
        length: Steps in an episode.
        end: What the last step reports.
    """

    def __init__(self, length: int, end: End) -> None:
        super().__init__(length, end)


class Bandit(_Timed):
    """One step: observes `[0]`, reward `-|action - target|**2` (squared Euclidean distance), then `terminated`.

    Args:
        target: The best action, each entry in [-1, 1]; its length is the action's.
    """

    def __init__(self, target: tuple[float, ...] = (0.4, -0.3)) -> None:
        super().__init__(length=1, end="terminated", action_size=len(target))
        self.target = np.asarray(target, np.float64)

    def _reward(self, action: np.ndarray) -> float:
        return -float(((action - self.target) ** 2).sum())
