import torch
from tensordict import TensorDict

from mhrl.aggregators import LossWeighting, WeightedSum


class Halves(LossWeighting):
    """Half of every loss."""

    def weights(self, losses, frames=0):
        return TensorDict({name: torch.full_like(loss, 0.5) for name, loss in losses.items()})


def test_the_trunk_receives_the_sum_of_the_rows():
    assert Halves().combine(torch.tensor([[1.0, 2.0], [10.0, 20.0], [-5.0, 0.0]])).tolist() == [6.0, 22.0]
    assert not Halves().balances


def test_a_factor_acts_on_head_and_trunk():
    trunk, head = torch.tensor([3.0], requires_grad=True), torch.tensor([5.0], requires_grad=True)
    rule = Halves()
    rows = rule.fan_out(trunk * 1, ["a", "b"])
    rule.backward(TensorDict({"a": (head * rows["a"]).sum(), "b": (2 * rows["b"]).sum()}))
    assert trunk.grad.item() == 0.5 * (5 + 2) and head.grad.item() == 0.5 * 3


def test_static_weights_are_all_unless_a_rule_says_so():
    assert WeightedSum({"a": 3.0}).sets("a") == Halves().sets("a") == ""
    assert WeightedSum().label == "weighted_sum" and Halves().label == "Halves"
