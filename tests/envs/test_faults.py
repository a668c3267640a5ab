"""Faults of envs in this process, and the watchdog. Every env that is at fault here is env 1 of two."""

import logging
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from mhrl.envs import EnvError, make_factory, make_vector_env
from mhrl.envs.faults import WATCHDOG, Guard
from mhrl.envs.probe import Counter

PLACES = ["constructor", "reset", "step", "autoreset"]


class Faulty(Counter):
    """Calls `fault` in the constructor, in the first reset, in the third step, in the reset after that, or in close."""

    closed = 0

    def __init__(self, fault=None, at=None):
        super().__init__(3)
        self.fault, self.at, self.steps = fault, at, 0
        self.may("constructor")

    def reset(self, **kwargs):
        self.may("autoreset" if self.steps else "reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            self.may("step")
        return super().step(action)

    def close(self):
        Faulty.closed += 1
        self.may("close")

    def may(self, at):
        if self.at == at:
            self.fault()


def play(fault, at, error=EnvError, **settings):
    Faulty.closed = 0
    env = None
    with pytest.raises(error) as caught:
        factories = [make_factory(Faulty), make_factory(Faulty, {"fault": fault, "at": at})]
        env = make_vector_env(factories, 2, **settings)
        env.reset(seed=[1, 2])
        for _ in range(3):
            env.step(np.zeros((2, 1), np.float32))
    if env is not None:
        env.close()
    assert Faulty.closed == (1 if at == "constructor" else 2)
    return caught.value


@pytest.mark.parametrize("at", PLACES)
def test_h03_an_error_is_named_with_its_env_and_its_words(at):
    error = play(lambda: [][7], at)
    assert str(error).startswith("env 1: IndexError: list index out of range (test_faults.py, line ")
    assert (error.index, type(error.__cause__)) == (1, IndexError)


@pytest.mark.parametrize("at", PLACES)
def test_h03_an_env_that_exits_does_not_end_the_run_in_silence(at):
    assert str(play(lambda: sys.exit(0), at)).startswith("env 1: SystemExit: 0 (")


def stubborn():
    """Goes on waiting, as drivers do."""
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def spin():
    while True:
        pass


@pytest.mark.parametrize("at", PLACES)
def test_h03_a_silent_env_is_interrupted(at):
    handler = signal.getsignal(signal.SIGALRM)
    start = time.monotonic()
    error = play(stubborn, at, step_timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 5
    assert str(error).startswith("env 1: no answer within 0.3 s, interrupted in test_faults.py, line ")
    assert signal.getsignal(signal.SIGALRM) == handler


def test_h03_a_busy_env_is_interrupted():
    assert "no answer within 0.2 s" in str(play(spin, "step", step_timeout=0.2))


def test_a_slow_env_is_left_alone_and_so_is_the_time_between_its_calls():
    env = make_vector_env(make_factory(Faulty, {"fault": lambda: time.sleep(0.6), "at": "step"}), 2, step_timeout=1.0)
    env.reset()
    for _ in range(3):
        env.step(np.zeros((2, 1), np.float32))  # the third takes 1.2 s in all, each env 0.6 s
    time.sleep(1.3)
    env.close()


def test_h03_ctrl_c_in_an_env_stays_ctrl_c():
    def interrupt():
        raise KeyboardInterrupt

    play(interrupt, "step", KeyboardInterrupt)


def test_h03_closing_never_raises_and_closes_the_others(caplog):
    Faulty.closed = 0
    factories = [make_factory(Faulty, {"fault": lambda: [][7], "at": "close"}), make_factory(Faulty)]
    with caplog.at_level(logging.WARNING, "mhrl"):
        make_vector_env(factories, 2).close()
    assert Faulty.closed == 2
    assert "env 0: IndexError: list index out of range" in caplog.text


def test_h03_closing_takes_no_longer_than_some_seconds(monkeypatch, caplog):
    monkeypatch.setattr("mhrl.envs.vector.CLOSE_TIMEOUT", 0.3)
    env = make_vector_env(make_factory(Faulty, {"fault": stubborn, "at": "close"}), 1, step_timeout=60.0)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "mhrl"):
        env.close()
    assert time.monotonic() - start < 5
    assert "env 0: no answer within 0.3 s" in caplog.text


def test_the_watchdog_passes_foreign_alarms_on_and_goes():
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    try:
        envs = [make_vector_env(make_factory(Faulty), 1, step_timeout=5.0) for _ in range(2)]
        signal.raise_signal(signal.SIGALRM)
        assert heard == [1]
        envs.pop(0).close()
        assert any(thread.name == "env-watchdog" for thread in threading.enumerate())
        envs.pop().close()
        signal.raise_signal(signal.SIGALRM)
        assert heard == [1, 1]
        time.sleep(0.05)
        assert not any(thread.name == "env-watchdog" for thread in threading.enumerate())
    finally:
        signal.signal(signal.SIGALRM, before)


def test_another_thread_has_no_watchdog_and_no_trouble():
    rows = []

    def work():
        env = make_vector_env(make_factory(Faulty), 1, step_timeout=5.0)
        rows.append(env.reset()[0].tolist())
        env.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert rows == [[[0.0]]]


def test_the_guard_costs_little():
    guard, count = Guard(0, 300.0), 20_000
    end = WATCHDOG.start(300.0)
    costs = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(count):
            with guard:
                pass
        costs.append((time.process_time() - start) / count)
    end()
    assert min(costs) < 5e-6, f"{min(costs) * 1e6:.2f} us of CPU on {os.cpu_count()} cores"
