import sys
from types import ModuleType

import gymnasium
import pytest

from mhrl.config import ConfigError, check_env, find_spec

MAKE = {"_target_": "gymnasium.make", "id": "Pendulum-v1"}
CONST = {"_target_": "mhrl.envs.probe.ConstObs", "length": 3, "end": "truncated"}


class Mine(gymnasium.Env):
    def __init__(self, size: int, goal: float = 0.0):
        self.size, self.goal = size, goal


def from_anything(**kwargs):
    return Mine(1)


@pytest.fixture
def registered(monkeypatch):
    """A package of the user's that registers envs when it is imported."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    monkeypatch.setitem(sys.modules, "my_package", ModuleType("my_package"))
    gymnasium.register("mine/Reach-v0", entry_point=Mine, kwargs={"size": 2})
    gymnasium.register("mine/Reach-v2", entry_point=Mine)
    gymnasium.register("Bare", entry_point=Mine)
    gymnasium.register("Open-v0", entry_point=from_anything)
    gymnasium.register("VectorOnly-v0", vector_entry_point=Mine)


def test_arguments_reach_the_env_and_what_is_mhrls_own_does_not():
    target, arguments = check_env({**MAKE, "kwargs": {"g": 5.0}, "vectorization_mode": "async", "step_timeout": 3})
    assert target is gymnasium.make and arguments == {"id": "Pendulum-v1", "g": 5.0}
    assert target(**arguments).unwrapped.g == 5.0
    target, arguments = check_env({**CONST, "length": 4.0, "kwargs": None})
    assert target(**arguments).length == 4


def test_kwargs_win_over_the_fields_beside_the_target():
    assert check_env({**MAKE, "g": 1.0, "kwargs": {"g": 5.0}})[1]["g"] == 5.0
    assert check_env({**CONST, "kwargs": {"length": 7}})[1]["length"] == 7


@pytest.mark.parametrize(
    "extra", [{"max_episode_steps": 5}, {"disable_env_checker": True}, {"render_mode": "rgb_array"}]
)
def test_what_make_takes_itself_passes(extra):
    assert check_env({**MAKE, "kwargs": extra})[1] == {"id": "Pendulum-v1", **extra}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kwargs": {"g_": 5}}, r"unknown key env.kwargs.g_: did you mean g\?"),
        ({"kwargs": {"gravty": 5}}, r"unknown key env.kwargs.gravty: choose from disable_env_checker, g, id"),
        ({"kwargs": {"render_mod": "human"}}, r"unknown key env.kwargs.render_mod: did you mean render_mode\?"),
        ({"vectorization_mod": "sync"}, r"unknown key env.vectorization_mod: did you mean vectorization_mode\?"),
        ({"max_episode_step": 5}, r"unknown key env.max_episode_step: did you mean max_episode_steps\?"),
        ({"kwargs": {"render_mode": 5}}, r"env.kwargs.render_mode is 5: text or null is expected"),
        ({"render_mode": True}, r"env.render_mode is True: text or null is expected"),
        ({"max_episode_steps": 1.5}, r"env.max_episode_steps is 1.5: a whole number or null is expected"),
        ({"kwargs": 5}, r"env.kwargs is 5: a mapping of fields or null is expected"),
        ({"vectorization_mode": "x"}, r"env.vectorization_mode is 'x': sync or async is expected"),
        ({"step_timeout": 0}, r"env.step_timeout is 0: a number > 0 is expected"),
        ({"id": 5}, r"env.id is 5: text is expected"),
        ({"id": "Pendulum-v9"}, r"env.id is 'Pendulum-v9': Pendulum-v1 is expected"),
        ({"id": "Pendulm-v1"}, r"env.id is 'Pendulm-v1', which is no registered env: did you mean Pendulum-v1"),
        ({"id": "pendulum-v1"}, r"env.id is 'pendulum-v1', which is no registered env: did you mean Pendulum-v1"),
        ({"id": "Pendulum_v1"}, r"env.id is 'Pendulum_v1', which is no registered env: did you mean Pendulum-v1"),
        ({"id": "Qqqqq-v0"}, r"which is no registered env: an id of another package is written module:Name-v0"),
        ({"id": "no_such_module:Env-v0"}, r"'no_such_module:Env-v0', whose module cannot be imported: No module"),
        ({"id": ""}, r"env.id is '', which is no registered env"),
    ],
)
def test_e01_an_env_of_gymnasium_is_checked_against_its_own_constructor(given, message):
    with pytest.raises(ConfigError, match=message):
        check_env({**MAKE, **given})


def test_e01_an_env_of_mujoco_is_checked_through_its_keyword_arguments():
    cheetah = {"_target_": "gymnasium.make", "id": "HalfCheetah-v5"}
    kwargs = {"frame_skip": 2.0, "ctrl_cost_weight": 1, "width": 64}
    assert check_env({**cheetah, "kwargs": kwargs})[1] == {"id": "HalfCheetah-v5", **kwargs}
    for kwargs in (
        {"frame_skip": 1.5},
        {"ctrl_cost_weight": "high"},
        {"exclude_current_positions_from_observation": 1},
    ):
        with pytest.raises(ConfigError, match=rf"env.kwargs.{next(iter(kwargs))} is .* is expected"):
            check_env({**cheetah, "kwargs": kwargs})
    with pytest.raises(ConfigError, match=r"env.kwargs.frameskip: did you mean frame_skip\?"):
        check_env({**cheetah, "kwargs": {"frameskip": 2}})
    with pytest.raises(ConfigError, match=r"env.kwargs.widht: did you mean width\?"):  # of MujocoEnv, its base
        check_env({**cheetah, "kwargs": {"widht": 2}})
    with pytest.raises(
        ConfigError, match=r"env.id is 'HalfCheetah-v1': HalfCheetah-v\d.* or HalfCheetah-v5 is expected"
    ):
        check_env({**cheetah, "id": "HalfCheetah-v1"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kwargs": {"lenght": 3}}, r"unknown key env.kwargs.lenght: did you mean length\?"),
        ({"length": 0.5}, r"env.length is 0.5: a whole number is expected"),
        ({"end": "trunc"}, r"env.end is 'trunc': terminated or truncated is expected"),
    ],
)
def test_e01_an_env_of_the_users_own_is_checked_against_its_constructor(given, message):
    with pytest.raises(ConfigError, match=message):
        check_env({**CONST, **given})
    with pytest.raises(ConfigError, match=r"env.length is missing: a whole number is expected"):
        check_env({"_target_": "mhrl.envs.probe.ConstObs", "kwargs": {"end": "truncated"}})


@pytest.mark.parametrize(
    "given", [{"id": "Pendulum-v1"}, {"_target_": "gymnasium.mak"}, {"_target_": "gymnasium.make"}]
)
def test_an_env_without_target_or_id_is_refused(given):
    with pytest.raises(
        ConfigError, match=r"env has no _target_|env._target_=gymnasium.mak cannot|env.id is missing: text"
    ):
        check_env(given)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("mine/Reach-v0", "mine/Reach-v0"),
        ("my_package:mine/Reach-v2", "mine/Reach-v2"),
        ("mine/Reach", "mine/Reach-v2"),
        ("my_package:Bare", "Bare"),
        ("Pendulum", "Pendulum-v1"),
    ],
)
def test_ids_with_namespace_module_or_no_version(registered, given, found):
    assert find_spec(given).id == found
    arguments = check_env(
        {"_target_": "gymnasium.make", "id": given, "kwargs": {"size": 3} if "P" not in given else {}}
    )[1]
    assert gymnasium.make(**arguments, disable_env_checker=True).spec.id == found


def test_e01_what_a_registration_does_not_settle_is_required(registered):
    assert check_env({"_target_": "gymnasium.make", "id": "mine/Reach-v0"})[1] == {"id": "mine/Reach-v0"}
    with pytest.raises(ConfigError, match=r"env.size is missing: a whole number is expected"):
        check_env({"_target_": "gymnasium.make", "id": "mine/Reach-v2"})
    with pytest.raises(ConfigError, match=r"unknown key env.kwargs.gaol: did you mean goal\?"):
        check_env({"_target_": "gymnasium.make", "id": "mine/Reach-v0", "kwargs": {"gaol": 1}})
    with pytest.raises(ConfigError, match=r"env.id is 'mine/Reach-v1': mine/Reach-v0 or mine/Reach-v2 is expected"):
        check_env({"_target_": "gymnasium.make", "id": "mine/Reach-v1"})
    with pytest.raises(ConfigError, match=r"'mine/Raech-v0', which is no registered env: did you mean mine/Reach-v0"):
        check_env({"_target_": "gymnasium.make", "id": "mine/Raech-v0"})


def test_an_entry_point_that_takes_all_passes_all_and_none_is_left_to_gymnasium(registered):
    assert check_env({"_target_": "gymnasium.make", "id": "Open-v0", "kwargs": {"a": 1}})[1]["a"] == 1
    assert check_env({"_target_": "gymnasium.make", "id": "VectorOnly-v0"})[1] == {"id": "VectorOnly-v0"}
