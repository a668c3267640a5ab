"""The pybullet envs behind `BulletEnv`: determinism, ends, silence, and no snapshot."""

import subprocess
import sys

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils.env_checker import check_env

from mhrl.checkpoint import is_trusted
from mhrl.envs import CanonicalEnv
from mhrl.envs.bullet import BulletEnv

IDS = {"HalfCheetahBulletEnv-v0": (26, 6, 1000), "ReacherBulletEnv-v0": (9, 2, 150)}


@pytest.fixture
def make():
    made = []

    def make(name="ReacherBulletEnv-v0", **arguments):
        made.append(BulletEnv(name, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


def episode(env, seed, steps, between=lambda: None):
    rng = np.random.default_rng(0)
    rows = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        between()
        rows.append(np.array([*observation, reward, terminated, truncated], np.float64))
    return np.concatenate([row.ravel() for row in rows])


@pytest.mark.parametrize("name", IDS)
def test_shapes_and_time_limits(make, name):
    observations, actions, limit = IDS[name]
    env = make(name)
    assert (env.observation_space.shape, env.action_space.shape) == ((observations,), (actions,))
    env.reset(seed=0)
    ends = [env.step(np.zeros(actions, np.float32))[2:4] for _ in range(limit)]
    assert ends == [(False, False)] * (limit - 1) + [(False, True)]


@pytest.mark.parametrize("name", IDS)
def test_a_seed_gives_the_same_episode_in_a_first_and_a_later_one_and_beside_others(make, name):
    first, other = make(name), make(name)
    expected = episode(first, 3, 50)
    np.testing.assert_array_equal(episode(first, 3, 50), expected)
    np.testing.assert_array_equal(episode(make(name), 3, 50), expected)
    other.reset(seed=8)

    def disturb():
        other.step(np.ones(other.action_space.shape, np.float32))

    np.testing.assert_array_equal(episode(first, 3, 50, disturb), expected)
    assert not np.array_equal(episode(first, 4, 50), expected)


def test_it_says_that_it_has_no_snapshot(make):
    env = CanonicalEnv(make())
    env.reset(seed=0)
    assert env.snapshot is None
    assert env.inexact == "BulletEnv says that it has none"


def test_closing_ends_the_server_and_may_be_repeated(make):
    env = make()
    import pybullet

    client = env.unwrapped.physicsClientId
    assert pybullet.isConnected(client)
    env.close()
    assert not pybullet.isConnected(client)
    env.close()


@pytest.mark.filterwarnings("ignore::UserWarning")  # unbounded observations, and a method `seed` as in old gym
@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_checks_pass(make, name):
    check_env(make(name).unwrapped, skip_render_check=True)  # its mode `human` needs a display, and ends the process


def test_pictures_without_a_display(make):
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert (env.render_mode, picture.shape, picture.dtype) == ("rgb_array", (240, 320, 3), np.uint8)
    assert picture.std() > 1


def test_nothing_is_printed_but_what_the_caller_prints(make):
    make()  # skips where there is none
    code = (
        "from mhrl.envs.bullet import BulletEnv; print('before')\n"
        "env = BulletEnv('ReacherBulletEnv-v0'); env.reset(seed=0); env.close(); print('after')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("before\nafter\n", "")


def test_an_error_passes_and_output_works_again(make, capfd):
    with pytest.raises(ValueError, match=r"id is 'CartPole-v1': one of .*ReacherBulletEnv-v0.* is expected"):
        make("CartPole-v1")
    print("still here")
    assert capfd.readouterr().out == "still here\n"


@pytest.mark.parametrize("missing", ["pybullet_envs_gymnasium", "pybullet"])
def test_a_missing_extra_is_named(make, monkeypatch, missing):
    for module in [name for name in sys.modules if name.startswith("pybullet_envs_gymnasium.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DependencyNotInstalled, match=rf"{missing}.* pip install 'mhrl\[bullet\]'"):
        make()


def test_a_checkpoint_may_name_it():
    assert is_trusted("mhrl.envs.bullet.BulletEnv")
