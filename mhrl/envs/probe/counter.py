"""A counter: values that depend on the time left."""

from typing import final

import numpy as np
from gymnasium.spaces import Box

from mhrl.envs.probe.timed import End, Timed


@final
class Counter(Timed[np.ndarray]):
    """Observes `[start + t]`; reward 1 a step, whatever the action in `Box(-1, 1, (1,))`.

    With discount `gamma` the state value at `t` is `(1 - gamma**(length - t)) / (1 - gamma)` where the end is
    `terminated`.

    Args:
        length: Steps in an episode.
        start: First observation of an episode.
        end: What the last step reports.
    """

    def __init__(self, length: int, start: int = 0, end: End = "terminated") -> None:
        super().__init__(length, end, Box(-1e6, 1e6, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32))
        self.start = start

    def _observe(self) -> np.ndarray:
        return np.array([self.start + self.t], np.float32)

    def _reward(self, action: np.ndarray) -> float:
        return 1.0
