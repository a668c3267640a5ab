import copy
import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from mhrl.aggregators import Uncertainty


def test_gradients_by_hand():
    # L_a = 3, L_b = 1/2; s_a = 0, s_b = log 2.
    # d/ds = v/2 (1 - exp(-s) L): a with v = 2: 1 - 3 = -2; b with v = 1: (1 - 1/4) / 2 = 0.375.
    # d/dL = v/2 exp(-s): a: 1, b: 1/4.
    rule = Uncertainty({"a": 2.0, "b": 1.0})
    with torch.no_grad():
        rule.log_variance("b").fill_(math.log(2))
    a, b = torch.tensor(3.0, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    rule.backward(TensorDict({"a": a * 1, "b": b * 1}))
    assert rule.log_variance("a").grad.item() == pytest.approx(-2.0)
    assert rule.log_variance("b").grad.item() == pytest.approx(0.375)
    assert a.grad.item() == pytest.approx(1.0) and b.grad.item() == pytest.approx(0.25)
    assert {name: float(factor) for name, factor in rule.factors("ab").items()} == pytest.approx({"a": 1, "b": 0.25})


class Model(nn.Module):
    def __init__(self, rule, names="ab"):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(3, 4)
        self.heads = nn.ModuleDict({name: nn.Linear(4, 2) for name in names})
        self.rule = rule
        self.double()
        self.x = torch.randn(8, 3, dtype=torch.float64)
        groups = [
            {"params": [*self.trunk.parameters(), *self.heads.parameters()]},
            {"params": [*rule.parameters()], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.Adam(groups, 0.01, weight_decay=0.1)

    def losses(self, names):
        rows = self.rule.fan_out(self.trunk(self.x), names)
        return {name: self.heads[name](rows[name]).square().mean() * (1 + 5 * (name == "a")) for name in names}

    def step(self, names="ab"):
        losses = self.losses(names)
        self.optimizer.zero_grad()
        self.rule.backward(TensorDict(losses))
        self.optimizer.step()


def test_it_is_the_gradient_of_the_papers_sum():
    model = Model(Uncertainty({"a": 0.3, "b": 2.0}, {"a": 1.0}))
    s = {name: model.rule.log_variance(name) for name in "ab"}
    with torch.no_grad():
        s["a"].fill_(0.7)
        s["b"].fill_(-1.2)
    model.rule.backward(TensorDict(model.losses("ab")))
    parameters = [*model.parameters()]
    found = [parameter.grad.clone() for parameter in parameters]
    model.zero_grad()
    terms = {name: torch.exp(-s[name]) * loss / 2 + s[name] / 2 for name, loss in model.losses("ab").items()}
    (0.3 * terms["a"] + 2.0 * terms["b"]).backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in parameters], rtol=0, atol=1e-12)


def test_order_does_not_matter():
    found = []
    for order in ("ab", "ba"):
        model = Model(Uncertainty(losses=order))
        for _ in range(3):
            model.step(order)
        found.append(model.state_dict())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-14)


def test_a_loss_that_is_not_computed_leaves_its_log_variance_and_adams_state_bit_for_bit():
    model = Model(Uncertainty(losses="ab"))
    for _ in range(3):
        model.step()
    kept = [model.rule.log_variance("b"), *model.heads["b"].parameters()]
    before = [parameter.detach().clone() for parameter in kept]
    state = [copy.deepcopy(model.optimizer.state[parameter]) for parameter in kept]
    for _ in range(3):
        model.step("a")
    torch.testing.assert_close([p.detach() for p in kept], before, rtol=0, atol=0)
    assert all(len(held) == 3 for held in state)
    torch.testing.assert_close([model.optimizer.state[p] for p in kept], state, rtol=0, atol=0)


def test_a_dropped_loss_leaves_the_others_as_if_it_did_not_exist():
    dropped, without = Model(Uncertainty({"a": 1.0, "b": 0.0})), Model(Uncertainty({"a": 1.0}))
    for _ in range(3):
        dropped.step("ab")
        without.step("a")
    assert torch.equal(dropped.rule.log_variance("a"), without.rule.log_variance("a"))
    torch.testing.assert_close(dropped.trunk.state_dict(), without.trunk.state_dict(), rtol=0, atol=0)


def test_at_rest_the_log_variance_is_that_of_the_loss():
    rule = Uncertainty(losses=["a"])
    optimizer = torch.optim.Adam(rule.parameters(), 0.05)
    one = torch.ones((), requires_grad=True)
    for _ in range(500):
        optimizer.zero_grad()
        rule.backward(TensorDict({"a": one * 7.0}))
        optimizer.step()
    assert rule.log_variance("a").item() == pytest.approx(math.log(7.0), abs=1e-3)
    assert float(rule.factors("a")["a"]) == pytest.approx(1 / 14, rel=1e-3)


def test_resumed_it_goes_on_bit_for_bit():
    whole, first = Model(Uncertainty(losses="ab")), Model(Uncertainty(losses="ab"))
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    second = Model(Uncertainty(losses="ab"))
    second.load_state_dict(first.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    for _ in range(3):
        second.step()
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)
    assert set(whole.rule.state_dict()) == {"log_variance_a", "log_variance_b", "_extra_state"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": -1.0}, r"lr is -1\.0: a number >= 0 or null"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"weights": {"b": -2.0}}, r"the weight of b is -2\.0: uncertainty needs weights >= 0"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Uncertainty(**{"losses": "ab"} | options)
