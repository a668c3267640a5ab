import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensordict.nn import TensorDictModule
from torch import nn
from torch.nn import functional as F
from torchrl.objectives import DDPGLoss

from mhrl.aggregators import BackwardAggregator, WeightedSum
from mhrl.engine import EagerEngine
from mhrl.heads import CriticHead, DeterministicHead
from mhrl.objectives import ValueBased

GAMMA = 0.875  # exact in float32, which torchrl keeps it in
HEADS = {1: {"arm": (1, 0, 2)}, 2: {"arm": (2, 0), "gripper": (1,)}, 3: {"a": (2,), "b": (0, 3), "c": (1,)}}


class Sum(BackwardAggregator):
    """The plain sum with FanOut always there."""

    balances = True

    def combine(self, rows):
        return rows.sum(0)


def objective_of(network, weights=1.0, trunk_grad=1.0, rule=WeightedSum, **options):
    objective = ValueBased(network, rule(weights, trunk_grad), gamma=GAMMA, **options)
    torch.manual_seed(7)
    for buffer in objective.target.state_dict().values():  # a target of its own, so that mixing them up shows
        buffer.add_(0.1 * torch.randn_like(buffer))
    return objective


def gradients(objective, batch, active=None):
    objective.zero_grad()
    losses, _ = objective.losses(batch, active)
    objective.aggregator.backward(losses)
    return {name: p.grad for name, p in objective.network.named_parameters() if p.grad is not None}


def brute_force(objective, batch, weights, trunk_grad, distance=F.mse_loss):
    """Separate graphs and separate backwards: -Q with one head's action attached, then the value loss."""
    network, total = objective.network, {}
    observation = network.observe(batch)

    def joint(net, features, attached=None):
        columns = {}
        for head in net.proposing:
            action = net.head(head)(features)
            action = action if head == attached or attached is None else action.detach()
            columns |= {dim: action[..., i] for i, dim in enumerate(net.specs[head].dims)}
        return torch.stack([columns[dim] for dim in sorted(columns)], -1)

    def add(loss, weight, factor):
        # Only what the loss trains is collected; the critic of an acting loss is frozen by not being asked for.
        names = [n for n, _ in network.named_parameters() if loss[1] is None or n.split(".")[0] in loss[1]]
        parameters = [network.get_parameter(name) for name in names]
        for name, grad in zip(names, torch.autograd.grad(loss[0], parameters, allow_unused=True), strict=True):
            if grad is not None:
                scale = weight * (factor if name.startswith("trunk") else 1.0)
                total[name] = total.get(name, 0) + scale * grad

    for head in network.acting:
        features = network.trunk(observation)
        q = network.head("value")(features.detach(), joint(network, features, head))
        add((-q.mean(), (f"head_{head}", "trunk")), weights[head], trunk_grad[head])

    with torch.no_grad():
        target = objective.target
        features = target.trunk(network.observe(batch, following=True))
        future = target.head("value")(features, joint(target, features)).squeeze(-1)
        end = batch["next", "terminated"].squeeze(-1).to(future.dtype)
        y = batch["next", "reward"].squeeze(-1) + GAMMA * (1 - end) * future
    q = network.head("value")(network.trunk(observation), batch["action"].to(y.dtype)).squeeze(-1)
    add((distance(q, y), ("head_value", "trunk")), weights["value"], trunk_grad["value"])
    return total


@pytest.mark.parametrize("shape", [(6,), (3, 4)], ids=["B", "BT"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rule", [WeightedSum, Sum])
@pytest.mark.parametrize("shared_factor", [True, False])
def test_b01_joint_gradient_equals_separate_losses_and_backwards(
    make_network, make_batch, shape, count, rule, shared_factor
):
    network = make_network(HEADS[count], double=True, seed=count)
    rng = np.random.default_rng(count)
    names = [*network.acting, "value"]
    weights = {name: float(rng.uniform(0.1, 3)) for name in names}
    trunk_grad = {name: float(rng.uniform(-2, 2)) for name in names}
    if shared_factor:
        trunk_grad |= dict.fromkeys(network.acting, 0.7)
        trunk_grad["actor"] = 0.7
    objective, batch = objective_of(network, weights, trunk_grad, rule), make_batch(network, *shape)
    joint, separate = gradients(objective, batch), brute_force(objective, batch, weights, trunk_grad)
    assert joint.keys() == separate.keys() == dict(network.named_parameters()).keys()
    for name in joint:
        torch.testing.assert_close(joint[name], separate[name], rtol=0, atol=1e-10)
        assert joint[name].abs().max() > 1e-6, f"{name}: nothing was compared"


@pytest.mark.parametrize(("kind", "function"), [("l1", F.l1_loss), ("l2", F.mse_loss), ("smooth_l1", F.smooth_l1_loss)])
def test_loss_functions(make_network, make_batch, kind, function):
    network = make_network(double=True)
    ones = dict.fromkeys([*network.acting, "value"], 1.0)
    objective, batch = objective_of(network, loss_function=kind), make_batch(network)
    joint, separate = gradients(objective, batch), brute_force(objective, batch, ones, ones, function)
    for name in joint:
        torch.testing.assert_close(joint[name], separate[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("trunk_grad", [{"arm": 0.5, "gripper": 0.5}, {"arm": 0.0, "gripper": 0.0}, {"arm": 0.5}])
def test_trunk_grad_given_per_loss_is_not_lost_on_a_shared_row(make_network, make_batch, trunk_grad):
    network = make_network(double=True)
    ones = dict.fromkeys([*network.acting, "value"], 1.0)
    objective, batch = objective_of(network, trunk_grad=trunk_grad), make_batch(network)
    joint, separate = gradients(objective, batch), brute_force(objective, batch, ones, ones | trunk_grad)
    for name in separate:
        torch.testing.assert_close(joint[name], separate[name], rtol=0, atol=1e-10)


def test_rows_are_shared_by_acting_losses_of_one_factor(make_network):
    network = make_network()

    def rows(trunk_grad):
        return ValueBased(network, WeightedSum(trunk_grad=trunk_grad)).row_of

    shared = {"arm": "actor", "gripper": "actor", "value": "value"}
    apart = {"arm": "arm", "gripper": "gripper", "value": "value"}
    assert rows(1.0) == rows(0.3) == shared
    assert rows({"value": 0.5}) == shared
    assert rows({"arm": 0.5, "gripper": 0.5, "actor": 0.5}) == shared
    assert rows({"actor": 0.5}) == shared
    assert rows({"arm": 0.5}) == apart
    assert rows({"arm": 0.5, "gripper": 0.5}) == apart


def test_value_of_every_acting_loss_is_minus_q(make_network, make_batch):
    network = make_network(HEADS[3], double=True)
    objective, batch = objective_of(network), make_batch(network, 3, 4)
    losses, metrics = objective.losses(batch)
    observation = network.observe(batch)
    features = network.trunk(observation)
    action = network.assemble({head: network.head(head)(features) for head in network.acting})
    q = network.head("value")(features, action).squeeze(-1)
    for head in "abc":
        assert losses[head].item() == pytest.approx(-q.mean().item(), abs=1e-12)
    torch.testing.assert_close(metrics["state_action_value"], q.detach())
    leaf = action.detach().requires_grad_()
    (slope,) = torch.autograd.grad(network.head("value")(features.detach(), leaf).sum(), leaf)
    for head, dims in HEADS[3].items():
        torch.testing.assert_close(metrics[f"action_gradient/{head}"], slope[..., list(dims)])


@pytest.mark.parametrize("loss_function", ["l1", "l2", "smooth_l1"])
@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.filterwarnings("ignore:No target network updater")
def test_equals_torchrl_on_unshared_networks(make_network, make_batch, loss_function, prioritised):
    network = make_network({"actor": (1, 0)}, trunk="identity", double=True)
    batch = make_batch(network, 8).double()
    batch["next", "terminated"] = batch["next", "terminated"].bool()
    if prioritised:
        batch["priority_weight"] = torch.linspace(0.2, 2.0, 8, dtype=torch.float64)

    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = network.head("actor")

        def forward(self, observation):
            return self.head(observation)[..., [1, 0]]

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = network.head("value")

        def forward(self, observation, action):
            return self.head(observation, action)

    oracle = DDPGLoss(
        TensorDictModule(Actor(), ["observation"], ["action"]),
        TensorDictModule(Critic(), ["observation", "action"], ["state_action_value"]),
        loss_function=loss_function,
        delay_actor=True,
        delay_value=True,
        use_prioritized_weights=prioritised,
    )
    oracle.make_value_estimator(gamma=GAMMA)
    objective = ValueBased(network, WeightedSum(), gamma=GAMMA, loss_function=loss_function)
    with torch.no_grad():  # both targets were copied before: now they differ from the online network
        torch.manual_seed(3)
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))

    losses, metrics = objective.losses(batch)
    right = oracle(batch.clone())
    assert losses["value"].item() == pytest.approx(right["loss_value"].item(), abs=1e-10)
    assert losses["actor"].item() == pytest.approx(right["loss_actor"].item(), abs=1e-10)
    torch.testing.assert_close(metrics["td_error"].squeeze(-1), right["td_error"])
    torch.testing.assert_close(metrics["target_value"].squeeze(-1), right["target_value"])

    (right["loss_value"] + right["loss_actor"]).backward()
    wanted = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    objective.aggregator.backward(losses)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=0, atol=1e-10)


def test_priority_weights_scale_each_sample_of_every_loss(make_network, make_batch):
    network = make_network(double=True)
    objective, batch = objective_of(network), make_batch(network, 4)
    rows = [objective.losses(batch[i : i + 1])[0] for i in range(4)]
    batch["priority_weight"] = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    losses, _ = objective.losses(batch)
    for name in losses.keys():  # noqa: SIM118 (a TensorDict iterates over its batch)
        right = sum((i + 1) * row[name].item() for i, row in enumerate(rows)) / 10
        assert losses[name].item() == pytest.approx(right, abs=1e-12)


def test_b05_priority_weights_of_another_shape_are_refused(make_network, make_batch):
    network = make_network()
    batch = make_batch(network, 4)
    batch["priority_weight"] = torch.ones(4, 1)
    with pytest.raises(ValueError, match=r"one shape"):
        objective_of(network).losses(batch)


def test_one_pass_of_the_trunk_and_one_of_the_critic_for_all_heads(make_network, make_batch, monkeypatch):
    network = make_network(HEADS[3])
    monkeypatch.setattr(DeterministicHead, "stack_key", lambda head: id(head))  # looped, so that hooks see them
    objective, batch, calls = objective_of(network), make_batch(network), []
    for net, label in ((network, "online"), (objective.target, "target")):
        for name, module in net.named_children():
            if name != "encoder":
                module.register_forward_hook(lambda *_, key=f"{label}.{name}": calls.append(key))
    objective.losses(batch, network.acting)
    heads = [f"online.head_{name}" for name in (*network.acting, "value")]
    assert sorted(calls) == sorted(["online.trunk", *heads])

    calls.clear()
    objective.losses(batch)
    target = [call.replace("online", "target") for call in ["online.trunk", *heads]]
    assert sorted(calls) == sorted(["online.trunk", *heads, "online.head_value", *target])


def test_c04_the_priority_of_a_row_is_its_absolute_error(make_network, make_batch):
    network = make_network()
    _, metrics = objective_of(network).losses(make_batch(network, 3, 4))
    assert metrics["priority"].shape == (3, 4)
    torch.testing.assert_close(metrics["priority"], (metrics["pred_value"] - metrics["target_value"]).abs().squeeze(-1))


def test_metrics_and_targets_carry_no_graph(make_network, make_batch):
    network = make_network()
    losses, metrics = objective_of(network).losses(make_batch(network))
    assert all(not metric.requires_grad for metric in metrics.values())
    assert all(loss.requires_grad and loss.shape == () for loss in losses.values())
    assert set(metrics.keys()) == {
        "state_action_value",
        "action_gradient/arm",
        "action_gradient/gripper",
        "action/arm",
        "action/gripper",
        "pred_value",
        "target_value",
        "columns",
        "td_error",
        "priority",
    }


def test_a01_the_loss_reads_terminated_only(make_network, make_batch):
    network = make_network(double=True)
    objective, batch = objective_of(network), make_batch(network)
    right = objective.target_value(batch)
    flipped = batch.clone()
    flipped["next", "truncated"] = ~flipped["next", "truncated"]
    flipped["next", "done"] = ~flipped["next", "done"]
    assert torch.equal(objective.target_value(flipped), right)
    flipped["next", "terminated"] = torch.ones_like(flipped["next", "terminated"])
    torch.testing.assert_close(objective.target_value(flipped), batch["next", "reward"].double())
    assert not torch.equal(right, objective.target_value(flipped))


def test_a01_a_nan_after_a_terminal_row_is_harmless(make_network, make_batch):
    network = make_network()
    objective, batch = objective_of(network), make_batch(network)
    batch["next", "terminated"][2] = True
    right = gradients(objective, batch)
    batch["next", "observation"][2] = float("nan")
    poisoned = gradients(objective, batch)
    for name in right:
        assert torch.equal(poisoned[name], right[name])


def test_a03_the_target_and_the_loss_use_the_map_of_acting(make_network, make_batch):
    for raw, right in ((-100.0, [-1, 0]), (0.0, [1, 0.25]), (100.0, [3, 0.5])):
        network = make_network({"arm": (1,), "gripper": (0,)}, low=[-1, 0], high=[3, 0.5], trunk="identity")
        for name in network.acting:
            for parameter in network.head(name).parameters():
                nn.init.zeros_(parameter)
            nn.init.constant_(network.head(name).body[-1].bias, raw)
        objective, seen = ValueBased(network, WeightedSum()), []
        for net in (network, objective.target):
            net.head("value").register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[1].detach()))
        batch = make_batch(network)
        objective.losses(batch)
        acting, stored, following = seen
        torch.testing.assert_close(acting, torch.tensor(right).expand(6, 2).float())
        assert torch.equal(stored, batch["action"])
        torch.testing.assert_close(following, acting)


def test_zero_width_dimension_never_makes_a_nan(make_network, make_batch):
    network = make_network(low=[-1, 2], high=[1, 2])
    objective, batch = objective_of(network), make_batch(network)
    found = gradients(objective, batch)
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
    assert all((gradient == 0).all() for name, gradient in found.items() if name.startswith("head_gripper"))


def test_b02_two_hundred_steps_of_the_acting_losses_leave_the_critic_alone(make_network, make_batch):
    network = make_network()
    objective, batch = objective_of(network), make_batch(network, 8)
    engine = EagerEngine(objective, objective.aggregator, torch.optim.SGD(network.parameters(), 0.1))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    for _ in range(200):
        engine.step(batch, network.acting)
    moved = {name: (p - before[name]).abs().max().item() for name, p in network.named_parameters()}
    assert all(by == 0 for name, by in moved.items() if name.startswith("head_value"))
    assert all(by > 0 for name, by in moved.items() if not name.startswith("head_value"))


def test_inactive_losses_are_not_computed(make_network, make_batch):
    network = make_network()
    objective, batch = objective_of(network), make_batch(network)
    assert set(objective.losses(batch, ["value"])[0].keys()) == {"value"}
    losses, metrics = objective.losses(batch, ["gripper"])
    assert set(losses.keys()) == {"gripper"}
    assert set(metrics.keys()) == {"state_action_value", "action_gradient/gripper", "action/arm", "action/gripper"}
    assert set(objective.summary(metrics)) == {"head/gripper/action_gradient", "head/gripper/saturation"}
    found = gradients(objective, batch, ["gripper"])
    assert {name.split(".")[0] for name in found} == {"trunk", "head_gripper"}


def test_an_idle_head_still_takes_part_in_the_joint_action(make_network, make_batch):
    network = make_network(double=True)
    objective, batch = objective_of(network), make_batch(network)
    alone, both = objective.losses(batch, ["gripper"])[0], objective.losses(batch)[0]
    torch.testing.assert_close(alone["gripper"], both["gripper"])
    ones = dict.fromkeys([*network.acting, "value"], 1.0)
    right = brute_force(objective, batch, ones | {"arm": 0.0, "value": 0.0}, ones)
    for name, gradient in gradients(objective, batch, ["gripper"]).items():
        torch.testing.assert_close(gradient, right[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("delay", "acting"), [(1, [0, 1, 2, 3, 4, 5]), (2, [1, 3, 5]), (3, [2, 5])])
def test_policy_delay(make_network, delay, acting):
    objective = objective_of(make_network(), policy_delay=delay)
    for update in range(6):
        assert objective.due(update) == (("arm", "gripper", "value") if update in acting else ("value",))


def test_a07_target_every(make_network):
    network = make_network()
    objective = ValueBased(network, WeightedSum(), tau=1.0, target_every=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    moved = []
    for updates in range(1, 8):
        before = objective.target.head("arm").body[0].weight.clone()
        objective.update_target(updates)
        after = objective.target.head("arm").body[0].weight
        if not torch.equal(before, after):
            moved.append(updates)
            assert torch.equal(after, network.head("arm").body[0].weight)
            with torch.no_grad():
                network.head("arm").body[0].weight.add_(1.0)
    assert moved == [3, 6]


def test_a07_targets_are_out_of_reach_of_the_optimizer(make_network, make_batch):
    network = make_network()
    objective, batch = ValueBased(network, WeightedSum(), tau=0.0), make_batch(network)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=0.1, weight_decay=0.1)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    targets = list(objective.target.state_dict(keep_vars=True).values())
    assert targets and not trained & {id(tensor) for tensor in targets}
    assert not {p.data_ptr() for p in objective.parameters()} & {tensor.data_ptr() for tensor in targets}
    before = [tensor.clone() for tensor in targets]
    engine = EagerEngine(objective, objective.aggregator, optimizer)
    for update in range(5):
        engine.step(batch, objective.due(update))
        objective.update_target(update + 1)
    assert all(torch.equal(*pair) for pair in zip(targets, before, strict=True))
    assert all(tensor.grad is None and not tensor.requires_grad for tensor in targets)


def test_summary_reduces_to_scalars_by_hand(make_network):
    objective = objective_of(make_network({"arm": (0, 1), "gripper": (2,)}, low=[-1, -1, 0], high=[1, 1, 4]))
    metrics = {
        "pred_value": torch.tensor([[1.0], [3.0]]),
        "target_value": torch.tensor([[2.0], [6.0]]),
        "columns": torch.tensor([0]),
        "action_gradient/arm": torch.tensor([[3.0, 4.0], [0.0, 0.0]]),
        "action/arm": torch.tensor([[1.0, 0.0], [0.0, 0.5]]),
        "action/gripper": torch.tensor([[4.0], [4.0]]),  # idle: it acts, but has no figures
    }
    assert {name: value.item() for name, value in objective.summary(metrics).items()} == {
        "head/value/pred_value": 2.0,
        "head/value/pred_value_max": 3.0,
        "head/value/target_value": 4.0,
        "head/value/target_gap": 2.0,
        "head/arm/action_gradient": 2.5,
        "head/arm/saturation": 0.25,
    }


def test_the_actions_in_the_metrics_are_the_greedy_ones(make_network, make_batch):
    network = make_network()
    objective, batch = objective_of(network), make_batch(network)
    _, metrics = objective.losses(batch)
    with torch.no_grad():
        observation = network.observe(batch)
        right = network.propose(network.proposing, network.trunk_features(observation), observation)
    for head, action in right.items():
        torch.testing.assert_close(metrics[f"action/{head}"], action)


@pytest.mark.parametrize(
    ("option", "bad"),
    [("gamma", 1.5), ("gamma", -0.1), ("tau", 2.0), ("tau", float("nan")), ("target_every", 0), ("policy_delay", 0)],
)
def test_options_out_of_range_are_refused_by_name(make_network, option, bad):
    with pytest.raises(ValueError, match=rf"objective.{option} is {bad}"):
        ValueBased(make_network(), WeightedSum(), **{option: bad})


def test_unknown_names_are_refused_at_construction(make_network):
    with pytest.raises(ValueError, match=r"unknown loss_function 'quartic'"):
        ValueBased(make_network(), WeightedSum(), loss_function="quartic")
    with pytest.raises(ValueError, match=r"unknown reduction 'max'"):
        ValueBased(make_network(), WeightedSum(), reduction="max")


class NormedCritic(CriticHead):
    """A user's critic with running statistics."""

    def __init__(self, size, space):
        super().__init__(size, space)
        self.layer = nn.Linear(size + 2, 1)
        self.norm = nn.BatchNorm1d(size + 2, track_running_stats=True)

    def forward(self, features, action):
        return self.layer(self.norm(torch.cat([features, action], -1)))


def test_a07_running_statistics_of_a_custom_critic_follow(make_network):
    critic = NormedCritic(5, Box(-1, 1, (2,)))
    network = make_network(critic=critic)
    objective = ValueBased(network, WeightedSum(), tau=0.5)
    critic.norm.running_mean.fill_(4.0)
    critic.norm.num_batches_tracked.fill_(9)
    for updates, right in ((1, 2.0), (2, 3.0)):
        objective.update_target(updates)
        followed = objective.target.head("value").norm
        assert (followed.running_mean == right).all() and followed.num_batches_tracked == 9


def test_permuting_the_batch_changes_nothing(make_network, make_batch):
    network = make_network(double=True)
    objective, batch = objective_of(network), make_batch(network, 6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    first, shuffled = (objective.losses(rows) for rows in (batch, batch[order]))
    torch.testing.assert_close(first[1]["td_error"][order], shuffled[1]["td_error"])
    for name in ("arm", "gripper", "value"):
        torch.testing.assert_close(first[0][name], shuffled[0][name])
