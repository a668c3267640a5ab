import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from mhrl.envs import CanonicalEnv, EnvError, make_factory, make_vector_env
from mhrl.envs.canonical import warn_of_masks


class Scripted(gymnasium.Env):
    """Returns whatever it is told to, and keeps the actions it got."""

    def __init__(self, space, observation, reward=0.0, action_space=None):
        self.observation_space, self.observation, self.reward = space, observation, reward
        self.action_space = action_space or Box(-1, 1, (1,))
        self.actions = []

    def reset(self, *, seed=None, options=None):
        return self.observation, {"info": 1}

    def step(self, action):
        self.actions.append(action)
        return self.observation, self.reward, False, False, {"info": 2}


class InPlace(Scripted):
    """Writes every observation into the same array."""

    def reset(self, *, seed=None, options=None):
        for array in self.arrays():
            array[...] = 0
        return self.observation, {}

    def step(self, action):
        for array in self.arrays():
            array += 1
        return self.observation, 0.0, False, False, {}

    def arrays(self):
        return list(self.observation.values()) if isinstance(self.observation, dict) else [self.observation]


def flatten(observation):
    return {k: v.tolist() for k, v in observation.items()} if isinstance(observation, dict) else observation.tolist()


ACTION = np.zeros(1, np.float32)
REAL = Box(-9, 9, (1,), np.float32)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"x": x}], ids=["flat", "dict"])
def test_c05_kept_observations_do_not_change(wrap):
    env = CanonicalEnv(InPlace(Dict(x=REAL) if isinstance(wrap(0), dict) else REAL, wrap(np.zeros(1, np.float32))))
    kept = [env.reset()[0], *(env.step(ACTION)[0] for _ in range(4)), env.reset()[0]]
    assert [flatten(one) for one in kept] == [wrap([float(i)]) for i in (0, 1, 2, 3, 4, 0)]


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (REAL, np.array([0.1], np.float64), np.array([0.1], np.float32)),
        (REAL, [3], np.array([3], np.float32)),
        (Box(-9, 9, (1,), np.float64), np.array([0.5], np.float32), np.array([0.5], np.float64)),
        (Box(0, 255, (2,), np.uint8), np.array([0, 255], np.uint8), np.array([0, 255], np.uint8)),
        (Box(-9, 9, (1,), np.int8), np.array([-3]), np.array([-3], np.int8)),
        (Box(0, 1, (1,), np.bool_), [True], np.array([True])),
        (Discrete(3, start=-1), -1, np.array(-1, np.int64)),
        (Discrete(3, start=-1), np.int32(1), np.array(1, np.int64)),
    ],
)
def test_a09_observation_has_the_dtype_of_its_space(space, value, expected):
    env = CanonicalEnv(Scripted(space, value))
    for observation in (env.reset()[0], env.step(ACTION)[0]):
        assert observation.dtype == expected.dtype
        assert observation.tolist() == expected.tolist()
        assert space.contains(observation)


def test_a09_nested_dict_becomes_flat():
    body = Dict({"vec": Box(-9, 9, (2,), np.float64), "mode": Discrete(4)})
    space = Dict({"img": Box(0, 255, (3, 8, 8), np.uint8), "body": body})
    value = {"img": np.full((3, 8, 8), 7, np.uint8), "body": {"vec": np.array([1.0, 2.0]), "mode": 3}}
    env = CanonicalEnv(Scripted(space, value))
    observation, _ = env.reset()
    assert list(env.observation_space.spaces) == list(observation) == ["body_mode", "body_vec", "img"]
    assert env.observation_space.contains(observation)
    assert (observation["body_mode"], observation["body_vec"].tolist()) == (3, [1.0, 2.0])
    assert observation["img"].sum() == 3 * 8 * 8 * 7


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (Box(0, 255, (1,), np.uint8), np.array([300.7]), ["observation:", "uint8", "float64", "300.7"]),
        (Box(0, 255, (1,), np.uint8), np.array([300]), ["observation:", "uint8", "int64"]),
        (Box(-9, 9, (1,), np.int8), np.array([300]), ["observation:", "int8", "300"]),
        (Discrete(3), 1.0, ["observation:", "int64", "float64"]),
        (REAL, np.zeros((1, 1), np.float32), ["observation:", "(1,)", "(1, 1)"]),
        (REAL, None, ["observation:", "None"]),
        (Dict(a=REAL, b=REAL), {"a": [0.0], "b": [0.0, 1.0]}, ["observation.b:", "(1,)", "(2,)"]),
        (Dict(a=REAL, b=Dict(c=REAL)), {"a": [0.0], "b": {}}, ["observation.b.c:", "lacks"]),
        (Dict(a=REAL), np.zeros(1), ["observation.a:", "lacks"]),
    ],
)
def test_a09_unsafe_observations_are_refused(space, value, words):
    env = CanonicalEnv(Scripted(space, value))
    for call in (env.reset, lambda: env.step(ACTION)):
        with pytest.raises(ValueError) as error:
            call()
        assert [word for word in words if word not in str(error.value)] == []


def test_c05_env_gets_its_own_action():
    inner = Scripted(REAL, [0.0], action_space=Box(-1, 1, (2, 3), np.float64))
    env = CanonicalEnv(inner)
    batch = np.arange(12, dtype=np.float32).reshape(2, 3, 2).transpose(0, 2, 1)
    env.step(batch[1])
    (got,) = inner.actions
    assert (got.dtype, got.shape, got.flags.c_contiguous) == (np.float64, (2, 3), True)
    batch[:] = -1
    assert got.tolist() == [[6, 8, 10], [7, 9, 11]]
    got *= 0
    assert (batch == -1).all()


def test_c05_action_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"action: expected shape \(1,\), got \(1, 1\)"):
        CanonicalEnv(Scripted(REAL, [0.0])).step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("reward", [np.array([1.0]), None])
def test_reward_must_be_a_number(reward):
    with pytest.raises(ValueError, match="reward: expected a number"):
        CanonicalEnv(Scripted(REAL, [0.0], reward)).step(ACTION)


def test_step_returns_plain_flags_and_no_info():
    env = CanonicalEnv(Scripted(REAL, [0.0], np.float32(0.5)))
    assert env.reset()[1] == {}
    assert env.step(ACTION)[1:] == (0.5, False, False, {})


def test_d01_seeded_reset_seeds_the_spaces():
    class Sampled(Scripted):
        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

    draws = [CanonicalEnv(Sampled(Box(-9, 9, (4,)), None)).reset(seed=seed)[0].tolist() for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


def test_h03_its_own_refusals_name_the_env_of_a_vector_env():
    env = make_vector_env(make_factory(Scripted, {"space": REAL, "observation": [0.0], "reward": None}), 2)
    env.reset()
    with pytest.raises(EnvError, match="env 0: ValueError: reward: expected a number, got None"):
        env.step(np.zeros((2, 1), np.float32))
    env.close()


def test_workers_import_no_torch():
    code = (
        "import sys, mhrl.envs, mhrl.envs.probe; print(sorted({'torch', 'tensordict', 'torchrl'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_b06_masks_that_a_reset_did_not_show_are_said_to_be_unused(caplog):
    class Late(gymnasium.Env):
        observation_space, action_space = Box(-1, 1, (1,), np.float32), Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": np.array([1, 0], np.int8)}

    warn_of_masks.cache_clear()
    for source, said in ((None, 1), ("info", 0)):
        caplog.clear()
        env = CanonicalEnv(Late(), source)
        env.reset(seed=0)
        env.step(0)
        env.step(0)
        assert caplog.text.count("set env.action_mask=info to keep to it") == said
