"""Envs of a user's own: odd observations and odd action spaces."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple


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
    """The third env of its process (the first is only looked at) returns one NaN observation, at its step 57."""

    count = 0

    def __init__(self):
        self.number, self.steps = NanOnce.count, 0
        NanOnce.count += 1

    def step(self, action):
        self.steps += 1
        observation, *rest = super().step(action)
        return observation * (float("nan") if (self.number, self.steps) == (2, 57) else 1.0), *rest


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


SPACES = {}
"""Action spaces by name, for `Recorder`: a config holds no spaces."""


def is_native(space, action):
    """Whether an action is in a space, and of exactly its types: int, arrays of its dtype, dict, tuple."""
    match space:
        case Dict():
            return (
                type(action) is dict
                and action.keys() == space.spaces.keys()
                and all(is_native(part, action[key]) for key, part in space.spaces.items())
            )
        case Tuple():
            return type(action) is tuple and all(map(is_native, space.spaces, action))
        case Discrete():
            return type(action) is int and space.contains(action)
    return type(action) is np.ndarray and action.dtype == space.dtype and space.contains(action)


class Recorder(gym.Env):
    """Episodes of three steps with an action space from `SPACES`; takes native types only, and notes what it is given.

    Not in evaluations, which are known by their odd seeds.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    given: ClassVar = []  # to all envs of the process

    def __init__(self, space):
        self.action_space, self.training = SPACES[space], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.training = seed % 2 == 0
        self.t = 0
        return self.see(), {}

    def see(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        assert is_native(self.action_space, action), f"{action!r} is not of {self.action_space}"
        if self.training:
            Recorder.given.append(action)
        self.t += 1
        return self.see(), float(self.np_random.normal()), self.t == 3, False, {}


class Ordered(Recorder):
    """Two observations and two actions, whose Dicts are in the one order or the other."""

    backwards = False

    def __init__(self):
        self.training, step = False, -1 if Ordered.backwards else 1
        self.observation_space = Dict([("near", Box(-1, 1, (2,))), ("far", Box(-1, 1, (3,)))][::step])
        self.action_space = Dict(
            [("turn", Discrete(3, start=1)), ("go", Box(-1, 1, (2,))), ("arm", MultiDiscrete([2, 4]))][::step]
        )

    def see(self):
        near, far = (self.np_random.uniform(-1, 1, size).astype(np.float32) for size in (2, 3))
        parts = {"near": near, "far": far}
        return {key: parts[key] for key in self.observation_space.spaces}


class Masked(gym.Env):
    """Draws anew at every step what is legal, raises if it is given anything else; the observation shows the masks too.

    The action is `MultiDiscrete([2, 3])`, or with `parts` a Dict `a` (Discrete), `b` (MultiDiscrete), `x` (Box).

    Args:
        parts: Whether the action is the Dict.
        key: Whether the masks are the part `mask` of the observation, and not in the infos.
        length: Steps in an episode.
        empty_at: The step after which the last branch is allowed nothing ...
        empty_seed: ... in the env that was reset with this seed; None: in every one.
    """

    def __init__(self, parts=False, key=False, length=10, empty_at=None, empty_seed=None):
        self.parts, self.key, self.length = parts, key, length
        self.empty_at, self.empty_seed, self.first_seed = empty_at, empty_seed, None
        self.sizes = (3, 2, 3) if parts else (2, 3)
        several = MultiDiscrete([2, 3], start=[0, -1]) if parts else MultiDiscrete([2, 3])
        self.action_space = (
            Dict(a=Discrete(3, start=-1), b=several, x=Box(-1, 1, (2,), np.float32)) if parts else several
        )
        seen = Box(0, 1, (sum(self.sizes),), np.float32)
        flat = {"a": Box(0, 1, (3,), np.int8), "b": Box(0, 1, (5,), np.int8)}
        mask = Dict(flat) if parts else flat["b"]
        self.observation_space = Dict(seen=seen, mask=mask) if key else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first_seed = seed if self.first_seed is None else self.first_seed
        self.t = 0
        return self._see()

    def step(self, action):
        assert is_native(self.action_space, action), (action, self.action_space)
        index = [action["a"] + 1, action["b"][0], action["b"][1] + 1] if self.parts else action
        for branch, (chosen, mask) in enumerate(zip(index, self.masks, strict=True)):
            assert mask[chosen], f"branch {branch}: {chosen} is illegal, {mask}"
        self.t += 1
        observation, info = self._see()
        return observation, float(index[0] == 0), self.t == self.length, False, info

    def _see(self):
        self.masks = [self.np_random.random(size) < 0.4 for size in self.sizes]
        for mask in self.masks:
            mask[self.np_random.integers(mask.size)] = True
        if self.t == self.empty_at and self.empty_seed in (None, self.first_seed):
            self.masks[-1][:] = False
        seen, whole = np.concatenate(self.masks, dtype=np.float32), [mask.astype(np.int8) for mask in self.masks]
        if not self.key:
            said = {"a": whole[0], "b": tuple(whole[1:])} if self.parts else tuple(whole)
            return seen, {"action_mask": said}
        mask = {"a": whole[0], "b": np.concatenate(whole[1:])} if self.parts else np.concatenate(whole)
        return {"seen": seen, "mask": mask}, {}
