"""torchrl's own DDPGLoss is the oracle on networks of their own; plain autograd is it on a shared trunk."""

from copy import deepcopy
from itertools import product

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Bounded
from torchrl.modules import Actor, ProbabilisticActor, TanhDelta, ValueOperator
from torchrl.objectives import DDPGLoss as Oracle
from torchrl.objectives import HardUpdate, SoftUpdate, ValueEstimators

from mhrl.objectives import DDPGLoss

pytestmark = pytest.mark.filterwarnings("ignore:No target network updater:UserWarning")

OBSERVATION, ACTION, FEATURES, B, T = 3, 2, 5, 6, 4
LOSSES = ("loss_actor", "loss_value")


class Q(nn.Module):
    def __init__(self, inputs, action=ACTION):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs + action, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, action):
        return self.net(torch.cat([x, action], -1))


def separate_networks():
    """Equal networks at every call."""
    torch.manual_seed(1)
    policy = nn.Sequential(nn.Linear(OBSERVATION, 8), nn.Tanh(), nn.Linear(8, ACTION), nn.Tanh())
    actor = TensorDictModule(policy, ["observation"], ["action"])
    return actor, ValueOperator(Q(OBSERVATION), in_keys=["observation", "action"])


def shared_networks():
    """Equal networks on one trunk at every call."""
    torch.manual_seed(1)
    trunk = TensorDictModule(nn.Sequential(nn.Linear(OBSERVATION, FEATURES), nn.Tanh()), ["observation"], ["features"])
    head = TensorDictModule(nn.Sequential(nn.Linear(FEATURES, ACTION), nn.Tanh()), ["features"], ["action"])
    critic = ValueOperator(Q(FEATURES), in_keys=["features", "action"])
    return TensorDictSequential(trunk, head), TensorDictSequential(trunk, critic)


def make_batch(*shape, weights=False, dtype=torch.float32):
    torch.manual_seed(2)
    shape = shape or (B,)
    terminated = torch.rand(*shape, 1) < 0.3
    following = {
        "observation": torch.randn(*shape, OBSERVATION, dtype=dtype),
        "reward": torch.randn(*shape, 1, dtype=dtype),
        "terminated": terminated,
        "done": terminated | (torch.rand(*shape, 1) < 0.2),
    }
    batch = TensorDict(
        {
            "observation": torch.randn(*shape, OBSERVATION, dtype=dtype),
            "action": torch.rand(*shape, ACTION, dtype=dtype) * 2 - 1,
            "next": following,
        },
        shape,
    )
    return batch.set("priority_weight", torch.rand(*shape, dtype=dtype) + 0.1) if weights else batch


def tensors(params):
    """Leaves by name, in one order."""
    return dict(sorted(params.flatten_keys().items()))


def perturb(params, seed=3):
    generator = torch.Generator().manual_seed(seed)
    for leaf in tensors(params).values():
        leaf.data.add_(0.3 * torch.randn(leaf.shape, generator=generator))


def perturb_targets(loss):
    if loss.delay_actor:
        perturb(loss.target_actor_network_params)
    if loss.delay_value:
        perturb(loss.target_value_network_params)


def gradients(loss, out):
    """The gradient of each loss with respect to every parameter (None where there is none)."""
    torch.manual_seed(4)
    params = tensors(loss.actor_network_params) | tensors(loss.value_network_params)
    return {
        (key, name): gradient
        for key in LOSSES
        for name, gradient in zip(
            params,
            torch.autograd.grad(
                out[key], params.values(), torch.randn_like(out[key]), retain_graph=True, allow_unused=True
            ),
            strict=True,
        )
    }


def assert_equal(ours, theirs):
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        if value is None:
            assert ours[key] is None, key
        else:
            torch.testing.assert_close(
                ours[key], value, rtol=1e-6, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}"
            )


def assert_matches_torchrl(ours, theirs, make=make_batch):
    batch, reference = make(), make()
    out, expected = ours(batch), theirs(reference)
    assert_equal(dict(out.items()), dict(expected.items()))
    assert_equal(dict(batch.flatten_keys().items()), dict(reference.flatten_keys().items()))
    assert_equal(gradients(ours, out), gradients(theirs, expected))


# The documented contract


def documented_networks():
    spec = Bounded(-torch.ones(4), torch.ones(4), (4,))
    actor = Actor(spec=spec, module=nn.Linear(3, 4))
    return spec, actor, ValueOperator(module=Q(3, 4), in_keys=["observation", "action"])


def test_the_documented_call_with_a_tensordict():
    spec, actor, value = documented_networks()
    loss = DDPGLoss(actor, value)
    data = TensorDict(
        {
            "observation": torch.randn(2, 3),
            "action": spec.rand([2]),
            ("next", "done"): torch.zeros(2, 1, dtype=torch.bool),
            ("next", "reward"): torch.randn(2, 1),
            ("next", "observation"): torch.randn(2, 3),
        },
        [2],
    )
    out = loss(data)
    assert out.batch_size == ()
    assert set(out.keys()) == {*loss.out_keys, "td_error"}
    assert data["td_error"].shape == (2,)
    torch.testing.assert_close(data["td_error"], (out["pred_value"] - out["target_value"]).square())


def test_the_documented_call_with_keywords():
    spec, actor, value = documented_networks()
    loss = DDPGLoss(actor, value)
    entries = {
        "observation": torch.randn(3),
        "action": spec.rand(),
        "next_done": torch.zeros(1, dtype=torch.bool),
        "next_observation": torch.randn(3),
        "next_reward": torch.randn(1),
    }
    loss_actor, loss_value, pred_value, target_value, pred_value_max, target_value_max = loss(**entries)
    loss_actor.backward()
    assert all(p.grad.any() for p in actor.parameters())
    torch.testing.assert_close(loss_value, (pred_value - target_value).square().mean())
    assert (pred_value_max, target_value_max) == (pred_value.max(), target_value.max())
    assert loss.select_out_keys("loss_actor", "loss_value") is loss
    loss_actor, loss_value = loss(**entries)
    loss_actor.backward()
    assert loss.select_out_keys("loss_value")(**entries) == loss_value


def test_keys_are_torchrls():
    ours, theirs = DDPGLoss(*separate_networks()), Oracle(*separate_networks())
    assert ours.in_keys == theirs.in_keys
    assert ours.out_keys == theirs.out_keys
    ours, theirs = (kind(*separate_networks(), use_prioritized_weights=False) for kind in (DDPGLoss, Oracle))
    assert ours.in_keys == theirs.in_keys


def test_selected_outputs_of_a_tensordict():
    loss = DDPGLoss(*separate_networks()).select_out_keys("loss_value", "pred_value")
    assert loss.out_keys == ["loss_value", "pred_value"]
    assert list(loss(make_batch()).keys()) == ["loss_value", "pred_value"]
    assert set(loss.reset_out_keys()(make_batch()).keys()) == {*Oracle(*separate_networks()).out_keys, "td_error"}
    with pytest.raises(ValueError, match="there is no out_key 'loss'"):
        loss.select_out_keys("loss")


def test_renamed_keys():
    names = {
        "state_action_value": "q",
        "priority": "priority",
        "reward": "r",
        "done": "over",
        "terminated": "end",
        "priority_weight": "w",
    }

    def make():
        batch = make_batch(weights=True).rename_key_("priority_weight", "w")
        # Weights under the default name are not the weights any more.
        batch["priority_weight"] = torch.arange(float(B))
        for old, new in (("reward", "r"), ("done", "over"), ("terminated", "end")):
            batch.rename_key_(("next", old), ("next", new))
        return batch

    losses = []
    for kind in (DDPGLoss, Oracle):
        actor, value = separate_networks()
        loss = kind(actor, ValueOperator(value.module, in_keys=["observation", "action"], out_keys=["q"]))
        loss.set_keys(**names)
        perturb_targets(loss)
        losses.append(loss)
    assert losses[0].in_keys == losses[1].in_keys
    assert_matches_torchrl(*losses, make)
    losses[0].set_keys(reward=None)
    assert ("next", "reward") in losses[0].in_keys
    with pytest.raises(ValueError, match="gamma is not an accepted tensordict key"):
        losses[0].set_keys(gamma="g")


# Equal to torchrl's on networks of their own


@pytest.mark.parametrize("loss_function", ["l1", "l2", "smooth_l1"])
@pytest.mark.parametrize(("delay_actor", "delay_value"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("separate_losses", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum", None])
@pytest.mark.parametrize("weights", [False, True])
def test_every_combination_of_options(loss_function, delay_actor, delay_value, separate_losses, reduction, weights):
    options = {
        "loss_function": loss_function,
        "delay_actor": delay_actor,
        "delay_value": delay_value,
        "separate_losses": separate_losses,
        "reduction": reduction,
    }
    losses = [kind(*separate_networks(), **options) for kind in (DDPGLoss, Oracle)]
    for loss in losses:
        perturb_targets(loss)
    assert_matches_torchrl(*losses, lambda: make_batch(weights=weights))


@pytest.mark.parametrize("kind", ["TD0", "TD1", "TDLambda"])
@pytest.mark.parametrize(("delay_actor", "delay_value"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weights", [False, True])
def test_every_estimator_on_trajectories(kind, delay_actor, delay_value, reduction, weights):
    losses = []
    for loss_kind in (DDPGLoss, Oracle):
        loss = loss_kind(*separate_networks(), delay_actor=delay_actor, delay_value=delay_value, reduction=reduction)
        loss.make_value_estimator(ValueEstimators[kind], gamma=0.9)
        perturb_targets(loss)
        losses.append(loss)
    assert_matches_torchrl(*losses, lambda: make_batch(B, T, weights=weights))


@pytest.mark.parametrize("use", [True, False, "auto"])
def test_use_of_priority_weights(use):
    losses = [kind(*separate_networks(), use_prioritized_weights=use) for kind in (DDPGLoss, Oracle)]
    assert_matches_torchrl(*losses, lambda: make_batch(weights=True))


def test_padding_is_left_out():
    def make():
        batch = make_batch(B, T)
        batch["collector", "mask"] = torch.rand(B, T, 1) < 0.5
        return batch

    assert_matches_torchrl(DDPGLoss(*separate_networks()), Oracle(*separate_networks()), make)


def test_steps_to_next_observation():
    def make():
        batch = make_batch()
        batch["steps_to_next_obs"] = torch.randint(1, 4, (B, 1))
        return batch

    assert_matches_torchrl(DDPGLoss(*separate_networks()), Oracle(*separate_networks()), make)


def test_an_absent_terminated_is_done():
    make = lambda: make_batch().exclude(("next", "terminated"))  # noqa: E731
    assert_matches_torchrl(DDPGLoss(*separate_networks()), Oracle(*separate_networks()), make)


def test_an_action_of_two_dimensions():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = Q(OBSERVATION, 2 * ACTION)

        def forward(self, observation, action):
            return self.q(observation, action.flatten(-2))

    losses = []
    for kind in (DDPGLoss, Oracle):
        torch.manual_seed(1)
        policy = nn.Sequential(nn.Linear(OBSERVATION, 2 * ACTION), nn.Unflatten(-1, (2, ACTION)))
        actor = TensorDictModule(policy, ["observation"], ["action"])
        losses.append(kind(actor, ValueOperator(Flat(), in_keys=["observation", "action"])))
    assert_matches_torchrl(*losses, lambda: make_batch(2).set("action", torch.ones(2, 2, ACTION)))


def test_a_probabilistic_actor():
    losses = []
    for kind in (DDPGLoss, Oracle):
        torch.manual_seed(1)
        parameters = TensorDictModule(nn.Linear(OBSERVATION, ACTION), ["observation"], ["param"])
        actor = ProbabilisticActor(
            parameters, in_keys=["param"], distribution_class=TanhDelta, distribution_kwargs={"low": -2, "high": 2}
        )
        losses.append(kind(actor, ValueOperator(Q(OBSERVATION), in_keys=["observation", "action"])))
    assert_matches_torchrl(*losses)


# The discount and the estimators


def test_gamma():
    batch = make_batch(B, T)
    for kind in ("TD0", "TD1", "TDLambda"):
        oracle = Oracle(*separate_networks())
        oracle.make_value_estimator(ValueEstimators[kind], gamma=0.5)
        expected = oracle(batch)["target_value"]
        at_build = DDPGLoss(*separate_networks(), gamma=0.5).make_value_estimator(ValueEstimators[kind])
        later = DDPGLoss(*separate_networks(), gamma=0.7).make_value_estimator(ValueEstimators[kind], gamma=0.5)
        torch.testing.assert_close(at_build(batch)["target_value"], expected)
        torch.testing.assert_close(later(batch)["target_value"], expected)
    assert DDPGLoss(*separate_networks()).value_estimator.gamma == torch.tensor(0.99)


@pytest.mark.parametrize("kind", ["GAE", "VTrace", "MAGAE"])
def test_other_estimators_are_refused(kind):
    with pytest.raises(NotImplementedError, match=kind):
        DDPGLoss(*separate_networks()).make_value_estimator(ValueEstimators[kind])


@pytest.mark.parametrize("kind", ["TD1", "TDLambda"])
def test_returns_need_trajectories(kind):
    loss = DDPGLoss(*separate_networks()).make_value_estimator(ValueEstimators[kind])
    with pytest.raises(ValueError, match=rf"{kind} needs trajectories, a batch \[B, T\]; in \[6\]"):
        loss(make_batch())


@pytest.mark.parametrize("networks", [separate_networks, shared_networks])
def test_a_state_dict_does_not_depend_on_what_was_called(networks):
    used = DDPGLoss(*networks(), gamma=0.9)
    perturb_targets(used)
    perturb(used.value_network_params)
    out = used(make_batch())
    fresh = DDPGLoss(*networks())
    assert fresh.state_dict().keys() == used.state_dict().keys()
    fresh.load_state_dict(used.state_dict())
    assert_equal(dict(fresh(make_batch()).items()), dict(out.items()))


# Targets


def test_the_networks_are_the_very_ones_that_are_trained():
    actor, value = shared_networks()
    online = {id(p) for p in [*actor.parameters(), *value.parameters()]}
    loss = DDPGLoss(actor, value, delay_actor=True)
    assert loss.actor_network is actor
    assert loss.value_network is value
    assert sorted(id(p) for p in loss.parameters()) == sorted(online)
    assert len(list(loss.buffers())) == len(online) + 1  # a target of each, and gamma
    before = actor(make_batch())["action"]
    torch.optim.SGD(loss.parameters(), lr=1.0).step(lambda: loss(make_batch()).sum(reduce=True).backward())
    assert (actor(make_batch())["action"] - before).abs().max() > 1e-3


@pytest.mark.parametrize(("delay_actor", "delay_value"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("step", [{"tau": 0.1}, {"eps": 0.7}])
def test_soft_update_moves_the_target_as_torchrls(delay_actor, delay_value, step):
    after = []
    for kind in (DDPGLoss, Oracle):
        loss = kind(*separate_networks(), delay_actor=delay_actor, delay_value=delay_value)
        updater = SoftUpdate(loss, **step)
        perturb(loss.actor_network_params)
        perturb(loss.value_network_params)
        updater.step()
        perturb(loss.value_network_params)
        updater.step()
        targets = (loss.target_actor_network_params, loss.target_value_network_params)
        after.append({(i, name): t.data for i, target in enumerate(targets) for name, t in tensors(target).items()})
    assert_equal(*after)


def test_hard_update_copies():
    loss = DDPGLoss(*separate_networks())
    updater = HardUpdate(loss, value_network_update_interval=1)
    perturb(loss.value_network_params)
    updater.step()
    assert all((p != loss.target_network_params[name]).any() for name, p in loss.network_params.items())
    updater.step()
    assert_equal(dict(loss.target_network_params.items()), dict(loss.network_params.detach().items()))


def test_nothing_to_update():
    loss = DDPGLoss(*separate_networks(), delay_value=False)
    assert not [name for name in loss.state_dict() if "target" in name]
    with pytest.raises(RuntimeError, match="Did not find any target"):
        SoftUpdate(loss, tau=0.1)


def test_a_missing_updater_is_reported():
    with pytest.warns(UserWarning, match="No target network updater"):
        DDPGLoss(*separate_networks())(make_batch())


# Only the losses are trained


@pytest.mark.parametrize("networks", [separate_networks, shared_networks])
def test_only_the_losses_carry_gradients(networks):
    loss = DDPGLoss(*networks())
    out = loss(make_batch())
    assert [key for key, leaf in out.items() if leaf.requires_grad] == list(LOSSES)
    out.backward()
    whole = {name: p.grad.clone() for name, p in loss.named_parameters()}
    loss.zero_grad()
    out = loss(make_batch())
    (out["loss_actor"] + out["loss_value"]).backward()
    assert_equal(whole, {name: p.grad for name, p in loss.named_parameters()})


def test_what_the_value_network_must_read():
    actor, _ = separate_networks()
    with pytest.raises(ValueError, match=r"its action; of \['action'\] it reads \[\]"):
        DDPGLoss(actor, ValueOperator(nn.Linear(OBSERVATION, 1), in_keys=["observation"]))


# A shared trunk


def split(loss):
    """Trunk, actor head and value head of the online and of the target network."""
    online = [loss.actor_network[0].module, loss.actor_network[1].module, loss.value_network[1].module]
    target = loss.objective.target
    sequences = [s for s in (target.actor, target.critic) if s is not None]
    copies = [
        sequences[0][0].module if sequences else online[0],
        online[1] if target.actor is None else target.actor[1].module,
        online[2] if target.critic is None else target.critic[1].module,
    ]
    return online, copies


def reference(loss, batch, separate_losses):
    """The two losses written out with plain modules."""
    (trunk, head, critic), (target_trunk, target_head, target_critic) = split(loss)
    features = trunk(batch["observation"])
    following = batch["next", "observation"]
    frozen = deepcopy(critic)
    loss_actor = -frozen(features.detach(), head(features)).mean()
    with torch.no_grad():
        action = target_head((target_trunk if loss.delay_actor else trunk)(following))
        value = target_critic((target_trunk if loss.delay_value else trunk)(following), action)
        target = batch["next", "reward"] + 0.99 * (~batch["next", "terminated"]) * value
    prediction = critic(features.detach() if separate_losses else features, batch["action"])
    return {"loss_actor": loss_actor, "loss_value": (prediction - target).square().mean()}


@pytest.mark.parametrize(("delay_actor", "delay_value"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("separate_losses", [False, True])
def test_a_shared_trunk_against_plain_autograd(delay_actor, delay_value, separate_losses):
    options = {"delay_actor": delay_actor, "delay_value": delay_value, "separate_losses": separate_losses}
    loss = DDPGLoss(*shared_networks(), **options)
    perturb(loss.target_network_params)
    batch = make_batch()
    expected = reference(loss, batch, separate_losses)
    out = loss(batch)
    assert_equal({key: out[key] for key in LOSSES}, expected)
    trunk, head, critic = (list(part.parameters()) for part in split(loss)[0])
    trained = {
        "loss_actor": (trunk, head),
        "loss_value": (critic,) if separate_losses else (trunk, critic),
    }
    for key in LOSSES:
        for part in (trunk, head, critic):
            ours = torch.autograd.grad(out[key], part, retain_graph=True, allow_unused=True)
            theirs = torch.autograd.grad(expected[key], part, retain_graph=True, allow_unused=True)
            assert_equal(dict(enumerate(ours)), dict(enumerate(theirs)))
            is_trained = any(part is other for other in trained[key])
            assert [g is not None and bool(g.any()) for g in ours] == [is_trained] * len(part)


@pytest.mark.parametrize(
    ("delay_actor", "delay_value", "online", "target"),
    [
        (False, False, [True, False], []),
        (False, True, [True, False], [False]),
        (True, False, [True, False], [False]),
        (True, True, [True], [False]),
    ],
)
def test_passes_through_the_trunk(delay_actor, delay_value, online, target):
    loss = DDPGLoss(*shared_networks(), delay_actor=delay_actor, delay_value=delay_value)
    (trunk, *_), (copy, *_) = split(loss)
    with_gradient = {trunk: [], copy: []}
    for module, passes in with_gradient.items():
        module.register_forward_hook(lambda _, __, features, passes=passes: passes.append(features.requires_grad))
    loss(make_batch())
    assert sorted(with_gradient.pop(trunk), reverse=True) == online
    assert with_gradient.get(copy, []) == target


@pytest.mark.parametrize(("delay_actor", "delay_value"), [(False, True), (True, False), (True, True)])
def test_the_target_trunk_is_delayed(delay_actor, delay_value):
    loss = DDPGLoss(*shared_networks(), delay_actor=delay_actor, delay_value=delay_value)
    updater = SoftUpdate(loss, tau=0.25)
    (trunk, *_), (copy, *_) = split(loss)
    old = copy[0].weight.clone()
    with torch.no_grad():
        trunk[0].weight.add_(1.0)
    torch.testing.assert_close(copy[0].weight, old, rtol=0, atol=0)
    updater.step()
    torch.testing.assert_close(copy[0].weight, old + 0.25)  # once, not once for each network


def test_the_target_value_does_not_follow_the_live_networks():
    loss = DDPGLoss(*shared_networks(), delay_actor=True)
    before = loss(make_batch())["target_value"]
    perturb(loss.value_network_params)
    perturb(loss.actor_network_params)
    torch.testing.assert_close(loss(make_batch())["target_value"], before, rtol=0, atol=0)


def storages(tensors):
    return [t.untyped_storage().data_ptr() for t in tensors]


def assert_not_aliased(loss):
    everything = [*loss.parameters(), *loss.objective.target.buffers()]
    assert len(set(storages(everything))) == len(everything)
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in loss.parameters())
    assert not list(loss.objective.target.parameters())
    assert not any(b.requires_grad for b in loss.buffers())
    views = tensors(loss.target_value_network_params)
    assert set(storages(views.values())) <= set(storages(loss.objective.target.buffers()))


@pytest.mark.parametrize("networks", [separate_networks, shared_networks])
@pytest.mark.parametrize("delay_actor", [False, True])
def test_nothing_is_aliased(networks, delay_actor):
    loss = DDPGLoss(*networks(), delay_actor=delay_actor)
    assert_not_aliased(loss)
    loss.to(torch.float64)
    assert_not_aliased(loss)
    assert {leaf.dtype for leaf in loss.state_dict().values()} == {torch.float64}
    updater = SoftUpdate(loss, tau=0.5)
    out = loss(make_batch(dtype=torch.float64))
    out.backward()
    updater.step()
    assert out["loss_value"].dtype == torch.float64
    assert_not_aliased(loss)


def test_a_deepcopy_is_independent():
    loss = DDPGLoss(*shared_networks())
    copy = deepcopy(loss)
    assert not set(storages([*loss.parameters(), *loss.buffers()])) & set(
        storages([*copy.parameters(), *copy.buffers()])
    )
    assert copy.actor_network[0] is copy.value_network[0]
    out = loss(make_batch())
    perturb(loss.value_network_params)
    assert_equal(dict(copy(make_batch()).items()), dict(out.items()))
    copy.select_out_keys("loss_actor").set_keys(priority="p")
    assert loss.out_keys == Oracle(*separate_networks()).out_keys
    SoftUpdate(copy, tau=0.5).step()


@pytest.mark.parametrize("separate_losses", [False, True])
def test_a_trunk_of_several_modules_and_outputs(separate_losses):
    torch.manual_seed(1)
    near = TensorDictModule(nn.Linear(OBSERVATION, 4), ["observation"], ["near"])
    far = TensorDictModule(nn.Linear(OBSERVATION, 4), ["observation"], [("nested", "far")])
    head = TensorDictModule(
        lambda a, b, o: (a + b)[..., :ACTION] + o[..., :ACTION], ["near", ("nested", "far"), "observation"], ["action"]
    )
    critic = TensorDictModule(
        lambda a, b, u: (a * b).sum(-1, True) + u.square().sum(-1, True),
        ["near", ("nested", "far"), "action"],
        ["state_action_value"],
    )
    actor, value = TensorDictSequential(near, far, head), TensorDictSequential(near, far, critic)
    calls = []
    for module in (near, far):
        module.register_forward_hook(lambda module, *_: calls.append(module))
    loss = DDPGLoss(actor, value, delay_value=False, separate_losses=separate_losses)
    out = loss(make_batch())
    assert len(calls) == 4  # each once with a gradient, once on the next observation
    assert out["loss_value"].requires_grad != separate_losses
    # dQ/da = 2a, and in the actor's loss the features reach Q through the action only.
    batch = actor(make_batch())
    expected = torch.zeros(4, OBSERVATION)
    expected[:ACTION] = -2 * batch["action"].T @ batch["observation"] / B
    torch.testing.assert_close(torch.autograd.grad(out["loss_actor"], near.module.weight)[0], expected)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_sequence_may_name_its_modules(by_name):
    actor, value = shared_networks()
    if by_name:
        actor, value = (TensorDictSequential({"trunk": net[0], "head": net[1]}) for net in (actor, value))
    calls = []
    actor[0 if not by_name else "trunk"].module.register_forward_hook(lambda *_: calls.append(1))
    DDPGLoss(actor, value, delay_value=False)(make_batch())
    assert len(calls) == 2


def test_only_a_common_prefix_is_a_trunk():
    torch.manual_seed(1)
    encoder = nn.Linear(OBSERVATION, FEATURES)
    actor = TensorDictModule(nn.Sequential(encoder, nn.Linear(FEATURES, ACTION)), ["observation"], ["action"])
    embed = TensorDictModule(encoder, ["observation"], ["features"])
    value = TensorDictSequential(embed, ValueOperator(Q(FEATURES), in_keys=["features", "action"]))
    loss = DDPGLoss(actor, value)
    assert len(list(loss.parameters())) == 2 + 2 + 4
    loss(make_batch()).backward()
    with pytest.raises(ValueError, match="share parameters, but not as a trunk"):
        DDPGLoss(actor, value, separate_losses=True)


def test_compiled():
    eager, live = (DDPGLoss(*shared_networks(), delay_actor=True) for _ in range(2))
    SoftUpdate(eager, tau=0.1), SoftUpdate(live, tau=0.1)
    perturb_targets(eager), perturb_targets(live)
    compiled = torch.compile(live, fullgraph=True)
    results = []
    for loss, owner in ((eager, eager), (compiled, live)):
        batch = make_batch(weights=True)
        out = loss(batch)
        out.select(*LOSSES).sum(reduce=True).backward()
        results.append({**out, "batch": batch["td_error"]} | {name: p.grad for name, p in owner.named_parameters()})
    assert_equal(*results)
    assert_not_aliased(live)
    # What was compiled sees a step of the optimizer.
    with torch.no_grad():
        for p in [*eager.parameters(), *live.parameters()]:
            p.add_(0.1)
    assert_equal(dict(compiled(make_batch()).items()), dict(eager(make_batch()).items()))
