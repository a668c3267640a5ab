import copy
import math

import pytest
import torch
from tensordict import TensorDict

from mhrl.aggregators import GradNorm


def passes(rule, *slopes, values=None, row_of=None):
    """Backwards in which loss i is `slope * f_i`, plus what makes its value that of `values`.

    Its row's gradient has the norm |slope| times the loss's factor, and touches no other row's feature. Returns what
    the trunk receives in the last of them.
    """
    trunk = torch.zeros(len(rule.losses), dtype=torch.float64, requires_grad=True)
    rule.row_of = row_of or {}
    for slope in slopes:
        trunk.grad = None
        rows = rule.fan_out(trunk * 1, dict.fromkeys(rule.row_of.get(name, name) for name in slope))
        losses = {}
        for name, factor in slope.items():
            alias = rows[rule.row_of.get(name, name)][rule.losses.index(name)]
            losses[name] = factor * alias + (values or {}).get(name, 0.0)
        rule.backward(TensorDict(losses))
    return trunk.grad


def own(rule):
    return {name: float(factor) for name, factor in rule.factors(rule.losses).items()}


def test_one_step_by_hand():
    # Norms 1 and 3, mean 2: signs - and +, so the slope of log w is (-1, 3), of length sqrt(10). A step of 0.1:
    # log w = (0.1, -0.3) / sqrt(10), whose difference is 0.1264911; the sum stays 2: w_a = 2 / (1 + exp(-0.1264911)).
    rule = GradNorm(losses="ab", lr=0.1)
    assert passes(rule, {"a": 1.0, "b": -3.0}).tolist() == [1.0, -3.0]
    assert own(rule) == pytest.approx({"a": 1.0631614, "b": 0.9368386}, abs=1e-7)
    # The weights act on the whole loss, so the next norms are 1.0631614 and 2.8105159: slopes (-1.0631614, 2.8105159)
    # of length 3.0048814; the difference of log w grows by 0.1 * 3.8736773 / 3.0048814 = 0.1289128.
    assert passes(rule, {"a": 1.0, "b": -3.0}).tolist() == pytest.approx([1.0631614, -2.8105159], abs=1e-7)
    assert own(rule)["a"] == pytest.approx(2 / (1 + math.exp(-0.1264911 - 0.1289128)), abs=1e-7)
    assert rule.label == "gradnorm@features" and rule.name == "gradnorm"


def test_the_pace_by_hand():
    # Norms 1 and 1. First losses 1 and 2, then 1 and 1: ratios 1 and 1/2, mean 3/4, paces 4/3 and 2/3.
    # Targets 4/3 and 2/3: slopes (-1, 1) / sqrt(2); w_a = 1 + tanh(0.1 / sqrt(2)).
    rule = GradNorm(losses="ab", lr=0.1, alpha=1.0)
    slopes = {"a": 1.0, "b": 1.0}
    passes(rule, slopes, values={"a": 1.0, "b": 2.0})
    assert own(rule) == {"a": 1.0, "b": 1.0}
    passes(rule, slopes, values={"a": 1.0, "b": 1.0})
    assert own(rule) == pytest.approx({"a": 1.0705931, "b": 0.9294069}, abs=1e-7)
    assert rule.initial.tolist() == [1.0, 2.0]


def test_alpha_is_the_power_of_the_pace():
    # Losses 1 and 2, then 1 and 4: ratios 1 and 2, paces 2/3 and 4/3. Norms 1 and 1.5, mean 1.25. Targets for alpha 1:
    # 0.83 and 1.67, so that b is too short; for alpha 1/4: 1.13 and 1.34, so that a is.
    for alpha, grows in ((1.0, "b"), (0.25, "a")):
        rule = GradNorm(losses="ab", alpha=alpha)
        passes(rule, {"a": 0.0, "b": 0.0}, values={"a": 1.0, "b": 2.0})  # rows of zeros: no step
        passes(rule, {"a": 1.0, "b": 1.5}, values={"a": 1.0, "b": 4.0})
        assert max(own(rule), key=own(rule).get) == grows


def test_the_first_loss_above_0_is_the_reference():
    rule = GradNorm(losses="ab", alpha=1.0)
    passes(rule, {"a": 1.0, "b": 1.0}, values={"a": 0.0, "b": 2.0})
    assert math.isnan(rule.initial[0]) and rule.initial[1] == 2.0
    passes(rule, {"a": 1.0, "b": 1.0}, values={"a": 3.0, "b": 1.0})
    assert rule.initial.tolist() == [3.0, 2.0]
    assert all(math.isfinite(factor) for factor in own(rule).values())


def test_norms_become_equal_and_the_weights_sum_to_the_number_of_losses():
    rule = GradNorm(losses="abc", lr=0.02)
    slopes = {"a": 1.0, "b": -50.0, "c": 7.0}
    found = passes(rule, *[slopes] * 800).abs()
    assert (found.max() / found.min()).item() == pytest.approx(1.0, abs=0.1)
    assert sum(own(rule).values()) == pytest.approx(3.0, abs=1e-9)


def test_static_factors_act_on_top():
    rule = GradNorm({"a": 1.0, "b": -4.0}, {"a": 0.5}, lr=0.02)
    found = passes(rule, *[{"a": 3.0, "b": 5.0}] * 600)
    assert (found[1] / found[0]).item() == pytest.approx(-8.0, rel=0.1)
    assert float(rule.adaptive().sum()) == pytest.approx(2.0, abs=1e-9)


def test_losses_that_share_a_row_have_one_weight():
    # Row `actor` is (1, 2, 0), of norm sqrt(5); row b is (0, 0, 4). Mean m = 3.1180340: slopes (-2.2360680, 4) of
    # length 4.5825757. log w = 0.1 * (2.2360680, 2.2360680, -4) / 4.5825757 = (0.0487950, 0.0487950, -0.0872872), then
    # w = (1.0500051, 1.0500051, 0.9164139), of sum 3.0164241, times 3 / 3.0164241.
    rule = GradNorm(losses=["a1", "a2", "b"], lr=0.1)
    row_of = {"a1": "actor", "a2": "actor", "b": "b"}
    passes(rule, {"a1": 1.0, "a2": 2.0, "b": 4.0}, row_of=row_of)
    assert own(rule) == pytest.approx({"a1": 1.0442879, "a2": 1.0442879, "b": 0.9114241}, abs=1e-6)
    with pytest.raises(ValueError, match=r"row 'actor' is that of no loss in a1, b: row_of says which are"):
        rule.row_of = {}
        rows = rule.fan_out(torch.ones(3, requires_grad=True) * 1, ["actor", "b"])
        rule.backward(TensorDict({"a1": rows["actor"].sum(), "b": rows["b"].sum()}))


def test_rows_that_take_no_part_keep_their_weight_bit_for_bit():
    rule = GradNorm(losses="abc", lr=0.1)
    passes(rule, {"a": 1.0, "b": 3.0, "c": 2.5})
    before = own(rule)
    passes(rule, {"a": 1.0, "b": 3.0})  # c is not computed
    passes(rule, {"a": 1.0, "b": 3.0, "c": 0.0})  # c's row is zero
    assert own(rule)["c"] == before["c"] != 1.0 and own(rule)["a"] > before["a"]
    assert sum(own(rule).values()) == pytest.approx(3.0, abs=1e-12)
    after = own(rule)
    passes(rule, {"c": 1.0})  # one row: nothing to balance
    assert own(rule) == after


def test_a_loss_that_reads_no_features_keeps_its_weight():
    rule, parameter = GradNorm(losses="abc"), torch.ones(1, requires_grad=True)
    rows = rule.fan_out(torch.ones(2, requires_grad=True) * 1, "abc")
    rule.backward(TensorDict({"a": rows["a"].sum(), "b": 3 * rows["b"].sum(), "c": parameter.sum()}))
    assert own(rule)["c"] == 1.0 and own(rule)["a"] > 1.0
    assert parameter.grad.item() == 1.0


def test_a_dropped_loss_leaves_the_others_as_if_it_did_not_exist():
    dropped, without = GradNorm({"a": 1.0, "b": 1.0, "c": 0.0}), GradNorm({"a": 1.0, "b": 1.0})
    passes(dropped, *[{"a": 1.0, "b": 3.0}] * 3)
    passes(without, *[{"a": 1.0, "b": 3.0}] * 3)
    assert {name: own(dropped)[name] for name in "ab"} == own(without)


def test_order_does_not_matter():
    one, other = GradNorm(losses="abc", alpha=0.5), GradNorm(losses="cba", alpha=0.5)
    slopes, values = {"a": 1.0, "b": 3.0, "c": 2.5}, {"a": 1.0, "b": 2.0, "c": 0.5}
    passes(one, *[slopes] * 5, values=values)
    passes(other, *[dict(reversed(slopes.items()))] * 5, values=values)
    assert own(one) == pytest.approx(own(other), abs=1e-12)


@pytest.mark.parametrize("bad", [{"slopes": float("nan")}, {"slopes": float("inf")}, {"values": float("nan")}])
def test_what_is_not_finite_never_enters_the_state(bad):
    rule = GradNorm(losses="ab", alpha=0.5)
    passes(rule, {"a": 1.0, "b": 3.0}, values={"a": 1.0, "b": 1.0})
    before = copy.deepcopy(rule.state_dict())
    values = {"a": bad.get("values", 1.0), "b": 1.0}
    passes(rule, {"a": bad.get("slopes", 1.0), "b": 3.0}, values=values)
    torch.testing.assert_close(rule.state_dict(), before, rtol=0, atol=0)


def test_resumed_it_goes_on_bit_for_bit():
    whole, first, second = (GradNorm(losses="ab", alpha=0.5) for _ in range(3))
    slopes = [{"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 0.5}, {"a": 0.1, "b": 0.2}, {"a": 3.0, "b": 3.5}]
    values = {"a": 1.0, "b": 2.0}
    passes(whole, *slopes, values=values)
    passes(first, *slopes[:2], values=values)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    passes(second, *slopes[2:], values=values)
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)
    assert set(dict(whole.named_buffers())) == {"factor", "initial"} and not list(whole.parameters())


def test_no_trunk_no_balance():
    rule = GradNorm(losses="ab")
    with pytest.raises(ValueError, match=r"gradnorm@features has nothing to balance"):
        rule.fan_out(torch.ones(2), "ab")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": 0.0}, r"lr is 0\.0: a positive number is expected"),
        ({"alpha": -1.0}, r"alpha is -1\.0: a number >= 0 is expected"),
        ({"alpha": float("nan")}, "alpha is nan"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        GradNorm(losses="ab", **options)
