from unittest.mock import patch

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from mhrl.aggregators import BackwardAggregator, Record, WeightedSum, row_gradients

WEIGHTS = {"a": 0.3, "b": 2.0}


class Model(nn.Module):
    """Trunk Linear(3, 4) with heads Linear(4, 2) and Linear(4, 3)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(3, 4)
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
        self.x = torch.randn(8, 3, dtype=torch.float64)
        self.double()

    def losses(self, aggregator):
        rows = aggregator.fan_out(self.trunk(self.x), self.heads)
        return TensorDict({name: head(rows[name]).square().mean() for name, head in self.heads.items()})

    def alone(self, name):
        """The gradient of one loss, on its own graph."""
        self.zero_grad()
        self.heads[name](self.trunk(self.x)).square().mean().backward()
        head, trunk = self.heads[name].weight.grad.clone(), self.trunk.weight.grad.clone()
        self.zero_grad()
        return head, trunk


class Sum(BackwardAggregator):
    """The plain sum, declared as a rule that balances, so that FanOut is always there."""

    balances = True

    def combine(self, rows):
        return rows.sum(0)


@pytest.mark.parametrize("aggregator", [WeightedSum, Sum])
def test_b01_one_backward_equals_separate_weighted_gradients(aggregator):
    model = Model()
    (head_a, trunk_a), (head_b, trunk_b) = model.alone("a"), model.alone("b")
    aggregator = aggregator(WEIGHTS)
    aggregator.backward(model.losses(aggregator))
    torch.testing.assert_close(model.trunk.weight.grad, 0.3 * trunk_a + 2.0 * trunk_b, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.heads["a"].weight.grad, 0.3 * head_a, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.heads["b"].weight.grad, 2.0 * head_b, rtol=0, atol=1e-12)


def test_trunk_grad_acts_on_the_trunk_and_not_on_the_head():
    model = Model()
    (head_a, trunk_a), (head_b, trunk_b) = model.alone("a"), model.alone("b")
    aggregator = WeightedSum(WEIGHTS, {"a": -0.5, "b": 3.0})
    aggregator.backward(model.losses(aggregator))
    torch.testing.assert_close(model.trunk.weight.grad, -0.15 * trunk_a + 6.0 * trunk_b, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.heads["a"].weight.grad, 0.3 * head_a, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.heads["b"].weight.grad, 2.0 * head_b, rtol=0, atol=1e-12)


def test_b01_one_call_of_autograd_and_no_graph_kept():
    model, aggregator = Model(), Sum(WEIGHTS)
    losses = model.losses(aggregator)
    with patch("torch.autograd.backward", wraps=torch.autograd.backward) as backward:
        aggregator.backward(losses)
    assert backward.call_count == 1
    with pytest.raises(RuntimeError, match=r"second time"):
        losses.backward(gradient=aggregator.weights(losses))
    with pytest.raises(ValueError, match=r"Sum has seen no rows: let the heads read fan_out"):
        aggregator.backward(losses)


def test_order_of_the_losses_does_not_matter():
    model, aggregator = Model(), WeightedSum({"b": 2.0, "a": 0.3})
    losses = model.losses(aggregator)
    aggregator.backward(TensorDict({"b": losses["b"], "a": losses["a"]}))
    expected = model.trunk.weight.grad.clone()
    _, trunk_a = model.alone("a")
    _, trunk_b = model.alone("b")
    torch.testing.assert_close(expected, 0.3 * trunk_a + 2.0 * trunk_b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_trunk_grad_zero_detaches_so_that_not_even_a_nan_reaches_the_trunk(factor):
    model = Model()
    _, trunk_a = model.alone("a")
    aggregator = WeightedSum(trunk_grad={"a": factor, "b": 0.0})
    rows = aggregator.fan_out(model.trunk(model.x), ["a", "b"])
    assert not rows["b"].requires_grad
    bad = (rows["b"] * float("nan")).sum() + model.heads["b"](rows["b"]).sum()
    aggregator.backward(TensorDict({"a": model.heads["a"](rows["a"]).square().mean(), "b": bad}))
    torch.testing.assert_close(model.trunk.weight.grad, factor * trunk_a, rtol=0, atol=1e-12)
    assert model.heads["b"].weight.grad is not None


def test_without_a_reason_there_is_no_fan_out():
    features = torch.ones(2, 3, requires_grad=True)

    def nodes(aggregator):
        graph = [row.grad_fn for row in aggregator.fan_out(features, "ab").values()]
        return {type(node).__name__ for node in graph + [node.next_functions[0][0] for node in graph]}

    assert nodes(WeightedSum()) == {"ViewBackward0", "AccumulateGrad"}
    assert nodes(WeightedSum(trunk_grad=0.5)) == nodes(Sum()) == {"UnbindBackward0", "FanOutBackward"}
    rows = WeightedSum(trunk_grad={"b": 0.0}).fan_out(features, "ab")
    assert rows["a"].requires_grad and not rows["b"].requires_grad
    assert all(torch.equal(row, features) and row.data_ptr() == features.data_ptr() for row in rows.values())
    leaf = torch.ones(2, 3)
    assert all(row is leaf for row in WeightedSum().fan_out(leaf, "ab").values())
    with pytest.raises(ValueError, match=r"Sum has nothing to balance: the features do not require grad"):
        Sum().fan_out(leaf, "ab")
    with torch.no_grad():
        assert all(torch.equal(row, leaf) for row in Sum().fan_out(leaf, "ab").values())


def test_rows_of_one_factor_are_one_tensor_unless_they_are_measured():
    features = torch.randn(4, 3, requires_grad=True)
    names = ["a", "b", "c", "d"]
    factors = {"a": 0.5, "b": 0.5, "c": 2.0, "d": 0.0}
    aggregator = WeightedSum(trunk_grad=factors)
    rows = aggregator.fan_out(features, names)
    assert rows["a"] is rows["b"] and rows["a"] is not rows["c"]
    sum((i + 1) * rows[name].sum() for i, name in enumerate(names)).backward()
    torch.testing.assert_close(features.grad, torch.full((4, 3), 0.5 * 1 + 0.5 * 2 + 2.0 * 3))
    plain = WeightedSum().fan_out(features, names)
    assert len({id(row) for row in plain.values()}) == 1 and plain["a"] is not features
    with aggregator.recording() as record:
        measured = aggregator.fan_out(features, names)
    assert len({id(row) for row in measured.values()}) == 4
    assert record.names == ("a", "b", "c") and record.factors == (0.5, 0.5, 2.0)
    assert aggregator.fan_out(features, names)["a"] is not measured["a"]


def test_recorded_rows_are_the_gradients_that_the_trunk_would_receive():
    model, aggregator = Model(), WeightedSum(WEIGHTS, {"a": 0.5, "c": 0.0})
    with aggregator.recording() as record:
        rows = aggregator.fan_out(model.trunk(model.x), ["a", "c", "d", "b"])  # nobody reads c and d
    losses = TensorDict({name: head(rows[name]).square().mean() for name, head in model.heads.items()})
    gradients, names = row_gradients(record, losses, aggregator.weights(losses))
    assert names == ("a", "b") and record.names == ("a", "d", "b")
    features = model.trunk(model.x).detach().requires_grad_()
    for row, (name, factor) in zip(gradients, {"a": 0.3 * 0.5, "b": 2.0}.items(), strict=True):
        (alone,) = torch.autograd.grad(model.heads[name](features).square().mean(), features)
        torch.testing.assert_close(row, factor * alone.flatten(), rtol=0, atol=1e-14)
    assert all(parameter.grad is None for parameter in model.parameters())
    plain = row_gradients(Record(), losses, losses)
    assert plain[1] == ()


def test_several_outputs_of_the_trunk_are_one_row():
    model = Model()
    second = nn.Linear(3, 2).double()
    aggregator = Sum(WEIGHTS, {"a": 0.5})
    outputs = {"wide": model.trunk(model.x), "narrow": second(model.x)}
    rows = aggregator.fan_out(outputs, ["a", "b"])
    assert rows["a"].keys() == outputs.keys()
    losses = TensorDict(
        {
            "a": model.heads["a"](rows["a"]["wide"]).square().mean() + rows["a"]["narrow"].sin().sum(),
            "b": model.heads["b"](rows["b"]["wide"]).square().mean(),
        }
    )
    aggregator.backward(losses)
    found = [model.trunk.weight.grad.clone(), second.weight.grad.clone()]
    model.zero_grad()
    second.zero_grad()
    features, narrow = model.trunk(model.x), second(model.x)
    a = model.heads["a"](features).square().mean() + narrow.sin().sum()
    (0.3 * 0.5 * a + 2.0 * model.heads["b"](features).square().mean()).backward()
    torch.testing.assert_close(found, [model.trunk.weight.grad, second.weight.grad], rtol=0, atol=1e-12)


def test_inside_func_grad_the_factors_are_kept():
    torch.manual_seed(0)
    aggregator, x = WeightedSum(trunk_grad={"a": 0.5, "b": 2.0}), torch.randn(5, 3)
    weight = torch.randn(3, 4)

    def total(weight):
        rows = aggregator.fan_out(x @ weight, ["a", "b"])
        return rows["a"].sum() + rows["b"].square().sum()

    right = x.T @ (0.5 * torch.ones(5, 4) + 2.0 * 2 * (x @ weight))
    torch.testing.assert_close(torch.func.grad(total)(weight), right)


def test_active_drops_losses_of_weight_zero():
    assert WeightedSum({"a": 0, "b": 1e-30, "c": -1.0}).active(["a", "b", "c", "d"]) == ("b", "c", "d")
    assert WeightedSum(0.0).active(["a"]) == ()


def test_weights_have_the_losses_shapes():
    losses = TensorDict({"a": torch.ones(()), "b": torch.ones(3)})
    weights = WeightedSum(WEIGHTS).weights(losses)
    assert weights["a"].item() == pytest.approx(0.3) and weights["b"].tolist() == [2.0] * 3


def test_a_loss_without_gradient_is_refused_by_name_and_nothing_is_differentiated():
    model, aggregator = Model(), WeightedSum()
    losses = model.losses(aggregator)
    losses["b"] = losses["b"].detach()
    with pytest.raises(ValueError, match=r"loss 'b' does not require grad"):
        aggregator.backward(losses)
    assert model.trunk.weight.grad is None


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_factors_that_are_not_finite_are_refused(factor):
    with pytest.raises(ValueError, match=r"weights of arm is"):
        WeightedSum({"arm": factor})
    with pytest.raises(ValueError, match=r"trunk_grad of every loss is"):
        WeightedSum(trunk_grad=factor)
