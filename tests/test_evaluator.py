import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from mhrl.envs import NonFiniteError, make_factory, make_vector_env
from mhrl.evaluator import Evaluation, Evaluator


class Seeded(gymnasium.Env):
    """Episodes whose length is drawn from the env's seed; the reward is the action."""

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Box(0.1, 0.3, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(1, 6)), 0
        return np.array([self.length], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        return np.array([self.length], np.float32), float(action[0]), self.t >= self.length, False, {}


class Constant(torch.nn.Module):
    """Acts with one number and keeps what it saw."""

    def __init__(self, value=0.2):
        super().__init__()
        self.value, self.seen, self.modes = value, [], set()

    def act(self, observation, frames=0):
        self.modes.add(self.training)
        self.seen.append(observation["observation"].clone())
        return {"action": torch.full((len(observation["observation"]), 1), self.value)}


def evaluator_of(factories, episodes, policy=None, seeds=None):
    env = make_vector_env(factories, len(factories))
    spaces = env.get_attr("spaces")[0]
    return Evaluator(
        env,
        policy or Constant(),
        observation_leaves=spaces.seen,
        action_leaves=spaces.actions,
        seeds=list(range(len(factories))) if seeds is None else seeds,
        episodes=episodes,
    )


def counters(*lengths):
    return [make_factory(_counter, {"length": length}) for length in lengths]


def _counter(length):
    from mhrl.envs.probe import Counter

    return Counter(length, end="truncated" if length % 2 else "terminated")


@pytest.mark.parametrize(
    ("lengths", "episodes", "right"),
    [
        ((2, 7), 4, (2, 2, 7, 7)),  # by who ends first, it would be 2, 2, 2, 7
        ((2, 7), 5, (2, 2, 2, 7, 7)),
        ((3,), 3, (3, 3, 3)),
        ((1, 4, 9), 3, (1, 4, 9)),
    ],
)
def test_every_env_plays_its_share_whole(lengths, episodes, right):
    evaluator = evaluator_of(counters(*lengths), episodes, Constant(0.0))
    result = evaluator.run()
    evaluator.close()
    assert result.lengths == right
    assert result.returns == tuple(map(float, right))  # reward 1 a step


def test_every_evaluation_starts_from_the_same_seeds_and_is_greedy_in_the_space():
    policy = Constant(1.0)  # float32, above the bounds
    evaluator = evaluator_of([make_factory(Seeded)] * 3, 7, policy, seeds=[5, 6, 7])
    first, second = evaluator.run(), evaluator.run()
    assert first == second and len(set(first.lengths)) > 1
    np.testing.assert_allclose(first.returns, [0.3 * length for length in first.lengths])
    other = evaluator_of([make_factory(Seeded)] * 3, 7, policy, seeds=[15, 16, 17]).run()
    assert other != first


def test_global_generators_are_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    evaluator_of([make_factory(Seeded)] * 2, 4).run()
    assert torch.equal(before[0], torch.get_rng_state()) and (before[1] == np.random.get_state()[1]).all()


def test_metrics_by_hand():
    assert Evaluation((1.0, 2.0, 6.0), (10, 20, 30)).metrics() == {
        "eval/return_mean": 3.0,
        "eval/return_std": pytest.approx((14 / 3) ** 0.5),
        "eval/length_mean": 20.0,
    }


def test_the_policy_is_in_evaluation_mode():
    policy = Constant()
    assert policy.training
    evaluator_of(counters(3), 1, policy).run()
    assert policy.modes == {False}


class Blind(Seeded):
    """Sees NaN, from the step `at` on; 0 is the reset."""

    observation_space = Box(-100, 100, (1,), np.float32)

    def __init__(self, at):
        self.at, self.steps = at, 0

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation * (np.nan if self.at == 0 else 1), info

    def step(self, action):
        self.steps += 1
        observation, *rest = super().step(action)
        return observation * (np.nan if self.steps >= self.at else 1), *rest


@pytest.mark.parametrize("at", [0, 4])
def test_h02_an_evaluation_names_what_is_not_finite(at):
    evaluator = evaluator_of([make_factory(Blind, {"at": 99}), make_factory(Blind, {"at": at})], 12)
    with pytest.raises(NonFiniteError, match="non-finite observation from env 1 in an evaluation"):
        evaluator.run()
    with pytest.raises(NonFiniteError, match="non-finite action for env 0, 1 in an evaluation"):
        evaluator_of([make_factory(Seeded)] * 2, 2, Constant(float("nan"))).run()


class Gears(gymnasium.Env):
    """Three steps; the reward is 10 times the gear plus the throttle. Only gear `5 + t` is legal."""

    observation_space = Box(-9, 9, (1,))
    action_space = Tuple([Discrete(3, start=5), Dict(throttle=Box(0, 1, (), np.float64))])

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1), self.info()

    def step(self, action):
        assert self.action_space.contains(action) and action[0] == 5 + self.t
        self.t += 1
        return np.zeros(1), 10 * action[0] + float(action[1]["throttle"]), self.t == 3, False, self.info()

    def info(self):
        return {"action_mask": {"item_0": np.arange(3) == self.t}}


class Legal(torch.nn.Module):
    def act(self, observation, frames=0):
        mask = observation["action_mask", "item_0"]
        assert mask.dtype == torch.bool and observation["observation"].shape == (len(mask), 1)
        throttle = torch.full((len(mask),), 1.5)  # above the bound
        return {("action", "item_0"): 5 + mask.int().argmax(-1), ("action", "item_1_throttle"): throttle}


def test_b06_masks_reach_the_policy_and_nested_actions_the_env():
    evaluator = evaluator_of([make_factory(Gears, action_mask="info")] * 2, 3, Legal())
    assert evaluator.run() == Evaluation((183.0,) * 3, (3,) * 3)  # 51 + 61 + 71
    evaluator.close()
