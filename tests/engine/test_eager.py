from unittest.mock import patch

import pytest
import torch
from gymnasium.spaces import MultiDiscrete
from tensordict import TensorDict
from torch import nn

from mhrl.aggregators import WeightedSum
from mhrl.engine import EagerEngine, NonFiniteLossError
from mhrl.objectives import ValueBased


def rows(count=8):
    torch.manual_seed(1)
    return TensorDict({"x": torch.randn(count, 3)}, [count])


def engine_of(objective, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(objective.parameters(), 0.1)
    return EagerEngine(objective, objective.aggregator, optimizer, **options)


def snapshot(engine):
    """Parameters and optimizer state, as copies."""
    parameters = [p.detach().clone() for p in engine.objective.parameters()]
    state = {
        (i, key): value.clone() if torch.is_tensor(value) else value
        for i, p in enumerate(engine.objective.parameters())
        for key, value in engine.optimizer.state.get(p, {}).items()
    }
    return parameters, state


def same(before, after):
    return (
        all(torch.equal(*pair) for pair in zip(before[0], after[0], strict=True))
        and before[1].keys() == after[1].keys()
        and all(torch.equal(before[1][key], after[1][key]) for key in before[1])
    )


@pytest.mark.parametrize("statistics", [False, True])
def test_b01_one_forward_one_backward_one_step(make_toy, statistics):
    objective = make_toy(WeightedSum({"a": 0.3, "b": 2.0}))
    engine, forwards, gradients = engine_of(objective), [], []
    objective.network["trunk"].register_forward_hook(lambda *_: forwards.append(1))
    objective.network["trunk"].weight.register_hook(lambda gradient: gradients.append(gradient))
    with (
        patch("torch.autograd.backward", wraps=torch.autograd.backward) as backward,
        patch.object(engine.optimizer, "step", wraps=engine.optimizer.step) as step,
    ):
        engine.step(rows(), ("a", "b"), statistics=statistics)
    # Measuring the rows is a pass of its own, that trains nothing.
    assert (len(forwards), len(gradients)) == (1 + statistics, 1) and (backward.call_count, step.call_count) == (1, 1)
    assert not backward.call_args.kwargs.get("retain_graph") and not backward.call_args.kwargs.get("create_graph")


def test_b01_ddpg_too(make_network, make_batch):
    network = make_network()
    objective, forwards = ValueBased(network, WeightedSum()), []
    engine = engine_of(objective)
    network.trunk.register_forward_hook(lambda *_: forwards.append(1))
    with (
        patch("torch.autograd.backward", wraps=torch.autograd.backward) as backward,
        patch.object(engine.optimizer, "step", wraps=engine.optimizer.step) as step,
    ):
        engine.step(make_batch(network), objective.due(0))
    assert (len(forwards), backward.call_count, step.call_count) == (1, 1, 1)


def test_b01_a_step_of_sgd_moves_by_the_weighted_gradients(make_toy):
    objective, batch = make_toy(WeightedSum({"a": 0.3, "b": 2.0})), rows()
    network = objective.network

    def gradient(name):
        loss = network[name](network["trunk"](batch["x"])).square().mean()
        return torch.autograd.grad(loss, [network["trunk"].weight, network[name].weight])

    (trunk_a, head_a), (trunk_b, head_b) = gradient("a"), gradient("b")
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    result = engine_of(objective).step(batch, ("a", "b"))

    def moved(name):
        return before[name] - network.get_parameter(name)

    torch.testing.assert_close(moved("trunk.weight"), 0.1 * (0.3 * trunk_a + 2.0 * trunk_b), rtol=0, atol=1e-7)
    torch.testing.assert_close(moved("a.weight"), 0.1 * 0.3 * head_a, rtol=0, atol=1e-7)
    torch.testing.assert_close(moved("b.weight"), 0.1 * 2.0 * head_b, rtol=0, atol=1e-7)
    assert not any(loss.requires_grad for loss in result.losses.values())


def straight(make_toy):
    """A single loss `sum(w)` per parameter entry: every gradient is 1."""
    objective = make_toy(heads={"a": 2})
    objective.losses = lambda batch, active=None: (
        TensorDict({"a": sum(p.sum() for p in objective.parameters())}),
        TensorDict({}),
    )
    return objective


@pytest.mark.parametrize("clip_norm", [None, 0.5, 100.0])
def test_clip_norm_bounds_the_norm_of_the_whole_gradient(make_toy, clip_norm):
    # 3 * 4 + 4 + 4 * 2 + 2 = 26 entries of gradient 1: the norm is sqrt(26).
    objective = straight(make_toy)
    before = [p.detach().clone() for p in objective.parameters()]
    result = engine_of(objective, clip_norm=clip_norm).step(rows(), ("a",))
    assert result.grad_norm.item() == pytest.approx(26**0.5, rel=1e-6)
    factor = 0.5 / 26**0.5 if clip_norm == 0.5 else 1.0
    for old, new in zip(before, objective.parameters(), strict=True):
        torch.testing.assert_close(old - new, torch.full_like(old, 0.1 * factor), rtol=1e-4, atol=1e-6)


def test_each_parameter_may_be_clipped_by_itself(make_toy):
    # Gradients of 1 in 12, 4, 8 and 2 entries: norms sqrt(12) = 3.46, 2, 2.83 and 1.41; a bound of 2 leaves two alone.
    objective = straight(make_toy)
    before = [p.detach().clone() for p in objective.parameters()]
    result = engine_of(objective, clip_norm=2.0, clip_scope="variable").step(rows(), ("a",))
    assert result.grad_norm.item() == pytest.approx(26**0.5, rel=1e-6)
    moved = [(old - new).flatten()[0].item() for old, new in zip(before, objective.parameters(), strict=True)]
    sizes = [p.numel() for p in objective.parameters()]
    assert moved == pytest.approx([0.1 * min(1.0, 2.0 / size**0.5) for size in sizes], rel=1e-4)
    assert sizes == [12, 4, 8, 2]


def test_an_unknown_scope_is_refused(make_toy):
    with pytest.raises(ValueError, match=r"optimizer.clip_scope is 'layer': global or variable is expected"):
        engine_of(make_toy(), clip_norm=1.0, clip_scope="layer")


@pytest.mark.parametrize("clip_norm", [0, -1.0, float("nan")])
def test_clip_norm_must_be_positive(make_toy, clip_norm):
    with pytest.raises(ValueError, match=r"optimizer.clip_norm"):
        engine_of(make_toy(), clip_norm=clip_norm)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_b03_a_bad_loss_is_named_and_nothing_moves(make_toy, bad, clip_norm):
    objective = make_toy()
    engine = engine_of(objective, torch.optim.Adam(objective.parameters(), 0.1), clip_norm=clip_norm)
    engine.step(rows(), ("a", "b"))
    before = snapshot(engine)
    assert before[1]
    objective.poison["b"] = bad
    with pytest.raises(NonFiniteLossError, match=r"loss 'b' is -?(nan|inf)") as error:
        engine.step(rows(), ("a", "b"))
    assert "'a'" not in str(error.value)
    assert same(before, snapshot(engine))
    assert all(p.grad is None for p in objective.parameters())

    objective.poison.clear()
    engine.step(rows(), ("a", "b"))
    assert not same(before, snapshot(engine))
    assert all(torch.isfinite(p).all() for p in objective.parameters())


def test_b03_both_bad_losses_are_named(make_toy):
    objective = make_toy(a=float("nan"), b=float("inf"))
    with pytest.raises(NonFiniteLossError, match=r"loss 'a' is nan; loss 'b' is inf"):
        engine_of(objective).step(rows(), ("a", "b"))


def test_b03_infinities_of_opposite_sign_do_not_cancel(make_toy):
    objective = make_toy(a=float("inf"), b=float("-inf"))
    with pytest.raises(NonFiniteLossError, match=r"'a' is inf; loss 'b' is -inf"):
        engine_of(objective).step(rows(), ("a", "b"))


def test_b03_a_finite_loss_with_a_nan_gradient_is_caught(make_toy):
    objective = make_toy(b=lambda output: (output - output).sqrt().sum())  # 0, with gradient 0 * inf
    engine = engine_of(objective)
    before = snapshot(engine)
    with pytest.raises(NonFiniteLossError, match=r"norm of the gradient is nan while every loss is finite"):
        engine.step(rows(), ("a", "b"))
    assert same(before, snapshot(engine))


@pytest.mark.parametrize("make", [lambda p: torch.optim.Adam(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)])
def test_a_dropped_loss_leaves_what_only_it_trains_bit_unchanged(make_toy, make):
    objective = make_toy()
    engine = engine_of(objective, make(objective.parameters()))
    for _ in range(3):
        engine.step(rows(), ("a", "b"))  # builds momentum
    head = objective.network["b"]
    before = [p.detach().clone() for p in head.parameters()]
    state = [{k: torch.as_tensor(v).clone() for k, v in engine.optimizer.state[p].items()} for p in head.parameters()]
    trunk = objective.network["trunk"].weight.detach().clone()
    for _ in range(3):
        engine.step(rows(), ("a",))
    assert state[0]
    for old, parameter, old_state in zip(before, head.parameters(), state, strict=True):
        assert torch.equal(old, parameter)
        for key, value in engine.optimizer.state[parameter].items():
            assert torch.equal(old_state[key], torch.as_tensor(value))
    assert not torch.equal(trunk, objective.network["trunk"].weight)


def test_b03_weight_zero_equals_a_run_without_the_head(make_toy):
    results = []
    for heads, weights, poison in (({"a": 2}, {}, {}), ({"a": 2, "b": 3}, {"b": 0.0}, {"b": float("nan")})):
        objective = make_toy(WeightedSum(weights), heads, **poison)
        engine = engine_of(objective, torch.optim.Adam(objective.parameters(), 0.1))
        for _ in range(5):
            engine.step(rows(), objective.aggregator.active(objective.due(0)))
        results.append([p.detach() for name in ("trunk", "a") for p in objective.network[name].parameters()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_grad_norm_is_of_what_was_trained_now_not_before(make_toy):
    objective, batch = make_toy(), rows()
    engine = engine_of(objective, torch.optim.SGD(objective.parameters(), 0.0))
    both = engine.step(batch, ("a", "b")).grad_norm
    one = engine.step(batch, ("a",)).grad_norm
    network = objective.network
    loss = network["a"](network["trunk"](batch["x"])).square().mean()
    gradients = torch.autograd.grad(loss, [*network["trunk"].parameters(), *network["a"].parameters()])
    assert one.item() == pytest.approx(sum(g.square().sum().item() for g in gradients) ** 0.5, rel=1e-5)
    assert not torch.isclose(one, both)


def test_statistics_equal_brute_force_and_change_nothing(make_toy):
    batch, moved = rows(), []
    for statistics in (False, True):
        objective = make_toy(WeightedSum({"a": 0.3, "b": 2.0}, {"b": 0.5}))
        result = engine_of(objective).step(batch, ("a", "b"), statistics=statistics)
        moved.append([p.detach() for p in objective.parameters()])
    for without, measured in zip(*moved, strict=True):
        torch.testing.assert_close(without, measured, rtol=0, atol=1e-7)

    network = make_toy().network  # the same weights as before the step
    features = network["trunk"](batch["x"])
    a, b = (
        factor * torch.autograd.grad(network[name](features).square().mean(), features, retain_graph=True)[0]
        for name, factor in (("a", 0.3), ("b", 2.0 * 0.5))
    )
    found = result.statistics
    assert {name for name in found if name.startswith("trunk/")} == {
        "trunk/grad_norm/a",
        "trunk/grad_norm/b",
        "trunk/grad_share/a",
        "trunk/grad_share/b",
        "trunk/grad_dot/a",
        "trunk/grad_dot/b",
        "trunk/grad_cos/a__b",
        "trunk/combined_norm",
        "trunk/conflict_fraction",
    }
    assert found["trunk/grad_dot/a"].item() == pytest.approx((a * (a + b)).sum().item(), rel=1e-4)
    assert found["trunk/combined_norm"].item() == pytest.approx((a + b).norm().item(), rel=1e-5)
    assert found["trunk/grad_norm/a"].item() == pytest.approx(a.norm().item(), rel=1e-5)
    assert found["trunk/grad_norm/b"].item() == pytest.approx(b.norm().item(), rel=1e-5)
    assert found["trunk/grad_share/a"].item() == pytest.approx((a.norm() / (a.norm() + b.norm())).item(), rel=1e-5)
    cosine = (a * b).sum() / (a.norm() * b.norm())
    assert found["trunk/grad_cos/a__b"].item() == pytest.approx(cosine.item(), abs=1e-5)


def test_statistics_are_of_one_step_only(make_toy):
    objective = make_toy()
    engine = engine_of(objective, torch.optim.SGD(objective.parameters(), 0.0))
    first = engine.step(rows(), ("a", "b"), statistics=True).statistics
    assert engine.step(rows(), ("a", "b")).statistics == {}
    again = engine.step(rows(), ("a", "b"), statistics=True).statistics
    assert {k: v.item() for k, v in first.items()} == {k: v.item() for k, v in again.items()}


def test_without_a_trunk_there_are_statistics_of_the_heads_only(make_network, make_batch):
    network = make_network(trunk="identity")
    objective = ValueBased(network, WeightedSum())
    found = engine_of(objective).step(make_batch(network), objective.due(0), statistics=True).statistics
    assert {name.rsplit("/", 1)[0] for name in found} == {
        "module/head_arm",
        "module/head_gripper",
        "module/head_value",
    }


@pytest.mark.parametrize("scope", ["global", "variable"])
def test_modules_are_measured_before_clipping_and_over_the_whole_step(make_toy, scope):
    batch = rows()
    objective = make_toy(WeightedSum({"a": 0.3, "b": 2.0}))
    network = objective.network
    losses = [network[name](network["trunk"](batch["x"])).square().mean() for name in ("a", "b")]
    modules = {name: list(module.parameters()) for name, module in network.named_children()}
    right = {
        name: torch.cat(
            [g.flatten() for g in torch.autograd.grad(0.3 * losses[0] + 2.0 * losses[1], parameters, retain_graph=True)]
        ).norm()
        for name, parameters in modules.items()
    }
    before = {name: nn.utils.parameters_to_vector(parameters).clone() for name, parameters in modules.items()}
    engine = engine_of(objective, torch.optim.Adam(network.parameters(), 0.01), clip_norm=1e-3, clip_scope=scope)
    result = engine.step(batch, ("a", "b"), statistics=True)
    assert sum(norm.square().item() for norm in right.values()) == pytest.approx(result.grad_norm.item() ** 2)
    for name, parameters in modules.items():
        found = {key.rsplit("/", 1)[1]: value.item() for key, value in result.statistics.items() if f"/{name}/" in key}
        moved = nn.utils.parameters_to_vector(parameters) - before[name]
        assert found["grad_norm"] == pytest.approx(right[name].item(), rel=1e-5)
        assert found["param_norm"] == pytest.approx(before[name].norm().item(), rel=1e-6)
        assert found["update_ratio"] == pytest.approx((moved.norm() / before[name].norm()).item(), rel=1e-5)
        # Adam's first step is the rate in every entry, however small the gradient.
        assert moved.norm().item() == pytest.approx(0.01 * len(moved) ** 0.5, rel=0.05)


def test_a_module_that_the_update_does_not_train_is_left_out(make_network, make_batch):
    network = make_network(in_keys={"arm": ("observation",)})
    objective = ValueBased(network, WeightedSum({"gripper": 0.0}, trunk_grad={"value": 0.0}))
    active = objective.aggregator.active(objective.due(0))
    found = engine_of(objective).step(make_batch(network), active, statistics=True).statistics
    assert {name for name in found if name.endswith("/grad_norm")} == {
        "module/head_arm/grad_norm",
        "module/head_value/grad_norm",
    }


def test_float64_networks_are_measured_too(make_network, make_batch):
    network = make_network(double=True)
    objective = ValueBased(network, WeightedSum())
    found = engine_of(objective).step(make_batch(network), objective.due(0), statistics=True).statistics
    assert {name for name in found if name.startswith("trunk/grad_norm")} == {
        "trunk/grad_norm/actor",
        "trunk/grad_norm/value",
    }
    assert found["trunk/grad_norm/actor"] > 0 and found["trunk/grad_norm/value"] > 0


def test_statistics_are_measured_where_the_network_is(make_toy, monkeypatch):
    objective = make_toy(WeightedSum(trunk_grad={"b": 0.5})).to("meta")
    engine = engine_of(objective)
    monkeypatch.setattr(engine, "_check_finite", lambda *_: None)  # a meta tensor has no value to look at
    statistics = engine.step(rows().to("meta"), ("a", "b"), statistics=True).statistics
    assert {value.device.type for value in statistics.values()} == {"meta"}
    assert len(statistics) == 9 + 3 * 3  # of the rows, and three of each module


@pytest.mark.parametrize("fails", [False, True])
def test_denormals_are_flushed_inside_a_step_only(make_toy, fails):
    def survive():
        return bool((torch.full((8,), 1e-39) * 0.5 > 0).all())

    assert survive()
    seen = []
    objective = make_toy(b=lambda output: seen.append(survive()) or output.sum() * (float("nan") if fails else 1.0))
    engine = engine_of(objective)
    try:
        engine.step(rows(), ("a", "b"))
    except NonFiniteLossError:
        assert fails
    assert seen == [False]
    assert survive()


def test_measuring_rows_leaves_no_trace(make_agent, make_batch):
    ends = []
    for statistics in (False, True):
        network = make_agent(MultiDiscrete([3, 2, 4]), dueling="mean", twin=True)
        # Running statistics and noise, both of which a second pass would move.
        network.trunk.body = nn.Sequential(network.trunk.body, nn.BatchNorm1d(5), nn.Dropout(0.5))
        torch.manual_seed(0)
        objective = ValueBased(network, WeightedSum(trunk_grad=0.5))
        engine = engine_of(objective, torch.optim.Adam(network.parameters(), 0.01))
        for seed in range(3):
            result = engine.step(make_batch(network, 8, seed=seed), objective.due(seed), statistics=statistics)
            assert bool(result.statistics) == statistics
        ends.append({**network.state_dict(), "random": torch.rand(3)})
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    assert ends[0]["trunk.body.1.num_batches_tracked"] == 3
