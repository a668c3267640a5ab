import copy

import pytest
import torch
from tensordict import TensorDict

from mhrl.aggregators import DWA


def passes(rule, *values):
    """One backward for each mapping of losses' values; returns the gradients of the last, which are the factors."""
    factors = {}
    for losses in values:
        given = {name: torch.tensor(float(value), requires_grad=True) for name, value in losses.items()}
        rule.backward(TensorDict({name: loss * 1 for name, loss in given.items()}))
        factors = {name: loss.grad.item() for name, loss in given.items() if loss.grad is not None}
    return factors


def own(rule):
    return {name: float(factor) for name, factor in rule.factors(rule.losses).items()}


PASSES = ({"a": 1, "b": 2}, {"a": 3, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 3})
# Windows of 2: means a 2, then 1; b 2, then 3. r_a = 1/2, r_b = 3/2; with T = 2 the exponents are 1/4 and 3/4:
# exp 1.2840254 and 2.1170000, sum 3.4010254; times 2: 0.7550813 and 1.2449187.
RIGHT = {"a": 0.7550813, "b": 1.2449187}


def test_numbers_by_hand():
    rule = DWA(losses="ab", window=2, temperature=2.0)
    for i in range(4):  # the first two windows
        assert passes(rule, PASSES[i]) == {"a": 1.0, "b": 1.0}
    assert own(rule) == pytest.approx(RIGHT)
    assert passes(rule, {"a": 9, "b": 9}) == pytest.approx(RIGHT)
    # The third window: means a 9 and b 6. r_a = 9, r_b = 2: exponents 4.5 and 1, of which the difference is 3.5;
    # 2 / (1 + exp(-3.5)) = 1.9413756.
    passes(rule, {"a": 9, "b": 3})
    assert own(rule) == pytest.approx({"a": 1.9413756, "b": 0.0586244}, abs=1e-7)


def test_static_weights_multiply_and_do_not_change_the_ratios():
    rule = DWA({"a": 10.0, "b": -1.0}, window=2)
    passes(rule, *PASSES)
    assert own(rule) == pytest.approx({"a": 7.550813, "b": -1.2449187})


def test_the_larger_the_temperature_the_more_alike():
    rule = DWA(losses="ab", window=2, temperature=1e6)
    passes(rule, *PASSES)
    assert own(rule) == pytest.approx({"a": 1.0, "b": 1.0}, abs=1e-5)
    rule.temperature = 0.01  # exponents 50 and 150
    assert own(rule) == pytest.approx({"a": 0.0, "b": 2.0}, abs=1e-12)


def test_a_loss_that_is_not_in_every_pass_has_the_mean_of_its_own():
    rule = DWA(losses="ab", window=2)
    passes(rule, {"a": 1, "b": 2}, {"a": 3}, {"a": 1}, {"a": 1, "b": 3})  # means as above
    assert own(rule) == pytest.approx(RIGHT)
    assert passes(rule, {"a": 1}) == pytest.approx({"a": RIGHT["a"]})  # K counts the loss that is not here
    # The window ends without b: its ratio stays 3/2. a: mean 1 after 1, ratio 1; exponents 1/2 and 3/4:
    # 2 / (1 + exp(0.25)) = 0.8756470.
    passes(rule, {"a": 1})
    assert own(rule) == pytest.approx({"a": 0.8756470, "b": 1.1243530})


def test_a_mean_of_0_is_no_reason_for_a_weight():
    rule = DWA(losses="ab", window=1)
    passes(rule, {"a": 0, "b": 1}, {"a": 5, "b": 1})
    assert own(rule) == {"a": 1.0, "b": 1.0}


def test_a_dropped_loss_leaves_the_others_as_if_it_did_not_exist():
    dropped, without = DWA({"a": 1.0, "b": 1.0, "c": 0.0}, window=2), DWA(losses="ab", window=2)
    passes(dropped, *({**losses, "c": 5} for losses in PASSES))
    passes(without, *PASSES)
    assert {name: own(dropped)[name] for name in "ab"} == own(without)


def test_order_does_not_matter():
    rule = DWA(losses="ba", window=2)
    passes(rule, *(dict(reversed(losses.items())) for losses in PASSES))
    assert own(rule) == pytest.approx(RIGHT)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_pass_with_a_loss_that_is_not_finite_does_not_count(bad):
    rule = DWA(losses="ab", window=2)
    passes(rule, PASSES[0])
    before = copy.deepcopy(rule.state_dict())
    passes(rule, {"a": bad, "b": 1})
    torch.testing.assert_close(rule.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    passes(rule, *PASSES[1:])
    assert own(rule) == pytest.approx(RIGHT)


@pytest.mark.parametrize("cut", range(1, 6))
def test_resumed_it_goes_on_bit_for_bit(cut):
    values = (*PASSES, {"a": 0.3}, {"b": 7})
    whole, first, second = (DWA(losses="ab", window=2) for _ in range(3))
    passes(whole, *values)
    passes(first, *values[:cut])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    passes(second, *values[cut:])
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)
    assert own(second) == own(whole) != {"a": 1.0, "b": 1.0}
    assert set(dict(whole.named_buffers())) == {"passes", "total", "count", "means"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 0}, "window is 0: a positive whole number is expected"),
        ({"temperature": 0.0}, r"temperature is 0\.0: a positive number is expected"),
        ({"temperature": float("inf")}, "temperature is inf"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        DWA(losses="ab", **options)
