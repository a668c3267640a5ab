import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.wrappers import TransformObservation
from tensordict import TensorDict

from mhrl.checkpoint import from_plain, to_plain
from mhrl.collector import Collector
from mhrl.envs import (
    EmptyMaskError,
    NonFiniteError,
    env_seeds,
    make_factory,
    make_vector_env,
)
from mhrl.envs.probe import Bandit, ConstObs, Counter

BOTH = pytest.mark.parametrize("mode", ["sync", "async"])


class Zero:
    """Acts with one constant and keeps what it saw."""

    def __init__(self, shape=(1,), value=0.0):
        self.shape, self.value, self.frames, self.seen = shape, value, [], []

    def act(self, observation, frames, is_init):
        assert not torch.is_grad_enabled()
        self.frames.append(frames)
        self.seen.append(observation)
        num_envs = len(next(iter(observation.values())))
        return {"action": torch.full((num_envs, *self.shape), self.value)}


class Probing:
    """An affine policy of the observation: tells rollouts of different states apart."""

    def act(self, observation, frames, is_init):
        return {"action": torch.tanh(observation["observation"].sum(-1, keepdim=True))}


def collector_of(factory, num_envs=1, policy=None, mode="sync", seeds=None, **options):
    env = make_vector_env(factory, num_envs, mode)
    spaces = env.get_attr("spaces")[0]
    return Collector(
        env,
        policy or Zero(),
        observation_leaves=spaces.seen,
        action_leaves=spaces.actions,
        seeds=seeds or env_seeds(0, num_envs, "train"),
        **{"warmup_seed": 0, "learning_starts": 0, "total_frames": 24, **options},
    )


def collect(collector):
    """Return all rollouts as one TensorDict [T, N], and close the env."""
    rows = torch.cat(list(collector))
    collector.close()
    return rows


def two_counters(wrap):
    kwargs = ({"length": 3, "start": 0, "end": "truncated"}, {"length": 3, "start": 100, "end": "terminated"})
    return [make_factory(wrap(Counter), one) for one in kwargs]


def as_dict(env_class):
    # Local functions, because they are sent to workers by value: a worker need not import this module, and torch.
    def build(**kwargs):
        env = env_class(**kwargs)
        space = Dict({"pos": env.observation_space, "twice": env.observation_space})
        return TransformObservation(env, lambda x: {"pos": x, "twice": 2 * x}, space)

    return build


@BOTH
@pytest.mark.parametrize("kind", ["flat", "dict"])
def test_a02_same_step_rows(mode, kind):
    collector = collector_of(two_counters(as_dict if kind == "dict" else lambda x: x), 2, mode=mode)
    rows = collect(collector)
    key = "observation" if kind == "flat" else ("observation", "pos")
    observation, after = rows[key], rows["next"][key]
    assert rows.numel() == collector.frames == 24
    assert observation[..., 0].T.tolist() == [[0, 1, 2] * 4, [100, 101, 102] * 4]
    assert after[..., 0].T.tolist() == [[1, 2, 3] * 4, [101, 102, 103] * 4]
    assert (rows["next", "reward"] == 1).all()
    end, never = [False, False, True] * 4, [False] * 12
    assert rows["next", "truncated"][..., 0].T.tolist() == [end, never]
    assert rows["next", "terminated"][..., 0].T.tolist() == [never, end]
    assert rows["next", "done"][..., 0].T.tolist() == [end, end]
    assert rows["is_init"][..., 0].T.tolist() == [[True, False, False] * 4] * 2
    assert rows["collector", "traj_ids"].T.tolist() == [
        [0, 0, 0, 2, 2, 2, 4, 4, 4, 6, 6, 6],
        [1, 1, 1, 3, 3, 3, 5, 5, 5, 7, 7, 7],
    ]
    assert collector.pop_episodes() == ([3.0] * 8, [3] * 8)
    assert collector.pop_episodes() == ([], [])
    if kind == "dict":
        assert torch.equal(rows["next", "observation", "twice"], 2 * after)


def in_place(nested):
    """An env class that writes every observation, that of a reset too, into one array."""

    class InPlace(gymnasium.Env):
        observation_space = Dict({"a": Box(-9, 9, (1,))}) if nested else Box(-9, 9, (1,))
        action_space = Box(-1, 1, (1,))

        def __init__(self):
            self.array = np.zeros(1, np.float32)

        def reset(self, *, seed=None, options=None):
            self.array[:] = 0
            return self.out(), {}

        def step(self, action):
            action *= 0
            self.array += 1
            return self.out(), 0.0, bool(self.array[0] == 4), False, {}

        def out(self):
            return {"a": self.array} if nested else self.array

    return InPlace


@BOTH
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "dict"])
def test_c05_env_that_reuses_its_arrays(mode, nested):
    policy = Zero(value=0.5)
    rows = collect(collector_of(make_factory(in_place(nested)), 1, policy, mode, total_frames=6, frames_per_rollout=3))
    key = ("observation", "a") if nested else "observation"
    pairs = zip(rows[key].flatten().tolist(), rows["next"][key].flatten().tolist(), strict=True)
    assert list(pairs) == [(0, 1), (1, 2), (2, 3), (3, 4), (0, 1), (1, 2)]
    assert rows["action"].flatten().tolist() == [0.5] * 6
    assert [seen[key].item() for seen in policy.seen] == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(("num_envs", "steps"), [(1, 3), (2, 3), (5, 2)])
def test_c05_shapes(num_envs, steps):
    collector = collector_of(make_factory(Counter, {"length": 2}), num_envs, total_frames=6, frames_per_rollout=3)
    rollout = next(iter(collector))
    TensorDict(rollout.to_dict(), batch_size=(steps, num_envs))  # raises where a leaf has another batch size
    assert rollout.batch_size == rollout["next"].batch_size == rollout["collector"].batch_size == (steps, num_envs)
    shapes = {key: tuple(value.shape[2:]) for key, value in rollout.items(include_nested=True, leaves_only=True)}
    assert shapes == {
        "observation": (1,),
        "action": (1,),
        "is_init": (1,),
        ("next", "observation"): (1,),
        ("next", "reward"): (1,),
        ("next", "terminated"): (1,),
        ("next", "truncated"): (1,),
        ("next", "done"): (1,),
        ("collector", "traj_ids"): (),
    }
    assert rollout["next", "reward"].dtype == torch.float32
    assert rollout["next", "done"].dtype == rollout["is_init"].dtype == torch.bool
    assert rollout["collector", "traj_ids"].dtype == torch.int64


def test_c05_rollouts_are_fresh():
    collector = collector_of(make_factory(Counter, {"length": 3}), 2, total_frames=8)
    rollouts = []
    for rollout in collector:
        rollouts.append(rollout.clone())
        rollout.apply_(lambda value: value.fill_(1))
    assert torch.cat(rollouts)["observation"][:, 0, 0].tolist() == [0, 1, 2, 0]
    kept = list(collector_of(make_factory(Counter, {"length": 9}), total_frames=4))
    assert [rollout["next", "observation"].item() for rollout in kept] == [1, 2, 3, 4]


class Noise(gymnasium.Env):
    """Observes samples of any space for ever, and checks every action."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {}


UNIT = Box(-1, 1, (1,))


@pytest.mark.parametrize(
    ("space", "dtypes"),
    [
        (Box(-1, 1, (3,), np.float64), torch.float64),
        (Box(0, 255, (84, 84, 4), np.uint8), torch.uint8),
        (Discrete(5), torch.int64),
        (Box(0, 9, (2,), np.int64), torch.int64),
        (Box(0, 1, (2,), np.bool_), torch.bool),
        (
            Dict({"img": Box(0, 255, (3, 8, 8), np.uint8), "vec": Box(-1, 1, (4,), np.float64)}),
            {"img": torch.uint8, "vec": torch.float64},
        ),
    ],
)
def test_a09_stored_dtypes_are_the_spaces(space, dtypes):
    rollout = next(iter(collector_of(make_factory(Noise, {"observation_space": space, "action_space": UNIT}), 2)))
    for observation in (rollout["observation"], rollout["next", "observation"]):
        stored = {k: v.dtype for k, v in observation.items()} if isinstance(dtypes, dict) else observation.dtype
        assert stored == dtypes
    parts = rollout["observation"].items() if isinstance(dtypes, dict) else [(None, rollout["observation"])]
    assert [tuple(v.shape) for _, v in parts] == [
        (1, 2, *part.shape) for part in (space.values() if isinstance(dtypes, dict) else [space])
    ]


def test_a09_actions_are_inside_a_float64_box():
    space = Box(np.array([0.1, 2.0]), np.array([0.3, 2.0]), dtype=np.float64)

    class Extremes:
        def act(self, observation, frames, is_init):
            return {"action": torch.tensor([[0.1, 9.0], [0.3, -9.0], [0.2, 2.0]])}  # float32(0.3) is above 0.3

    factory = make_factory(Noise, {"observation_space": UNIT, "action_space": space})
    rows = collect(collector_of(factory, 3, Extremes(), total_frames=20_001, learning_starts=10_002))
    actions = rows["action"].reshape(-1, 2)
    assert actions.dtype == torch.float64
    assert sum(space.contains(action) for action in actions.numpy()) == 20_001
    assert actions[-3:].tolist() == [[float(np.float32(0.1)), 2.0], [0.3, 2.0], [float(np.float32(0.2)), 2.0]]


def test_a06_warm_up_is_uniform_over_the_space():
    low, high = np.array([-1, 0, -3, 2], np.float32), np.array([3, 0.5, -2, 2], np.float32)
    factory = make_factory(Noise, {"observation_space": UNIT, "action_space": Box(low, high)})
    policy = Zero((4,))
    rows = collect(collector_of(factory, 4, policy, total_frames=10_000, learning_starts=10_000))
    actions, width = rows["action"].reshape(-1, 4), torch.tensor([4, 0.5, 1, 0])
    assert policy.frames == []
    assert ((actions.mean(0) - torch.tensor([1, 0.25, -2.5, 2])).abs() <= 0.02 * width).all()
    assert ((actions.amin(0) - torch.from_numpy(low)).abs() <= 0.01 * width).all()
    assert ((actions.amax(0) - torch.from_numpy(high)).abs() <= 0.01 * width).all()
    assert ((actions.std(0) - width / 12**0.5).abs() <= 0.02 * width).all()
    assert (torch.corrcoef(actions[:, :3].T) - torch.eye(3)).abs().max() < 0.05


@pytest.mark.parametrize(
    ("num_envs", "per_rollout", "starts", "total", "ends"),
    [
        (1, 1, 2, 4, [1, 2, 3, 4]),
        (1, 5, 7, 12, [5, 7, 10, 12]),
        (1, 7, 0, 15, [7, 14, 15]),
        (3, 1, 4, 10, [3, 6, 9, 12]),
        (3, 5, 20, 50, [15, 21, 30, 45, 51]),
        (4, 7, 30, 61, [28, 32, 56, 64]),
        (4, 5, 20, 41, [20, 40, 44]),
        (4, 5, 1000, 30, [20, 32]),
    ],
)
def test_a06_rollout_ends(num_envs, per_rollout, starts, total, ends):
    policy = Zero()
    collector = collector_of(
        make_factory(ConstObs, {"length": 4, "end": "truncated"}),
        num_envs,
        policy,
        learning_starts=starts,
        total_frames=total,
        frames_per_rollout=per_rollout,
    )
    seen, counted = [], 0
    for rollout in collector:
        counted += rollout.numel()
        assert collector.frames == counted
        seen.append(counted)
    assert seen == ends
    # The policy acts from the first multiple of num_envs at or past learning_starts on.
    assert policy.frames == [frames for frames in range(0, ends[-1], num_envs) if frames >= starts]


def test_a06_iterating_again_goes_on():
    collector = collector_of(make_factory(Counter, {"length": 5}), total_frames=4)
    first = next(iter(collector))
    rest = list(collector)
    assert [rollout["observation"].item() for rollout in (first, *rest)] == [0, 1, 2, 3]
    assert list(collector) == []


def test_pop_episodes_gives_raw_returns():
    collector = collector_of(make_factory(Bandit), policy=Zero((2,)), total_frames=3)
    collect(collector)
    returns, lengths = collector.pop_episodes()
    assert returns == pytest.approx([-0.25] * 3, abs=1e-12)  # -(0.4**2 + 0.3**2)
    assert lengths == [1, 1, 1]


def pendulum(mode="sync", seed=3, total=660, **options):
    factory = make_factory(gymnasium.make, {"id": "Pendulum-v1", "max_episode_steps": 40})
    options = {"learning_starts": 100, "frames_per_rollout": 7, "warmup_seed": seed, "total_frames": total, **options}
    return collect(collector_of(factory, 3, Probing(), mode, env_seeds(seed, 3, "train"), **options))


def test_d01_same_seed_same_rollouts():
    rows = pendulum()
    assert (rows == pendulum()).all()
    assert (rows == pendulum("async")).all()
    assert not torch.equal(rows["observation"], pendulum(seed=4)["observation"])


def test_d01_each_env_is_reset_with_its_seed():
    seeds = [11, 5, 8]
    factory = make_factory(gymnasium.make, {"id": "Pendulum-v1"})
    first = next(iter(collector_of(factory, 3, seeds=seeds)))["observation"][0]
    assert first.tolist() == [gymnasium.make("Pendulum-v1").reset(seed=seed)[0].tolist() for seed in seeds]


def test_d01_first_observations_differ():
    rows = pendulum(total=600)
    firsts = rows["observation"][rows["is_init"][..., 0]]
    assert len(firsts) == 15  # 3 envs, episodes 1 to 5
    assert len(firsts.unique(dim=0)) == 15


def test_d01_warm_up_has_its_own_seed():
    actions = [pendulum(total=90, warmup_seed=seed)["action"] for seed in (1, 1, 2)]
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(actions[0], actions[2])


class Broken(Counter):
    """A Counter of 5 steps that returns one bad number: at time `at` of an episode, or from reset `bad_reset`."""

    def __init__(self, at=None, observation=None, reward=1.0, bad_reset=None):
        super().__init__(5)
        self.at, self.bad_observation, self.bad_reward, self.bad_reset = at, observation, reward, bad_reset
        self.steps = self.resets = 0

    def step(self, action):
        self.steps += 1
        observation, reward, *rest = super().step(action)
        if self.t == self.at:
            observation = observation if self.bad_observation is None else np.array([self.bad_observation], np.float32)
            reward = self.bad_reward
        return observation, reward, *rest

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.resets += 1
        return (np.array([np.nan], np.float32) if self.resets == self.bad_reset else observation), info


@pytest.mark.parametrize(
    ("bad", "words", "rows"),
    [
        ({"at": 2, "observation": np.nan}, "observation from env 1 at frames 2", 1),
        ({"at": 2, "observation": -np.inf}, "observation from env 1 at frames 2", 1),
        ({"at": 5, "observation": np.nan}, "observation from env 1 at frames 8", 4),  # the last of an episode
        ({"bad_reset": 1}, "observation from env 1 at frames 0", 0),
        ({"bad_reset": 2}, "observation from env 1 at frames 8", 4),
        ({"at": 3, "reward": np.nan}, "reward from env 1 at frames 4", 2),
        ({"at": 3, "reward": np.inf}, "reward from env 1 at frames 4", 2),
        ({"at": 1, "reward": 1e39}, "reward from env 1 at frames 0", 0),  # inf in float32
    ],
)
def test_h02_non_finite_from_the_env(bad, words, rows):
    factories = [make_factory(Counter, {"length": 5}), make_factory(Broken, bad)]
    kept = []
    with pytest.raises(NonFiniteError, match=f"non-finite {words}"):
        kept.extend(collector_of(factories, 2))
    assert len(kept) == rows


def test_h02_non_finite_dict_observation_names_its_key():
    factory = make_factory(as_dict(Broken), {"at": 1, "observation": np.nan})
    with pytest.raises(NonFiniteError, match=r"observation\.pos from env 0 at frames 0"):
        collect(collector_of(factory))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_h02_non_finite_action_stops_before_the_env(value):
    class Sick:
        def act(self, observation, frames, is_init):
            return {"action": torch.tensor([[0.0], [value if frames >= 4 else 0.0]])}

    collector = collector_of(make_factory(Broken, {"at": 9}), 2, Sick())
    with pytest.raises(NonFiniteError, match="non-finite action for env 1 at frames 4"):
        collect(collector)
    assert collector.env.get_attr("steps") == (2, 2)


def test_action_of_another_shape_is_refused():
    class Flat:
        def act(self, observation, frames, is_init):
            return {"action": torch.zeros(2)}

    with pytest.raises(ValueError, match=r"actions of shape \(2, 1\), got \(2,\)"):
        collect(collector_of(make_factory(Counter, {"length": 5}), 2, Flat()))


def test_policy_may_return_a_parameter():
    class Constant:
        weight = torch.nn.Parameter(torch.full((1, 1), 0.25))

        def act(self, observation, frames, is_init):
            return {"action": self.weight}

    assert collect(collector_of(make_factory(Counter, {"length": 5}), policy=Constant()))["action"].unique() == 0.25


def plain(state):
    """As a checkpoint holds and returns it."""
    return from_plain(to_plain(state))


@BOTH
@pytest.mark.parametrize("learning_starts", [0, 100])
def test_d02_a_collector_goes_on_where_another_stopped(mode, learning_starts):
    options = {"num_envs": 2, "mode": mode, "policy": Probing(), "learning_starts": learning_starts}
    whole = collector_of(make_factory(gymnasium.make, {"id": "Pendulum-v1"}), total_frames=900, **options)
    rows = collect(whole)
    first = collector_of(make_factory(gymnasium.make, {"id": "Pendulum-v1"}), total_frames=500, **options)
    before = collect_keeping(first)
    state = plain(first.state_dict())
    first.close()
    second = collector_of(make_factory(gymnasium.make, {"id": "Pendulum-v1"}), total_frames=900, **options)
    assert second.load_state_dict(state, 500) is None
    after = collect_keeping(second)
    both = torch.cat([before, after])
    assert all(both[key].equal(rows[key]) for key in rows.keys(True, True))
    assert second.pop_episodes() == whole.pop_episodes()
    second.close()


def collect_keeping(collector):
    return torch.cat(list(collector))


def test_d02_without_the_envs_new_episodes_begin_with_new_numbers():
    collector = collector_of(make_factory(Counter, {"length": 5}), 2, total_frames=14)
    rows = collect_keeping(collector)
    assert rows["collector", "traj_ids"][-1].tolist() == [2, 3] and not rows["next", "done"][-1].any()
    state = plain(collector.state_dict(envs=False))
    collector.close()
    other = collector_of(make_factory(Counter, {"length": 5}), 2, total_frames=24)
    assert "env 0" in other.load_state_dict(state, 14)
    after = collect_keeping(other)
    assert after["observation"][..., 0].T.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert after["collector", "traj_ids"].T.tolist() == [[4] * 5, [5] * 5]
    assert after["is_init"][..., 0].T.tolist() == [[True, False, False, False, False]] * 2
    assert other.pop_episodes() == ([5.0] * 4, [5] * 4)  # two before, two after; the two that were cut do not count
    other.close()


class Glitch(Counter):
    """Counts to nine; at its step `at` says NaN, as `key`."""

    def __init__(self, at, key, length=9):
        super().__init__(length)
        self.at, self.key, self.steps = at, key, 0

    def step(self, action):
        self.steps += 1
        observation, reward, *rest = super().step(action)
        if self.steps == self.at:
            return (observation * np.nan, reward, *rest) if self.key == "observation" else (observation, np.nan, *rest)
        return (observation, reward, *rest)


@BOTH
@pytest.mark.parametrize("key", ["observation", "reward"])
@pytest.mark.parametrize("frames_per_rollout", [1, 4])
def test_h02_a_bad_row_is_left_out_and_its_env_reset(mode, key, frames_per_rollout, caplog):
    factories = [make_factory(Counter, {"length": 9}), make_factory(Glitch, {"at": 3, "key": key})]
    options = {"total_frames": 20, "on_nonfinite": "skip", "frames_per_rollout": frames_per_rollout}
    collector = collector_of(factories, 2, mode=mode, **options)
    rows = collect(collector)
    assert collector.frames == 20 and collector.skipped_rows == 1
    assert all(torch.isfinite(rows[k]).all() for k in ("observation", ("next", "observation"), ("next", "reward")))
    # Ten vector steps but the third. Env 0 goes on, env 1 begins again; both have a new trajectory.
    assert rows["observation"][..., 0].T.tolist() == [[0, 1, 3, 4, 5, 6, 7, 8, 0], [0, 1, 0, 1, 2, 3, 4, 5, 6]]
    assert rows["next", "observation"][..., 0].T.tolist() == [[1, 2, 4, 5, 6, 7, 8, 9, 1], [1, 2, 1, 2, 3, 4, 5, 6, 7]]
    assert rows["collector", "traj_ids"].T.tolist() == [[0, 0, 2, 2, 2, 2, 2, 2, 4], [1, 1, 3, 3, 3, 3, 3, 3, 3]]
    assert rows["is_init"][..., 0].T.tolist()[1] == [True, False, True] + [False] * 6
    assert rows["next", "done"][..., 0].T.tolist() == [[False] * 7 + [True, False], [False] * 9]
    assert f"non-finite {key} from env 1 at frames 4" in caplog.text


def test_h02_a_failed_rollout_counts_no_frames():
    collector = collector_of(make_factory(Glitch, {"at": 7, "key": "reward"}), total_frames=20, frames_per_rollout=5)
    with pytest.raises(NonFiniteError, match="non-finite reward from env 0 at frames 6"):
        collect_keeping(collector)
    assert collector.frames == 5
    collector.close()


def test_the_policy_is_told_where_episodes_begin():
    policy = Zero()
    told = []
    act = policy.act
    policy.act = lambda observation, frames, is_init: told.append(is_init.tolist()) or act(observation, frames, is_init)
    collect(collector_of([make_factory(Counter, {"length": n}) for n in (2, 3)], 2, policy, total_frames=10))
    assert told == [[True, True], [False, False], [True, False], [False, True], [True, False]]


HYBRID = Dict(arm=Box(0.1, 0.3, (2,), np.float64), gear=Discrete(3, start=-1), lights=Tuple([MultiBinary(2)]))


class Acts:
    """Acts with constants, floats for what is continuous and int64 for what is discrete, as policies do."""

    def act(self, observation, frames, is_init):
        count = len(is_init)
        return {
            ("action", "arm"): torch.tensor([[0.3, -9.0]]).expand(count, 2),  # float32(0.3) is above 0.3
            ("action", "gear"): torch.full((count,), 1),
            ("action", "lights_item_0"): torch.tensor([[0, 1]]).expand(count, 2),
        }


@BOTH
def test_b07_nested_actions_are_stored_as_they_were_executed(mode):
    def build():
        class Hybrid(gymnasium.Env):
            observation_space = Box(-9, 9, (4,), np.float64)
            action_space = space

            def reset(self, *, seed=None, options=None):
                return np.zeros(4), {}

            def step(self, action):
                assert self.action_space.contains(action) and type(action["gear"]) is int
                return np.array([*action["arm"], action["gear"], action["lights"][0][1]]), 0.0, False, False, {}

        return Hybrid

    space = HYBRID
    options = {"total_frames": 600, "learning_starts": 400, "frames_per_rollout": 50}
    rows = collect(collector_of(make_factory(build()), 2, Acts(), mode, **options))
    action = rows["action"]
    assert {key: (tuple(value.shape), value.dtype) for key, value in action.items()} == {
        "arm": ((300, 2, 2), torch.float64),
        "gear": ((300, 2), torch.int64),
        "lights_item_0": ((300, 2, 2), torch.int8),
    }
    executed = torch.cat([action["arm"], action["gear"][..., None], action["lights_item_0"][..., 1:]], -1)
    assert torch.equal(rows["next", "observation"], executed)
    assert action["gear"][:200].unique().tolist() == [-1, 0, 1]
    assert action["arm"][200:].unique().tolist() == [0.1, 0.3]
    assert action["lights_item_0"][:200].float().mean((0, 1)).tolist() == pytest.approx([0.5, 0.5], abs=0.13)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({("action", "gear"): torch.zeros(2, 1, dtype=torch.int64)}, r"gear: .* shape \(2,\), got \(2, 1\)"),
        ({("action", "arm"): torch.full((2, 2), torch.nan)}, "non-finite arm for env 0, 1 at frames 0"),
    ],
)
def test_b07_a_policys_leaf_is_refused_by_name(action, words):
    policy = Acts()
    act = policy.act
    policy.act = lambda *args: act(*args) | action
    factory = make_factory(Noise, {"observation_space": UNIT, "action_space": HYBRID})
    with pytest.raises(ValueError, match=words):
        collect_keeping(collector_of(factory, 2, policy))


def masked_env():
    # Local, because it is sent to workers by value.
    class Masked(gymnasium.Env):
        """Raises on an illegal action; which are legal depends on the env and the step. The last state allows none."""

        observation_space = Box(-9, 9, (1,))
        action_space = MultiDiscrete([2, 3], start=[5, -1])

        def __init__(self, number, length=4, stuck=None):
            self.number, self.length, self.stuck = number, length, stuck

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return self.out()

        def step(self, action):
            assert self.mask[action[0] - 5] and self.mask[2 + action[1] + 1], (action, self.mask)
            self.t += 1
            observation, info = self.out()
            return observation, 0.0, self.t == self.length, False, info

        def out(self):
            first = [[1, 1], [0, 1], [1, 0]][(self.number + self.t) % 3]
            second = [[1, 0, 1], [0, 1, 0], [1, 1, 0]][(self.number + 2 * self.t) % 3]
            self.mask = np.array(first + second, np.int8) * (self.t < self.length and self.t != self.stuck)
            return np.full(1, self.t, np.float32), {"action_mask": self.mask}

    return Masked


@BOTH
def test_b06_no_illegal_action_in_the_warm_up_and_masks_are_stored(mode):
    steps = 200 if mode == "async" else 4_000
    factories = [make_factory(masked_env(), {"number": i}, "info") for i in range(3)]
    options = {"total_frames": 3 * steps, "learning_starts": 3 * steps, "frames_per_rollout": 500}
    rows = collect(collector_of(factories, 3, mode=mode, **options))
    assert rows.numel() == 3 * steps
    mask, after, action = rows["action_mask"], rows["next", "action_mask"], rows["action"]
    assert mask.dtype == after.dtype == torch.bool and mask.shape == after.shape == (steps, 3, 5)
    assert mask[:4, 1].int().tolist() == [[0, 1, 0, 1, 0], [1, 0, 1, 0, 1], [1, 1, 1, 1, 0], [0, 1, 0, 1, 0]]
    done = rows["next", "done"][..., 0]
    assert torch.equal(after[:-1][~done[:-1]], mask[1:][~done[:-1]])
    assert done.sum() == 3 * steps // 4 and not after[done].any()
    drawn = torch.nn.functional.one_hot(action - torch.tensor([5, -1]), 3).flatten(-2)[..., [0, 1, 3, 4, 5]].bool()
    assert not (drawn & ~mask).any()
    for env in range(3):
        legal = mask[:, env].unique(dim=0)
        for one in legal:  # all that is legal occurs
            assert torch.equal(drawn[:, env][(mask[:, env] == one).all(-1)].any(0), one)


def test_b06_the_policy_sees_the_masks_of_the_episode_that_it_is_in():
    seen = []

    class Legal:
        def act(self, observation, frames, is_init):
            mask = observation["action_mask"]
            seen.append(mask.int().tolist())
            first, second = mask[:, :2].int().argmax(-1), mask[:, 2:].int().argmax(-1)
            return {"action": torch.stack([5 + first, second - 1], -1)}

    collect(collector_of(make_factory(masked_env(), {"number": 0, "length": 2}, "info"), 1, Legal(), total_frames=3))
    assert seen == [[[1, 1, 1, 0, 1]], [[0, 1, 1, 1, 0]], [[1, 1, 1, 0, 1]]]


@BOTH
def test_b06_an_empty_mask_in_mid_episode_is_an_error_of_that_env(mode):
    kwargs = [{"number": 0}, {"number": 1, "stuck": 2}]
    factories = [make_factory(masked_env(), one, "info") for one in kwargs]
    collector = collector_of(factories, 2, mode=mode, learning_starts=100, total_frames=100)
    with pytest.raises(EmptyMaskError, match="env 1: action_mask allows nothing for head 'action_0'"):
        list(collector)
    assert collector.frames == 2  # the row that leads there is not handed out
    collector.close()


@pytest.mark.parametrize("learning_starts", [100, 0])
def test_b06_an_empty_mask_where_an_episode_is_truncated_is_an_error(learning_starts):
    class Cut(masked_env()):
        def step(self, action):
            observation, reward, over, _, info = super().step(action)
            return observation, reward, False, over, info

    class First:
        def act(self, observation, frames, is_init):
            mask = observation["action_mask"].int()
            return {"action": torch.stack([5 + mask[:, :2].argmax(-1), mask[:, 2:].argmax(-1) - 1], -1)}

    factory = make_factory(Cut, {"number": 0}, "info")  # its future would be worth nothing that is legal
    collector = collector_of(factory, 1, First(), learning_starts=learning_starts, total_frames=100)
    with pytest.raises(EmptyMaskError, match="env 0: action_mask allows nothing for head 'action_0'"):
        list(collector)
    assert collector.frames == 3


def test_b06_a_resumed_collector_goes_on_with_its_masks():
    factories = [make_factory(masked_env(), {"number": i}, "info") for i in range(2)]
    options = {"total_frames": 20, "learning_starts": 20}
    whole, first, second = (collector_of(factories, 2, **options) for _ in range(3))
    rows = collect_keeping(whole)
    for _ in zip(range(5), first, strict=False):
        pass
    assert second.load_state_dict(from_plain(to_plain(first.state_dict())), first.frames) is None
    rest = collect_keeping(second)
    assert (rest == rows[-len(rest) :]).all()
