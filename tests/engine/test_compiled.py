"""The compiled engine against the eager one, which other tests hold to be right.

What is traced is run operation by operation in most of these tests: inductor takes 10 to 40 s for a graph.
"""

import logging
from copy import deepcopy

import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiDiscrete
from tensordict import TensorDict
from torchjd.aggregation import PCDWeighting

from mhrl.aggregators import (
    DWA,
    Curve,
    GradNorm,
    NegativeLossError,
    PCGrad,
    Schedule,
    TorchJD,
    Uncertainty,
    UPGrad,
    WeightedSum,
)
from mhrl.engine import CompiledEngine, EagerEngine, NonFiniteLossError
from mhrl.objectives import ValueBased

LOSSES = ("arm", "gripper", "value")


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, inputs, options: graph)


def twins(make, kinds=(EagerEngine, CompiledEngine), **options):
    """The same objective for each kind of engine, with an Adam each."""
    engines = []
    for kind in kinds:
        objective = make()
        objective.aggregator.bind(objective.row_of, objective.signed)
        optimizer = torch.optim.Adam(objective.parameters(), 0.01, fused=True)
        engines.append(kind(objective, objective.aggregator, optimizer, **options))
    return engines


def state(engine):
    """All that a step may change, by name."""
    tensors = {key: value for key, value in engine.objective.state_dict().items() if torch.is_tensor(value)}
    for i, held in engine.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{key}": value for key, value in held.items()}
    return {key: value.clone() for key, value in tensors.items()}


def assert_equal(left, right, tolerance=0.0):
    assert left.keys() == right.keys()
    for key, value in left.items():
        torch.testing.assert_close(
            right[key], value, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text, key=key: f"{key}: {text}"
        )


def assert_same(left, right, tolerance=1e-6):
    assert_equal(state(left), state(right), tolerance)


def run(engine, batches, statistics=()):
    results = []
    for updates, batch in enumerate(batches):
        torch.manual_seed(updates)
        active = engine.aggregator.active(engine.objective.due(updates), updates)
        results.append(
            engine.step(batch, active, frames=updates, updates=updates + 1, statistics=updates in statistics)
        )
    return results


RULES = {
    "weighted_sum": lambda: WeightedSum({"arm": 0.5, "value": 2.0}, {"arm": 0.25}),
    "schedule": lambda: Schedule(schedules={"value": Curve("linear", [1.0, 5.0], [0, 4])}),
    "upgrad": UPGrad,
    "pcgrad": lambda: PCGrad(rows="losses"),
    "gradnorm": lambda: GradNorm(losses=LOSSES),
}


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        *((rule, {}) for rule in RULES),
        ("weighted_sum", {"clip_norm": 0.01}),
        ("upgrad", {"clip_norm": 0.01, "clip_scope": "variable"}),
    ],
)
def test_five_updates_are_those_of_the_eager_engine(make_network, make_batch, interpreted, rule, options):
    network = make_network()

    def make():
        return ValueBased(deepcopy(network), RULES[rule](), policy_delay=2, target_every=2, smoothing=0.2, tau=0.3)

    eager, compiled = twins(make, **options)
    batches = [make_batch(network, seed=i) for i in range(5)]
    for left, right in zip(run(eager, batches, statistics=(3,)), run(compiled, batches, statistics=(3,)), strict=True):
        assert list(left.losses.keys()) == list(right.losses.keys())
        for name, loss in left.losses.items():
            assert right.losses[name].item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
        assert right.grad_norm.item() == pytest.approx(left.grad_norm.item(), rel=1e-4)
        assert {*left.metrics.keys(True, True)} == {*right.metrics.keys(True, True)}
        for key, value in left.metrics.items(True, True):
            torch.testing.assert_close(right.metrics[key], value, rtol=1e-4, atol=1e-5)
        assert left.statistics.keys() == right.statistics.keys()
        for key, value in left.statistics.items():
            assert float(right.statistics[key]) == pytest.approx(float(value), rel=1e-3, abs=1e-5), key
    assert_same(eager, compiled)
    assert not compiled._refused and len(compiled._graphs) == 2


def test_weights_go_by_name_whatever_the_order(make_network, make_batch, interpreted):
    network = make_network()
    engines = twins(lambda: ValueBased(deepcopy(network), WeightedSum({"arm": 0.1, "value": 7.0})), clip_norm=0.1)
    results = [
        engine.step(make_batch(network), ("value", "gripper", "arm"), updates=1, statistics=True) for engine in engines
    ]
    assert_same(*engines)
    for name, loss in results[0].losses.items():
        assert results[1].losses[name].item() == pytest.approx(loss.item(), rel=1e-5)


def test_a_rule_with_parameters_of_its_own(make_agent, make_batch, interpreted):
    network = make_agent(Dict({"mode": MultiDiscrete([3, 2])}))

    def make():
        return ValueBased(deepcopy(network), Uncertainty(losses=network.critics))

    eager, compiled = twins(make)
    for engine in (eager, compiled):
        run(engine, [make_batch(network, seed=i) for i in range(5)])
    assert_same(eager, compiled)
    assert not compiled._refused


def test_rows_at_the_parameters(make_network, make_batch, interpreted):
    network = make_network()

    def make():
        own = deepcopy(network)
        return ValueBased(own, UPGrad(level="params", shared=own.trunk.parameters()))

    eager, compiled = twins(make)
    for engine in (eager, compiled):
        run(engine, [make_batch(network, seed=i) for i in range(5)])
    assert_same(eager, compiled)
    assert not compiled._refused


@pytest.mark.parametrize("rule", [PCGrad, lambda **options: TorchJD(PCDWeighting(), **options)])
def test_statistics_change_no_bit(make_network, make_batch, interpreted, rule):  # of rules that draw, or remember
    network = make_network()
    engines = twins(lambda: ValueBased(deepcopy(network), rule(rows="losses"), smoothing=0.2), [CompiledEngine] * 2)
    for engine, statistics in zip(engines, ((), (1, 3)), strict=True):
        run(engine, [make_batch(network, seed=i) for i in range(5)], statistics=statistics)
    assert_same(*engines, tolerance=0)


def test_it_is_one_graph_that_runs_and_adam_is_in_it(make_network, make_batch, interpreted, monkeypatch):
    network = make_network()
    (engine,) = twins(lambda: ValueBased(deepcopy(network), WeightedSum()), [CompiledEngine])
    batch = make_batch(network)
    engine.step(batch, LOSSES, updates=1)

    def never(*_, **__):
        raise AssertionError

    for place, name in ((torch.autograd, "backward"), (torch.autograd, "grad"), (engine.objective, "losses")):
        monkeypatch.setattr(place, name, never)
    monkeypatch.setattr(engine.optimizer, "step", never)
    monkeypatch.setattr(engine.objective, "update_target", never)
    before = state(engine)
    engine.step(batch, LOSSES, updates=2)
    assert all(not torch.equal(value, before[key]) for key, value in state(engine).items() if "weight" in key)
    assert all(parameter.grad is None for parameter in engine.parameters)


def test_a_target_that_moves_seldom_moves_outside(make_network, make_batch, interpreted):
    network = make_network()
    eager, compiled = twins(lambda: ValueBased(deepcopy(network), WeightedSum(), target_every=10, tau=1.0))
    for engine in (eager, compiled):
        run(engine, [make_batch(network, seed=i) for i in range(11)])
    assert_same(eager, compiled)
    assert len(compiled._graphs) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("statistics", [False, True])
def test_b03_a_bad_loss_is_named_and_nothing_moves(make_network, make_batch, interpreted, bad, statistics):
    network = make_network()
    (engine,) = twins(lambda: ValueBased(deepcopy(network), UPGrad()), [CompiledEngine])
    batch = make_batch(network)
    engine.step(batch, LOSSES, updates=1)
    before, poisoned = state(engine), batch.clone()
    poisoned["next", "reward"][0] = bad
    with pytest.raises(NonFiniteLossError, match=r"loss 'value' is (nan|inf)"):
        engine.step(poisoned, LOSSES, updates=2, statistics=statistics)
    assert_equal(before, state(engine))
    engine.step(batch, LOSSES, updates=2)
    assert state(engine)["optimizer.0.step"].item() == 2


def test_a_dropped_loss_leaves_its_head_and_the_optimizer_alone(make_network, make_batch, interpreted):
    network = make_network()
    eager, compiled = twins(lambda: ValueBased(deepcopy(network), WeightedSum()))
    for engine in (eager, compiled):
        for updates, active in enumerate([("value",), LOSSES, ("value",)]):
            engine.step(make_batch(network, seed=updates), active, updates=updates + 1)
    assert_same(eager, compiled)
    steps = {int(held["step"]) for held in compiled.optimizer.state_dict()["state"].values()}
    assert steps == {1, 3}


def test_a_loss_that_the_rule_cannot_take_is_refused_and_nothing_moves(make_toy, interpreted):
    batch = TensorDict({"x": torch.randn(8, 3)}, [8])
    (engine,) = twins(lambda: make_toy(DWA(losses=("a", "b"))), [CompiledEngine])
    engine.step(batch, ("a", "b"))
    before = state(engine)
    engine.objective.poison["b"] = -1.0
    engine._graphs.clear()  # a constant of the toy has changed
    with pytest.raises(NegativeLossError, match=r"loss 'b' is -"):
        engine.step(batch, ("a", "b"))
    assert_equal(before, state(engine))


def test_another_batch_gets_another_graph_and_the_first_is_kept(make_network, make_batch, interpreted):
    network = make_network()
    eager, compiled = twins(lambda: ValueBased(deepcopy(network), WeightedSum()))
    batches = [make_batch(network, size, seed=i) for i, size in enumerate((8, 5, 8))]
    for engine in (eager, compiled):
        run(engine, batches)
    assert_same(eager, compiled)
    assert [len(graphs) for graphs in compiled._graphs.values()] == [2]


def test_a_loaded_optimizer_is_stepped(make_network, make_batch, interpreted):
    network = make_network()
    eager, compiled = twins(lambda: ValueBased(deepcopy(network), WeightedSum()))
    batches = [make_batch(network, seed=i) for i in range(4)]
    run(eager, batches[:2])
    compiled.step(make_batch(network, seed=9), LOSSES, updates=1)
    compiled.objective.load_state_dict(eager.objective.state_dict())
    compiled.optimizer.load_state_dict(deepcopy(eager.optimizer.state_dict()))
    for engine in (eager, compiled):
        run(engine, batches[2:])
    assert_same(eager, compiled)


class Branching(UPGrad):
    """Looks at a value outside the one operation that may."""

    def cotangent(self, rows, names, outputs):
        return (rows.sum(0) if rows.sum() > 0 else rows[0]), rows.new_zeros(0)


REFUSED = {
    "optimizer": (UPGrad, torch.optim.SGD, "the optimizer is SGD: Adam or AdamW can be traced"),
    "refresh": (lambda: UPGrad(refresh=3), torch.optim.Adam, "refresh is 3"),
    "values": (Branching, torch.optim.Adam, "data-dependent"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_traced_is_eager_and_one_line_says_so(make_network, make_batch, caplog, case):
    rule, optimizer, words = REFUSED[case]
    network, engines = make_network(), []
    for kind in (EagerEngine, CompiledEngine):
        objective = ValueBased(deepcopy(network), rule())
        engines.append(kind(objective, objective.aggregator, optimizer(objective.parameters(), 0.01)))
    with caplog.at_level(logging.WARNING, "mhrl"):
        for engine in engines:
            run(engine, [make_batch(network, seed=i) for i in range(3)])
    assert_same(*engines, tolerance=0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("engine=compiled is not possible here, the eager engine goes on: ") and words in line


@pytest.mark.parametrize("kind", [EagerEngine, CompiledEngine])
def test_bf16_is_near_fp32_and_values_are_not_rounded(make_network, make_batch, interpreted, kind):
    network = make_network()
    full, half = (
        twins(lambda: ValueBased(deepcopy(network), UPGrad()), [kind], precision=precision)[0]
        for precision in ("fp32", "bf16")
    )
    batch = make_batch(network)
    left, right = (engine.step(batch, LOSSES, updates=1) for engine in (full, half))
    for name, loss in left.losses.items():
        assert right.losses[name].item() == pytest.approx(loss.item(), rel=0.05, abs=0.02)
    assert left.losses["value"].item() != right.losses["value"].item()
    prediction = right.metrics["pred_value"]
    assert prediction.dtype == torch.float32 and not torch.equal(prediction, prediction.bfloat16().float())
    assert all(p.dtype == torch.float32 for p in half.parameters)


def test_an_unknown_precision_is_refused(make_toy):
    with pytest.raises(ValueError, match=r"precision is 'fp16': fp32 or bf16 is expected"):
        twins(make_toy, [CompiledEngine], precision="fp16")


def test_by_inductor(make_agent, make_batch):
    """The one test that compiles: a hybrid space, masks, dueling heads in a stack, a rule with a solver, clip."""
    network = make_agent(
        Dict({"throttle": Box(-1, 1, (2,)), "mode": MultiDiscrete([3, 2])}), masks=True, dueling="mean"
    )

    def make():
        return ValueBased(deepcopy(network), UPGrad(), double=True, tau=0.3)

    eager, compiled = twins(make, clip_norm=0.5)
    for engine in (eager, compiled):
        run(engine, [make_batch(network, seed=i) for i in range(5)])
    assert_same(eager, compiled)
    assert not compiled._refused
