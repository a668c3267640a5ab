"""Which loss trains which module: the declared routes against real gradients, for every loss and every module."""

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from mhrl.aggregators import WeightedSum
from mhrl.engine import EagerEngine
from mhrl.objectives import ValueBased

HEADS = ("head_arm", "head_gripper", "head_value")
ALL = {"arm": {"head_arm", "trunk"}, "gripper": {"head_gripper", "trunk"}, "value": {"head_value", "trunk"}}
APART = {name: {f"head_{name}"} for name in ALL}

# name: (network options, trunk_grad, what each loss trains), written out by hand from the table of the objective.
CASES = {
    "identity": ({"trunk": "identity"}, 1.0, APART),
    "mlp": ({"trunk": "mlp"}, 1.0, ALL),
    "mlp, no acting loss on the trunk": ({"trunk": "mlp"}, {"actor": 0.0}, APART | {"value": ALL["value"]}),
    "mlp, one acting loss on the trunk": (
        {"trunk": "mlp"},
        {"arm": 0.0},
        {"arm": {"head_arm"}, "gripper": ALL["gripper"], "value": ALL["value"]},
    ),
    "mlp, by loss": ({"trunk": "mlp"}, {"arm": 0.0, "gripper": 0.0}, APART | {"value": ALL["value"]}),
    "mlp, no value loss on the trunk": ({"trunk": "mlp"}, {"value": 0.0}, ALL | {"value": {"head_value"}}),
    "mlp, no loss on the trunk": ({"trunk": "mlp"}, 0.0, APART),
    "mlp, half": ({"trunk": "mlp"}, 0.5, ALL),
    "cnn": ({"trunk": "cnn"}, 1.0, ALL),
    "cnn, no acting loss on the trunk": ({"trunk": "cnn"}, {"actor": 0.0}, APART | {"value": ALL["value"]}),
    "critic past the trunk": ({"in_keys": {"value": ("observation",)}}, 1.0, ALL | {"value": {"head_value"}}),
    "arm past the trunk": ({"in_keys": {"arm": ("observation",)}}, 1.0, ALL | {"arm": {"head_arm"}}),
    "all past the trunk": ({"in_keys": dict.fromkeys(ALL, ("observation",))}, 0.5, APART),
    "both": ({"in_keys": dict.fromkeys(ALL, ("features", "observation"))}, 1.0, ALL),
    "both, cnn": ({"trunk": "cnn", "in_keys": dict.fromkeys(ALL, ("features", "observation"))}, 0.5, ALL),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "_"))
def case(request, make_network):
    options, trunk_grad, table = CASES[request.param]
    return ValueBased(make_network(**options), WeightedSum(trunk_grad=trunk_grad)), table


def trained(objective, batch, active):
    """The modules with a gradient, and those of them whose gradient is not all zero."""
    objective.zero_grad()
    losses, _ = objective.losses(batch, active)
    objective.aggregator.backward(losses)
    found = {name: p.grad for name, p in objective.network.named_parameters() if p.grad is not None}
    modules = {name.split(".")[0] for name in found}
    return modules, {name.split(".")[0] for name, gradient in found.items() if gradient.abs().max() > 1e-8}


def test_routes_say_what_the_table_says(case):
    objective, table = case
    assert {loss: set(modules) for loss, modules in objective.routes.items()} == table


@pytest.mark.parametrize("shape", [(6,), (2, 4)])
@pytest.mark.parametrize("loss", ["arm", "gripper", "value"])
def test_b02_every_loss_trains_exactly_its_routes(case, make_batch, loss, shape):
    objective, table = case
    reached, moved = trained(objective, make_batch(objective.network, *shape), [loss])
    assert reached == moved == table[loss]


def test_all_losses_together_train_everything_that_one_of_them_trains(case, make_batch):
    objective, table = case
    reached, moved = trained(objective, make_batch(objective.network), ["arm", "gripper", "value"])
    assert reached == moved == set.union(*table.values())


@pytest.mark.parametrize("dropped", [["arm"], ["gripper"], ["value"], ["arm", "gripper"], ["arm", "value"]])
@pytest.mark.parametrize("how", ["inactive", "weight"])
def test_b03_a_dropped_loss_leaves_what_only_it_trains_bit_unchanged(case, make_batch, dropped, how):
    objective, table = case
    network, batch = objective.network, make_batch(objective.network)
    optimizer = torch.optim.Adam(network.parameters(), 0.01, weight_decay=0.1)
    engine = EagerEngine(objective, objective.aggregator, optimizer)
    for _ in range(3):
        engine.step(batch, ("arm", "gripper", "value"))  # builds momentum in all of them

    def parts(modules):
        return {name: p for name, p in network.named_parameters() if name.split(".")[0] in modules}

    active = tuple(name for name in table if name not in dropped)
    if how == "weight":
        aggregator = WeightedSum(dict.fromkeys(dropped, 0.0), objective.aggregator._trunk_grad)
        objective.aggregator = engine.aggregator = aggregator
        assert aggregator.active(objective.due(0)) == active
    kept = set.union(*(table[name] for name in active))
    rest = set.union(*table.values()) - kept
    assert rest >= {f"head_{name}" for name in dropped}
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    state = {name: {k: v.clone() for k, v in optimizer.state[p].items()} for name, p in parts(rest).items()}
    for _ in range(3):
        engine.step(batch, active)
    for name, parameter in parts(rest).items():
        assert torch.equal(parameter, before[name])
        assert state[name] and all(torch.equal(optimizer.state[parameter][k], v) for k, v in state[name].items())
    assert all(not torch.equal(parameter, before[name]) for name, parameter in parts(kept).items())


def test_b03_a_dropped_loss_equals_a_run_in_which_it_never_was(make_network, make_batch):
    # The head's loss is absent from the objective in one run, and has weight 0 in the other.
    results = []
    for weights, active in (({}, ("gripper", "value")), ({"arm": 0.0}, None)):
        network = make_network()
        objective = ValueBased(network, WeightedSum(weights))
        engine = EagerEngine(objective, objective.aggregator, torch.optim.Adam(network.parameters(), 0.01))
        for updates in range(5):
            engine.step(
                make_batch(network, seed=updates), active or objective.aggregator.active(objective.due(updates))
            )
            objective.update_target(updates + 1)
        results.append({**network.state_dict(), **{f"t.{k}": v for k, v in objective.target.state_dict().items()}})
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0]) and len(results[0]) == 28


def test_the_observation_and_the_target_get_no_gradient(make_network, make_batch):
    network = make_network()
    objective, batch = ValueBased(network, WeightedSum()), make_batch(network)
    batch["observation"].requires_grad_()
    batch["next", "observation"].requires_grad_()
    batch["action"].requires_grad_()
    losses, _ = objective.losses(batch)
    objective.aggregator.backward(losses)
    assert batch["next", "observation"].grad is None
    assert all(t.grad is None and not t.requires_grad for t in objective.target.state_dict(keep_vars=True).values())


HYBRID = Dict({"gear": Discrete(3, start=1), "lights": MultiBinary(2), "arm": Box(-1, 1, (2,)), "foot": Box(0, 1, ())})
BRANCHES = ("gear", "lights_0", "lights_1")


def of_heads(*names):
    return {f"head_{name}" for name in names} | {"trunk"}


# name: (action space, the network's fields, the objective's options, what each loss trains), written out by hand.
FAMILY = {
    "td3": (
        Box(-1, 1, (2,)),
        {"twin": True},
        {},
        {"action": {"head_action", "trunk"}, "value": {"head_value", "twin_value", "trunk"}},
    ),
    "dqn": (Discrete(3), {}, {"double": True}, {"action": of_heads("action")}),
    "bdq": (
        MultiDiscrete([3, 2]),
        {"dueling": "mean"},
        {"double": True},
        {"action_0": of_heads("action_0", "value"), "action_1": of_heads("action_1", "value")},
    ),
    "bdq, twin": (
        MultiDiscrete([3, 2]),
        {"dueling": "max", "twin": True},
        {},
        {
            "action_0": {"head_action_0", "twin_action_0", "head_value", "twin_value", "trunk"},
            "action_1": {"head_action_1", "twin_action_1", "head_value", "twin_value", "trunk"},
        },
    ),
    "vdn": (MultiDiscrete([3, 2]), {}, {"loss_reduction": "summed"}, {"value": of_heads("action_0", "action_1")}),
    "p-dqn": (
        HYBRID,
        {},
        {},
        {
            **{"arm": of_heads("arm"), "foot": of_heads("foot"), "gear": of_heads("gear")},
            **{"lights_0": of_heads("lights_0"), "lights_1": of_heads("lights_1")},
        },
    ),
    "p-dqn, joint": (
        HYBRID,
        {"dueling": "mean"},
        {"loss_reduction": "mean_q"},
        {"arm": of_heads("arm"), "foot": of_heads("foot"), "value": of_heads(*BRANCHES, "value")},
    ),
}


@pytest.mark.parametrize("corner", FAMILY)
def test_every_corner_trains_what_its_table_says(make_agent, make_batch, corner):
    space, fields, options, table = FAMILY[corner]
    objective = ValueBased(make_agent(space, **fields), WeightedSum(), **options)
    assert {loss: set(modules) for loss, modules in objective.routes.items()} == table
    batch = make_batch(objective.network, 40)
    for loss, modules in table.items():
        with_gradient, moved = trained(objective, batch, [loss])
        assert with_gradient == moved == modules


def test_a_dropped_branch_and_its_optimizer_state_do_not_move_by_a_bit(make_agent, make_batch):
    network = make_agent(MultiDiscrete([3, 2, 4]), twin=True)
    objective = ValueBased(network, WeightedSum({"action_1": 0.0}))
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    engine = EagerEngine(objective, objective.aggregator, optimizer)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for updates in range(3):
        engine.step(make_batch(network, seed=updates), objective.aggregator.active(objective.due(updates)))
    for name, parameter in network.named_parameters():
        dropped = name.split(".")[0] in ("head_action_1", "twin_action_1")
        assert torch.equal(parameter, before[name]) == dropped, name
        assert (parameter in optimizer.state) != dropped
