import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mhrl.functional import distance, reduce


@pytest.mark.parametrize(("kind", "right"), [("l1", [2.0, 0.5]), ("l2", [4.0, 0.25]), ("smooth_l1", [1.5, 0.125])])
def test_distances(kind, right):
    assert distance(torch.tensor([3.0, 0.5]), torch.tensor([1.0, 1.0]), kind).tolist() == right


def test_b05_a_column_against_a_row_is_refused():
    prediction, target = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert reduce(distance(prediction.squeeze(-1), target)).item() == 0.0
    with pytest.raises(ValueError, match=r"\(4, 1\) and target \(4,\)"):
        distance(prediction, target)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"unknown loss_function 'quartic': choose one of l1, l2, huber, smooth_l1"):
        distance(torch.ones(1), torch.ones(1), "quartic")
    with pytest.raises(ValueError, match=r"unknown reduction 'max'"):
        reduce(torch.ones(1), reduction="max")


@pytest.mark.parametrize(
    ("reduction", "plain", "weighted"),
    [("mean", 2.0, 2.25), ("sum", 6.0, 9.0), ("none", [1.0, 2.0, 3.0], [1.0, 2.0, 6.0])],
)
def test_reductions(reduction, plain, weighted):
    # weighted mean: (1 * 1 + 1 * 2 + 2 * 3) / (1 + 1 + 2)
    loss, weight = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, 2.0])
    assert reduce(loss, reduction=reduction).tolist() == plain
    assert reduce(loss, weight, reduction).tolist() == weighted


def test_weight_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"weight \(3, 1\) and loss \(3,\)"):
        reduce(torch.ones(3), torch.ones(3, 1))


@given(seed=st.integers(0, 2**31), shape=st.sampled_from([(1,), (7,), (3, 2)]), scale=st.floats(0.1, 10))
def test_b05_weighted_mean_knows_neither_order_nor_scale(seed, shape, scale):
    generator = torch.Generator().manual_seed(seed)
    loss, weight = torch.rand(2, *shape, generator=generator, dtype=torch.float64) + 0.1
    order = torch.randperm(loss.numel(), generator=generator)
    shuffled = reduce(loss.flatten()[order], scale * weight.flatten()[order])
    torch.testing.assert_close(reduce(loss, weight), shuffled)
    assert loss.min() - 1e-12 <= reduce(loss, weight) <= loss.max() + 1e-12
