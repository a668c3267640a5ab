import pytest
import torch

from mhrl.aggregators import WeightedSum


def test_combine_is_the_sum_over_rows():
    assert WeightedSum().combine(torch.tensor([[[1.0, 2.0]], [[10.0, 20.0]], [[-5.0, 0.0]]])).tolist() == [[6.0, 22.0]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_b01_trunk_grad_of_one_over_k_gives_the_trunk_the_mean(count):
    torch.manual_seed(0)
    aggregator, names = WeightedSum(trunk_grad=1 / count), [f"h{i}" for i in range(count)]
    features, targets = torch.randn(4, 3, requires_grad=True), torch.randn(count, 4, 3)
    rows = aggregator.fan_out(features, names)
    sum((rows[name] * target).sum() for name, target in zip(names, targets, strict=True)).backward()
    torch.testing.assert_close(features.grad, targets.mean(0))


def test_it_does_not_balance():
    assert not WeightedSum().balances
