import pytest
import torch
from _properties import PROMISES, it_works_inside_func_grad, matrices, the_order_of_rows_does_not_matter
from torchjd.aggregation import IMTLGWeighting

from mhrl.aggregators import IMTLG


@pytest.mark.parametrize("promise", [*PROMISES, the_order_of_rows_does_not_matter, it_works_inside_func_grad])
def test_it_keeps_its_promises(promise):
    promise(IMTLG)


def test_known_answer():
    # Of two rows the weights are the other's norm over the sum of norms.
    rows = torch.tensor([[-4.0, 1, 1], [6, 1, 1]], dtype=torch.float64)
    total = 18**0.5 + 38**0.5
    assert IMTLG().weigh(rows @ rows.T).tolist() == pytest.approx([38**0.5 / total, 18**0.5 / total], abs=1e-12)


def test_projections_are_equal_and_weights_sum_to_one():
    for rows in matrices():
        weights = IMTLG().weigh(rows @ rows.T)
        projections = rows @ (weights @ rows) / rows.norm(dim=1)
        torch.testing.assert_close(projections, projections.mean().expand(len(rows)), rtol=1e-8, atol=1e-10)
        assert weights.sum().item() == pytest.approx(1)


def test_it_equals_torchjd_with_dependent_rows_too():
    cases = [*matrices(), *matrices(3, 8, columns=2)]
    for rows in cases:
        gram = rows @ rows.T
        torch.testing.assert_close(IMTLG().weigh(gram), IMTLGWeighting()(gram / gram.trace()), rtol=1e-6, atol=1e-8)


def test_weights_that_cannot_sum_to_one_are_zero():
    # Opposite unit rows: the equations want w_1 - w_2 = 1 and w_2 - w_1 = 1; the least-squares answer is 0.
    assert IMTLG().weigh(torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).tolist() == [0.0, 0.0]
