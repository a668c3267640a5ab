"""Aggregators in whole runs: resumed bit for bit, switched on resume, and what is refused."""

import pytest

from mhrl.config import ConfigError

SMALL = (
    *("env=hybrid", "trunk=mlp", "trunk.widths=[16]", "batch_size=16", "learning_starts=40", "seed=1"),
    *("eval.episodes=1", "eval.every=1000", "log.every=20"),
)
BRANCHES = (*SMALL, "objective=bdq", "heads.throttle.bins=5")
CURVE = "aggregator.schedules.lights={kind: linear, frames: [0, 80], values: [1, 0]}"
RULES = {
    "schedule": ("aggregator=schedule", CURVE),
    "uncertainty": ("aggregator=uncertainty", "aggregator.lr=0.01"),
    "dwa": ("aggregator=dwa", "aggregator.window=13"),
    "gradnorm": ("aggregator=gradnorm", "aggregator.alpha=0.5"),
    "pcgrad": ("aggregator=pcgrad",),  # draws
    "upgrad@params": ("aggregator=upgrad", "aggregator.level=params", "aggregator.refresh=13"),  # keeps weights
}


def logged(run):
    return [{key: value for key, value in row.items() if "perf/" not in key} for row in run.rows if row["updates"]]


@pytest.mark.parametrize("rule", RULES)
def test_d02_n_and_n_more_resumed_are_2n_bit_for_bit(train, rule):
    base = (*BRANCHES, *RULES[rule])
    whole, part = train(*base, "total_frames=100"), train(*base, "total_frames=60")
    resumed = train(f"resume={part.path}", "total_frames=100")
    assert resumed.differences(whole) == []
    assert all(row.items() >= right.items() for row, right in zip(logged(resumed), logged(whole), strict=True))
    assert f"aggregator  {rule}" in (whole.path / "train.log").read_text()


def test_weights_that_a_rule_sets_are_logged(train):
    run = train(*BRANCHES, *RULES["schedule"], "losses.lights_1.weight=2", "total_frames=100")
    weights = {
        row["frames"]: {k[12:]: v for k, v in row.items() if k.startswith("loss_weight/")} for row in logged(run)
    }
    assert weights[60] == pytest.approx({"gear": 1, "throttle_0": 1, "lights_0": 0.25, "lights_1": 0.5})
    assert weights[80] == {"gear": 1.0, "throttle_0": 1.0}  # at weight 0 there is no loss
    log = " ".join((run.path / "train.log").read_text().split())
    assert "lights_1 head_lights_1, head_value, trunk 2 x linear 1 to 0 1 lights_1" in log


def test_gradnorm_takes_the_losses_of_heads_that_propose(train):
    run = train(*SMALL, "aggregator=gradnorm", "total_frames=60")
    (last,) = (row for row in logged(run) if row["frames"] == 60)
    weights = {key: value for key, value in last.items() if key.startswith("loss_weight/")}
    assert set(weights) == {f"loss_weight/{name}" for name in ("throttle", "gear", "lights_0", "lights_1")}
    assert sum(weights.values()) == pytest.approx(4.0) and len(set(weights.values())) == 4


@pytest.mark.parametrize(
    ("old", "new"), [("dwa", "weighted_sum"), ("weighted_sum", "uncertainty"), ("uncertainty", "dwa")]
)
def test_on_resume_another_rule_begins_with_a_fresh_state_and_says_so(train, old, new):
    part = train(*BRANCHES, f"aggregator={old}", "total_frames=60")
    resumed = train(f"resume={part.path}", f"aggregator={new}", "total_frames=80")
    found = resumed.checkpoint()
    assert found["config"]["aggregator"]["_target_"].lower().endswith(new.replace("_", ""))
    steps = {name: float(state["step"]) for name, state in optimizer_states(found).items()}
    own = {name: step for name, step in steps.items() if name.startswith("aggregator.")}
    assert len(own) == (4 if new == "uncertainty" else 0)
    assert set(own.values()) <= {20.0} and {steps[name] for name in steps.keys() - own} == {40.0}
    if new == "dwa":
        assert found["aggregator"]["passes"].item() == 20
    log = (resumed.path / "train.log").read_text()
    assert "on the command line, which wins, with a fresh state" in log and f"aggregator  {new}" in log
    assert resumed.info["aggregator"] == resumed.info["choices"]["aggregator"] == new


def optimizer_states(checkpoint):
    """`{parameter: its state}`."""
    held = checkpoint["optimizer"]
    pairs = [pair for group in held["param_groups"] for pair in zip(group["params"], group["param_names"], strict=True)]
    return {name: held["state"][i] for i, name in pairs}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((*SMALL, "aggregator=dwa"), "aggregator: loss 'throttle' is known to become negative: dwa needs losses that"),
        (
            (*SMALL, "aggregator=gradnorm", "aggregator.alpha=1"),
            "loss 'throttle' is known to become negative: gradnorm",
        ),
        (
            (*SMALL, "aggregator=gradnorm", "trunk=identity", "~trunk.widths"),
            "aggregator=gradnorm has nothing to balance",
        ),
        ((*BRANCHES, "aggregator=schedule", CURVE.replace("lights", "light")), "did you mean lights?"),
        (
            (*BRANCHES, "aggregator=schedule", CURVE.replace("[0, 80]", "[80, 0]")),
            "frames is [80, 0]: growing numbers",
        ),
        (
            (*BRANCHES, "aggregator=schedule", f"+{CURVE.replace('kind', 'knid')}"),
            "schedules.lights.knid: did you mean",
        ),
        ((*BRANCHES, "aggregator=dwa", "aggregator.windw=3"), "unknown key aggregator.windw: did you mean window?"),
    ],
)
def test_e01_what_cannot_be_is_refused_before_a_folder_exists(train, tmp_path, overrides, said):
    with pytest.raises(ConfigError) as error:
        train(*overrides, "total_frames=50")
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_turns_negative_ends_the_run_by_name(shell, tmp_path):
    sinking = ("objective._target_=toy_losses.Sinking", "aggregator=uncertainty", "wandb.mode=disabled", "run_dir=run")
    done = shell(" ".join(["python train.py", *BRANCHES, *sinking, "total_frames=50"]))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "loss 'gear' is -" in done.stderr and "uncertainty needs losses that are never negative" in done.stderr
    assert "the run failed at 41 frames: loss 'gear' is" in (tmp_path / "run" / "train.log").read_text()
