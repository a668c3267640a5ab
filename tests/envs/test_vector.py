import os
import signal
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from mhrl.envs import EnvError, env_seeds, make_factory, make_vector_env
from mhrl.envs.probe import Counter

COUNTER = make_factory(Counter, {"length": 3})


@pytest.mark.parametrize("mode", ["same_step", "SAME_STEP", "SameStep", AutoresetMode.SAME_STEP])
def test_a02_same_step(mode):
    env = make_vector_env(COUNTER, 2, autoreset_mode=mode)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.reset()
    steps = [env.step(np.zeros((2, 1), np.float32)) for _ in range(3)]
    assert steps[2][0].tolist() == [[0], [0]]
    assert [last.tolist() for last in steps[2][4]["final_obs"]] == [[3], [3]]


@pytest.mark.parametrize("mode", ["next_step", "disabled", "NextStep", AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_a02_other_autoreset_modes_are_refused_by_name(mode):
    name = mode if isinstance(mode, str) else mode.name
    with pytest.raises(ValueError, match=f"'{name}' is not supported"):
        make_vector_env(COUNTER, 2, autoreset_mode=mode)


@pytest.mark.parametrize(("num_envs", "mode"), [(0, "sync"), (2, "threads")])
def test_bad_arguments(num_envs, mode):
    with pytest.raises(ValueError, match=r"num_envs|vectorization_mode"):
        make_vector_env(COUNTER, num_envs, mode)


def test_one_factory_for_each_env():
    env = make_vector_env([make_factory(Counter, {"length": 3, "start": start}) for start in (0, 100)], 2)
    assert env.reset()[0].tolist() == [[0], [100]]
    with pytest.raises(ValueError, match="number of factories"):
        make_vector_env([COUNTER], 2)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("factory", "words"),
    [(lambda: SyncVectorEnv([lambda: Counter(3)]), "one env, got the vector env"), (dict, "got dict: {}")],
)
def test_factory_must_return_one_env(factory, words, mode):
    with pytest.raises(EnvError, match=f"env 0: TypeError: .*{words}"):
        make_vector_env(make_factory(factory), 2, mode)


def test_unknown_id_is_named_with_gymnasiums_words():
    with pytest.raises(EnvError, match=r"env 0: NameNotFound: .*NoSuchEnv") as error:
        make_vector_env(make_factory(gymnasium.make, {"id": "NoSuchEnv-v0"}), 1)
    assert isinstance(error.value.__cause__, gymnasium.error.NameNotFound)


def process_env():
    # Local, so that it is sent to the workers by value: they need not find this module.
    class Process(Counter):
        @property
        def facts(self):
            ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            return os.getpid(), ignored, os.environ.get("OMP_NUM_THREADS"), os.environ.get("OPENBLAS_NUM_THREADS")

    return Process


def test_async_workers_are_single_threaded_and_leave_ctrl_c_to_the_main_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    handler = signal.getsignal(signal.SIGINT)
    env = make_vector_env(make_factory(process_env(), {"length": 3}), 2, "async")
    assert isinstance(env, AsyncVectorEnv)
    pids, *facts = zip(*env.get_attr("facts"), strict=True)
    env.close()
    assert len({os.getpid(), *pids}) == 3
    assert facts == [(True, True), ("1", "1"), ("1", "1")]
    assert (os.environ["OMP_NUM_THREADS"], "MKL_NUM_THREADS" in os.environ) == ("7", False)
    assert signal.getsignal(signal.SIGINT) == handler


SCRIPT = """
import gymnasium, my_envs, numpy as np
from mhrl.envs import make_factory, make_vector_env

if __name__ == "__main__":
    for factory, kwargs in ((my_envs.Mine, {"start": 7}), (gymnasium.make, {"id": "my_envs:Mine-v0", "start": 7})):
        env = make_vector_env(make_factory(factory, kwargs), 2, "async")
        print(env.reset(seed=[1, 2])[0].tolist(), env.step(np.zeros((2, 1), np.float32))[0].tolist())
        env.close()
"""
MODULE = """
import gymnasium
from mhrl.envs.probe import Counter

class Mine(Counter):
    def __init__(self, start):
        super().__init__(5, start)

gymnasium.register("Mine-v0", entry_point=Mine)
"""


def test_async_from_a_script_with_a_users_module(tmp_path):
    (tmp_path / "my_envs.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[[7.0], [7.0]] [[8.0], [8.0]]"] * 2


def test_d01_env_seeds():
    train, evaluation = env_seeds(3, 50, "train"), env_seeds(3, 50, "eval")
    assert len({*train, *evaluation}) == 100
    assert {seed % 2 for seed in train} == {0}
    assert {seed % 2 for seed in evaluation} == {1}
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in train + evaluation)
    assert env_seeds(3, 50, "train") == train
    assert not {*train} & {*env_seeds(4, 50, "train")}
    with pytest.raises(ValueError, match="role"):
        env_seeds(3, 1, "test")
