"""Faults of envs in processes of their own. Every env that is at fault here is env 1 of two."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mhrl.envs import EnvError, make_factory, make_vector_env, reset_envs
from mhrl.envs.probe import Counter

ACTIONS = np.zeros((2, 1), np.float32)


def faulty_env():
    # Local, so that it is sent to the workers by value: they need not find this module.
    main = os.getpid()

    class Faulty(Counter):
        """Does `fault` in the constructor, in the first reset, in the third step, in the reset after that, in close."""

        def __init__(self, fault=None, at=None, note=None):
            super().__init__(3)
            self.fault, self.at, self.note, self.steps = fault, at, note, 0
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
            self.may("close")
            if self.note and os.getpid() != main:  # gymnasium builds one more of the first, in the main process
                self.note.write_text("closed")

        def may(self, at):
            if self.at == at:
                {
                    "raise": lambda: [][7],
                    "exit": lambda: sys.exit(3),
                    "_exit": lambda: os._exit(3),
                    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
                    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
                    "hang": lambda: time.sleep(60),
                    "unpicklable": lambda: (_ for _ in ()).throw(type("Odd", (Exception,), {})(lambda: "stuck")),
                }[self.fault]()

    return Faulty


def play(kwargs, mode="async", timeout=20.0, note=None):
    """Build env 0 without and env 1 with a fault, reset, take three steps; return the error and the seconds."""
    factories = [make_factory(faulty_env(), {"note": note}), make_factory(faulty_env(), kwargs)]
    start = time.monotonic()
    env = None
    try:
        with pytest.raises(EnvError) as caught:
            env = make_vector_env(factories, 2, mode, step_timeout=timeout)
            env.reset(seed=[1, 2])
            for _ in range(3):
                env.step(ACTIONS)
    finally:
        seconds = time.monotonic() - start
        if env is not None:
            env.close()
    return caught.value, seconds


def workers():
    return [process for process in multiprocessing.active_children() if "VectorEnv" in process.name]


@pytest.mark.parametrize("at", ["constructor", "reset", "step", "autoreset"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "IndexError: list index out of range"),
        ("exit", "SystemExit: 3"),
        ("unpicklable", "Odd: <function"),
        ("_exit", "its process died (exit code 3)"),
        ("kill", "its process died (exit code -9)"),
        ("crash", "its process died (exit code -11)"),
    ],
)
def test_h03_a_fault_in_a_worker_is_named(fault, words, at, capfd):
    error, _ = play({"fault": fault, "at": at})
    assert str(error).startswith(f"env 1: {words}")
    assert error.index == 1
    assert workers() == []
    assert "Received the following error" not in capfd.readouterr().err


@pytest.mark.parametrize("at", ["constructor", "reset", "step", "autoreset"])
def test_h03_a_silent_worker_is_not_waited_for(at, tmp_path):
    error, seconds = play({"fault": "hang", "at": at}, timeout=2.5, note=tmp_path / "note")
    assert str(error) == "env 1: no answer within 2.5 s"
    assert 2.5 <= seconds < 15
    assert workers() == []
    assert (tmp_path / "note").read_text() == "closed"  # by the other env


def test_h03_the_traceback_of_a_worker_is_a_note():
    error, _ = play({"fault": "raise", "at": "step"})
    (note,) = error.__notes__
    assert "in step" in note and note.count("IndexError: list index out of range") == 2  # itself, and in ours


def test_h03_a_worker_that_hangs_when_it_closes_is_ended():
    factories = [make_factory(faulty_env()), make_factory(faulty_env(), {"fault": "hang", "at": "close"})]
    env = make_vector_env(factories, 2, "async")
    start = time.monotonic()
    env.close(timeout=1.0)
    assert time.monotonic() - start < 10
    assert workers() == []


def test_h03_workers_outlive_a_sigterm_to_the_group():
    env = make_vector_env(make_factory(faulty_env()), 2, "async")
    pids = [process.pid for process in env.processes]
    env.reset()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGTERM)
    time.sleep(0.2)
    assert env.step(ACTIONS)[0].tolist() == [[1], [1]]
    env.close()
    assert [process.exitcode for process in env.processes] == [0, 0]


ORPHANS = """
import os, signal, sys, time
import numpy as np
from mhrl.envs import make_factory, make_vector_env
from mhrl.envs.probe import Counter

class Busy(Counter):
    def step(self, action):
        time.sleep(60)

if __name__ == "__main__":
    env = make_vector_env([make_factory(Counter, {"length": 3}), make_factory(Busy, {"length": 3})], 2, "async")
    env.reset()
    env.step_async(np.zeros((2, 1), np.float32))
    print(*(process.pid for process in env.processes), flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_h03_no_worker_outlives_the_main_process(end, tmp_path):
    (tmp_path / "script.py").write_text(ORPHANS)
    done = subprocess.run([sys.executable, tmp_path / "script.py", end], capture_output=True, text=True, timeout=60)
    assert done.returncode == (-9 if end == "kill" else 0), done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_h02_one_env_is_reset_in_mid_episode(mode):
    env = make_vector_env([make_factory(Counter, {"length": 9, "start": start}) for start in (0, 100, 200)], 3, mode)
    actions = np.zeros((3, 1), np.float32)
    env.reset()
    env.step(actions)
    assert env.step(actions)[0].tolist() == [[2], [102], [202]]
    assert reset_envs(env, np.array([False, True, False])).tolist() == [[2], [100], [202]]
    assert env.step(actions)[0].tolist() == [[3], [101], [203]]
    env.close()
