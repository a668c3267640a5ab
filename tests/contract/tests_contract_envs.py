"""An env of images, for choices that need one."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Images(gymnasium.Env):
    observation_space = Box(0, 255, (84, 84), np.uint8)
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._see(), {}

    def step(self, action):
        self.t += 1
        return self._see(), float(-np.square(action).sum()), False, self.t == 5, {}

    def _see(self):
        return self.np_random.integers(0, 256, (84, 84), dtype=np.uint8)
