import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mhrl.functional import td_target

ROW = st.tuples(st.floats(-10, 10), st.booleans(), st.floats(-100, 100))


def test_a01_only_terminated_stops_the_bootstrap():
    # (terminated, truncated) = (0, 0), (1, 0), (0, 1), (1, 1): truncated is not even an argument.
    terminated = torch.tensor([False, True, False, True])
    target = td_target(torch.ones(4), terminated, torch.full((4,), 10.0), 0.99)
    torch.testing.assert_close(target, torch.tensor([10.9, 1.0, 10.9, 1.0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a01_value_of_a_terminal_state_is_never_read(bad):
    target = td_target(torch.tensor([1.0, 2.0]), torch.tensor([True, False]), torch.tensor([bad, 10.0]), 0.5)
    assert target.tolist() == [1.0, 7.0]


def test_c03_a_discount_by_row():
    target = td_target(torch.ones(2), torch.tensor([False, True]), torch.full((2,), 8.0), torch.tensor([0.5, 0.25]))
    assert target.tolist() == [5.0, 1.0]
    with pytest.raises(ValueError, match=r"gamma \(2, 1\) and reward \(2,\) must have one shape"):
        td_target(torch.ones(2), torch.tensor([False, True]), torch.ones(2), torch.ones(2, 1))


@given(rows=st.lists(ROW, min_size=1, max_size=6), gamma=st.floats(0, 1))
def test_against_plain_arithmetic(rows, gamma):
    reward, terminated, value = map(torch.tensor, zip(*rows, strict=True))
    right = [r if done else r + gamma * v for r, done, v in rows]
    target = td_target(reward.double()[None], terminated[None], value.double()[None], gamma)
    torch.testing.assert_close(target, torch.tensor([right], dtype=torch.float64))


@pytest.mark.parametrize("shapes", [((4,), (4,), (4, 1)), ((4, 1), (4,), (4,)), ((4,), (1,), (4,)), ((), (4,), (4,))])
def test_b05_shapes_that_would_broadcast_are_refused(shapes):
    reward, terminated, value = shapes
    with pytest.raises(ValueError, match=r"must have one shape"):
        td_target(torch.ones(reward), torch.zeros(terminated, dtype=torch.bool), torch.ones(value), 0.9)
