"""The command line as a user meets it: exit codes, folders, W&B, sweeps."""

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

from mhrl.loading import evaluate_run

SMALL = "total_frames=250 learning_starts=100 eval.every=100 eval.episodes=2 batch_size=16"


def runs(folder):
    return sorted(
        path for path in (folder / "outputs").iterdir() if (path / "run.json").is_file() and not path.is_symlink()
    )


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def wandb_runs(folder):
    return sorted((folder / "outputs" / "wandb").glob("offline-run-*"))


def inspect(shell, path):
    """`wandb leet inspect --json`: the history rows and the config of an offline run."""
    records = [json.loads(line) for line in shell(f"wandb leet inspect --json {path}").stdout.splitlines()]
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    config = next(record["run"]["config"]["update"] for record in records if record["type"] == "run")
    return history, config


def test_a_run_leaves_what_it_promises(shell, tmp_path):
    result = shell(f"python train.py +experiment=ddpg {SMALL}")
    assert result.returncode == 0, result.stderr
    (run,) = runs(tmp_path)
    assert (tmp_path / "outputs" / "last").resolve() == run
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "finished" and info["frames"] == 250 and info["updates"] == 150
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["heads"]["actor"]["dims"] == [0] and config["heads"]["value"]["kind"] == "critic"
    assert config["losses"]["actor"] == {"weight": 1.0, "trunk_grad": 1.0}
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["best.pt", "frames_101.pt", "frames_250.pt", "last.pt"]
    for said in (
        "Pendulum-v1",
        "head_actor",
        "offline",
        "no API key",
        str(run.name),
        "eval return",
        "best eval return",
    ):
        assert said in result.stdout
        assert said in (run / "train.log").read_text()
    assert "\x1b" not in result.stdout and "\r" not in result.stdout

    # W&B holds the same numbers, the same config, and the same run id.
    (offline,) = wandb_runs(tmp_path)
    assert offline.name.endswith(info["wandb_id"])
    history, logged_config = inspect(shell, offline)
    assert [{k: v for k, v in row.items() if not k.startswith("_")} for row in history] == rows(run)
    assert logged_config["heads"]["actor"]["widths"] == config["heads"]["actor"]["widths"]

    # Each of the commands that the run suggests works.
    suggested = [line.strip() for line in result.stdout.split("next\n")[-1].splitlines() if line.strip()]
    assert len(suggested) == 2
    for command in suggested:
        followed = shell(command)
        assert followed.returncode == 0, (command, followed.stderr)
    evaluated = dict(line.split() for line in shell(f"python scripts/evaluate.py run={run}").stdout.splitlines())
    assert float(evaluated["eval/return_mean"]) == pytest.approx(rows(run)[-1]["eval/return_mean"], abs=0.051)
    assert (
        evaluate_run(run / "checkpoints" / "last.pt").metrics()["eval/return_mean"] == rows(run)[-1]["eval/return_mean"]
    )


def test_e04_a_sweep_makes_three_runs_that_do_not_leak(shell, tmp_path, train):
    command = f"python train.py -m +experiment=ddpg seed=0,1,2 {SMALL}"
    result = shell(command, timeout=240)
    assert result.returncode == 0, result.stderr
    folders = runs(tmp_path)
    assert len(folders) == 3 and len(wandb_runs(tmp_path)) == 3
    ids = {json.loads((folder / "run.json").read_text())["wandb_id"] for folder in folders}
    assert len(ids) == 3
    logged = {inspect(shell, path)[1]["seed"] for path in wandb_runs(tmp_path)}
    assert logged == {0, 1, 2}
    alone = train("+experiment=ddpg", "seed=1", *SMALL.split()).checkpoint()["network"]
    swept = torch.load(folders[1] / "checkpoints" / "last.pt", weights_only=True)
    assert swept["config"]["seed"] == 1
    assert all(torch.equal(value, swept["network"][key]) for key, value in alone.items())
    assert sorted(path.name for path in (tmp_path / "outputs" / "multirun").rglob("*") if path.is_file()) == [
        "multirun.yaml"
    ]


def test_e04_a_failing_job_does_not_stop_a_sweep(shell, tmp_path):
    result = shell(f"python train.py -m +experiment=ddpg num_envs=1,0,2 wandb.mode=disabled {SMALL}", timeout=240)
    assert result.returncode == 1
    assert "num_envs is 0" in result.stderr
    assert len(runs(tmp_path)) == 2


def test_e04_a_sweep_refuses_one_folder(shell, tmp_path):
    result = shell(f"python train.py -m +experiment=ddpg seed=0,1 run_dir={tmp_path / 'x'} {SMALL}")
    assert result.returncode == 1
    assert "run_dir names one folder" in result.stderr
    assert not (tmp_path / "x").exists()


def test_a_run_folder_in_use_is_refused(shell, tmp_path):
    (tmp_path / "empty").mkdir()
    command = f"python train.py +experiment=ddpg dry_run=true run_dir={tmp_path / 'empty'}"
    assert shell(command).returncode == 0
    before = sorted(tmp_path.rglob("*"))
    result = shell(command)
    assert result.returncode == 1 and "run_dir" in result.stderr and str(tmp_path / "empty") in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("extra", ["", "num_envs=3", "utd_ratio=4", "collector.frames_per_rollout=5"])
def test_dry_run_is_one_update_one_evaluation_one_checkpoint(train, extra):
    run = train("+experiment=ddpg_shared_trunk", "dry_run=true", *extra.split())
    (row,) = run.rows
    assert row["updates"] == 1 and "eval/return_mean" in row and row["eval/return_std"] == 0.0
    assert run.checkpoint()["counters"]["updates"] == 1
    assert run.info["status"] == "finished" and run.info["wandb_id"] is None


@pytest.mark.parametrize("arguments", ["--help", "+experiment=ddpg --cfg job"])
def test_help_and_config_answer_at_once(shell, arguments):
    start = os.times()
    result = shell(f"python train.py {arguments}")
    end = os.times()
    assert result.returncode == 0
    seconds = end.children_user + end.children_system - start.children_user - start.children_system
    assert seconds < 1.5  # of CPU time: importing torch alone takes 2
    assert "experiment:" not in result.stdout.replace("experiment: bdq,", "")  # the list of choices


def test_importing_the_command_line_imports_nothing_heavy():
    code = "import sys, mhrl.config; print([m for m in ('torch', 'torchrl', 'wandb', 'gymnasium') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_f01_disabled_leaves_no_wandb(shell, tmp_path):
    result = shell("python train.py +experiment=ddpg total_frames=20 learning_starts=10 wandb.mode=disabled")
    assert result.returncode == 0 and "disabled" in result.stdout
    assert not (tmp_path / "outputs" / "wandb").exists()


def test_interrupted_runs_say_so(build, tmp_path):
    experiment = build("+experiment=ddpg", f"run_dir={tmp_path / 'run'}", *SMALL.split())

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    experiment.parts.learner.update = interrupt
    with pytest.raises(KeyboardInterrupt):
        experiment.run()
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "interrupted" and info["frames"] == 101


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run=nowhere", "nowhere does not exist"),
        ("", "run= is missing"),
        ("run=x episode=3", "unknown option episode"),
        ("run=x episodes=0", "episodes=0"),
    ],
)
def test_evaluate_refuses_by_name(shell, arguments, said):
    result = shell(f"python scripts/evaluate.py {arguments}")
    assert result.returncode == 1 and said in result.stderr and "Traceback" not in result.stderr


def test_g01_evaluate_refuses_foreign_code(train, shell):
    run = train("+experiment=ddpg", "env._target_=toy_envs.Doubles", "~env.id", "dry_run=true")
    refused = shell(f"python scripts/evaluate.py run={run.path}")
    assert refused.returncode == 1 and "toy_envs.Doubles" in refused.stderr and "trust_config=true" in refused.stderr
    trusted = shell(f"python scripts/evaluate.py run={run.path} trust_config=true episodes=1")
    assert trusted.returncode == 0 and "eval/return_mean" in trusted.stdout


@pytest.mark.parametrize("chdir", ["true", "false"])
def test_e04_every_path_is_relative_to_the_launch_folder(shell, tmp_path, chdir):
    elsewhere = f"hydra.job.chdir={chdir} hydra.run.dir=elsewhere"
    result = shell(f"python train.py +experiment=ddpg dry_run=true run_dir=mine/run1 {elsewhere}")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "mine" / "run1" / "run.json").is_file()
    result = shell(f"python train.py -m +experiment=ddpg dry_run=true seed=0,1 hydra.job.chdir={chdir}")
    assert result.returncode == 0, result.stderr
    assert len(runs(tmp_path)) == 2


def test_a_worker_that_dies_is_recorded_and_leaves_no_process(shell, tmp_path):
    env = "env._target_=toy_envs.Dies ~env.id num_envs=2 env.vectorization_mode=async eval.episodes=1"
    result = shell(f"python train.py +experiment=ddpg {env} run_dir=mine wandb.mode=disabled")
    assert result.returncode == 1
    info = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert info["status"] == "failed" and "failed" in result.stdout


def test_a_dry_run_still_refuses_a_misspelt_wandb_mode(shell, tmp_path):
    result = shell("python train.py +experiment=ddpg dry_run=true wandb.mode=onlin")
    assert result.returncode == 1 and "onlin" in result.stderr
    assert not (tmp_path / "outputs").exists()


def test_the_commands_of_a_run_with_foreign_code_work(shell, tmp_path):
    result = shell("python train.py +experiment=ddpg env._target_=toy_envs.Doubles ~env.id dry_run=true")
    (command,) = [line.strip() for line in result.stdout.split("next\n")[-1].splitlines() if line.strip()]
    assert command.endswith("trust_config=true")
    assert shell(command).returncode == 0


def test_a_run_that_fails_before_its_first_checkpoint_suggests_no_evaluation(shell):
    result = shell("python train.py +experiment=ddpg env._target_=toy_envs.NanReward ~env.id wandb.mode=disabled")
    assert result.returncode == 1 and "failed" in result.stdout and "evaluate.py" not in result.stdout
