"""Envs of a user's own: odd observations and odd action spaces."""

import os
import signal
import sys
import time
from pathlib import Path

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


class Opaque(Toy):
    """Keeps something that nobody can read."""

    def __init__(self):
        self.handle = object()


class Sleepy(Toy):
    """Falls asleep in its third step, and leaves a note in the folder of the run."""

    def step(self, action):
        if self.t == 2:
            (Path.cwd() / "run" / "asleep").touch()
            time.sleep(600)
        return super().step(action)


class RaisesOnce(Toy):
    """Raises at step 251 of its life, unless a file says that it has done so before."""

    def __init__(self, marker):
        self.marker, self.steps = marker, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 251 and not Path(self.marker).exists():
            Path(self.marker).touch()
            raise RuntimeError("the gripper is stuck")
        return super().step(action)


class NanOnce(Toy):
    """The second env of its process returns one NaN observation, at its step 57."""

    count = 0

    def __init__(self):
        self.number, self.steps = NanOnce.count, 0
        NanOnce.count += 1

    def step(self, action):
        self.steps += 1
        observation, *rest = super().step(action)
        return observation * (float("nan") if (self.number, self.steps) == (1, 57) else 1.0), *rest


class Faulty(Toy):
    """Has a `fault` (raise, exit, hang) at the third step of an episode; evaluations are known by their odd seeds."""

    def __init__(self, fault, evaluations_only=False):
        self.fault, self.evaluations_only, self.evaluating = fault, evaluations_only, False

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.evaluating = seed % 2 == 1
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.t == 2 and self.evaluating >= self.evaluations_only:
            if self.fault == "exit":
                sys.exit(0)
            if self.fault == "hang":
                time.sleep(600)
            raise RuntimeError("the camera is gone")
        return super().step(action)


class Unbuildable(Toy):
    def __init__(self):
        raise RuntimeError("no licence found")
