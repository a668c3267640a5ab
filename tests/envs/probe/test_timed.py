import numpy as np
import pytest

from mhrl.envs.probe import Bandit, ConstObs, Counter

ZERO = np.zeros(1, np.float32)


def episode(env, action=ZERO):
    """Return observations, rewards and the last (terminated, truncated) of one episode."""
    observations, rewards, over = [env.reset(seed=0)[0].tolist()], [], (False, False)
    while not any(over):
        observation, reward, *over, _ = env.step(action)
        observations.append(observation.tolist())
        rewards.append(reward)
    return observations, rewards, tuple(over)


def test_counter():
    assert episode(Counter(3, 100, "terminated")) == ([[100], [101], [102], [103]], [1, 1, 1], (True, False))
    env = Counter(2, end="truncated")
    assert episode(env) == episode(env) == ([[0], [1], [2]], [1, 1], (False, True))


def test_const_obs():
    assert episode(ConstObs(2, "truncated")) == ([[0], [0], [0]], [1, 1], (False, True))
    assert episode(ConstObs(1, "terminated")) == ([[0], [0]], [1], (True, False))


def test_bandit():
    observations, rewards, over = episode(Bandit(), np.array([0.0, 0.5], np.float32))
    assert (observations, over) == ([[0], [0]], (True, False))
    assert rewards == [pytest.approx(-0.8, abs=1e-12)]  # -(0.4**2 + 0.8**2)
    assert episode(Bandit((0.5,)), np.array([0.5], np.float32))[1] == [0.0]


@pytest.mark.parametrize("action", [np.array([1.5], np.float32), np.zeros(1, np.float64), np.zeros(2, np.float32)])
def test_actions_outside_the_space_are_refused(action):
    env = Counter(3)
    env.reset()
    with pytest.raises(ValueError, match="is not in Box"):
        env.step(action)


@pytest.mark.parametrize(("length", "end"), [(0, "terminated"), (3, "done")])
def test_bad_arguments(length, end):
    with pytest.raises(ValueError, match="length >= 1"):
        Counter(length, end=end)
