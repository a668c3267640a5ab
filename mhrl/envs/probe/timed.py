"""What probe envs share: episodes of a fixed length, and what counts as an integer."""

from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box

End = Literal["terminated", "truncated"]
Act = TypeVar("Act")


def is_integer(value: object) -> bool:
    """Whether `value` is a Python or numpy integer: `Discrete` contains True and arrays of shape () too."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class Timed(gymnasium.Env[np.ndarray, Act], ABC, Generic[Act]):
    """An episode of `length` steps, ended by `end`.

    Args:
        length: Steps in an episode.
        end: What the last step reports.
        observation_space: Of what `_observe` returns.
        action_space: Of what `_reward` takes.
    """

    def __init__(
        self, length: int, end: End, observation_space: Box, action_space: gymnasium.Space[Act] | gymnasium.Space[Any]
    ) -> None:
        if length < 1 or end not in ("terminated", "truncated"):
            raise ValueError(f"need length >= 1 and end 'terminated' or 'truncated', got {length} and {end!r}")
        self.length, self.end, self.t = length, end, 0
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode at `t = 0`."""
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Act) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance `t` by one.

        Raises:
            ValueError: If the action space does not contain `action`.
        """
        if not self._takes(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        reward = self._reward(action)
        self.t += 1
        over = self.t >= self.length
        terminated, truncated = over and self.end == "terminated", over and self.end == "truncated"
        return self._observe(), reward, terminated, truncated, {}

    def _takes(self, action: Act) -> bool:
        return self.action_space.contains(action)

    @abstractmethod
    def _observe(self) -> np.ndarray:
        """Return the observation at `t`; called once a step, so that it may draw what comes next."""

    @abstractmethod
    def _reward(self, action: Act) -> float:
        """Return the reward of `action` at `t`, before the step counts."""
