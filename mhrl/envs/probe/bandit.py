"""One step, one best action."""

import numpy as np
from gymnasium.spaces import Box

from mhrl.envs.probe.timed import Timed


class Bandit(Timed[np.ndarray]):
    """One step: observes `[0]`, reward `-|action - target|**2` (squared Euclidean distance), then `terminated`.

    Args:
        target: The best action, each entry in [-1, 1]; its length is the action's.
    """

    def __init__(self, target: tuple[float, ...] = (0.4, -0.3)) -> None:
        actions = Box(-1.0, 1.0, (len(target),), np.float32)
        super().__init__(1, "terminated", Box(-1e6, 1e6, (1,), np.float32), actions)
        self.target = np.asarray(target, np.float64)

    def _observe(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def _reward(self, action: np.ndarray) -> float:
        return -float(((action - self.target) ** 2).sum())
