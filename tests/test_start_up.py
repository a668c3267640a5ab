from pathlib import Path

from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from mhrl.aggregators import DWA, IMTLG, Curve, Schedule, WeightedSum
from mhrl.exploration import ActionNoise, Gaussian
from mhrl.objectives import ValueBased
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
    objective = ValueBased(network, WeightedSum(**factors))
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
    assert info.aggregator == "weighted_sum" and {row.rule for row in info.losses} == {""}
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


def config_of(network, **fields):
    """A config in which every head of `network` is of its kind, with `fields`."""
    kinds = {name: "branch" if name in network.branches else "deterministic" for name in network.specs}
    heads = {name: {"kind": kind, "in_keys": ["features"], "lr": None, **fields} for name, kind in kinds.items()}
    losses = {name: {"weight": 1.0, "trunk_grad": 1.0} for name in ValueBased.loss_names(network)}
    return {**CONFIG, "heads": heads, "losses": losses}


def test_branches_say_among_how_many_values_they_choose(make_agent):
    network = make_agent(Dict({"gear": Discrete(3), "x": Box(-1, 1, (2,)), "lights": MultiBinary(2)}), dueling="mean")
    info = describe(network, config_of(network))
    assert {row.name: row.covers for row in info.heads} == {
        "gear": "gear, 3 values",
        "lights_0": "lights[0], 2 values",
        "lights_1": "lights[1], 2 values",
        "x": "x",
        "value": "V(s, x)",
    }


def of_rule(network, aggregator, config=None):
    config = config_of(network) if config is None else config
    return run_info(config, network, ValueBased(network, aggregator), "", Path("run"))


def test_what_a_rule_puts_on_the_losses_is_said(make_agent):
    network = make_agent(MultiDiscrete([2, 3]))
    info = of_rule(network, Schedule(schedules={"action_1": Curve("cosine", [1.0, 0.5], [0, 10])}))
    assert info.aggregator == "schedule"
    assert {row.name: row.rule for row in info.losses} == {"action_0": "", "action_1": "cosine 1 to 0.5"}
    assert {row.rule for row in of_rule(network, DWA(losses=["action_0", "action_1"])).losses} == {"dwa"}


def test_a_rule_that_has_nothing_to_balance_is_named(make_agent):
    network = make_agent(MultiDiscrete([2, 3]))
    info = of_rule(network, IMTLG())
    assert info.aggregator == "imtl_g@features" and not any("balance" in note for note in info.notes)
    config = config_of(network)
    config["losses"]["action_1"]["weight"] = 0.0
    said = "imtl_g@features has nothing to balance: all losses reach the trunk by row action_0"
    assert said in of_rule(network, IMTLG({"action_1": 0.0}), config).notes
    said = "imtl_g@features has nothing to balance: no loss reaches the trunk"
    assert said in of_rule(network, IMTLG(trunk_grad=0.0)).notes
    assert not any("balance" in note for note in of_rule(network, WeightedSum({"action_1": 0.0}), config).notes)


def test_branches_that_would_hardly_explore_are_named(make_agent):
    network = make_agent(MultiDiscrete([2, 4, 7, 1, 2]))
    heads = {name: Gaussian(0.1) for name in network.acting} | {"action_4": Gaussian(0.1, epsilon=0.1)}
    # From one value to the next it is half a value to the rounding: the deviations are 0.05, 0.15 and 0.3 values.
    timid = ActionNoise(network, heads, 0).timid
    assert timid == ("action_0", "action_1")
    info = run_info(config_of(network), network, ValueBased(network, WeightedSum()), "", Path("run"), timid)
    assert any("hardly any exploration" in note and "action_0, action_1" in note for note in info.notes)


def test_a_branch_without_a_hidden_layer_beside_a_head_that_proposes_is_named(make_agent):
    network = make_agent(Dict({"gear": Discrete(3), "throttle": Box(-1, 1, (1,))}))
    assert not any("linear" in note for note in describe(network, config_of(network, widths=[4])).notes)
    notes = describe(network, config_of(network, widths=[])).notes
    assert any("linear in the continuous action: gear" in note for note in notes)
