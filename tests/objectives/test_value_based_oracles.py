"""The corners of the family on real networks: torchrl's losses where there are some, separate heads elsewhere."""

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from tensordict.nn import TensorDictModule
from torch import nn
from torch.nn import functional as F
from torchrl.data import Categorical
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, TD3Loss

from mhrl.aggregators import BackwardAggregator, WeightedSum
from mhrl.objectives import ValueBased

GAMMA = 0.875  # exact in float32, which torchrl keeps it in

HYBRID = Dict({"gear": Discrete(3, start=1), "lights": MultiDiscrete([2, 4]), "throttle": Box(-1, 2, (2,))})


class Sum(BackwardAggregator):
    """The plain sum with FanOut always there, so that every loss reads an alias of its own."""

    balances = True

    def combine(self, rows):
        return rows.sum(0)


def objective_of(network, rule=WeightedSum, weights=1.0, trunk_grad=1.0, **options):
    objective = ValueBased(network, rule(weights, trunk_grad), gamma=GAMMA, **options)
    torch.manual_seed(7)
    for buffer in objective.target.state_dict().values():  # a target of its own, so that mixing them up shows
        buffer.add_(0.3 * torch.randn_like(buffer))
    return objective


def move(network):
    """Make the online network differ from the targets that were copied from it."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


def gradients(objective, losses):
    objective.zero_grad()
    objective.aggregator.backward(losses)
    return {name: p.grad for name, p in objective.network.named_parameters() if p.grad is not None}


def as_double(batch):
    flags = {key: batch["next", key] for key in ("terminated", "truncated", "done")}
    double = batch.clone().apply(lambda x: x.double() if x.is_floating_point() else x)
    for key, flag in flags.items():
        double["next", key] = flag
    return double


class Branch(nn.Module):
    """Trunk and the only branch, as torchrl takes a Q-network."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, observation):
        features = self.network.trunk({"observation": observation})
        return self.network.head("action")(features, features[..., :0])


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss_function", ["l1", "l2", "smooth_l1"])
@pytest.mark.filterwarnings("ignore:No target network updater")
def test_one_discrete_leaf_equals_torchrls_dqn(make_agent, make_batch, double, loss_function):
    network = make_agent(Discrete(4, start=-1), double=True)
    objective = ValueBased(network, WeightedSum(), gamma=GAMMA, double=double, loss_function=loss_function)
    actor = QValueActor(Branch(network), in_keys=["observation"], spec=Categorical(4))
    oracle = DQNLoss(actor, double_dqn=double, delay_value=True, loss_function=loss_function)
    oracle.make_value_estimator(gamma=GAMMA)
    move(network)
    batch = as_double(make_batch(network, 8))
    losses, metrics = objective.losses(batch)
    theirs = batch.clone()
    theirs["action"] = theirs["action"] + 1  # torchrl knows indices only
    right = oracle(theirs)["loss"]
    assert losses["action"].item() == pytest.approx(right.item(), abs=1e-10)
    right.backward()
    wanted = {name: p.grad.clone() for name, p in network.named_parameters()}
    for name, gradient in gradients(objective, losses).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-10)
    assert metrics["priority"].shape == (8,)


class Actor(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.head = network.head("action")

    def forward(self, observation):
        return self.head(observation)


class Twins(nn.Module):
    """One of the twins, as torchrl takes a Q-network."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, observation, action):
        return self.head(observation, action)


@pytest.mark.filterwarnings("ignore:No target network updater")
def test_only_a_box_with_twins_equals_torchrls_td3(make_agent, make_batch, monkeypatch):
    network = make_agent(Box(-2, 2, (3,)), trunk="identity", twin=True, double=True)
    options = {"smoothing": 0.2, "smoothing_clip": 0.5}
    objective = ValueBased(network, WeightedSum(), gamma=GAMMA, loss_function="l2", **options)
    critics = [
        TensorDictModule(Twins(network.head("value", copy)), ["observation", "action"], ["state_action_value"])
        for copy in range(2)
    ]
    oracle = TD3Loss(
        TensorDictModule(Actor(network), ["observation"], ["action"]),
        critics,
        bounds=(-2.0, 2.0),
        policy_noise=0.2,
        noise_clip=0.5,
        loss_function="l2",
        delay_actor=True,
        delay_qvalue=True,
        num_qvalue_nets=2,
    ).double()
    oracle.make_value_estimator(gamma=GAMMA)
    with torch.no_grad():  # ours, theirs: the same targets, and online networks that differ from them
        torch.manual_seed(3)
        noise = {name: 0.2 * torch.randn_like(p) for name, p in network.named_parameters()}
        for name, parameter in network.named_parameters():
            parameter.add_(noise[name])
        actor = oracle.actor_network_params
        for name, parameter in network.head("action").named_parameters():
            actor.get(("module", "head", *name.split("."))).data.copy_(parameter)
        for copy in range(2):
            for name, parameter in network.head("value", copy).named_parameters():
                oracle.qvalue_network_params.get(("module", "head", *name.split(".")))[copy].data.copy_(parameter)
                target = objective.target.head("value", copy).get_buffer(name)
                oracle.target_qvalue_network_params.get(("module", "head", *name.split(".")))[copy].copy_(target)
    batch = as_double(make_batch(network, 8))
    drawn = torch.randn(8, 3, dtype=torch.float64)
    # One draw for both; torchrl's noise is in env units, ours in half-ranges of 2.
    monkeypatch.setattr(torch, "randn_like", lambda x, **_: drawn)
    losses, metrics = objective.losses(batch)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: drawn)
    monkeypatch.setattr(torch.Tensor, "normal_", lambda x, *_, **__: x.copy_(drawn))
    oracle.policy_noise, oracle.noise_clip = 0.4, 1.0
    right = oracle(batch.clone())
    assert losses["value"].item() == pytest.approx(right["loss_qvalue"].item(), abs=1e-10)
    assert losses["action"].item() == pytest.approx(right["loss_actor"].item(), abs=1e-10)
    torch.testing.assert_close(metrics["target_value"].squeeze(-1), right["target_value"].reshape(-1))


def separate(objective, batch, weights, trunk_grad):
    """Every loss with a graph of its own: heads one by one, no stacking, no rows; the gradients that they add up to."""
    network, total = objective.network, {}

    def value_of(net, name, copy, features, action):
        values = net.head(name, copy)(features, action)
        if net.dueling == "none":
            return values
        level = values.mean(-1, keepdim=True) if net.dueling == "mean" else values.max(-1, keepdim=True).values
        return net.head("value", copy)(features, action) + values - level

    def propose(net, features, attached=None):
        parts = {}
        for head in net.proposing:
            action = net.head(head)(features)
            action = action if head == attached else action.detach()
            parts |= {dim: action[..., i] for i, dim in enumerate(net.specs[head].dims)}
        return torch.stack([parts[dim] for dim in sorted(parts)], -1) if parts else features[..., :0].detach()

    def add(loss, names, loss_name):
        parameters = {n: p for n, p in network.named_parameters() if n.split(".")[0] in names}
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, grad in zip(parameters, found, strict=True):
            if grad is not None:
                factor = trunk_grad[loss_name] if name.startswith("trunk") else 1.0
                total[name] = total.get(name, 0) + weights[loss_name] * factor * grad

    def joint(values):
        kind = "mean" if objective.target_reduction == "independent" else objective.target_reduction
        return {"mean": values.mean, "max": lambda dim: values.max(dim).values, "sum": values.sum}[kind](-1)

    observation, following = network.observe(batch), network.observe(batch, following=True)
    action, index = network.stored(batch)
    names = network.critics
    with torch.no_grad():
        features = objective.target.trunk(following)
        proposed = propose(objective.target, features)
        online = network.trunk(following)
        best = []
        for name in names:
            copies = torch.stack(
                [value_of(objective.target, name, copy, features, proposed) for copy in range(network.copies)]
            )
            lower = copies.min(0).values
            chooser = value_of(network, name, 0, online, proposed) if objective.chooses_online else lower
            best.append(lower.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1))
        best = torch.stack(best, -1)
        kind = objective.target_reduction
        future = best if kind == "independent" else joint(best).unsqueeze(-1).expand_as(best)
        end = batch["next", "terminated"].to(best.dtype)
        y = batch["next", "reward"] + GAMMA * (1 - end) * future

    def taken(copy):
        features = network.trunk(observation)
        return [
            value_of(network, name, copy, features, action).gather(-1, index[..., d : d + 1]).squeeze(-1)
            for d, name in enumerate(names)
        ]

    modules = {"trunk"} | {f"{kind}_{n}" for kind in ("head", "twin") for n in (*names, "value")}
    for copy in range(network.copies):
        if objective.joint == "independent":
            for d, name in enumerate(names):
                add(F.mse_loss(taken(copy)[d], y[..., d]) / len(names), modules, name)
        else:
            together = torch.stack(taken(copy), -1)
            together = together.mean(-1) if objective.joint == "mean" else together.sum(-1)
            add(F.mse_loss(together, y[..., 0]), modules, "value")
    for head in network.proposing:
        features = network.trunk(observation)
        ours = propose(network, features, head)
        values = torch.stack([value_of(network, name, 0, features.detach(), ours).max(-1).values for name in names], -1)
        add(-joint(values).mean(), {f"head_{head}", "trunk"}, head)
    return total


CORNERS = {
    "ddpg": (Box(-1, 2, (3,)), {}, {}),
    "td3": (Box(-1, 2, (3,)), {"twin": True}, {}),
    "dqn": (Discrete(5), {}, {"double": True}),
    "bdq": (MultiDiscrete([3, 2, 5]), {"dueling": "mean"}, {"double": True}),
    "bdq max": (MultiDiscrete([3, 2, 5]), {"dueling": "max", "twin": True}, {"target_reduction": "max"}),
    "independent": (MultiDiscrete([3, 2]), {"twin": True}, {"target_reduction": "independent", "double": True}),
    "decqn": (Box(-1, 2, (3,)), {"bins": 4, "twin": True}, {"loss_reduction": "mean_q"}),
    "vdn": (MultiDiscrete([3, 2, 5]), {"dueling": "mean"}, {"loss_reduction": "summed"}),
    "p-dqn": (HYBRID, {}, {}),
    "hybrid": (HYBRID, {"dueling": "mean", "twin": True}, {"double": True, "target_reduction": "max"}),
    "hybrid joint": (HYBRID, {"dueling": "max"}, {"loss_reduction": "summed", "double": True}),
}


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("rule", [WeightedSum, Sum])
@pytest.mark.parametrize("shape", [(6,), (2, 3)], ids=["B", "BT"])
def test_every_corner_equals_separate_heads_and_separate_losses(make_agent, make_batch, corner, rule, shape):
    space, fields, options = CORNERS[corner]
    network = make_agent(space, double=True, **fields)
    names = ValueBased.loss_names(network, **options)
    weights = {name: 0.5 + 0.3 * i for i, name in enumerate(names)}
    trunk_grad = {name: 1.5 - 0.4 * i for i, name in enumerate(names)}
    objective = objective_of(network, rule, weights, trunk_grad, **options)
    batch = as_double(make_batch(network, *shape))
    losses, _ = objective.losses(batch)
    ours, right = gradients(objective, losses), separate(objective, batch, weights, trunk_grad)
    assert ours.keys() == right.keys() == dict(network.named_parameters()).keys()
    for name in right:
        torch.testing.assert_close(ours[name], right[name], rtol=0, atol=1e-10)
        assert right[name].abs().max() > 1e-8, f"{name}: nothing was compared"


def test_smoothing_is_clipped_in_half_ranges_and_stays_in_the_box(make_agent, make_batch):
    network = make_agent(Box(-1, 3, (1,)), twin=True)
    objective = objective_of(network, smoothing=10.0, smoothing_clip=0.25)
    action = torch.full((2000, 1), 2.8)
    smoothed = objective._smooth(action)
    # A quarter of the half-range of 2 either way, and no further than the bound of 3.
    assert smoothed.min() == pytest.approx(2.3) and smoothed.max() == 3.0
    assert ((smoothed - 2.3).abs() < 1e-5).float().mean() > 0.4  # nearly always at the clip
