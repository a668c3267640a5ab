import copy

import pytest
import torch
from tensordict import TensorDict

from mhrl.aggregators import DWA, AdaptiveWeighting, GradNorm, NegativeLossError, Uncertainty
from mhrl.engine import EagerEngine
from mhrl.learner import Learner

RULES = {
    "uncertainty": lambda **options: Uncertainty(**options),
    "dwa": lambda **options: DWA(**options, window=1),
    "gradnorm": lambda **options: GradNorm(**options, alpha=0.5),
}


class Doubles(AdaptiveWeighting):
    """Twice the loss that comes first by name, ten times the second."""

    name = "doubles"

    def adaptive(self):
        return torch.tensor([2.0, 10.0], dtype=torch.float64)


def test_the_factor_is_the_static_one_times_the_rules_own():
    rule = Doubles({"b": -3.0, "a": 1.0})
    assert rule.losses == ("a", "b")
    losses = TensorDict({"b": torch.zeros(2), "a": torch.zeros(())})
    weights = rule.weights(losses)
    assert weights["a"].item() == 2.0 and weights["b"].tolist() == [-30.0, -30.0]
    assert weights["b"].dtype == torch.float32
    assert {name: float(factor) for name, factor in rule.factors(["b"]).items()} == {"b": -30.0}
    assert rule.sets("a") == "doubles" and rule.label == "doubles"


def test_names_are_needed_and_unknown_ones_refused():
    with pytest.raises(ValueError, match=r"doubles has a state for each loss: their names are expected"):
        Doubles()
    assert Doubles(2.0, losses=["y", "x"]).losses == ("x", "y")
    parameter = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(ValueError, match=r"loss 'z' is none of those that doubles was made for: \('x', 'y'\)"):
        Doubles(losses="xy").backward(TensorDict({"z": parameter * 1}))
    assert parameter.grad is None


def test_the_state_of_other_losses_is_refused():
    with pytest.raises(ValueError, match=r"the state is that of the losses \('a', 'b'\), doubles has \('a', 'c'\)"):
        Doubles(losses="ac").load_state_dict(Doubles(losses="ab").state_dict())


@pytest.fixture(params=RULES)
def trained(request, make_toy):
    """A learner that has taken two updates, and the state of all its parts, as bits."""
    rule = RULES[request.param](losses=["a", "b"])
    objective = make_toy(rule)
    groups = [{"params": objective.network.parameters()}, {"params": [*rule.parameters()], "weight_decay": 0.0}]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], 0.01)
    learner = Learner(objective, EagerEngine(objective, rule, optimizer), rule, on_nonfinite="skip")
    torch.manual_seed(1)
    batch = TensorDict({"x": torch.randn(6, 3)}, 6)
    for _ in range(2):
        learner.update(batch.clone())

    def state():
        return copy.deepcopy((objective.network.state_dict(), optimizer.state_dict(), rule.state_dict()))

    return learner, rule, objective, batch, state


def test_the_first_negative_loss_is_refused_by_name_and_changes_nothing(trained):
    learner, rule, objective, batch, state = trained
    before = state()
    objective.poison = {"b": lambda output: -output.square().mean() - 1}
    message = rf"loss 'b' is -1\.\d+: {rule.name} needs losses that are never negative; upgrad, gradnorm with alpha=0"
    with pytest.raises(NegativeLossError, match=message):
        learner.update(batch.clone())
    assert all(parameter.grad is None for parameter in objective.network.parameters())
    torch.testing.assert_close(state(), before, rtol=0, atol=0)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_the_engines_and_never_enters_the_state(trained, poison):
    learner, _, objective, batch, state = trained
    before = state()
    objective.poison = {"b": poison}
    learner.update(batch.clone())
    assert learner.skipped_updates == 1
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    objective.poison = {}
    learner.update(batch.clone())
    assert learner.skipped_updates == 1


@pytest.mark.parametrize("name", RULES)
def test_a_loss_of_weight_0_is_not_meant(name):
    rule = RULES[name](weights={"a": 1.0, "b": 0.0})
    x = torch.tensor([1.0], requires_grad=True)
    rows = rule.fan_out(x * 1, ["a"])
    rule.backward(TensorDict({"a": rows["a"].sum(), "b": -x.sum()}))
    assert x.grad.item() == {"uncertainty": 0.5}.get(name, 1.0)


def test_gradnorm_with_alpha_0_takes_any():
    rule = GradNorm(losses=["a"], alpha=0.0)
    assert not rule.positive
    x = torch.tensor([2.0], requires_grad=True)
    rule.backward(TensorDict({"a": -rule.fan_out(x * 1, ["a"])["a"].sum()}))
    assert x.grad.item() == -1.0
