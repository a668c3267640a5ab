import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from mhrl import builder
from mhrl.config import ConfigError
from mhrl.engine import EagerEngine
from mhrl.envs import Leaf
from mhrl.exploration import Gaussian
from mhrl.objectives import DDPG
from mhrl.resolve import resolve_heads, resolve_losses

KINDS = {
    "deterministic": {"_target_": "mhrl.heads.DeterministicHead", "widths": [6]},
    "critic": {"_target_": "mhrl.heads.QHead", "widths": [6]},
}
SPACE = Box(np.array([-1.0, 0.0, -2.0], np.float32), np.array([3.0, 0.5, 2.0], np.float32))
OBSERVATION = (Leaf("observation", "observation", Box(-1, 1, (4,), np.float32)),)
ACTION = (Leaf("action", "action", SPACE),)
LISTED = {"arm": {"dims": [2, 0]}, "gripper": {"dims": [1]}}


def config_of(heads=None, losses=None, trunk=None, **rest):
    config = {
        "trunk": {"_target_": "mhrl.trunks.MLPTrunk", "widths": [5], "lr": None} | (trunk or {}),
        "heads": resolve_heads(LISTED if heads is None else heads, ACTION, KINDS),
        "aggregator": {"_target_": "mhrl.aggregators.WeightedSum"},
        "objective": {"_target_": "mhrl.objectives.DDPG", "gamma": 0.9},
        "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.01, "clip_norm": None},
        "exploration": {"_target_": "mhrl.exploration.Gaussian", "std": 0.1, "std_end": None, "anneal_frames": 0},
        "engine": "eager",
    } | rest
    names = [name for name in config["heads"] if name != "value"] + ["value"]
    return config | {"losses": resolve_losses(losses or {}, names, 1.0)}


def objective_of(config):
    network = builder.build_network(config, builder.build_trunk(config, OBSERVATION), ACTION)
    aggregator = builder.build_aggregator(config)
    return builder.build(config["objective"], "objective", network=network, aggregator=aggregator)


def test_each_head_gets_the_bounds_of_its_dimensions_in_its_order():
    network = objective_of(config_of()).network
    assert network.head("arm").center.tolist() == [0.0, 1.0] and network.head("arm").half_range.tolist() == [2.0, 2.0]
    assert network.head("gripper").center.tolist() == [0.25]
    assert network.head("value").half_range.tolist() == [2.0, 0.25, 2.0]
    assert network.specs["arm"].dims == (2, 0)


def test_each_head_gets_the_size_of_what_it_reads():
    keys = {"arm": ["features"], "gripper": ["observation"], "value": ["features", "observation"]}
    listed = {name: {**LISTED.get(name, {}), "in_keys": key} for name, key in keys.items()}
    network = objective_of(config_of(listed)).network
    assert [network.head(name).in_features for name in keys] == [5, 4, 9]


def test_learning_rates_of_trunk_and_heads_each_parameter_once():
    listed = {"arm": {"dims": [2, 0], "lr": 0.5}, "gripper": {"dims": [1], "lr": 0.002}, "value": {"lr": 0.0}}
    config = config_of(listed, trunk={"lr": 0.002})
    objective = objective_of(config)
    optimizer = builder.build_optimizer(config, objective)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    right = {"trunk": 0.002, "head_arm": 0.5, "head_gripper": 0.002, "head_value": 0.0}
    named = dict(objective.network.named_parameters())
    assert {name: rates[id(p)] for name, p in named.items()} == {name: right[name.split(".")[0]] for name in named}
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(listed) == len({id(p) for p in listed}) == len(named)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.0, 0.002, 0.5]
    assert not {id(t) for t in objective.target.state_dict(keep_vars=True).values()} & rates.keys()


def test_equal_settings_are_one_group():
    config = config_of({"arm": {"dims": [2, 0], "lr": 0.01}, "gripper": {"dims": [1]}})
    (group,) = builder.build_optimizer(config, objective_of(config)).param_groups
    assert group["lr"] == 0.01 and len(group["params"]) == 2 + 3 * 4


def test_a_step_moves_each_part_by_its_own_rate(make_batch):
    config = config_of({**LISTED, "value": {"lr": 0.0}}, trunk={"lr": 0.5})
    config["optimizer"] = {"_target_": "torch.optim.SGD", "lr": 0.25}
    objective = objective_of(config)
    optimizer = builder.build_optimizer(config, objective)
    before = {name: p.detach().clone() for name, p in objective.network.named_parameters()}
    losses, _ = objective.losses(make_batch(objective.network))
    objective.aggregator.backward(losses)
    optimizer.step()
    for name, parameter in objective.network.named_parameters():
        rate = {"trunk": 0.5, "head_value": 0.0}.get(name.split(".")[0], 0.25)
        torch.testing.assert_close(parameter.detach(), before[name] - rate * parameter.grad)


@pytest.mark.parametrize("rate", ["fast", -1.0, float("nan")])
def test_learning_rates_that_are_none_are_refused(rate):
    with pytest.raises(ConfigError, match=r"heads.value.lr is .*: a number >= 0 or null is expected"):
        config_of({**LISTED, "value": {"lr": rate}})
    for group in ("trunk", "optimizer"):
        config = config_of()
        objective = objective_of(config)
        config[group] = {**config[group], "lr": rate}
        with pytest.raises(ConfigError, match=rf"{group}.lr is .*: a number >= 0 or null is expected"):
            builder.build_optimizer(config, objective)


def test_weights_and_trunk_grad_reach_the_aggregator():
    aggregator = builder.build_aggregator(config_of(losses={"arm": {"weight": 0.3}, "value": {"trunk_grad": 0.5}}))
    assert aggregator.weight("arm") == 0.3 and aggregator.weight("gripper") == aggregator.weight("value") == 1.0
    assert aggregator.trunk_grad("value") == 0.5 and aggregator.trunk_grad("actor") == 1.0


@pytest.mark.parametrize(
    ("losses", "rows", "factors"),
    [
        ({}, {"arm": "actor", "gripper": "actor", "value": "value"}, {"actor": 1.0}),
        (
            {"arm": {"trunk_grad": 0.5}, "gripper": {"trunk_grad": 0.5}},
            {"arm": "actor", "gripper": "actor", "value": "value"},
            {"actor": 0.5},
        ),
        (
            {"arm": {"trunk_grad": 0.0}},
            {"arm": "arm", "gripper": "gripper", "value": "value"},
            {"arm": 0.0, "gripper": 1.0},
        ),
    ],
)
def test_acting_losses_of_one_factor_share_a_row(losses, rows, factors):
    objective = objective_of(config_of(losses=losses))
    assert objective.row_of == rows
    assert {row: objective.aggregator.trunk_grad(row) for row in factors} == factors


def test_noise_settings_of_a_head_win_over_those_of_the_group():
    config = config_of({"arm": {"dims": [2, 0], "exploration": {"std": 0.5}}, "gripper": {"dims": [1]}})
    noise = builder.build_noise(config, objective_of(config).network, 0)
    # By dimension: std times half-range, 0.5 * 2, 0.1 * 0.25, 0.5 * 2.
    torch.testing.assert_close(noise.start, torch.tensor([1.0, 0.025, 1.0]))
    assert isinstance(builder.build(config["exploration"], "exploration"), Gaussian)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"arm": {"exploration": {"sdt": 1}}}, r"unknown key heads.arm.exploration.sdt: did you mean std\?"),
        ({"arm": {"exploration": {"std": -1}}}, r"heads.arm.exploration: exploration.std is -1"),
    ],
)
def test_bad_noise_is_refused_by_head(heads, message):
    config = config_of(heads)
    with pytest.raises(ConfigError, match=message):
        builder.build_noise(config, objective_of(config).network, 0)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"arm": {"kind": "critic"}}, r"heads.arm: mhrl.heads.QHead is no ActionHead"),
        ({"value": {"kind": "deterministic"}}, r"heads.value: mhrl.heads.DeterministicHead is no CriticHead"),
        ({"arm": {"widths": [0]}}, r"heads.arm: widths \[0\] must be positive"),
    ],
)
def test_heads_that_cannot_work_are_refused_before_anything_runs(heads, message):
    with pytest.raises(ConfigError, match=message):
        objective_of(config_of(heads))


def test_engine_and_clip_norm():
    config = config_of()
    config["optimizer"]["clip_norm"] = 0.5
    objective = objective_of(config)
    engine = builder.build_engine(config, objective, builder.build_optimizer(config, objective))
    assert type(engine) is EagerEngine and engine.clip_norm == 0.5
    with pytest.raises(ConfigError, match=r"engine is 'fast': eager"):
        builder.build_engine(config | {"engine": "fast"}, objective, engine.optimizer)


def test_build_names_the_node_of_what_goes_wrong():
    with pytest.raises(ConfigError, match=r"objective: objective.gamma is 2"):
        objective_of(config_of(objective={"_target_": "mhrl.objectives.DDPG", "gamma": 2}))
    with pytest.raises(ConfigError, match=r"unknown key objective.gama: did you mean gamma\?"):
        objective_of(config_of(objective={"_target_": "mhrl.objectives.DDPG", "gama": 1}))
    assert type(objective_of(config_of())) is DDPG


def test_replay_is_built_with_the_runs_sizes():
    config = {"replay": {"_target_": "mhrl.replay.UniformReplay", "capacity": 10}, "batch_size": 3, "num_envs": 2}
    assert builder.build_replay(config, 0).batch_size == 3
    config["replay"]["capacity"] = 1
    with pytest.raises(ConfigError, match=r"replay: replay.capacity is 1"):
        builder.build_replay(config, 0)


def test_env_factory_passes_siblings_and_kwargs():
    env = {
        "_target_": "mhrl.envs.probe.ConstObs",
        "end": "truncated",
        "kwargs": {"length": 3},
        "vectorization_mode": "x",
    }
    built = builder.build_env_factory(env)()
    assert built.unwrapped.length == 3 and built.unwrapped.end == "truncated"
    with pytest.raises(ConfigError, match=r"unknown key env.lenght: did you mean length\?"):
        builder.build_env_factory({"_target_": "mhrl.envs.probe.ConstObs", "kwargs": {"lenght": 3}})
    with pytest.raises(ConfigError, match=r"env has no _target_"):
        builder.build_env_factory({"kwargs": {}})
