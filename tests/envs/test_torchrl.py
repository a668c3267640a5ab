"""torchrl's own check of its wrapper around canonical envs, on the spaces that it stumbles over without them."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from mhrl.envs import CanonicalEnv

UNIT = Box(-1, 1, (2,), np.float32)


class Recorder(gymnasium.Env):
    """Keeps the actions that it got, and refuses what its space does not contain; episodes of five steps."""

    def __init__(self, action_space, observation_space=UNIT):
        self.action_space, self.observation_space, self.got = action_space, observation_space, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {"action_mask": np.array([1, 0, 1])}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.got.append(action)
        self.t += 1
        return self.observation_space.sample(), 0.0, False, self.t == 5, {"action_mask": np.array([1, 0, 1])}


def values(action):
    return np.ravel(action).tolist()


@pytest.mark.parametrize(
    ("space", "keys", "seen"),
    [
        (Discrete(3, start=5), ["action"], [{5, 6, 7}]),
        (MultiDiscrete([3, 3]), ["action"], [{0, 1, 2}] * 2),
        (MultiDiscrete([3, 4], start=[-1, 5]), ["action"], [{-1, 0, 1}, {5, 6, 7, 8}]),
        (MultiDiscrete([[2], [2]]), ["action"], [{0, 1}] * 2),
        (MultiBinary(3), ["action"], [{0, 1}] * 3),
        (Tuple([Discrete(2, start=2), UNIT]), [("action", "item_0"), ("action", "item_1")], None),
        (Dict(arm=Dict(q=UNIT, grip=Tuple([Discrete(2)])), z=MultiBinary(2)), None, None),
    ],
)
def test_torchrl_sends_actions_of_the_space(space, keys, seen):
    inner = Recorder(space)
    env = GymWrapper(CanonicalEnv(inner))
    check_env_specs(env)
    inner.got.clear()
    env.set_seed(0)
    env.rollout(300, break_when_any_done=False)
    assert len(inner.got) == 300
    assert keys is None or env.action_keys == keys
    if seen is not None:
        assert [set(column) for column in zip(*map(values, inner.got), strict=True)] == seen


def test_an_action_leaf_writes_over_no_observation_of_its_name():
    spaces = Dict(a=UNIT, b=Discrete(3)), Dict(a=Box(5, 6, (3,), np.float32), c=UNIT)
    env = GymWrapper(CanonicalEnv(Recorder(*spaces)))
    check_env_specs(env)
    rows = env.rollout(20)
    assert rows["a"].shape[-1] == 3 and (rows["a"] >= 5).all()
    assert rows["action", "a"].shape[-1] == 2 and (rows["action", "a"].abs() <= 1).all()


def test_masks_are_observations():
    env = GymWrapper(CanonicalEnv(Recorder(Discrete(3)), "info"))
    check_env_specs(env)
    rows = env.rollout(5)
    assert rows["action_mask"].dtype == torch.bool
    assert rows["next", "action_mask"].tolist() == [[True, False, True]] * 5
