import pytest
import torch

from mhrl.aggregators.kept_weights import KeptWeights

ALL = torch.tensor([True, True, True])
FIRST = torch.tensor([True, False, True])


def test_weights_are_recalled_until_they_are_due():
    kept = KeptWeights(3)
    assert kept.recall("abc", ALL) is None
    kept.keep("abc", torch.tensor([0.5, 0.0, -2.0]), ALL)
    for _ in range(2):
        assert kept.recall("abc", ALL).tolist() == [0.5, 0.0, -2.0]
        kept.keep("abc", kept.recall("abc", ALL), ALL)
    assert kept.recall("abc", ALL) is None
    kept.keep("abc", torch.tensor([1.0, 1.0, 1.0]), ALL)
    assert kept.recall("abc", ALL).tolist() == [1.0, 1.0, 1.0]


def test_rows_that_are_not_live_belong_to_another_set():
    kept = KeptWeights(3)
    kept.keep("abc", torch.tensor([0.5, 9.0, -2.0]), FIRST)
    assert kept.recall("abc", ALL) is None
    assert kept.recall("abc", FIRST).tolist() == [0.5, 0.0, -2.0]
    assert kept.recall("ac", torch.tensor([True, True])).tolist() == [0.5, -2.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_kept(bad):
    kept = KeptWeights(3)
    kept.keep("abc", torch.tensor([0.5, bad, -2.0]), ALL)
    assert kept.state_dict() == {}


def test_rows_of_zeros_alone_are_a_set_too():
    kept = KeptWeights(2)
    kept.keep("ab", torch.tensor([0.5, 0.5]), torch.tensor([False, False]))
    assert kept.recall("ab", torch.tensor([False, False])).tolist() == [0.0, 0.0]


def test_the_state_goes_on_where_it_was():
    kept, other = KeptWeights(2), KeptWeights(2)
    kept.keep("abc", torch.tensor([0.5, 0.0, -2.0]), ALL)
    other.load_state_dict(kept.state_dict())
    assert other.recall("abc", ALL).tolist() == [0.5, 0.0, -2.0]
    other.keep("abc", torch.tensor([0.5, 0.0, -2.0]), ALL)
    assert other.recall("abc", ALL) is None and kept.recall("abc", ALL) is not None
