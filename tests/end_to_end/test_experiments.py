"""Every experiment composes, runs, and leaves a whole run folder; and some of them learn."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mhrl.loading import load_run

EXPERIMENTS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "experiment").glob("*.yaml"))


def small(*overrides):
    return ("total_frames=300", "learning_starts=100", "eval.every=200", "eval.episodes=1", "batch_size=16", *overrides)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_runs_for_some_hundred_frames(train, experiment):
    run = train(f"+experiment={experiment}", *small(), "utd_ratio=1")
    assert run.info["status"] == "finished"
    assert [row["frames"] for row in run.rows] == [200, 300]
    assert [row["updates"] for row in run.rows] == [100, 200]
    last = run.rows[-1]
    losses = set(run.checkpoint()["config"]["losses"])
    assert {f"loss/{name}" for name in losses} <= set(last)
    assert all(np.isfinite(value) for row in run.rows for value in row.values())
    assert run.checkpoint()["counters"]["frames"] == 300


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_opens_with_the_files_to_read(experiment):
    root = Path(__file__).parents[2]
    lines = (root / "configs" / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    comment = " ".join(line for line in lines if line.startswith("# ") and "@package" not in line)
    files = [word.strip("(),.") for word in comment.split() if word.startswith("mhrl/")]
    assert len(files) >= 2 and "mhrl/objectives/value_based.py" in files
    assert all((root / file).exists() for file in files)


LEARNERS = {"ddpg": -200, "ddpg_shared_trunk": -200, "td3": -200, "bdq": -200, "dqn": 450, "hybrid_q": 0.95 * 4}
"""The least final return of each; the most that there is are about -100, 500 and 4."""


def final_return(run):
    return run.rows[-1]["eval/return_mean"]


def test_a_hybrid_of_continuous_and_discrete_heads_learns_all_that_there_is(train):
    """95 % of the optimum takes each kind of action: see `mhrl.envs.probe.Gearbox`."""
    small = ("total_frames=3_000", "batch_size=64", "eval.every=3_000", "eval.episodes=50")
    assert final_return(train("+experiment=hybrid_q", *small)) >= 0.95 * 4


def test_ddpg_shared_trunk_learns_pendulum(train):
    assert final_return(train("+experiment=ddpg_shared_trunk", "seed=0")) >= -200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("experiment", LEARNERS)
def test_learns_on_every_seed(train, experiment, seed):
    assert final_return(train(f"+experiment={experiment}", f"seed={seed}")) >= LEARNERS[experiment]


@pytest.mark.parametrize(
    "heads",
    [(), ("heads.actor.dims=[1]", "heads.other.dims=[0]")],
    ids=["one head", "a head per dimension, in the other order"],
)
def test_solves_a_one_step_bandit(train, heads):
    run = train("+experiment=ddpg", "env=bandit", "total_frames=1500", "learning_starts=200", *heads)
    policy = load_run(run.path).policy
    action = policy.act({"observation": torch.zeros(1, 1)})["action"][0]
    assert (action - torch.tensor([0.4, -0.3])).abs().max() < 0.1


def test_trains_on_pixels_beside_a_vector(train):
    run = train(
        "+experiment=ddpg_shared_trunk",
        "trunk=cnn",
        "trunk.kernels=[3]",
        "trunk.strides=[2]",
        "trunk.channels=[4]",
        "env._target_=toy_envs.Pixels",
        "~env.id",
        *small(),
    )
    assert run.info["status"] == "finished"
    assert run.checkpoint()["config"]["losses"]["actor"]["trunk_grad"] == 0.0
    assert run.checkpoint()["config"]["losses"]["value"]["trunk_grad"] == 1.0
