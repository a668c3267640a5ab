"""Envs of a user's own: odd observations and odd action spaces."""

import os
import signal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Toy(gym.Env):
    """Ten steps of random observations; the reward is minus the action's squared distance to its centre."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, action.dtype, self.action_space)
        self.t += 1
        return self.observation_space.sample(), -float(np.square(action).sum()), False, self.t == 10, {}


class Pixels(Toy):
    observation_space = Dict(img=Box(0, 255, (3, 8, 8), np.uint8), vec=Box(-1, 1, (4,), np.float64))


class Doubles(Toy):
    observation_space = Box(-1, 1, (2,), np.float64)
    action_space = Box(0.1, 0.3, (1,), np.float64)


class Bytes(Toy):
    observation_space = Box(0, 255, (8, 8, 4), np.uint8)


class Category(Toy):
    observation_space = Discrete(5, start=-2)


class Integers(Toy):
    observation_space = Box(-3, 3, (2, 2), np.int64)


class Shorts(Toy):
    observation_space = Dict(a=Box(0, 65535, (2,), np.uint16), b=Box(0, 2**32 - 1, (1,), np.uint32))


class Halves(Toy):
    observation_space = Dict(a=Box(-1, 1, (2,), np.float16), b=Box(0, 1, (2,), bool), c=Box(-128, 127, (1,), np.int8))


class GlobalDraws(Toy):
    """Observations from numpy's global generator, which every env of the process shares."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.random.uniform(-1, 1, 2), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.random.uniform(-1, 1, 2), *rest


class Dies(Toy):
    """The second step ends the process that the env runs in."""

    def step(self, action):
        if self.t == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Unbounded(Toy):
    action_space = Box(-np.inf, np.inf, (2,), np.float32)


class HalfBounded(Toy):
    action_space = Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))


class ZeroWidth(Toy):
    action_space = Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32))


class NanReward(Toy):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest
