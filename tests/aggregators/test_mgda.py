import pytest
import torch
from _properties import PROMISES, it_works_inside_func_grad, matrices, the_order_of_rows_does_not_matter
from torchjd.aggregation import MGDAWeighting

from mhrl.aggregators import MGDA


@pytest.mark.parametrize("promise", [*PROMISES, the_order_of_rows_does_not_matter, it_works_inside_func_grad])
def test_it_keeps_its_promises(promise):
    promise(MGDA)


def test_known_answer():
    rows = torch.tensor([[-4.0, 1, 1], [6, 1, 1]], dtype=torch.float64)
    assert MGDA().weigh(rows @ rows.T).tolist() == pytest.approx([0.6, 0.4], abs=1e-12)
    assert MGDA().combine(rows).tolist() == pytest.approx([0, 1, 1], abs=1e-12)


def test_of_two_rows_it_is_the_closed_form():
    for scale in (1.0, 1e-3, 1e-6):
        for rows in matrices(2, columns=3, count=20):
            rows[1] *= scale
            gram = rows @ rows.T
            first = ((gram[1, 1] - gram[0, 1]) / (gram[0, 0] + gram[1, 1] - 2 * gram[0, 1])).clamp(0, 1)
            torch.testing.assert_close(MGDA().weigh(gram), torch.stack([first, 1 - first]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("columns", [3, 17, 60])
def test_it_is_the_shortest_convex_combination(columns):
    """<g_i, d> >= |d|^2 for all i is necessary and sufficient."""
    for rows in matrices(columns=columns):
        weights = MGDA().weigh(rows @ rows.T)
        assert weights.min() >= 0 and weights.sum().item() == pytest.approx(1, abs=1e-12)
        direction = weights @ rows
        assert (rows @ direction - direction @ direction).min() >= -1e-9 * rows.square().sum(1).min()


def test_it_is_shorter_than_what_torchjd_finds_and_no_further_off_than_its_tolerance():
    for rows in matrices():
        gram = rows @ rows.T
        found, rough = MGDA().weigh(gram) @ rows, MGDAWeighting(epsilon=1e-5, max_iters=5000)(gram) @ rows
        assert found.norm() <= rough.norm() * (1 + 1e-12)
        torch.testing.assert_close(found, rough, rtol=0.02, atol=0.02 * found.norm().item())


def test_where_zero_is_in_the_hull_weights_are_convex_and_the_direction_is_none():
    plane = torch.tensor([[1.0, 0.0], [-0.5, 1.0], [-0.5, -1.0], [3.0, 1.0], [-3.0, -1.0]], dtype=torch.float64)
    for rows in (plane, plane[:3], plane[3:], torch.cat([plane, plane]), 1e-6 * plane):
        weights = MGDA().weigh(rows @ rows.T)
        assert weights.min() >= 0 and weights.sum().item() == pytest.approx(1)
        assert (weights @ rows).norm() <= 1e-7 * rows.norm()
