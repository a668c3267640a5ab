"""Gearbox: its optimum, and what is lost by ignoring any part of it."""

import itertools

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st

from mhrl.envs import capture, restore
from mhrl.envs.probe import Gearbox

BEST = {-1: (1, 2.0), 0: (2, 0.0), 1: (3, 1.0)}  # road: gear, and its throttle without wind
WINDS = np.linspace(-1, 1, 5)


def act(gear=1, throttle=0.0, lights=(0, 0)):
    return {"gear": gear, "lights": np.array(lights, np.int8), "throttle": np.array([throttle], np.float32)}


def oracle(observation):
    road, wind, dark, fog, _ = observation
    gear, throttle = BEST[int(road)]
    return act(gear, throttle + wind, (dark, fog))


ENV = Gearbox(10**9)


@pytest.fixture(autouse=True)
def begin():
    ENV.reset(seed=0)


def reward(road, wind, dark, fog, action, env=ENV):
    env.road, env.wind, env.dark, env.fog = road, wind, dark, fog
    return env.step(action)[1]


def mean(policy, winds=WINDS):
    """The mean reward of a step, over every road and light, and over winds evenly."""
    cases = itertools.product((-1, 0, 1), winds, (0, 1), (0, 1))
    return float(np.mean([reward(*case, policy(*case)) for case in cases]))


def test_spaces():
    env = Gearbox()
    assert list(env.action_space) == ["gear", "lights", "throttle"]
    assert env.action_space["gear"].start == 1 and env.action_space["gear"].n == 3
    assert env.action_space["throttle"] == Box(-2, 4, (1,), np.float32)
    assert env.observation_space == Box(np.float32([-1, -1, 0, 0, 0]), np.float32([1, 1, 1, 1, 1]))


@pytest.mark.parametrize(
    ("state", "action", "expected"),
    [
        ((1, 0.0, 0, 0), act(3, 1.0), 1.0),
        ((-1, 0.5, 1, 0), act(1, 2.5, (1, 0)), 1.0),
        ((0, -1.0, 1, 1), act(2, -1.0, (1, 1)), 1.0),
        ((1, 0.0, 0, 0), act(1, 2.0), -0.25),  # the best throttle of a wrong gear: 1 - 1.25
        ((1, 0.0, 0, 0), act(3, -1.0), 0.0),  # 1 - 2**2 / 4
        ((0, 0.0, 1, 0), act(2, 0.0, (0, 1)), 0.0),  # both lights wrong
        ((0, 1.0, 0, 1), act(1, 1.0, (0, 0)), -1.75),  # 1 - 2**2 / 4 - 1.25 - 0.5
    ],
)
def test_rewards_worked_out_by_hand(state, action, expected):
    assert reward(*state, action) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("length", [1, 4])
def test_the_optimum_is_the_length(length):
    env = Gearbox(length)
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        total, left = 0.0, []
        for _ in range(length):
            left.append(float(observation[-1]))
            observation, value, terminated, truncated, _ = env.step(oracle(observation))
            assert env.observation_space.contains(observation)
            total += value
        assert (terminated, truncated) == (True, False)
        assert total == pytest.approx(length, abs=1e-12 * length)
        assert left == [1 - t / length for t in range(length)]


@given(st.integers(0, 2**32 - 1), st.data())
def test_no_action_earns_more_than_1(seed, data):
    env = Gearbox()
    env.reset(seed=seed)
    lights = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    throttle = data.draw(st.floats(-2, 4, width=32))
    assert env.step(act(data.draw(st.integers(1, 3)), throttle, lights))[1] <= 1


def test_what_ignoring_a_part_of_the_structure_costs():
    def right(road, wind, dark, fog):
        return act(BEST[road][0], BEST[road][1] + wind, (dark, fog))

    def with_throttle(throttle):
        return lambda road, wind, dark, fog: act(BEST[road][0], throttle(road, wind), (dark, fog))

    assert mean(right) == pytest.approx(1)
    no_gear = [mean(with_throttle(lambda _, wind, c=c: c + wind)) for c in np.arange(0, 2.1, 0.5)]
    assert max(no_gear) == pytest.approx(5 / 6) and int(np.argmax(no_gear)) == 2  # at the mean, 1
    thirds = (np.arange(40) - 19.5) / 20  # midpoints: the mean of their squares is near 1/3
    no_wind = mean(with_throttle(lambda road, _: BEST[road][1]), thirds)
    assert no_wind == pytest.approx(11 / 12, abs=1e-4)
    for gear, centre in ((1, 2.0), (2, 0.0), (3, 1.0)):
        constant = mean(lambda _, wind, dark, fog, g=gear, c=centre: act(g, c + wind, (dark, fog)))
        assert constant == pytest.approx(1 / 6)
    for light in (0, 1):
        no_dark = mean(lambda road, wind, _, fog, on=light: right(road, wind, on, fog))
        no_fog = mean(lambda road, wind, dark, _, on=light: right(road, wind, dark, on))
        neither = mean(lambda road, wind, _, __, on=light: right(road, wind, on, on))
        assert (no_dark, no_fog, neither) == pytest.approx((0.75, 0.75, 0.5))


def test_what_random_actions_earn():
    env, rewards = Gearbox(100), []
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(8000):
        rewards.append(env.step(env.action_space.sample())[1])
        if len(rewards) % 100 == 0:
            env.reset()
    error = np.std(rewards) / len(rewards) ** 0.5
    assert np.mean(rewards) == pytest.approx(-4 / 3, abs=4 * error)


@pytest.mark.parametrize("road", [-1, 0, 1])
@pytest.mark.parametrize("wind", [-1.0, 0.3, 1.0])
def test_climbing_the_best_gears_reward_leads_to_the_optimum_from_anywhere(road, wind):
    throttles = np.linspace(-2, 4, 121)
    values = np.array([max(reward(road, wind, 0, 0, act(gear, t)) for gear in (1, 2, 3)) for t in throttles])
    peaks = [i for i in range(1, 120) if values[i] > values[i - 1] and values[i] > values[i + 1]]
    assert [throttles[i] for i in peaks] == pytest.approx([BEST[road][1] + wind], abs=0.051)
    assert values[0] < values[1] and values[-1] < values[-2]  # no peak at an end


def test_observations_are_drawn_as_said():
    env = Gearbox(1)
    seen = np.array([env.reset(seed=0)[0], *(env.reset()[0] for _ in range(3000))])
    for column, values in ((0, (-1, 0, 1)), (2, (0, 1)), (3, (0, 1))):
        shares = [np.mean(seen[:, column] == value) for value in values]
        assert sum(shares) == pytest.approx(1) and shares == pytest.approx([1 / len(values)] * len(values), abs=0.04)
    assert seen[:, 1].mean() == pytest.approx(0, abs=0.05) and seen[:, 1].var() == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gear": 0},
        {"gear": 4},
        {"gear": 2.0},
        {"gear": np.float32(2)},
        {"gear": True},
        {"gear": np.array(2)},
        {"lights": np.array([0, 2], np.int8)},
        {"lights": np.array([0, 1])},
        {"lights": (0, 1)},
        {"lights": np.zeros(3, np.int8)},
        {"throttle": np.array([4.5], np.float32)},
        {"throttle": np.array([0.0])},
        {"throttle": 0.0},
        {"clutch": 1},
    ],
    ids=str,
)
def test_what_is_not_in_the_space_or_of_another_type_is_refused(wrong):
    env = Gearbox()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="is not in Dict"):
        env.step({**act(), **wrong})


@pytest.mark.parametrize("missing", ["gear", "lights", "throttle"])
def test_an_action_that_lacks_a_part_is_refused(missing):
    env = Gearbox()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="is not in Dict"):
        env.step({key: value for key, value in act().items() if key != missing})


def test_integers_of_numpy_are_integers():
    env = Gearbox()
    env.reset(seed=0)
    assert env.step(act(np.int64(2)))[4] == {}


def test_an_episode_in_the_middle_is_captured_and_restored(through_a_file):
    one, two = Gearbox(6), Gearbox(6)
    one.reset(seed=3)
    one.step(act())
    two.reset(seed=9)
    restore(two, through_a_file(capture(one)))
    for _ in range(12):
        (a, *mine), (b, *yours) = one.step(act(2, 0.5, (1, 0))), two.step(act(2, 0.5, (1, 0)))
        np.testing.assert_array_equal(a, b, strict=True)
        assert mine == yours
        if mine[1]:
            np.testing.assert_array_equal(one.reset()[0], two.reset()[0], strict=True)
