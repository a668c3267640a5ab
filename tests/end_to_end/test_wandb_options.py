"""What W&B gets beside the rows: tags from the chosen configs, histograms, checkpoints. All offline."""

import json

import numpy as np
import pytest
import torch

SMALL = (
    *("+experiment=hybrid_q", "total_frames=60", "learning_starts=20", "batch_size=16", "log.every=20"),
    *("eval.every=30", "eval.episodes=1", "checkpoint.every=30"),
)


@pytest.fixture
def records(shell, tmp_path):
    """The records of the newest offline run."""

    def records():
        newest = max((tmp_path / "outputs" / "wandb").glob("offline-run-*"), key=lambda path: path.stat().st_ctime_ns)
        return [json.loads(line) for line in shell(f"wandb leet inspect --json {newest}").stdout.splitlines()]

    return records


def history(records):
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def tags(records):
    return next(record["run"]["tags"] for record in records if record["type"] == "run")


def test_choices_are_recorded_and_are_tags_on_resume_too(shell, train, records, tmp_path):
    result = shell(f"python train.py {' '.join(SMALL)} seed=3 trunk=mlp wandb.tags=[mine] run_dir=run")
    assert result.returncode == 0, result.stderr
    choices = json.loads((tmp_path / "run" / "run.json").read_text())["choices"]
    expected = {"experiment": "hybrid_q", "env": "hybrid", "trunk": "mlp", "aggregator": "weighted_sum"}
    assert {group: choices[group] for group in expected} == expected
    assert not any(group.startswith("hydra/") for group in choices)
    found = ["experiment:hybrid_q", "env:hybrid", f"objective:{choices['objective']}", "aggregator:weighted_sum"]
    assert tags(records()) == [*found, "seed:3", "mine"]

    resumed = train(f"resume={tmp_path / 'run'}", "total_frames=80")
    assert resumed.info["choices"] == choices
    assert tags(records()) == [*found, "seed:3", "mine"]


def test_without_hydra_the_tags_are_those_that_the_config_knows(train, records):
    train("+experiment=ddpg", *SMALL[1:], "wandb.mode=offline")
    assert tags(records()) == ["experiment:ddpg", "env:Pendulum-v1", "aggregator:weighted_sum", "seed:0"]


def test_all_of_it_on_the_axis_of_the_rows_and_no_bit_of_training_changed(train, records):
    options = ("wandb.watch=all", "wandb.histograms=true", "wandb.artifacts=true")
    plain, watched = train(*SMALL), train(*SMALL, *options, "wandb.mode=offline")
    left, right = plain.leaves(), watched.leaves()
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        assert np.array_equal(leaf, right[name], equal_nan=isinstance(leaf, torch.Tensor)), name
    assert watched.info["logger_errors"] == 0

    found = records()
    drawn = [row for row in history(found) if any(key.endswith("._type") for key in row)]
    assert [row["frames"] for row in drawn] == [20, 40, 60]
    names = [{key.removesuffix("._type") for key in row if key.endswith("._type")} for row in drawn]
    parameters = {f"parameters/{name}" for name in watched.checkpoint()["network"]}
    gradients = {name.replace("parameters/", "gradients/") for name in parameters}
    heads = {"head/throttle/action"}
    heads |= {f"head/{head}/{what}" for head in ("gear", "lights_0", "lights_1") for what in ("index", "value")}
    assert parameters <= names[0] and not names[0] & (gradients | heads)  # before the first update
    assert names[-1] >= gradients | heads and names[-1] <= parameters | gradients | heads
    (artifact,) = [record["artifact"] for record in found if record["type"] == "artifact"]
    assert artifact["name"] == watched.path.name
    assert [entry["path"] for entry in artifact["manifest"]["contents"]] == ["best.pt", "frames_60.pt"]


def test_none_of_it_is_on_by_default(train, records):
    run = train(*SMALL, "wandb.mode=offline")
    found = records()
    assert [row["frames"] for row in history(found)] == [row["frames"] for row in run.rows]
    assert not any(record["type"] == "artifact" for record in found)
