import pytest
import torch
from _properties import LEVELS, PROMISES, Model, build, close
from tensordict import TensorDict

from mhrl.aggregators import RowWeighting, UPGrad


class Fixed(RowWeighting):
    """The same weights whatever the rows, for those that are not zero."""

    name = "fixed"
    fixed = (0.3, 2.0, -1.0, 0.7)

    def row_weights(self, gram):
        live = gram.diagonal() > 0
        weights = torch.zeros_like(gram[0])
        weights[live] = torch.tensor(self.fixed, dtype=gram.dtype)[: int(live.sum())]
        return weights


class Drawn(RowWeighting):
    """Weights at random, and how often they were asked for."""

    name = "drawn"
    calls = 0

    def row_weights(self, gram):
        Drawn.calls += 1
        return torch.rand(len(gram), dtype=gram.dtype)


class Seen(RowWeighting):
    """Weights of 1, and the matrices that there were."""

    def row_weights(self, gram):
        self.seen.append(gram)
        return torch.ones_like(gram[0])


@pytest.mark.parametrize("promise", [p for p in PROMISES if p.__name__ != "a_row_of_zeros_takes_no_part"])
def test_a_toy_rule_keeps_the_promises_of_the_base_class(promise):
    promise(Fixed)


@pytest.mark.parametrize("level", LEVELS)
def test_fixed_weights_equal_the_summed_backward(level):
    model = Model()
    aggregator = build(Fixed, model, level, weights={"c": 0.5}, trunk_grad={"a": -3.0})
    aggregator.backward(model.losses(aggregator))
    found = model.gradients()
    features = model.trunk(model.x)
    factors = {"a": 0.3 * -3.0, "b": 2.0, "c": -1.0 * 0.5}
    total = sum(factor * model.loss(name, features) for name, factor in factors.items())
    trunk = torch.autograd.grad(total, [*model.trunk.parameters()])
    for (name, _), gradient in zip(model.trunk.named_parameters(), trunk, strict=True):
        close(found[f"trunk.{name}"], gradient, 1e-12)
    features = model.trunk(model.x)
    (model.loss("a", features) + model.loss("b", features) + 0.5 * model.loss("c", features)).backward()
    heads = model.gradients(model.heads)
    for name, gradient in heads.items():
        close(found[f"heads.{name}"], gradient, 1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_without_trunk_grad_is_not_weighed(level):
    model = Model()
    aggregator = build(Fixed, model, level, trunk_grad={"a": 0.0})
    aggregator.backward(model.losses(aggregator))
    close(
        model.trunk_gradient(),
        torch.tensor([0.3, 2.0], dtype=torch.float64) @ model.jacobian("params", {"b": 1, "c": 1}),
    )


def test_the_rule_sees_float64_of_trace_one_whatever_the_scale():
    rule = Seen()
    rule.seen = []
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    for scale in (1.0, 1e-12, 1e12):
        weights = rule.weigh((scale * rows) @ (scale * rows).T)
        assert weights.dtype == torch.float32
    for gram in rule.seen:
        assert gram.dtype == torch.float64 and gram.device.type == "cpu"
        assert gram.flatten().tolist() == pytest.approx([0.36, 0.0, 0.0, 0.64])


def test_the_rule_sees_a_symmetric_matrix_and_one_of_trace_one_where_all_is_zero_or_not_finite():
    rule = Seen()
    rule.seen = []
    rule.weigh(torch.tensor([[1.0, 0.5], [0.25, 1.0]]))
    assert rule.weigh(torch.zeros(2, 2)).tolist() == [1.0, 1.0]
    assert rule.weigh(torch.tensor([[torch.inf, 0.0], [0.0, 1.0]])).isnan().all()
    assert rule.weigh(torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]])).isnan().all()
    assert [gram.trace().item() for gram in rule.seen] == [1.0] * 4
    assert all(torch.equal(gram, gram.T) for gram in rule.seen)


def test_of_one_row_the_rule_is_not_asked():
    rule = Seen()
    assert rule.weigh(torch.tensor([[7.0]])).tolist() == [1.0]
    assert rule.combine(torch.tensor([[2.0, 3.0]])).tolist() == [2.0, 3.0]


def test_of_one_row_nothing_is_pulled_back(monkeypatch):
    monkeypatch.setattr("mhrl.aggregators.row_weighting.parameter_gram", None)
    model = Model("a")
    aggregator = build(Fixed, model, "params")
    aggregator.backward(model.losses(aggregator))
    assert model.trunk_gradient().isfinite().all()


@pytest.mark.parametrize("level", LEVELS)
def test_weights_are_used_so_often_and_are_those_that_were_drawn(level):
    """Random ones: what is kept is what the first backward used, and the rule is asked once."""
    model, Drawn.calls, used = Model(), 0, []
    aggregator = build(Drawn, model, level, refresh=3)
    rows = model.jacobian("params", dict.fromkeys("abc", 1.0))
    for _ in range(7):
        aggregator.backward(model.losses(aggregator))
        used.append(torch.linalg.lstsq(rows.T, model.trunk_gradient()).solution)
    assert Drawn.calls == 3
    for first in (0, 3):
        close(used[first], used[first + 1], 1e-9)
        close(used[first], used[first + 2], 1e-9)
    assert (used[0] - used[3]).abs().max() > 1e-3 and (used[3] - used[6]).abs().max() > 1e-3


def test_each_set_of_rows_has_weights_of_its_own():
    model, Drawn.calls = Model(), 0
    aggregator = Drawn(refresh=2)
    for vanish in ("", "b", "", "b", "", "c"):  # all rows: asked at the first and the third; then without b, without c
        aggregator.backward(model.losses(aggregator, vanish=vanish))
    assert Drawn.calls == 4
    assert {key: kept["uses"] for key, kept in aggregator.get_extra_state()["kept"].items()} == {
        "a,b,c": 1,
        "a,c": 2,
        "a,b": 1,
    }


def test_weights_of_rows_that_are_not_finite_are_not_kept():
    model = Model()
    aggregator = Fixed(refresh=3)
    losses = model.losses(aggregator)
    losses["b"] = losses["b"] * float("nan")
    aggregator.backward(losses)
    assert aggregator.get_extra_state()["kept"] == {}
    assert model.trunk_gradient().isnan().any()


def test_a_sum_over_processes_is_what_the_rule_sees():
    """A stand-in for all_reduce: as if another process had the same part of the batch, and its rows the other sign."""
    model = Model()
    for level in LEVELS:
        aggregator, plain, shapes = build(Seen, model, level), build(Seen, model, level), []
        aggregator.seen, plain.seen = [], []
        aggregator.reduce = lambda tensor, shapes=shapes: shapes.append(tuple(tensor.shape)) or 2 * tensor
        features, rows = model.trunk(model.x), model.jacobian("features", dict.fromkeys("abc", 1.0))
        found = aggregator.statistics(rows, ("a", "b", "c"), (features,))
        right = plain.statistics(rows, ("a", "b", "c"), (features,))
        close(found["trunk/grad_norm/a"], 2**0.5 * right["trunk/grad_norm/a"])
        if level == "params":
            assert shapes == [(3, 3), *((3, *parameter.shape) for parameter in model.trunk.parameters())]
            close(found["trunk/params/grad_norm/a"], 2 * right["trunk/params/grad_norm/a"])
        close(aggregator.seen[0], plain.seen[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "trunk"}, r"level is 'trunk': features or params is expected"),
        ({"refresh": 0}, r"refresh is 0: a positive whole number is expected"),
        ({"rows": "heads"}, r"rows is 'heads': objectives or losses is expected"),
        ({"weights": float("nan")}, r"weights of every loss is nan"),
    ],
)
def test_what_an_argument_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Fixed(**options)


def test_the_label_names_the_level():
    assert Fixed().label == "fixed@features"
    assert Fixed(level="params", shared=Model().trunk.parameters()).label == "fixed@params"


def test_the_trunks_parameters_are_not_the_aggregators():
    assert not list(Fixed(level="params", shared=Model().trunk.parameters()).parameters())


def test_losses_that_share_a_row_are_one():
    model = Model("ab")
    aggregator = Fixed()
    rows = aggregator.fan_out(model.trunk(model.x), ["both"])
    aggregator.backward(TensorDict({name: model.loss(name, rows["both"]) for name in "ab"}))
    close(model.trunk_gradient(), model.jacobian("params", {"a": 1.0, "b": 1.0}).sum(0))


def step(aggregator, first, second):
    """What a trunk of two outputs gets for two given rows."""
    features = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    rows = aggregator.fan_out(features, ["first", "second"])
    given = {"first": first, "second": second}
    aggregator.backward(
        TensorDict({name: (rows[name] * torch.tensor(row, dtype=torch.float64)).sum() for name, row in given.items()})
    )
    return features.grad


def test_kept_weights_of_a_row_that_was_tiny_do_not_blow_up_once_it_grows():
    # (1, 0) and (-s, s) each projected to where it harms no other: (1/2, 1/2) and (0, s); the mean. Of what is kept the
    # second row's part stays as it was: half of (0.5, 0.5) and, of unit rows, what s = 1e-5 made of the second.
    aggregator = UPGrad(refresh=2)
    close(step(aggregator, [1.0, 0.0], [-1e-5, 1e-5]), torch.tensor([0.25, 0.25 + 0.5e-5], dtype=torch.float64), 1e-9)
    grown = step(aggregator, [1.0, 0.0], [-0.1, 0.1])
    assert 0.2 < grown.norm() < 0.6
    close(step(aggregator, [1.0, 0.0], [-0.1, 0.1]), torch.tensor([0.25, 0.25 + 0.05], dtype=torch.float64), 1e-9)


def test_weights_of_another_level_are_not_taken_over():
    model = Model()
    kept = build(Drawn, model, "params", refresh=9)
    kept.backward(model.losses(kept))
    same, other = build(Drawn, model, "params", refresh=9), build(Drawn, model, "features", refresh=9)
    for aggregator, calls in ((same, 0), (other, 1)):
        aggregator.load_state_dict(kept.state_dict())
        before = Drawn.calls
        aggregator.backward(model.losses(aggregator))
        assert Drawn.calls - before == calls


def test_parameters_that_are_not_shared_are_refused():
    model = Model()
    aggregator = UPGrad(level="params", shared=model.heads.parameters())
    with pytest.raises(ValueError, match=r"none of these parameters lies under the features"):
        aggregator.backward(model.losses(aggregator))
