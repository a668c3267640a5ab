import io
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from mhrl.aggregators import WeightedSum
from mhrl.collector import Collector
from mhrl.engine import EagerEngine
from mhrl.envs import Leaf, action_leaves, env_seeds, make_factory, make_vector_env, observation_leaves
from mhrl.evaluator import Evaluator
from mhrl.exploration import ActionNoise, ExploringPolicy, Gaussian
from mhrl.heads import DeterministicHead, QHead
from mhrl.layout import HeadSpec
from mhrl.network import Network
from mhrl.normaliser import IdentityNormaliser, RunningNormaliser
from mhrl.objectives import ValueBased
from mhrl.policy import GreedyPolicy
from mhrl.replay import UniformReplay
from mhrl.trunks import MLPTrunk

PLACE = ("observation", "place")
LEAVES = observation_leaves(
    Dict(
        {
            "place": Box(-np.inf, np.inf, (2, 2), np.float32),
            "clock": Box(-np.inf, np.inf, (), np.float64),
            "image": Box(0, 255, (3, 3), np.uint8),
            "count": Box(-5, 5, (2,), np.int32),
            "mode": Discrete(3),
        }
    )
)
"""Five columns: clock, then place (a Dict space sorts its keys), and three leaves that are not floats."""


class Far(gym.Env):
    """Observations around 1000 with standard deviation 5, one that is always 7; episodes of 20 steps."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._see(), {}

    def step(self, action):
        self.t += 1
        return self._see(), float(-np.square(action).sum()), False, self.t == 20, {}

    def _see(self):
        return np.array([*self.np_random.normal(1000, 5, 2), 7], np.float32)


def rollout_of(observations, reward=None, is_init=None):
    """Rows `[T, N]` with the entries that a normaliser may read; `observations` and their successors by key."""
    shape = next(iter(observations.values())).shape[:2]
    rows = TensorDict({"next": TensorDict({}, shape)}, shape)
    for key, values in observations.items():
        rows[key] = torch.as_tensor(values)
        rows[("next", *([key] if isinstance(key, str) else key))] = torch.as_tensor(values) + 1
    rows["next", "reward"] = torch.as_tensor(np.zeros((*shape, 1), np.float32) if reward is None else reward)
    rows["is_init"] = torch.as_tensor(np.zeros((*shape, 1), bool) if is_init is None else is_init)
    return rows


def random_leaves(rng, *shape):
    return {
        PLACE: rng.normal(1000, 5, (*shape, 2, 2)).astype(np.float32),
        ("observation", "clock"): rng.normal(-1e9, 1, shape),
        ("observation", "image"): rng.integers(0, 256, (*shape, 3, 3), dtype=np.uint8),
        ("observation", "count"): rng.integers(-5, 5, (*shape, 2), dtype=np.int32),
        ("observation", "mode"): rng.integers(0, 3, shape),
    }


def plain(**options):
    """A normaliser of one float leaf of three elements."""
    options = {"num_envs": 2, "gamma": 0.9} | options
    return RunningNormaliser((Leaf("observation", "observation", Box(-np.inf, np.inf, (3,))),), **options)


def network_for(observations, actions):
    trunk = MLPTrunk({leaf.key: leaf.space for leaf in observations}, [8], activation="tanh")
    space = actions[0].box
    heads = {"actor": DeterministicHead(8, space, [8], final_init=None), "value": QHead(8, space, widths=[8])}
    specs = {"actor": HeadSpec("action", (0, 1)), "value": HeadSpec("", ())}
    return Network(trunk, heads, specs, actions)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_g02_statistics_are_saved_shared_and_still_at_evaluation():
    env = make_vector_env(make_factory(Far, {}), 2)
    observations, actions = observation_leaves(env.single_observation_space), action_leaves(env.single_action_space)
    leaves = {"observation_leaves": observations, "action_leaves": actions}

    def nouns(seed):
        torch.manual_seed(seed)
        network = network_for(observations, actions)
        return network, RunningNormaliser(observations, num_envs=2, gamma=0.9)

    network, normaliser = nouns(0)
    policy = ExploringPolicy(GreedyPolicy(network, normaliser), ActionNoise(network, {"actor": Gaussian()}, 0))
    objective = ValueBased(network, WeightedSum())
    engine = EagerEngine(objective, objective.aggregator, torch.optim.Adam(network.parameters(), 1e-3))
    replay = UniformReplay(2000, 16, 2, seed=0)
    options = {"warmup_seed": 0, "learning_starts": 100, "total_frames": 1000}
    collector = Collector(env, policy, **leaves, seeds=env_seeds(0, 2, "train"), **options)
    seen = []
    for rollout in collector:
        normaliser.update(rollout)
        seen.append(rollout["observation"].clone())
        replay.extend(rollout)
        for batch in replay.batches(collector.frames % 20 == 0):
            engine.step(normaliser.batch(batch), objective.due(0))
    # Once per transition, 500 steps of 2 envs, and no observation else: not at sampling, not the resets' own.
    assert normaliser.count == 1000
    rows = torch.cat(seen).double().reshape(-1, 3).numpy()
    np.testing.assert_allclose(normaliser.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normaliser.m2 / 1000, rows.var(0), rtol=1e-9, atol=1e-12)
    (sample,) = replay.batches(1)
    assert (sample["observation"][:, :2] > 900).all()  # replay is raw

    before = {key: value.clone() for key, value in normaliser.state_dict().items()}
    evaluated = make_vector_env(make_factory(Far, {}), 2)
    evaluator = Evaluator(evaluated, policy.greedy, **leaves, seeds=env_seeds(0, 2, "eval"), episodes=4)
    returns = evaluator.run().returns
    assert all(torch.equal(before[key], value) for key, value in normaliser.state_dict().items())

    restored, its_normaliser = nouns(1)
    state = through_a_file({"network": network.state_dict(), "normaliser": normaliser.state_dict()})
    restored.load_state_dict(state["network"])
    its_normaliser.load_state_dict(state["normaliser"])
    assert state["normaliser"].keys() == before.keys() == {"count", "mean", "m2", "returns"}
    assert all(torch.equal(before[key], value) for key, value in its_normaliser.state_dict().items())
    raw = {"observation": torch.as_tensor(np.random.default_rng(3).normal(1000, 5, (10, 3)).astype(np.float32))}
    action = policy.greedy.act(raw)["action"]
    assert torch.equal(GreedyPolicy(restored, its_normaliser).act(raw)["action"], action)
    assert len(action.unique(dim=0)) == 10  # and the constant dimension leaves them finite
    assert torch.isfinite(action).all()
    assert not torch.equal(GreedyPolicy(restored).act(raw)["action"], action)
    again = Evaluator(
        evaluated, GreedyPolicy(restored, its_normaliser), **leaves, seeds=env_seeds(0, 2, "eval"), episodes=4
    )
    assert again.run().returns == returns
    for each in (collector, evaluator):
        each.close()


@given(cuts=st.sets(st.integers(1, 39), max_size=10), envs=st.integers(1, 3), seed=st.integers(0, 10))
def test_g02_statistics_are_those_of_all_rows_however_they_came(cuts, envs, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal([1000, 0, -3], [5, 1e-3, 100], (40, envs, 3)).astype(np.float32)
    normaliser = plain(num_envs=envs)
    for part in np.split(rows, sorted(cuts)):
        normaliser.update(rollout_of({"observation": part}))
    rows = rows.astype(np.float64).reshape(-1, 3)
    assert normaliser.count == len(rows)
    np.testing.assert_allclose(normaliser.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normaliser.m2 / len(rows), rows.var(0), rtol=1e-12)


def test_float_leaves_are_normalised_and_all_others_are_left_alone():
    rng = np.random.default_rng(0)
    normaliser = RunningNormaliser(LEAVES, num_envs=2, gamma=0.9, clip=2.0)
    rollout = rollout_of(random_leaves(rng, 50, 2))
    normaliser.update(rollout)
    seen = {leaf.key: rollout[leaf.key] for leaf in LEAVES}
    found = normaliser.observation(seen)
    assert list(found) == list(seen)
    for name in ("image", "count", "mode"):
        assert found["observation", name] is seen["observation", name]
    for name in ("place", "clock"):
        # The clock's steps of float32 are 64 wide at 1e9: it must be centred before it is rounded.
        rows = seen["observation", name].double().numpy()
        right = np.clip((rows - rows.mean((0, 1))) / rows.std((0, 1)), -2, 2)
        assert found["observation", name].dtype == torch.float32
        np.testing.assert_allclose(found["observation", name], right, atol=1e-6)
        assert (np.abs(right) == 2).any() and (np.abs(right) < 1).any()


def test_a_batch_is_normalised_beside_the_raw_one_by_the_same_statistics():
    rng = np.random.default_rng(0)
    normaliser = RunningNormaliser(LEAVES, num_envs=2, gamma=0.9, reward_scale=0.5)
    normaliser.update(rollout_of(random_leaves(rng, 50, 2)))
    raw = rollout_of(random_leaves(rng, 8, 4), rng.normal(size=(8, 4, 1)).astype(np.float32)).reshape(-1)
    before = raw.clone()
    found = normaliser.batch(raw)
    assert found is not raw and (raw == before).all()
    assert found.batch_size == raw.batch_size and set(found.keys(True, True)) == set(raw.keys(True, True))
    now = normaliser.observation({leaf.key: raw[leaf.key] for leaf in LEAVES})
    then = normaliser.observation({leaf.key: raw[("next", *leaf.key)] for leaf in LEAVES})
    for leaf in LEAVES:
        # One row alone, as when acting, has the same bits as in a batch.
        alone = normaliser.observation({leaf.key: raw[5:6][leaf.key]})[leaf.key]
        assert torch.equal(found[leaf.key], now[leaf.key]) and torch.equal(found[leaf.key][5:6], alone)
        assert torch.equal(found[("next", *leaf.key)], then[leaf.key])
    assert not torch.equal(found[PLACE], raw[PLACE]) and not torch.equal(found[PLACE], found[("next", *PLACE)])
    assert found["is_init"] is raw["is_init"]
    assert found["next", "reward"].dtype == torch.float32
    assert torch.equal(found["next", "reward"], raw["next", "reward"] / 2)
    # Neither reading nor sampling is learning.
    assert normaliser.count == 100


def test_before_any_data_observations_are_left_as_they_are():
    normaliser = plain()
    seen = {"observation": torch.full((4, 3), 1000.0)}
    assert normaliser.observation(seen) is seen
    raw = rollout_of({"observation": np.full((2, 2, 3), 1000.0, np.float32)}, np.ones((2, 2, 1), np.float32))
    found = normaliser.batch(raw)
    assert torch.equal(found["observation"], raw["observation"])
    assert torch.equal(found["next", "reward"], raw["next", "reward"])
    normaliser.update(raw[:0])  # a rollout of which every row was left out
    assert normaliser.count == 0 and normaliser.observation(seen) is seen


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_g02_what_never_varied_is_centred_and_finite(dtype):
    space = Box(-np.inf, np.inf, (3,), dtype)
    normaliser = RunningNormaliser((Leaf("observation", "observation", space),), num_envs=3, gamma=0.9)
    rows = np.broadcast_to(np.array([0.1, 1e6, 0.0], dtype), (1, 3, 3)).copy()
    for _ in range(7):
        normaliser.update(rollout_of({"observation": rows}))
        found = normaliser.observation({"observation": torch.as_tensor(rows)})["observation"]
        torch.testing.assert_close(found, torch.zeros(1, 3, 3), rtol=0, atol=1e-6)
    other = normaliser.observation({"observation": torch.tensor([0.6, 1e6, 0.0], dtype=torch.float64)})
    assert torch.isfinite(other["observation"]).all()


def test_one_policy_for_acting_learning_and_evaluating_sees_normalised_observations(make_network):
    network, normaliser = make_network(), plain()
    rng = np.random.default_rng(0)
    normaliser.update(rollout_of({"observation": rng.normal(1000, 5, (50, 2, 3)).astype(np.float32)}))
    raw = torch.as_tensor(rng.normal(1000, 5, (6, 3)).astype(np.float32))
    greedy = GreedyPolicy(network, normaliser)
    right = GreedyPolicy(network).act(normaliser.observation({"observation": raw}))["action"]
    assert torch.equal(greedy.act({"observation": raw})["action"], right)
    assert torch.equal(greedy(TensorDict({"observation": raw}, [6]))["action"], right)
    still = ActionNoise(network, dict.fromkeys(network.acting, Gaussian(0.0)), 0)
    assert torch.equal(ExploringPolicy(greedy, still).act({"observation": raw}, 0)["action"], right)
    assert not torch.equal(GreedyPolicy(network).act({"observation": raw})["action"], right)


def test_identity_costs_nothing():
    normaliser = IdentityNormaliser(LEAVES, num_envs=2)
    rollout = rollout_of(random_leaves(np.random.default_rng(0), 5, 2))
    seen = {PLACE: rollout[PLACE]}
    normaliser.update(rollout)
    assert normaliser.observation(seen) is seen and normaliser.batch(rollout) is rollout
    assert normaliser.state_dict() == {}


@given(cuts=st.sets(st.integers(1, 29), max_size=8), seed=st.integers(0, 10))
def test_rewards_are_divided_by_the_spread_of_the_discounted_return_of_each_env(cuts, seed):
    rng = np.random.default_rng(seed)
    reward = rng.normal(3, 2, (30, 2, 1)).astype(np.float32)
    is_init = rng.random((30, 2, 1)) < 0.2
    normaliser = plain(gamma=0.8, reward="return_std", reward_scale=2.0)
    observations = rng.normal(size=(30, 2, 3)).astype(np.float32)
    rollout = rollout_of({"observation": observations}, reward, is_init)
    edges = [0, *sorted(cuts), 30]
    for start, end in pairwise(edges):
        normaliser.update(rollout[start:end])
    # By brute force: the return of the episode so far, from each of its rewards.
    returns = []
    for env in range(2):
        begin = 0
        for t in range(30):
            begin = t if is_init[t, env, 0] else begin
            returns.append(sum(0.8 ** (t - k) * float(reward[k, env, 0]) for k in range(begin, t + 1)))
    found = normaliser.batch(rollout)["next", "reward"]
    np.testing.assert_allclose(found, 2.0 * reward / np.std(returns), rtol=1e-5)
    # Its column stands behind those of the observation, which it leaves alone.
    np.testing.assert_allclose(normaliser.mean[:3], observations.mean((0, 1), np.float64), rtol=1e-12)


def test_the_discounted_return_goes_on_after_a_safe_file():
    rng = np.random.default_rng(0)
    options = {"gamma": 0.99, "reward": "return_std"}
    rollout = rollout_of({"observation": rng.normal(size=(20, 2, 3))}, rng.normal(size=(20, 2, 1)))
    normaliser, restored = plain(**options), plain(**options)
    normaliser.update(rollout[:9])
    restored.load_state_dict(through_a_file(normaliser.state_dict()))
    for each in (normaliser, restored):
        each.update(rollout[9:])
    for key, value in normaliser.state_dict().items():
        assert torch.equal(restored.state_dict()[key], value)
    assert normaliser.returns.all()


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_rewards_that_did_not_vary_are_not_blown_up(reward):
    normaliser = plain(gamma=0.0, reward="return_std")
    rows = rollout_of({"observation": np.zeros((4, 2, 3))}, np.full((4, 2, 1), reward, np.float32))
    normaliser.update(rows)
    assert torch.equal(normaliser.batch(rows)["next", "reward"], rows["next", "reward"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"eps": 0.0}, "normaliser.eps is 0.0"),
        ({"eps": float("inf")}, "normaliser.eps is inf"),
        ({"clip": -1.0}, "normaliser.clip is -1.0"),
        ({"reward_scale": float("nan")}, "normaliser.reward_scale is nan"),
        ({"gamma": 1.5}, "normaliser.gamma is 1.5"),
        ({"reward": "std"}, "normaliser.reward is 'std': none or return_std is expected"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        plain(**fields)
    assert plain(clip=float("inf")).clip == float("inf")
