import pytest
import torch
from _properties import PROMISES, it_works_inside_func_grad, matrices, the_order_of_rows_does_not_matter
from torchjd.aggregation import UPGradWeighting
from torchjd.linalg import QuadprogProjector

from mhrl.aggregators import UPGrad


@pytest.mark.parametrize("promise", [*PROMISES, the_order_of_rows_does_not_matter, it_works_inside_func_grad])
def test_it_keeps_its_promises(promise):
    promise(UPGrad)


def test_known_answer():
    # Each row loses its part along the other: g1 - (g1.g2 / g2.g2) g2 = g1 + 22/38 g2, g2 + 22/18 g1; the mean.
    rows = torch.tensor([[-4.0, 1, 1], [6, 1, 1]], dtype=torch.float64)
    weights = UPGrad().weigh(rows @ rows.T)
    torch.testing.assert_close(weights, torch.tensor([(1 + 22 / 18) / 2, (1 + 22 / 38) / 2], dtype=torch.float64))
    assert UPGrad().combine(rows).tolist() == pytest.approx([0.2924, 1.9006, 1.9006], abs=1e-4)


def test_without_conflict_it_is_the_mean():
    gram = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 3.0]])
    assert UPGrad().weigh(gram).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("columns", [20, 60])
def test_it_equals_torchjd_by_quadprog(columns):
    oracle = UPGradWeighting(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-12))
    for rows in matrices(columns=columns):
        gram = rows @ rows.T
        torch.testing.assert_close(UPGrad().weigh(gram), oracle(gram), rtol=1e-7, atol=1e-7)


def harm(rows):
    """The most negative cosine of a row and the direction."""
    direction = UPGrad().combine(rows)
    lengths = rows.norm(dim=1) * direction.norm()
    return (rows @ direction / torch.where(lengths > 0, lengths, 1.0)).min().item()


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1000.0])
@pytest.mark.parametrize("columns", [2, 5, 17, 100])
def test_no_row_is_harmed(scale, columns):
    for rows in matrices(columns=columns):
        assert harm(scale * rows) >= -1e-9


@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-5, 3e-6, 1e-9, 0.0])
def test_no_row_is_harmed_by_one_that_is_nearly_opposite(angle):
    for rows in matrices(columns=40):
        for scale in (1.0, 1e-4):
            opposite = rows.clone()
            opposite[1] = -scale * (rows[0] + angle * rows[1])
            assert harm(opposite) >= -1e-9
            assert harm(1e-4 * opposite) >= -1e-9


def test_rows_that_leave_no_direction_give_none():
    plane = torch.tensor([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]], dtype=torch.float64)
    assert UPGrad().combine(plane).norm() < 1e-15
    assert UPGrad().combine(torch.tensor([[1.0, 2.0], [-1.0, -2.0]])).norm() == 0


def test_rows_that_are_there_twice_change_nothing():
    rows = torch.tensor([[-4.0, 1, 1], [6, 1, 1]], dtype=torch.float64)
    torch.testing.assert_close(UPGrad().combine(torch.cat([rows, rows])), UPGrad().combine(rows))
