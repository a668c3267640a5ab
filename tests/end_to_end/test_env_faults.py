"""Envs that fail end a run, in training and in evaluations, with their index and their own words; never in silence."""

import pytest

from mhrl.envs import EnvError

SMALL = ("+experiment=ddpg", "learning_starts=10", "total_frames=20", "batch_size=8", "eval.episodes=2")


def faulty(fault, **arguments):
    return (
        "env._target_=toy_envs.Faulty",
        "~env.id",
        f"+env.fault={fault}",
        *(f"+env.{key}={value}" for key, value in arguments.items()),
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "env 0: RuntimeError: the camera is gone (toy_envs.py, line "),
        ("exit", "env 0: SystemExit: 0 (toy_envs.py, line "),
        ("hang", "env 0: no answer within 0.5 s, interrupted in toy_envs.py, line "),
    ],
)
@pytest.mark.parametrize("evaluations_only", [False, True])
def test_h03_a_fault_of_an_env_ends_the_run(train, tmp_path, fault, words, evaluations_only):
    env = (*faulty(fault, evaluations_only=evaluations_only), "env.step_timeout=0.5")
    with pytest.raises(EnvError) as error:
        train(*SMALL, *env, "num_envs=2", f"run_dir={tmp_path / 'run'}")
    assert str(error.value).startswith(words)
    assert '"status": "failed"' in (tmp_path / "run" / "run.json").read_text()


def test_h03_a_worker_that_dies_ends_the_run(train, tmp_path):
    env = ("env._target_=toy_envs.Dies", "~env.id", "env.vectorization_mode=async", "num_envs=2")
    with pytest.raises(EnvError, match=r"env [01]: its process died \(exit code -9\)"):
        train(*SMALL, *env, f"run_dir={tmp_path / 'run'}")
    assert '"status": "failed"' in (tmp_path / "run" / "run.json").read_text()
