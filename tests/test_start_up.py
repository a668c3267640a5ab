from pathlib import Path

from mhrl.aggregators import WeightedSum
from mhrl.objectives import DDPG
from mhrl.start_up import run_info

CONFIG = {
    "name": "demo",
    "env": {"_target_": "my_envs.Reach"},
    "trunk": {"_target_": "mhrl.trunks.MLPTrunk"},
    "seed": 3,
    "device": "cpu",
    "learning_starts": 10,
    "total_frames": 100,
    "optimizer": {"lr": 1e-3},
}


def describe(network, config, **factors):
    objective = DDPG(network, WeightedSum(**factors))
    return run_info(config, network, objective, "offline: no key", Path("run"))


def test_it_says_who_covers_what_and_which_loss_trains_what(make_network):
    network = make_network({"left": (0, 2), "right": (1,)})
    heads = {
        "left": {"kind": "deterministic", "dims": [0, 2], "in_keys": ["features"], "lr": None},
        "right": {"kind": "deterministic", "dims": [1], "in_keys": ["features"], "lr": 1e-4},
        "value": {"kind": "critic", "dims": None, "in_keys": ["features", "observation"], "lr": None},
    }
    losses = {name: {"weight": float(name != "right"), "trunk_grad": 1.0} for name in heads}
    info = describe(network, {**CONFIG, "heads": heads, "losses": losses}, weights={"right": 0.0})
    assert [(h.name, h.kind, h.covers, h.reads, h.lr) for h in info.heads] == [
        ("left", "deterministic", "action[0, 2]", "features", 1e-3),
        ("right", "deterministic", "action[1]", "features", 1e-4),
        ("value", "critic", "Q(s, a)", "features + observation", 1e-3),
    ]
    assert [(r.name, r.trains, r.weight, r.trunk_factor, r.row) for r in info.losses] == [
        ("left", ("head_left", "trunk"), 1.0, 1.0, "actor"),
        ("right", ("head_right", "trunk"), 0.0, 1.0, "actor"),
        ("value", ("head_value", "trunk"), 1.0, 1.0, "value"),
    ]
    assert info.env == "my_envs.Reach" and info.experiment == "demo" and info.seed == 3
    assert info.notes == ("weight 0, not computed: right",)


def test_a_run_without_updates_and_a_trunk_without_parameters_are_noted(make_network):
    network = make_network({"actor": (0, 1, 2)}, trunk="identity")
    heads = {
        "actor": {"kind": "deterministic", "dims": [0, 1, 2], "in_keys": ["features"], "lr": None},
        "value": {"kind": "critic", "dims": None, "in_keys": ["features"], "lr": None},
    }
    losses = {name: {"weight": 1.0, "trunk_grad": 1.0} for name in heads}
    late = {**CONFIG, "heads": heads, "losses": losses, "learning_starts": 100}
    info = describe(network, late | {"trunk": {"_target_": "mhrl.trunks.IdentityTrunk"}})
    assert [row.trunk_factor for row in info.losses] == [None, None]
    assert [row.covers for row in info.heads] == ["action", "Q(s, a)"]
    assert "IdentityTrunk has no parameters" in info.notes[0] and "there will be no update" in info.notes[1]
