import pytest
import torch
from _properties import PROMISES, it_works_inside_func_grad, matrices, the_order_of_rows_does_not_matter
from torchjd import aggregation

from mhrl.aggregators import ConFIG


@pytest.mark.parametrize("promise", [*PROMISES, the_order_of_rows_does_not_matter, it_works_inside_func_grad])
def test_it_keeps_its_promises(promise):
    promise(ConFIG)


def test_known_answer():
    # Unit rows (1, 0) and (0, 1): u = (1, 1) / sqrt 2, the length is (3 + 4) / sqrt 2.
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    assert ConFIG().combine(rows).tolist() == pytest.approx([3.5, 3.5])


def test_all_rows_have_the_same_positive_cosine_and_the_length_is_the_sum_of_projections():
    for rows in matrices():
        direction = ConFIG().combine(rows)
        dots = rows @ direction / direction.norm()
        cosines = dots / rows.norm(dim=1)
        torch.testing.assert_close(cosines, cosines.mean().expand(len(rows)), rtol=1e-9, atol=1e-9)
        assert cosines.min() > 0 and direction.norm().item() == pytest.approx(dots.sum().item())


def test_it_equals_torchjd_with_dependent_rows_too():
    for rows in [*matrices(), *matrices(3, 8, columns=2)]:
        torch.testing.assert_close(ConFIG().combine(rows), aggregation.ConFIG()(rows), rtol=1e-8, atol=1e-8)


def test_opposite_rows_give_nothing():
    assert ConFIG().combine(torch.tensor([[1.0, 2.0], [-1.0, -2.0]])).tolist() == [0.0, 0.0]
