"""One state: values that depend on how an episode ends, and on nothing else."""

from typing import final

import numpy as np
from gymnasium.spaces import Box

from mhrl.envs.probe.timed import End, Timed


@final
class ConstObs(Timed[np.ndarray]):
    """Observes `[0]` always; reward 1 a step, whatever the action in `Box(-1, 1, (1,))`.

    Ended by `truncated`, its state value is `1 / (1 - gamma)` whatever `length` is. One-step episodes that are
    `terminated` have value 1.

    Args:
        length: Steps in an episode.
        end: What the last step reports.
    """

    def __init__(self, length: int, end: End) -> None:
        super().__init__(length, end, Box(-1e6, 1e6, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32))

    def _observe(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def _reward(self, action: np.ndarray) -> float:
        return 1.0
