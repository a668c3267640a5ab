import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mhrl.functional import allowed, best_index, best_value, chosen_value, reduce_branches

# Two branches of two and three values: the first is padded with -inf.
VALUES = torch.tensor([[[1.0, 2.0, -math.inf], [0.0, 5.0, 3.0]]])


def test_best_value_and_index_of_unequal_branches():
    assert best_value(VALUES).tolist() == [[2.0, 5.0]]
    assert best_index(VALUES).tolist() == [[1, 1]]


def test_chosen_value():
    assert chosen_value(VALUES, torch.tensor([[0, 2]])).tolist() == [[1.0, 3.0]]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("independent", [[2.0, 5.0]]), ("max", [[5.0]]), ("mean", [[3.5]]), ("sum", [[7.0]])],
)
def test_reduce_branches(reduction, expected):
    assert reduce_branches(best_value(VALUES), reduction).tolist() == expected


def test_reduce_branches_refuses_an_unknown_name():
    with pytest.raises(ValueError, match="unknown reduction 'median'"):
        reduce_branches(torch.zeros(1, 2), "median")


def test_a_mask_leaves_choices_out():
    values, mask = torch.tensor([[[1.0, 9.0, 3.0]]]), torch.tensor([[[True, False, True]]])
    assert best_value(values, mask).item() == 3.0  # 9 without the mask
    assert best_index(values, mask).item() == 2
    assert allowed(values, mask).tolist() == [[[1.0, -math.inf, 3.0]]]


def test_a_mask_of_a_lone_choice_counts():
    assert best_value(torch.tensor([[[4.0]]]), torch.tensor([[[False]]])).item() == -math.inf


@pytest.mark.parametrize("index", [torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)])
def test_shapes_that_would_broadcast_are_refused(index):
    with pytest.raises(ValueError, match="do not go together"):
        chosen_value(VALUES, index)


@given(data=st.data(), batch=st.integers(1, 4), branches=st.integers(1, 4), most=st.integers(1, 5))
def test_against_plain_python(data, batch, branches, most):
    number = st.floats(-10, 10, width=32)
    values = [[[data.draw(number) for _ in range(most)] for _ in range(branches)] for _ in range(batch)]
    mask = [[[data.draw(st.booleans()) for _ in range(most)] for _ in range(branches)] for _ in range(batch)]
    index = [[data.draw(st.integers(0, most - 1)) for _ in range(branches)] for _ in range(batch)]
    expected = [
        [
            max([q for q, ok in zip(row, oks, strict=True) if ok], default=-math.inf)
            for row, oks in zip(*pair, strict=True)
        ]
        for pair in zip(values, mask, strict=True)
    ]
    taken = [[values[b][d][index[b][d]] for d in range(branches)] for b in range(batch)]
    q = torch.tensor(values)
    assert best_value(q, torch.tensor(mask)).tolist() == expected
    assert chosen_value(q, torch.tensor(index)).tolist() == taken
