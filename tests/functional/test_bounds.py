import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mhrl.functional import center_and_half_range, from_box, to_box

LOW, HIGH = torch.tensor([-1.0, 0.0]), torch.tensor([3.0, 0.5])


def test_a03_center_and_half_range_of_an_asymmetric_box():
    center, half_range = center_and_half_range(LOW, HIGH)
    assert center.tolist() == [1.0, 0.25]
    assert half_range.tolist() == [2.0, 0.25]


def test_a03_map_to_an_asymmetric_box_and_back():
    unit = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
    action = to_box(unit, *center_and_half_range(LOW, HIGH))
    assert action.tolist() == [[-1.0, 0.0], [1.0, 0.25], [3.0, 0.5]]
    assert from_box(action, *center_and_half_range(LOW, HIGH)).tolist() == unit.tolist()


@given(
    bounds=st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 100)), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
)
def test_a03_round_trip(bounds, seed):
    low = torch.tensor([low for low, _ in bounds], dtype=torch.float64)
    high = low + torch.tensor([width for _, width in bounds], dtype=torch.float64)
    unit = torch.rand(2, 3, len(bounds), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    action = to_box(unit, *center_and_half_range(low, high))
    assert (action >= low - 1e-9).all() and (action <= high + 1e-9).all()
    torch.testing.assert_close(from_box(action, *center_and_half_range(low, high)), unit, rtol=0, atol=1e-6)


def test_a03_zero_width_dimension_is_its_constant_with_zero_gradient():
    low, high = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 2.0])
    center, half_range = center_and_half_range(low, high)
    unit = torch.tensor([[0.5, 0.7], [-1.0, -1.0]], requires_grad=True)
    action = to_box(unit, center, half_range)
    assert action.tolist() == [[0.5, 2.0], [-1.0, 2.0]]
    action.sum().backward()
    assert unit.grad.tolist() == [[1.0, 0.0], [1.0, 0.0]]

    executed = torch.tensor([[0.5, 2.0]], requires_grad=True)
    back = from_box(executed, center, half_range)
    assert back.tolist() == [[0.5, 0.0]]
    back.sum().backward()
    assert torch.isfinite(executed.grad).all()


@pytest.mark.parametrize("bound", [3e38, 1e-38])
def test_a03_extreme_bounds_neither_overflow_nor_vanish(bound):
    bound = torch.tensor([bound])
    center, half_range = center_and_half_range(-bound, bound)
    assert center.item() == 0.0 and half_range.item() == bound.item()
    for unit in (-1.0, 1.0):
        action = to_box(torch.tensor([unit]), center, half_range)
        assert action.item() == unit * bound.item()
        assert from_box(action, center, half_range).item() == unit


def test_a03_wide_bounds_on_one_side_do_not_overflow():
    center, half_range = center_and_half_range(torch.tensor([2e38]), torch.tensor([3e38]))
    assert center.item() == pytest.approx(2.5e38) and half_range.item() == pytest.approx(0.5e38)
