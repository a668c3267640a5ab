from functools import partial

import gymnasium
import numpy as np
import pytest

from mhrl.envs import CanonicalEnv


@pytest.mark.parametrize("name", ["LunarLanderContinuous-v3", "LunarLander-v3"])
@pytest.mark.parametrize("warm_up", [0, 1, 77, 190])
def test_d02_lunar_lander_goes_on_bit_for_bit(name, warm_up, twins_agree):
    assert twins_agree(partial(gymnasium.make, name), warm_up, 300) >= 1


def test_d02_a_lander_on_the_ground_goes_on_bit_for_bit(through_a_file):
    one, two = (CanonicalEnv(gymnasium.make("LunarLanderContinuous-v3", enable_wind=True)) for _ in range(2))
    two.reset()
    one.reset(seed=8)
    idle = np.zeros(2, np.float32)
    for _ in range(400):
        observation, _, terminated, _, _ = one.step(idle)
        if observation[6:].any() or terminated:
            break
    assert observation[6:].any() and not terminated  # a leg touches the ground
    two.snapshot = through_a_file(one.snapshot)
    assert two.inexact is None
    for _ in range(30):
        mine, yours = one.step(idle), two.step(idle)
        assert mine[0].tolist() == yours[0].tolist() and mine[1:4] == yours[1:4]


def test_d02_a_lander_whose_replay_differs_says_so():
    one, two = (CanonicalEnv(gymnasium.make("LunarLanderContinuous-v3", gravity=g)) for g in (-10.0, -5.0))
    one.reset(seed=8)
    two.reset(seed=8)
    for _ in range(20):
        one.step(np.zeros(2, np.float32))
    two.snapshot = one.snapshot
    assert "went another way" in two.inexact or "is expected" in two.inexact


def test_d02_another_box2d_env_has_no_snapshot_and_is_not_replayed():
    env = CanonicalEnv(gymnasium.make("BipedalWalker-v3"))
    env.reset(seed=1)
    assert env.snapshot is None
    assert "world" in env.inexact and "state_dict" in env.inexact
