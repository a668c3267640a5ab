"""Platform: its rules by hand-worked steps, and a policy that always reaches the goal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhrl.envs import capture, restore
from mhrl.envs.probe import Platform

RUN, HOP, LEAP = 0, 1, 2


def act(kind, parameter=0.0):
    action = {name: np.zeros(1, np.float32) for name in ("run", "hop", "leap")}
    action[("run", "hop", "leap")[kind]] = np.array([parameter], np.float32)
    return {"type": kind, **action}


def at(x, platform=0, enemy=240.0, walk=15.0, speed=0.0, steps=0):
    """An env with the agent at `x`; the enemy of its platform at `enemy`, walking at `walk`."""
    env = Platform()
    env.reset(seed=0)
    env.x, env.platform, env.speed, env.steps = x, platform, speed, steps
    if platform < 2:
        env.enemies[platform], env.walks[platform] = enemy, walk
    return env


def walk_to_the_goal(observation):
    """The policy of the docstring, from what it observes."""
    x, enemy, left = ((place + 1) * 500 for place in observation[[0, 2, 4]])
    speed, width, gap = observation[1] * 30, observation[5] * 250, observation[6] * 200
    if gap == 0:
        return act(HOP, 500)
    if enemy > x:
        return act(HOP, 720) if 60 <= enemy - x <= 110 else act(RUN, 0)
    land = left + width + gap + 5
    if land - x <= 255:
        return act(LEAP, (land - x) / 0.6)
    return act(RUN, np.clip(2 * (land - 250 - x) - speed, 0, 30))


def play(env, policy, seed=None):
    observation, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, [False]
    while not any(over):
        observation, reward, *over, _ = env.step(policy(observation))
        assert env.observation_space.contains(observation)
        total, steps = total + reward, steps + 1
    return total, steps, tuple(over)


def test_spaces():
    env = Platform()
    assert {name: (float(env.action_space[name].high[0]), env.action_space[name].shape) for name in env.action_space
            if name != "type"} == {"hop": (720.0, (1,)), "leap": (430.0, (1,)), "run": (30.0, (1,))}  # fmt: skip
    assert env.action_space["type"].n == 3
    assert all(env.action_space[name].low[0] == 0 for name in ("hop", "leap", "run"))


def test_the_optimum_of_1_is_reached_from_every_start():
    env = Platform()
    for seed in range(60):
        total, steps, over = play(env, walk_to_the_goal, seed)
        assert total == pytest.approx(1, abs=1e-12) and over == (True, False) and steps < 60


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_whatever_is_done_the_return_is_the_place_reached(seed):
    env = Platform()
    env.action_space.seed(seed)
    total, _, over = play(env, lambda _: env.action_space.sample(), seed)
    assert 0 <= total <= 1 and total == pytest.approx(env.x / 1000) and any(over)


def test_random_actions_seldom_get_past_the_first_gap():
    env = Platform()
    env.action_space.seed(0)
    returns = [play(env, lambda _: env.action_space.sample(), seed)[0] for seed in range(300)]
    assert 0.1 < np.mean(returns) < 0.3


@pytest.mark.parametrize(
    ("start", "action", "x", "speed", "over"),
    [
        (dict(x=0.0), act(RUN, 30), 15.0, 30.0, False),  # from rest, evenly faster: 30 / 2
        (dict(x=0.0, speed=30.0), act(RUN, 30), 30.0, 30.0, False),
        (dict(x=0.0, speed=30.0), act(RUN, 0), 15.0, 0.0, False),  # brakes
        (dict(x=0.0), act(HOP, 400), 100.0, 0.0, False),  # 400 * 0.25
        (dict(x=0.0, speed=30.0), act(HOP, 400), 100.0, 0.0, False),  # speed does not help a hop
        (dict(x=200.0, enemy=100.0), act(LEAP, 430), 458.0, 0.0, False),  # 430 * 0.6
        (dict(x=200.0, enemy=100.0), act(LEAP, 250), 350.0, 0.0, True),  # into the gap
        (dict(x=248.0, enemy=100.0), act(HOP, 720), 428.0, 0.0, True),  # a hop gets over no gap
        (dict(x=900.0, platform=2), act(HOP, 360), 990.0, 0.0, False),
        (dict(x=900.0, platform=2), act(HOP, 720), 1000.0, 0.0, True),  # 1080 is beyond the goal
        (dict(x=650.0, platform=1, enemy=500.0), act(LEAP, 430), 908.0, 0.0, False),
    ],
)
def test_where_an_action_ends(start, action, x, speed, over):
    env = at(**start)
    _, reward, terminated, truncated, _ = env.step(action)
    assert (env.x, env.speed) == pytest.approx((x, speed), abs=1e-4)
    assert (terminated, truncated) == (over, False)
    assert reward == pytest.approx((x - start["x"]) / 1000, abs=1e-7)


def test_a_run_over_the_edge_falls_there_and_over_the_goals_reaches_it():
    env = at(240.0, enemy=100.0, speed=30.0)
    _, reward, terminated, _, _ = env.step(act(RUN, 30))
    assert terminated and reward == pytest.approx(0.0102)  # 30 * 0.34 s: the first look beyond 250
    env = at(990.0, platform=2, speed=30.0)
    _, reward, terminated, _, _ = env.step(act(RUN, 30))
    assert terminated and reward == pytest.approx(0.01) and env.x == 1000


def test_a_run_to_the_very_edge_does_not_fall():
    env = at(220.0, enemy=100.0, speed=30.0)
    assert env.step(act(RUN, 30))[2] is False
    assert env.x == 250


@pytest.mark.parametrize(
    ("start", "action", "touched"),
    [
        (dict(x=0.0, enemy=80.0, walk=-15.0), act(HOP, 720), False),
        (dict(x=0.0, enemy=40.0, walk=-15.0), act(HOP, 720), True),  # too near: not yet high enough
        (dict(x=0.0, enemy=150.0, walk=-15.0), act(HOP, 720), True),  # comes down on it
        (dict(x=0.0, enemy=80.0, walk=-15.0), act(LEAP, 430), True),  # a leap stays below it
        (dict(x=0.0, enemy=34.0, walk=-15.0), act(RUN, 0), True),  # it comes within 20
        (dict(x=0.0, enemy=36.0, walk=-15.0), act(RUN, 0), False),
        (dict(x=100.0, enemy=85.0, walk=-15.0), act(RUN, 30), True),  # from behind as well
    ],
)
def test_what_touches_the_enemy(start, action, touched):
    env = at(**start)
    before = env.x
    _, reward, terminated, _, _ = env.step(action)
    assert terminated is touched
    assert reward == pytest.approx((env.x - before) / 1000)
    if touched:
        assert abs(env.x - env.enemies[0]) <= 20.0


@pytest.mark.parametrize(
    ("enemy", "walk", "after", "walks"),
    [
        (150.0, 15.0, 165.0, 15.0),
        (150.0, -15.0, 135.0, -15.0),
        (245.0, 15.0, 240.0, -15.0),
        (250.0, 15.0, 235.0, -15.0),
    ],
)
def test_the_enemy_walks_to_and_fro_while_the_other_stands(enemy, walk, after, walks):
    env = at(50.0, enemy=enemy, walk=walk)
    other = env.enemies[1], env.walks[1]
    env.step(act(RUN, 0))
    assert (env.enemies[0], env.walks[0]) == pytest.approx((after, walks))
    assert (env.enemies[1], env.walks[1]) == other


def test_the_enemy_turns_at_the_left_end_too():
    env = at(650.0, platform=1, enemy=455.0, walk=-15.0)
    env.step(act(RUN, 0))
    assert (env.enemies[1], env.walks[1]) == pytest.approx((460.0, 15.0))


def test_step_200_is_truncated_unless_it_ends_the_episode():
    assert at(950.0, platform=2, steps=198).step(act(RUN, 0))[2:4] == (False, False)
    assert at(950.0, platform=2, steps=199).step(act(RUN, 0))[2:4] == (False, True)
    assert at(950.0, platform=2, steps=199).step(act(HOP, 720))[2:4] == (True, False)


def test_observations():
    env = at(100.0, enemy=200.0, walk=-15.0)
    assert env.step(act(RUN, 15))[0].tolist() == pytest.approx(
        [2 * 0.1075 - 1, 0.5, 2 * 0.185 - 1, -1, -1, 1, 1, 1], abs=1e-6
    )
    env = at(460.0, platform=1, enemy=600.0)
    assert env.step(act(RUN, 0))[0].tolist() == pytest.approx([-0.08, 0, 0.23, 1, -0.1, 1, 1, 0.4], abs=1e-6)
    env = at(900.0, platform=2)
    assert env.step(act(RUN, 0))[0].tolist() == pytest.approx([0.8, 0, 1, 0, 0.8, 0.4, 0, 0], abs=1e-6)


def test_starts():
    env = Platform()
    env.reset(seed=0)
    starts = []
    for _ in range(500):
        observation, _ = env.reset()
        assert observation[[0, 1, 4, 5, 6, 7]].tolist() == [-1, 0, -1, 1, 1, 1]
        starts.append([*env.enemies, *env.walks])
    low, high = np.min(starts, axis=0), np.max(starts, axis=0)
    assert low[:2] == pytest.approx([125, 575], abs=3) and min(low[:2] - [125, 575]) >= 0
    assert high[:2] == pytest.approx([250, 700], abs=3) and max(high[:2] - [250, 700]) <= 0
    assert np.mean(starts, axis=0)[2:] == pytest.approx([0, 0], abs=15 * 4 / 500**0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": 3},
        {"type": 1.0},
        {"type": True},
        {"type": np.array(1)},
        {"run": np.array([31], np.float32)},
        {"hop": np.array([-1], np.float32)},
        {"leap": np.array([1.0])},
    ],
    ids=str,
)
def test_actions_outside_the_space_are_refused(wrong):
    env = Platform()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="is not in Dict"):
        env.step({**act(RUN), **wrong})


def test_an_episode_in_the_middle_is_captured_and_restored(through_a_file):
    one, two = Platform(), Platform()
    one.reset(seed=3)
    one.step(act(RUN, 20))
    two.reset(seed=9)
    restore(two, through_a_file(capture(one)))
    for _ in range(60):
        action = walk_to_the_goal(one._observe())
        (a, *mine), (b, *yours) = one.step(action), two.step(action)
        np.testing.assert_array_equal(a, b, strict=True)
        assert mine == yours
        if mine[1]:
            np.testing.assert_array_equal(one.reset()[0], two.reset()[0], strict=True)
