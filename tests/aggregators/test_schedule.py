import pytest
import torch
from tensordict import TensorDict
from torch import nn

from mhrl.aggregators import Curve, Schedule


@pytest.mark.parametrize(
    ("curve", "points"),
    [
        (Curve("constant", [0.25]), {0: 0.25, 10**9: 0.25}),
        (Curve("linear", [1.0, 0.5], [0, 100]), {0: 1.0, 1: 0.995, 50: 0.75, 100: 0.5, 10**9: 0.5}),
        (Curve("linear", [1.0, 0.0, 4.0], [10, 20, 30]), {0: 1.0, 10: 1.0, 15: 0.5, 20: 0.0, 25: 2.0, 31: 4.0}),
        # (1 - cos(pi/4)) / 2 = 0.1464466, (1 - cos(pi/2)) / 2 = 0.5
        (Curve("cosine", [2.0, 0.0], [0, 40]), {0: 2.0, 10: 1.7071068, 20: 1.0, 30: 0.2928932, 40: 0.0, 41: 0.0}),
        (Curve("piecewise", [1.0, 0.0, 2.0], [5, 10, 20]), {0: 1.0, 9: 1.0, 10: 0.0, 19: 0.0, 20: 2.0, 99: 2.0}),
        (Curve("linear", [3.0], [7]), {0: 3.0, 8: 3.0}),
    ],
)
def test_values_at_points(curve, points):
    assert {frames: curve.at(frames) for frames in points} == pytest.approx(points)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "liner", "values": [1.0]}, "kind is 'liner': one of constant, linear, cosine, piecewise"),
        ({"kind": "constant", "values": [1.0, 2.0]}, "kind constant has one value and no frames"),
        ({"kind": "constant", "values": [1.0], "frames": [0]}, "kind constant has one value and no frames"),
        ({"kind": "linear", "values": [1.0, 2.0], "frames": [0]}, "as many of one as of the other"),
        ({"kind": "cosine", "values": []}, "at least one"),
        ({"kind": "piecewise", "values": [1.0, 2.0], "frames": [5, 5]}, r"frames is \[5, 5\]: growing"),
        ({"kind": "linear", "values": [1.0, 2.0], "frames": [9, 5]}, r"frames is \[9, 5\]: growing"),
        ({"kind": "linear", "values": [1.0, float("nan")], "frames": [0, 5]}, "finite numbers are expected"),
    ],
)
def test_curves_that_do_not_fit_together_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        Curve(**fields)


def test_it_multiplies_the_static_weight_and_leaves_other_losses_alone():
    rule = Schedule({"a": -2.0, "b": 3.0}, schedules={"a": Curve("linear", [1.0, 0.0], [0, 10])})
    assert [rule.weight("a", frames) for frames in (0, 5, 10)] == [-2.0, -1.0, 0.0]
    assert rule.weight("b", 5) == 3.0 and rule.weight("c", 5) == 1.0
    assert rule.factors(["a", "b"], 5) == {"a": -1.0, "b": 3.0}
    assert rule.active(["a", "b"], 9) == ("a", "b") and rule.active(["a", "b"], 10) == ("b",)
    assert rule.sets("a") == "linear 1 to 0" and rule.sets("b") == ""
    assert str(Curve("constant", [0.5])) == "constant 0.5"


def step(rule, frames, trunk, heads, optimizer, x, order=("a", "b")):
    rows = rule.fan_out(trunk(x), heads)
    losses = TensorDict({name: heads[name](rows[name]).square().mean() for name in order})
    optimizer.zero_grad()
    rule.backward(losses, frames)
    gradients = [p.grad.clone() for p in trunk.parameters()]
    optimizer.step()
    return gradients


def parts():
    torch.manual_seed(0)
    trunk, heads = nn.Linear(3, 4).double(), nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)}).double()
    optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], 0.01, weight_decay=0.1)
    return trunk, heads, optimizer, torch.randn(8, 3, dtype=torch.float64)


def test_at_weight_0_what_only_the_loss_reaches_stays_bit_for_bit_and_goes_on_afterwards():
    trunk, heads, optimizer, x = parts()
    rule = Schedule(schedules={"b": Curve("piecewise", [1.0, 0.0, 1.0], [0, 2, 4])})
    for frames in range(2):
        step(rule, frames, trunk, heads, optimizer, x)
    before = [p.detach().clone() for p in heads["b"].parameters()]
    state = [{k: v.clone() for k, v in optimizer.state[p].items()} for p in heads["b"].parameters()]
    for frames in (2, 3):
        step(rule, frames, trunk, heads, optimizer, x)
    for parameter, value, held in zip(heads["b"].parameters(), before, state, strict=True):
        assert torch.equal(parameter, value)
        assert len(held) == 3 and all(torch.equal(optimizer.state[parameter][k], v) for k, v in held.items())
    step(rule, 4, trunk, heads, optimizer, x)
    assert all(not torch.equal(p, value) for p, value in zip(heads["b"].parameters(), before, strict=True))


def test_order_of_the_losses_does_not_matter():
    found = []
    for order in (("a", "b"), ("b", "a")):
        rule = Schedule(schedules={name: Curve("linear", [1.0, 0.2], [0, 10]) for name in order})
        found.append(step(rule, 5, *parts(), order=order))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-14)
