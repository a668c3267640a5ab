import logging
import os
import random
import signal
import time
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text

from mhrl.envs import EnvError, inspect_env


def fragile_env():
    # Local, so that it is sent to workers by value: they need not find this module.
    class Fragile(gymnasium.Env):
        """Does `fault` in its constructor, or in the second step of an episode; draws from every global generator."""

        observation_space = Box(-1, 1, (2,), np.float32)
        closed = 0

        def __init__(self, fault=None, at="step", action_space=None, value=0.0):
            random.random(), np.random.random()
            self.fault, self.at, self.value = fault, at, value
            self.action_space = action_space or Box(-1, 1, (1,))
            self.may("constructor")

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            random.random(), np.random.random()
            self.t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.t += 1
            if self.t == 2:
                self.may("step")
            return np.full(2, self.value, np.float32), 0.0, False, False, {}

        def close(self):
            type(self).closed += 1

        def may(self, at):
            if self.at == at and self.fault == "raise":
                raise RuntimeError("the camera is gone")
            if self.at == at and self.fault == "exit":
                raise SystemExit(0)
            if self.at == at and self.fault == "hang":
                time.sleep(60)
            if self.at == at and self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    return Fragile


@pytest.mark.parametrize("id", ["Pendulum-v1", "CartPole-v1", "LunarLander-v3", "LunarLanderContinuous-v3"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_of_a_stock_env_nothing_is_said(id, mode, caplog, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        spaces, source = inspect_env(gymnasium.make, {"id": id}, vectorization_mode=mode)
    assert source is None and spaces.masks == ()
    assert [leaf.key for leaf in (*spaces.observations, *spaces.actions)] == ["observation", "action"]
    assert caplog.text == "" and "".join(capfd.readouterr()) == ""


def test_of_a_stock_robot_nothing_is_said(caplog):
    spaces, _ = inspect_env(gymnasium.make, {"id": "HalfCheetah-v5"})
    assert spaces.actions[0].space.shape == (6,) and caplog.text == ""


def complaints(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_what_gymnasium_complains_about_is_a_warning(caplog):
    spaces, _ = inspect_env(fragile_env(), {"value": 7.0, "action_space": MultiDiscrete([2, 3])})
    assert spaces.actions[0].sizes == (2, 3)
    (said,) = complaints(caplog)
    assert said.startswith("gymnasium's check of the env: ") and "is not within the observation space" in said
    assert "\x1b" not in said and "WARN" not in said


@pytest.mark.parametrize(
    ("fault", "mode", "words"),
    [
        ("raise", "sync", "RuntimeError: the camera is gone"),
        ("exit", "sync", "it did not finish: env 0: SystemExit: 0"),
        ("hang", "sync", "it did not finish: env 0: no answer within 0.3 s, interrupted in test_checks.py"),
        ("raise", "async", "RuntimeError: the camera is gone"),
        ("hang", "async", "it did not finish: env 0: no answer within 2.5 s"),
        ("kill", "async", "it did not finish: env 0: its process died (exit code -9)"),
    ],
)
def test_a_fault_in_the_check_stops_nothing(fault, mode, words, caplog):
    start = time.monotonic()
    timeout = 0.3 if mode == "sync" else 2.5  # a worker needs time to start
    spaces, _ = inspect_env(fragile_env(), {"fault": fault}, vectorization_mode=mode, step_timeout=timeout)
    assert time.monotonic() - start < 20
    assert spaces.actions[0].space == Box(-1, 1, (1,))
    assert any(words in said for said in complaints(caplog))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"fault": "raise", "at": "constructor"}, "env 0: RuntimeError: the camera is gone (test_checks.py, line "),
        ({"fault": "hang", "at": "constructor"}, "env 0: no answer within 0.3 s"),
        ({"action_space": Dict(a=Text(3))}, "env 0: ValueError: action.a: only Box"),
    ],
)
def test_an_env_that_cannot_be_had_is_an_error(kwargs, words):
    with pytest.raises(EnvError) as error:
        inspect_env(fragile_env(), kwargs, step_timeout=0.3)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("fault", [None, "raise"])
def test_d01_the_global_generators_are_left_as_they_were_and_the_env_is_closed(mode, fault):
    kind = fragile_env()
    states = random.getstate(), np.random.get_state()[1].tolist()
    inspect_env(kind, {"fault": fault}, vectorization_mode=mode)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert kind.closed == 1  # in this process; with workers gymnasium builds one here to see its spaces


class Strict(gymnasium.Env):
    """One action of three is legal, another one each step; any other raises. Its arrays are always the same ones."""

    def __init__(self, says=True, action_space=None):
        self.says, self.action_space = says, action_space or Discrete(3)
        self.observation_space = Dict(x=Box(-9, 9, (1,)), legal=Box(0, 1, (3,), np.int8))
        self.x, self.mask = np.zeros(1, np.float32), np.zeros(3, np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x[:] = 0
        return self.out()

    def step(self, action):
        if isinstance(self.action_space, Discrete):
            assert self.mask[action], "illegal"
        self.x += 1
        observation, info = self.out()
        return observation, 0.0, False, False, info

    def out(self):
        self.mask[:] = np.arange(3) == int(self.x[0]) % 3
        return {"x": self.x, "legal": self.mask}, {"action_mask": self.mask} if self.says else {}


@pytest.mark.parametrize(
    ("kwargs", "asked", "source", "masks", "seen"),
    [
        ({}, "auto", "info", ["action_mask"], ["legal", "x", "action_mask"]),
        ({}, "info", "info", ["action_mask"], ["legal", "x", "action_mask"]),
        ({}, "legal", "legal", ["action_mask"], ["x", "action_mask"]),
        ({"says": False}, "legal", "legal", ["action_mask"], ["x", "action_mask"]),
        ({"says": False}, "auto", None, [], ["legal", "x"]),
        ({"action_space": Box(-1, 1, (2,))}, "auto", None, [], ["legal", "x"]),
    ],
)
def test_b06_where_the_masks_are_is_settled(kwargs, asked, source, masks, seen, caplog):
    spaces, found = inspect_env(Strict, kwargs, action_mask=asked)
    assert found == source
    assert [leaf.name for leaf in spaces.masks] == masks
    assert [leaf.name for leaf in spaces.seen] == seen
    if masks:  # the check takes legal actions, and arrays that are used again do no harm
        assert complaints(caplog) == []


def test_b06_masks_are_left_alone_if_one_says_so(caplog):
    spaces, source = inspect_env(Strict, action_mask="none")
    assert source is None and spaces.masks == ()


def pair_env():
    class Pair(gymnasium.Env):
        """Its gear can only be 6."""

        observation_space = Box(-9, 9, (1,))
        action_space = Dict(gear=Discrete(2, start=5), arm=Box(-1, 1, (1,)))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {"action_mask": {"gear": [0, 1]}}

        def step(self, action):
            assert action["gear"] == 6
            return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": {"gear": [0, 1]}}

    return Pair


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_b06_masks_of_nested_actions_in_the_check(mode, caplog):
    spaces, source = inspect_env(pair_env(), vectorization_mode=mode)
    assert source == "info" and [leaf.key for leaf in spaces.masks] == [("action_mask", "gear")]
    assert complaints(caplog) == []
