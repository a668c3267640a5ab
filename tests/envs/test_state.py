"""An env that was captured in mid-episode and restored into another instance goes on bit for bit."""

import enum
import json
import logging
import random
import threading
from collections import deque
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st

from mhrl.envs import CanonicalEnv, NoSnapshotError, capture, make_factory, make_vector_env, restore, snapshots
from mhrl.envs import restore_envs as restore_all
from mhrl.envs.probe import Counter

CLASSIC = ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"]


@pytest.mark.parametrize("warm_up", [0, 1, 77])
def test_d02_pendulum_goes_on_bit_for_bit(warm_up, twins_agree):
    assert twins_agree(partial(gymnasium.make, "Pendulum-v1", max_episode_steps=50), warm_up, 300) >= 6


@pytest.mark.parametrize("name", CLASSIC)
def test_d02_classic_control_goes_on_bit_for_bit(name, twins_agree):
    twins_agree(partial(gymnasium.make, name), 77, 300)


class Mood(enum.Enum):
    CALM = 1
    WILD = 2


class Helper:
    def __init__(self, env):
        self.env, self.calls = env, 0

    def noise(self):
        self.calls += 1
        return self.env.rng.normal() + self.calls


class Rich(gymnasium.Env):
    """Every kind of attribute that a snapshot knows, each of which moves the observation."""

    observation_space = Dict(a=Box(-9, 9, (2,), np.float64), b=Discrete(5))  # the class's own, as some envs have it

    def __init__(self):
        self.action_space = Box(-1, 1, (1,))
        self.rng, self.legacy, self.dice = np.random.default_rng(1), np.random.RandomState(2), random.Random(3)
        self.helper = Helper(self)
        self.draw = self.helper.noise  # a bound method
        self.last = deque([0.0], maxlen=3)
        self.log, self.path, self.square = logging.getLogger("rich"), Path("x"), np.square
        self.total, self.pair, self.table = np.float32(0), (0, [0]), {"x": {1: 2.0}, (0, 1): None, Mood.WILD: 0}
        self.mood = Mood.CALM
        self.grid = np.asfortranarray(np.zeros((2, 3), np.int16))
        self.alias = self.grid

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.bonus = self.np_random.normal()
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        self.total += np.float32(action[0])
        self.last.append(self.draw() + self.dice.random() + self.legacy.normal())
        self.pair = (self.pair[0] + 1, [*self.pair[1][-2:], self.t])
        self.table["x"][self.t % 3] = float(self.total)
        self.mood = Mood.WILD if self.mood is Mood.CALM else Mood.CALM
        self.grid[self.t % 2, self.t % 3] += 1
        self.extra = self.t  # not there before the first step
        return self.observe(), float(self.total), False, self.t == 7, {}

    def observe(self):
        parts = [sum(self.last), *self.table["x"].values(), *self.pair[1], self.pair[0], self.mood.value, self.bonus]
        a = np.array([sum(parts), self.alias.sum() + self.helper.calls]) % 9
        return {"a": a, "b": self.observation_space["b"].sample()}


def test_d02_every_kind_of_attribute_is_restored(through_a_file):
    rng = np.random.default_rng(0)
    one, two = (CanonicalEnv(gymnasium.wrappers.TimeLimit(Rich(), 5)) for _ in range(2))
    # The space of the class serves both: here each needs its own.
    two.unwrapped.observation_space = Dict(a=Box(-9, 9, (2,), np.float64), b=Discrete(5))
    one.reset(seed=4)
    for _ in range(3):
        one.step(rng.uniform(-1, 1, 1))
    two.reset(seed=5)
    two.snapshot = through_a_file(one.snapshot)
    assert two.inexact is None
    inner = two.unwrapped
    assert (type(inner.total), type(inner.pair), type(inner.pair[1])) == (np.float32, tuple, list)
    assert inner.alias is inner.grid and inner.grid.flags.f_contiguous and inner.grid.dtype == np.int16
    assert inner.helper.env is inner and inner.draw.__self__ is inner.helper
    assert (inner.last.maxlen, inner.extra) == (3, 3)
    seen = []
    for _ in range(12):
        action = rng.uniform(-1, 1, 1)
        (mine, *my_rest), (yours, *your_rest) = one.step(action), two.step(action)
        assert my_rest == your_rest
        assert {k: v.tolist() for k, v in mine.items()} == {k: v.tolist() for k, v in yours.items()}
        seen.append(mine["a"][0])
        if my_rest[2]:
            assert one.reset()[0]["a"].tolist() == two.reset()[0]["a"].tolist()
    assert len(set(seen)) == 12


def test_a_snapshot_is_plain_and_shares_nothing(each):
    env = CanonicalEnv(Rich())
    env.reset(seed=1)
    before = json.dumps(each(env.snapshot, lambda x: x.tolist() if isinstance(x, np.ndarray) else x))
    snapshot = env.snapshot
    for _ in range(6):
        env.step(np.ones(1))
    assert json.dumps(each(snapshot, lambda x: x.tolist() if isinstance(x, np.ndarray) else x)) == before


def with_attribute(value):
    env = Counter(3)
    env.thing = value
    return env


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=3) | st.tuples(st.booleans()), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=PLAIN)
def test_d02_plain_values_come_back_with_their_types(value, through_a_file):
    env = with_attribute("something else")
    restore(env, through_a_file(capture(with_attribute(value))))
    assert repr(env.thing) == repr(value)


@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.uint16, np.uint64, np.float16, np.float64, np.complex64])
def test_d02_scalars_and_arrays_keep_their_dtype(kind, through_a_file):
    env = with_attribute(None)
    restore(env, through_a_file(capture(with_attribute([kind(1), np.array([[0, 1]], kind), np.array(1, kind)]))))
    scalar, array, point = env.thing
    assert (type(scalar), array.dtype, array.tolist(), type(point)) == (kind, kind, [[0, 1]], np.ndarray)


def shared_memory():
    whole = np.zeros(6)
    return [whole, whole[:2]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "Counter.thing is of builtins.object"),
        ([threading.Lock()], "Counter.thing[0] is of _thread.lock"),
        ({"x": torch.zeros(2)}, "Counter.thing['x'] is of torch.Tensor"),
        (torch.zeros(2).numpy(), "Counter.thing is an array in memory that is not its own"),
        (np.zeros(2, object), "Counter.thing is an array of object"),
        (shared_memory(), "two of its arrays share memory"),
        (iter([1]), "Counter.thing is of builtins.list_iterator"),
        ({1}, "Counter.thing is of builtins.set"),
        (np.str_("x"), "Counter.thing is of numpy.str_"),
    ],
)
def test_d02_what_cannot_be_captured_is_named(value, words):
    with pytest.raises(NoSnapshotError) as error:
        capture(with_attribute(value))
    assert str(error.value).startswith(words)
    env = CanonicalEnv(with_attribute(value))
    assert env.snapshot is None
    assert env.inexact.startswith(words)


def test_d02_two_objects_that_are_one_in_the_other_env_are_not_mixed_up():
    env, helper = with_attribute(None), Helper(None)
    env.thing = [helper, helper]
    with pytest.raises(NoSnapshotError, match="are one Helper here"):
        restore(env, capture(with_attribute([Helper(None), Helper(None)])))
    restore(env, capture(with_attribute([helper, helper])))
    assert env.thing == [helper, helper]


def closure():
    rng, count = np.random.default_rng(0), 0

    def draw():
        nonlocal count
        count += 1
        return count + rng.normal()

    return draw


def test_d02_a_function_is_restored_with_the_variables_around_it(through_a_file):
    one, two = with_attribute(closure()), with_attribute(closure())
    numbers = [one.thing() for _ in range(3)]
    kept = two.thing
    restore(two, through_a_file(capture(one)))
    assert two.thing is kept
    assert [two.thing() for _ in range(3)] == [one.thing() for _ in range(3)] != numbers


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (np.sin, np.cos, "numpy.sin"),
        (Helper(None), Counter(3), "Helper is expected in the place of Counter"),
        (Helper(None), None, "Helper is expected in the place of NoneType"),
        (Mood.CALM, 3, "an enum member is expected"),
    ],
)
def test_d02_an_env_built_otherwise_is_not_restored(was, now, words):
    env = with_attribute(now)
    env.t = 2
    with pytest.raises(NoSnapshotError, match=words):
        restore(env, capture(with_attribute(was)))
    assert env.t == 2


class Remote(Counter):
    """Its state is in a server, which can be asked for it."""

    def __init__(self):
        super().__init__(9)
        self.server = iter(())

    def state_dict(self):
        return {"t": self.t, "rng": self.np_random, "pair": (1, 2)}

    def load_state_dict(self, state):
        if state["t"] > 5:
            raise OSError("the server has forgotten")
        assert state["pair"] == (1, 2)
        self.t, self.np_random = state["t"], state["rng"]


class Silent(Counter):
    state_dict = None


class Half(gymnasium.Wrapper):
    """Halves the reward, more each time; with state of its own, beside that of the env."""

    def __init__(self, env):
        super().__init__(env)
        self.factor, self.opaque = 1.0, object()

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.factor /= 2
        return observation, reward * self.factor, *rest

    def state_dict(self):
        return {"factor": self.factor}

    def load_state_dict(self, state):
        self.factor = state["factor"]


ACTION = np.zeros(1, np.float32)


def test_d02_an_env_and_a_wrapper_may_say_what_their_state_is(through_a_file):
    one, two = CanonicalEnv(Half(Remote())), CanonicalEnv(Half(Remote()))
    one.reset(seed=1)
    two.reset(seed=2)
    for _ in range(3):
        one.step(ACTION)
    two.snapshot = through_a_file(one.snapshot)
    assert two.inexact is None
    assert two.step(ACTION)[:2] == one.step(ACTION)[:2] == (4, 1 / 16)
    assert two.unwrapped.np_random.normal() == one.unwrapped.np_random.normal()


def test_d02_a_state_that_cannot_be_loaded_is_not_exact():
    one, two = CanonicalEnv(Remote()), CanonicalEnv(Remote())
    one.reset(seed=1)
    for _ in range(6):
        one.step(ACTION)
    two.reset()
    two.snapshot = one.snapshot
    assert two.inexact == "OSError: the server has forgotten"
    two.snapshot = None
    assert two.inexact == "it had no snapshot"


def test_d02_an_env_may_refuse():
    env = CanonicalEnv(Silent(3))
    env.reset()
    assert env.snapshot is None
    assert "says that it has none" in env.inexact


def global_draws():
    class GlobalDraws(Counter):
        """Observes numbers of the global generators."""

        def _observe(self):
            return np.array([random.random() + np.random.random()], np.float32)

    return GlobalDraws


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_d02_vector_envs_hand_snapshots_out_and_take_them(mode, through_a_file):
    actions = np.zeros((2, 1), np.float32)
    one, two = (
        make_vector_env(make_factory(gymnasium.make, {"id": "Pendulum-v1", "max_episode_steps": 7}), 2, mode)
        for _ in range(2)
    )
    one.reset(seed=[1, 2])
    two.reset(seed=[8, 9])
    for _ in range(10):
        one.step(actions)
    assert restore_all(two, [through_a_file(one) for one in snapshots(one)]) == [None, None]
    for _ in range(9):
        mine, yours = one.step(actions), two.step(actions)
        assert mine[0].tolist() == yours[0].tolist() and mine[1].tolist() == yours[1].tolist()
    one.close()
    two.close()


def test_d02_the_global_generators_of_a_worker_belong_to_its_env(through_a_file):
    actions = np.zeros((2, 1), np.float32)
    factory = make_factory(global_draws(), {"length": 4})
    one, two = make_vector_env(factory, 2, "async"), make_vector_env(factory, 2, "async")
    first = one.reset(seed=[1, 2])[0].tolist()
    assert first != two.reset(seed=[3, 4])[0].tolist()
    one.step(actions)
    assert restore_all(two, [through_a_file(one) for one in snapshots(one)]) == [None, None]
    rows = [(one.step(actions)[0].tolist(), two.step(actions)[0].tolist()) for _ in range(6)]
    assert [mine for mine, _ in rows] == [yours for _, yours in rows]
    assert len({str(mine) for mine, _ in rows}) == 6
    assert two.reset(seed=[1, 2])[0].tolist() == first  # a seeded reset seeds them
    one.close()
    two.close()


def test_d02_the_global_generators_of_this_process_are_left_alone():
    env = CanonicalEnv(Counter(4))
    env.reset(seed=1)
    env.alone = True
    snapshot = env.snapshot
    env.alone = False
    before = random.getstate(), np.random.get_state()[1].tolist()
    env.reset(seed=2)
    env.snapshot = snapshot
    assert "process" not in env.snapshot
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_d02_one_env_of_two_may_have_no_snapshot():
    env = make_vector_env([make_factory(Counter, {"length": 5}), make_factory(Silent, {"length": 5})], 2)
    env.reset()
    env.step(np.zeros((2, 1), np.float32))
    states = snapshots(env)
    assert states[0] is not None and states[1] is None
    reasons = restore_all(env, states)
    assert reasons[0] is None and "says that it has none" in reasons[1]
    env.close()


class Chain(Counter):
    """Four thousand objects, each of which knows the next: inductor sets the limit of recursion to two thousand."""

    def __init__(self, length):
        super().__init__(length)
        self.first = None
        for _ in range(4000):
            node = Link()
            node.next, self.first = self.first, node


class Link:
    next = None


def test_d02_objects_that_are_chained_too_deeply_give_no_snapshot():
    env = CanonicalEnv(Chain(4))
    env.reset(seed=0)
    assert env.snapshot is None and "too deeply" in env.inexact
