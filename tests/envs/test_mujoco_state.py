from functools import partial

import gymnasium
import pytest

from mhrl.envs import NoSnapshotError, capture, restore

MUJOCO = ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Hopper-v5", "Reacher-v5", "InvertedPendulum-v5"]


@pytest.mark.parametrize("name", MUJOCO)
def test_d02_mujoco_goes_on_bit_for_bit(name, twins_agree):
    assert twins_agree(partial(gymnasium.make, name, max_episode_steps=100), 77, 300) >= 3


def test_d02_another_mujoco_model_is_not_restored():
    one, two = (gymnasium.make("InvertedPendulum-v5") for _ in range(2))
    one.reset(seed=1)
    two.reset(seed=1)
    two.unwrapped.model.opt.gravity[2] = -1.0
    with pytest.raises(NoSnapshotError, match="MuJoCo model is another one"):
        restore(two, capture(one))
