import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from mhrl import builder
from mhrl.aggregators import BackwardAggregator
from mhrl.config import ConfigError
from mhrl.engine import CompiledEngine, EagerEngine
from mhrl.envs import EnvSpaces, Leaf
from mhrl.exploration import Gaussian
from mhrl.normaliser import IdentityNormaliser, RunningNormaliser
from mhrl.objectives import ValueBased
from mhrl.resolve import resolve_heads, resolve_losses

KINDS = {
    "deterministic": {"_target_": "mhrl.heads.DeterministicHead", "widths": [6]},
    "critic": {"_target_": "mhrl.heads.QHead", "widths": [6]},
}
SPACE = Box(np.array([-1.0, 0.0, -2.0], np.float32), np.array([3.0, 0.5, 2.0], np.float32))
OBSERVATION = (Leaf("observation", "observation", Box(-1, 1, (4,), np.float32)),)
ACTION = (Leaf("action", "action", SPACE),)
SPACES = EnvSpaces(OBSERVATION, (), ACTION)
LISTED = {"arm": {"dims": [2, 0]}, "gripper": {"dims": [1]}}


def config_of(heads=None, losses=None, trunk=None, **rest):
    config = {
        "trunk": {"_target_": "mhrl.trunks.MLPTrunk", "widths": [5], "lr": None} | (trunk or {}),
        "heads": resolve_heads(LISTED if heads is None else heads, ACTION, KINDS),
        "aggregator": {"_target_": "mhrl.aggregators.WeightedSum"},
        "objective": {"_target_": "mhrl.objectives.ValueBased", "gamma": 0.9},
        "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.01, "clip_norm": None},
        "exploration": {"_target_": "mhrl.exploration.Gaussian", "std": 0.1, "std_end": None, "anneal_frames": 0},
        "engine": "eager",
        "precision": "fp32",
        "num_envs": 2,
    } | rest
    acting = [name for name in config["heads"] if name != "value"]
    return config | {"losses": resolve_losses(losses or {}, [*acting, "value"], acting, 1.0, config["heads"])}


def objective_of(config):
    network = builder.build_network(config, builder.build_trunk(config, SPACES), SPACES)
    aggregator = builder.build_aggregator(config, network.proposing, network.trunk)
    return builder.build_objective(config, network, aggregator)


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


def test_a_rate_for_a_trunk_without_parameters_is_refused():
    config = config_of()
    config["trunk"] = {"_target_": "mhrl.trunks.IdentityTrunk", "lr": 0.1}
    leaves = (Leaf("observation", "observation", Box(-1, 1, (3,))),)
    with pytest.raises(ConfigError, match=r"trunk\.lr is 0\.1: IdentityTrunk has no parameters to train"):
        builder.build_trunk(config, EnvSpaces(leaves, (), ACTION))


def test_out_of_memory_names_the_keys_to_lower():
    config = config_of() | {"device": "cuda", "batch_size": 64}
    said = builder.explain_memory(RuntimeError("tried to allocate 2 GiB"), config)
    assert said.startswith("out of memory in an update on cuda: lower batch_size (64), ")
    assert said.endswith("tried to allocate 2 GiB") and "heads.value.widths" in said


def test_weights_and_trunk_grad_reach_the_aggregator():
    aggregator = aggregator_of(listed={"arm": {"weight": 0.3}, "value": {"trunk_grad": 0.5}})
    assert aggregator.weight("arm") == 0.3 and aggregator.weight("gripper") == aggregator.weight("value") == 1.0
    assert aggregator.trunk_grad("value") == 0.5 and aggregator.trunk_grad("actor") == 1.0


def aggregator_of(kind="WeightedSum", *, listed=None, trunk=None, **options):
    config = config_of(losses=listed, aggregator={"_target_": f"mhrl.aggregators.{kind}", **options})
    return builder.build_aggregator(config, ("arm", "gripper"), nn.Linear(2, 2) if trunk is None else trunk)


class Unnamed(BackwardAggregator):
    """A rule of one's own that has no name."""

    balances = True

    def combine(self, rows):
        return rows.sum(0)


def test_a_rule_that_balances_gets_the_trunks_parameters_and_refuses_a_trunk_without():
    trunk = nn.Linear(2, 2)
    rule = aggregator_of("IMTLG", trunk=trunk, level="params")
    assert rule.label == "imtl_g@params" and rule._shared == [*trunk.parameters()]
    for kind in ("IMTLG", "GradNorm"):
        with pytest.raises(ConfigError, match=r"aggregator=(imtl_g|gradnorm) has nothing to balance: Identity has no"):
            aggregator_of(kind, trunk=nn.Identity())
    config = config_of(losses=None, aggregator={"_target_": f"{__name__}.Unnamed"})
    with pytest.raises(ConfigError, match=r"aggregator=Unnamed has nothing to balance"):
        builder.build_aggregator(config, (), nn.Identity())


def test_adaptive_rules_know_all_losses_and_the_objectives_rows():
    losses = {"arm": {"weight": 0.0}, "gripper": {"weight": 2.0}}
    config = config_of(losses=losses, aggregator={"_target_": "mhrl.aggregators.GradNorm"})
    aggregator = objective_of(config).aggregator
    assert aggregator.losses == ("arm", "gripper", "value") and aggregator.weight("gripper") == 2.0
    assert aggregator.row_of == {"arm": "actor", "gripper": "actor", "value": "value"}


@pytest.mark.parametrize(("kind", "options"), [("Uncertainty", {}), ("DWA", {}), ("GradNorm", {"alpha": 0.1})])
def test_losses_that_will_be_negative_are_refused_where_they_cannot_be_taken_unless_their_weight_is_0(kind, options):
    losses = {"gripper": {"weight": 0.0}}
    config = config_of(losses=losses, aggregator={"_target_": f"mhrl.aggregators.{kind}", **options})
    said = (
        r"aggregator: loss 'arm' is known to become negative: \w+ needs losses that are never negative; upgrad, gradn"
    )
    with pytest.raises(ConfigError, match=said):
        objective_of(config)
    losses["arm"] = {"weight": 0.0}
    assert objective_of(config_of(losses=losses, aggregator=config["aggregator"])).signed == ("arm", "gripper")
    objective_of(config_of(aggregator={"_target_": "mhrl.aggregators.GradNorm", "alpha": 0.0}))


@pytest.mark.parametrize("lr", [None, 0.5])
def test_an_aggregators_own_parameters_are_a_group_without_decay(lr):
    losses = {name: {"weight": 0.0} for name in ("arm", "gripper")}
    config = config_of(losses=losses, aggregator={"_target_": "mhrl.aggregators.Uncertainty", "lr": lr})
    config["optimizer"] |= {"weight_decay": 0.1}
    objective = objective_of(config)
    network, own = builder.build_optimizer(config, objective).param_groups
    assert own["param_names"] == [f"aggregator.log_variance_{name}" for name in ("arm", "gripper", "value")]
    assert (own["lr"], own["weight_decay"]) == (0.01 if lr is None else 0.5, 0.0)
    assert (network["lr"], network["weight_decay"]) == (0.01, 0.1)
    assert {id(p) for p in own["params"]} == {id(p) for p in objective.aggregator.parameters()}


def test_a_rate_of_the_aggregators_state_makes_no_group():
    config = config_of(aggregator={"_target_": "mhrl.aggregators.GradNorm", "lr": 0.5})
    assert [group["lr"] for group in builder.build_optimizer(config, objective_of(config)).param_groups] == [0.01]


def test_schedules_are_by_loss_or_by_leaf_and_the_losses_own_name_wins():
    linear = {"kind": "linear", "frames": [0.0, 1e1], "values": [1, 0]}
    schedules = {"gripper": {"kind": "constant", "values": [5]}, "action": linear}
    rule = aggregator_of("Schedule", listed={"arm": {"weight": 2.0}}, schedules=schedules)
    assert [rule.weight(name, 5) for name in ("arm", "gripper", "value")] == [1.0, 5.0, 1.0]
    assert aggregator_of("Schedule").weight("arm", 5) == aggregator_of("Schedule", schedules=None).weight("arm", 5) == 1


@pytest.mark.parametrize(
    ("schedules", "said"),
    [
        ({"vlaue": {}}, r"unknown loss aggregator.schedules.vlaue: did you mean value\?"),
        ({"value": 3}, r"aggregator.schedules.value is 3: a mapping of kind, frames and values is expected"),
        ([1], r"aggregator.schedules is \[1\]: a mapping of losses is expected"),
        (
            {"value": {"kind": "liner", "values": [1]}},
            r"schedules.value.kind is 'liner': constant, linear, cosine or p",
        ),
        (
            {"value": {"kind": "linear", "valeus": [1]}},
            r"unknown key aggregator.schedules.value.valeus: did you mean val",
        ),
        ({"value": {"kind": "linear"}}, r"aggregator.schedules.value.values is missing: a list of numbers is expected"),
        ({"value": {"kind": "linear", "values": 1}}, r"schedules.value.values is 1: a list of numbers is expected"),
        (
            {"value": {"kind": "linear", "values": [1], "frames": [0.5]}},
            r"value.frames is \[0.5\]: a list of whole num",
        ),
        (
            {"value": {"kind": "linear", "values": [1, 2], "frames": [9, 5]}},
            r"schedules.value: frames is \[9, 5\]: grow",
        ),
        (
            {"value": {"kind": "linear", "values": [1], "frames": [9, 5]}},
            r"schedules.value: values is \[1.0\] and frames",
        ),
    ],
)
def test_schedules_that_cannot_be_are_refused_by_key(schedules, said):
    with pytest.raises(ConfigError, match=said):
        aggregator_of("Schedule", schedules=schedules)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("DWA", {"windwo": 3}, r"unknown key aggregator.windwo: did you mean window\?"),
        ("DWA", {"window": 0}, r"aggregator: window is 0: a positive whole number is expected"),
        ("DWA", {"window": 1.5}, r"aggregator.window is 1.5: a whole number is expected"),
        ("GradNorm", {"alpha": "much"}, r"aggregator.alpha is 'much': a number is expected"),
        ("Uncertainty", {"losses": ["a"]}, r"unknown key aggregator.losses"),
        ("Uncertainty", {"rows": "loss"}, r"aggregator.rows is 'loss': objectives or losses is expected"),
        ("WeightedSums", {}, r"aggregator._target_=mhrl.aggregators.WeightedSums cannot be imported"),
    ],
)
def test_fields_of_aggregators_are_checked(kind, options, said):
    with pytest.raises(ConfigError, match=said):
        aggregator_of(kind, **options)


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


def test_a_head_that_names_another_kind_of_noise_takes_nothing_else_from_the_group():
    memory = {"_target_": "mhrl.exploration.OrnsteinUhlenbeck", "theta": 0.5}
    config = config_of({"arm": {"dims": [2, 0], "exploration": memory}, "gripper": {"dims": [1]}})
    config["exploration"] |= {"std_end": 0.0, "anneal_frames": 5}
    noise = builder.build_noise(config, objective_of(config).network, 0)
    # The arm's std is that of its own kind, 0.2, times the half-range of 2, and stays.
    torch.testing.assert_close(noise.start, torch.tensor([0.4, 0.025, 0.4]))
    torch.testing.assert_close(noise.end, torch.tensor([0.4, 0.0, 0.4]))
    assert noise.decay.tolist() == [0.5, 0.0, 0.5] and noise.x.shape == (2, 3)
    config["heads"]["arm"]["exploration"] = {"_target_": "mhrl.exploration.Gaussian", "std": 0.5}
    noise = builder.build_noise(config, objective_of(config).network, 0)
    assert noise.end.tolist() == [0.0, 0.0, 0.0]  # the group's own kind, by name: its schedule is kept


def test_the_normaliser_is_built_for_the_observations_and_the_envs():
    config = config_of(normaliser={"_target_": "mhrl.normaliser.RunningNormaliser", "gamma": 0.9, "clip": 5.0})
    normaliser = builder.build_normaliser(config, SPACES)
    assert type(normaliser) is RunningNormaliser and normaliser.clip == 5.0
    assert normaliser.mean.shape == (4,) and normaliser.returns.shape == (2,)
    config["normaliser"] = {"_target_": "mhrl.normaliser.IdentityNormaliser"}
    assert type(builder.build_normaliser(config, SPACES)) is IdentityNormaliser
    config["normaliser"] = {"_target_": "mhrl.normaliser.RunningNormaliser", "gama": 0.9}
    with pytest.raises(ConfigError, match=r"unknown key normaliser.gama: did you mean gamma\?"):
        builder.build_normaliser(config, SPACES)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"arm": {"exploration": {"sdt": 1}}}, r"unknown key heads.arm.exploration.sdt: did you mean std\?"),
        ({"arm": {"exploration": {"std": -1}}}, r"heads.arm.exploration: exploration.std is -1"),
        (
            {"arm": {"exploration": {"_target_": "builtins.dict"}}},
            r"heads.arm.exploration: builtins.dict is no HeadNoise",
        ),
    ],
)
def test_bad_noise_is_refused_by_head(heads, message):
    config = config_of(heads)
    with pytest.raises(ConfigError, match=message):
        builder.build_noise(config, objective_of(config).network, 0)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"arm": {"kind": "critic"}}, r"heads.arm_0.bins is None: into how many values"),
        ({"arm": {"_target_": "torch.nn.Linear", "out_features": 1, "in_features": 2}}, r"heads.arm"),
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
    assert type(engine) is EagerEngine and engine.clip_norm == 0.5 and engine.precision == "fp32"


def test_the_compiled_engine_and_bf16():
    config = config_of() | {"engine": "compiled", "precision": "bf16"}
    objective = objective_of(config)
    engine = builder.build_engine(config, objective, builder.build_optimizer(config, objective))
    assert type(engine) is CompiledEngine and engine.precision == "bf16"


def test_build_names_the_node_of_what_goes_wrong():
    with pytest.raises(ConfigError, match=r"objective: objective.gamma is 2"):
        objective_of(config_of(objective={"_target_": "mhrl.objectives.ValueBased", "gamma": 2}))
    with pytest.raises(ConfigError, match=r"unknown key objective.gama: did you mean gamma\?"):
        objective_of(config_of(objective={"_target_": "mhrl.objectives.ValueBased", "gama": 1}))
    assert type(objective_of(config_of())) is ValueBased


def replay_config(kind="UniformReplay", **options):
    replay = {"_target_": f"mhrl.replay.{kind}", "capacity": 10} | options
    return {"replay": replay, "objective": {}, "batch_size": 3, "num_envs": 2, "learning_starts": 0}


def test_replay_is_built_with_the_runs_sizes():
    config = replay_config()
    replay = builder.build_replay(config, 0, SPACES)
    assert (replay.batch_size, replay.num_envs, replay.capacity) == (3, 2, 10)
    config["replay"]["capacity"] = 1
    with pytest.raises(ConfigError, match=r"replay: replay.capacity is 1"):
        builder.build_replay(config, 0, SPACES)


@pytest.mark.parametrize("kind", ["UniformReplay", "PrioritisedReplay"])
@pytest.mark.parametrize("storage", ["memory", "memmap"])
def test_c01_a_replay_that_does_not_fit_is_refused_with_both_numbers(kind, storage):
    pixels = (Leaf("observation", "observation", Box(0, 255, (84, 84, 4), np.uint8)),)
    config = replay_config(kind, capacity=100_000_000, storage=storage)
    message = r"replay: replay.capacity is 100000000: its rows take 52\d\d.\d\d GiB of .* GiB are free; \d+ rows fit"
    with pytest.raises(ConfigError, match=message):
        builder.build_replay(config, 0, EnvSpaces(pixels, (), ACTION))
    config["replay"]["capacity"] = 10
    assert builder.build_replay(config, 0, EnvSpaces(pixels, (), ACTION)).capacity == 10


def test_c03_a_warm_up_that_leaves_replay_empty_is_refused():
    config = replay_config() | {"objective": {"n_steps": 3}, "learning_starts": 5}
    with pytest.raises(ConfigError, match=r"learning_starts is 5: with objective.n_steps=3 .* = 6 are expected"):
        builder.build_replay(config, 0, SPACES)
    assert builder.build_replay(config | {"learning_starts": 6}, 0, SPACES).capacity == 10


def test_env_factory_passes_siblings_and_kwargs():
    env = {
        "_target_": "mhrl.envs.probe.ConstObs",
        "end": "truncated",
        "kwargs": {"length": 3},
        "vectorization_mode": "async",
    }
    built = builder.build_env_factory(env)()
    assert built.unwrapped.length == 3 and built.unwrapped.end == "truncated"
    with pytest.raises(ConfigError, match=r"unknown key env.kwargs.lenght: did you mean length\?"):
        builder.build_env_factory({"_target_": "mhrl.envs.probe.ConstObs", "kwargs": {"lenght": 3}})
    with pytest.raises(ConfigError, match=r"env has no _target_"):
        builder.build_env_factory({"kwargs": {}})
