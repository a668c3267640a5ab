from pathlib import Path

import pytest
from hydra import initialize_config_dir

from mhrl.config import ConfigError
from mhrl.resume import merge

CONFIGS = Path(__file__).parents[1] / "configs"
CONFIG = {
    "seed": 1,
    "num_envs": 2,
    "total_frames": 100,
    "trunk": {"_target_": "mhrl.trunks.MLPTrunk", "lr": None},
    "heads": {"arm": {"kind": "deterministic", "lr": 0.1, "widths": [8]}},
    "env": {"id": "Pendulum-v1", "kwargs": {"g": 9.8}},
    "eval": {"every": 10},
    "aggregator": {"_target_": "mhrl.aggregators.DWA", "rows": "objectives", "window": 50, "temperature": 2.0},
}


def test_the_command_line_wins_and_is_listed():
    config, conflicts = merge(CONFIG, ["resume=x", "total_frames=1e3", "heads.arm.widths=[4,4]", "+trunk.extra=1"])
    assert config["total_frames"] == 1000 and config["heads"]["arm"]["widths"] == [4, 4]
    assert config["trunk"] == {"_target_": "mhrl.trunks.MLPTrunk", "lr": None, "extra": 1}
    assert CONFIG["total_frames"] == 100  # as it was
    assert len(conflicts) == 3
    assert conflicts[1] == "heads.arm.widths is [8] in the checkpoint, [4, 4] on the command line, which wins"


def test_what_is_said_again_is_no_conflict():
    said = [
        "resume=x",
        "trust_config=true",
        "eval.every=10",
        "seed=1",
        "env.id=Pendulum-v1",
        "heads.arm.kind=deterministic",
    ]
    config, conflicts = merge(CONFIG, said)
    assert config == CONFIG and conflicts == ()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trunk=mlp", "keeps its trunk; leave it out"),
        ("+experiment=ddpg", "keeps its experiment"),
        ("env@other=gymnasium", "keeps its"),
        ("seed=2", "keeps seed, which is 1"),
        ("num_envs=3", "keeps num_envs, which is 2"),
        ("env.kwargs.g=1", "keeps env.kwargs.g, which is 9.8"),
        ("+env.kwargs.h=1", "keeps env.kwargs.h, which is None"),
        ("heads.arm.kind=linear", "keeps heads.arm.kind, which is deterministic"),
        ("trunk._target_=os.system", "keeps trunk._target_"),
        ("aggregator._target_=mhrl.aggregators.WeightedSum", "keeps aggregator._target_"),
        ("+aggregator=weighted_sum", "keeps its aggregator"),
        ("~aggregator", "keeps its aggregator"),
        ("aggregator={window: 3}", "keeps its aggregator"),
        ("~trunk.lr", "nothing can be deleted"),
    ],
)
def test_what_a_run_keeps_for_life(override, said):
    with pytest.raises(ConfigError) as error:
        merge(CONFIG, [override])
    assert said in str(error.value) and str(error.value).startswith(override)


@pytest.fixture
def hydra():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield


def test_another_aggregator_takes_the_place_of_the_old_one_and_single_values_go_over_it(hydra):
    for said in (["aggregator=gradnorm", "aggregator.alpha=0.5"], ["aggregator.alpha=0.5", "aggregator=gradnorm"]):
        config, conflicts = merge(CONFIG, said)
        assert config["aggregator"] == {
            **{"_target_": "mhrl.aggregators.GradNorm", "rows": "objectives", "lr": 0.025, "alpha": 0.5}
        }
        assert conflicts == (
            "aggregator is mhrl.aggregators.DWA in the checkpoint, mhrl.aggregators.GradNorm on the command line, "
            "which wins, with a fresh state",
        )


def test_another_weighting_in_the_same_aggregator_begins_with_a_fresh_state(hydra):
    weighting = {"_target_": "torchjd.aggregation.GradVacWeighting", "beta": 0.1}
    config = {**CONFIG, "aggregator": {"_target_": "mhrl.aggregators.TorchJD", "weighting": weighting}}
    _, conflicts = merge(config, ["aggregator=torchjd"])
    assert conflicts == (
        "aggregator is mhrl.aggregators.TorchJD with torchjd.aggregation.GradVacWeighting in the checkpoint, "
        "mhrl.aggregators.TorchJD with torchjd.aggregation.DualProjWeighting on the command line, which wins, with a "
        "fresh state",
    )


def test_the_same_aggregator_said_again_is_that_of_its_file_and_what_the_command_line_adds(hydra):
    config, conflicts = merge(CONFIG, ["aggregator=dwa"])
    assert config["aggregator"]["window"] == 1000
    assert conflicts == ("aggregator.window is 50 in the checkpoint, 1000 on the command line, which wins",)
    assert merge(CONFIG, ["aggregator=dwa", "aggregator.window=50"]) == (CONFIG, ())
    with pytest.raises(
        ConfigError, match=r"aggregator=gradnrom is no file in configs/aggregator: did you mean gradnorm"
    ):
        merge(CONFIG, ["aggregator=gradnrom"])


def test_a_leafs_name_stands_for_all_its_heads_and_losses():
    heads = {"arm_0": {"leaf": "arm", "lr": None}, "arm_1": {"leaf": "arm", "lr": 0.1}, "value": {"leaf": None}}
    losses = {"arm_0": {"weight": 1.0}, "arm_1": {"weight": 1.0}}
    config = {"heads": heads, "losses": losses, "objective": {}}
    merged, conflicts = merge(config, ["heads.arm.lr=0.1", "losses.arm.weight=2", "losses.arm_1.weight=3"])
    assert {name: merged["heads"][name].get("lr") for name in heads} == {"arm_0": 0.1, "arm_1": 0.1, "value": None}
    assert merged["losses"] == {"arm_0": {"weight": 2}, "arm_1": {"weight": 3}}
    assert conflicts[0] == "heads.arm_0.lr is None in the checkpoint, 0.1 on the command line, which wins"
    with pytest.raises(ConfigError, match=r"heads.arm.bins=7: a resumed run keeps heads.arm_0.bins"):
        merge({**config, "heads": {"arm_0": {"leaf": "arm", "bins": 5}}}, ["heads.arm.bins=7"])
    with pytest.raises(ConfigError, match=r"the run has no heads.leg, but arm_0, arm_1, value"):
        merge(config, ["heads.leg.lr=1"])
