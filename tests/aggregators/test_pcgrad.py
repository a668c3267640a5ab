from itertools import permutations, product

import pytest
import torch
from _properties import PROMISES, it_works_inside_func_grad, matrices
from torchjd.aggregation import PCGradWeighting

from mhrl.aggregators import PCGrad


@pytest.mark.parametrize("promise", [*PROMISES, it_works_inside_func_grad])
def test_it_keeps_its_promises(promise):
    promise(PCGrad)


def test_known_answer():
    rows = torch.tensor([[-4.0, 1, 1], [6, 1, 1]], dtype=torch.float64)
    assert PCGrad().weigh(rows @ rows.T).tolist() == pytest.approx([1 + 22 / 18, 1 + 22 / 38], abs=1e-12)


def test_of_two_rows_it_equals_torchjd():
    for rows in matrices(2, columns=3, count=20):
        gram = rows @ rows.T
        torch.testing.assert_close(PCGrad().weigh(gram), PCGradWeighting()(gram))


def surgery(rows, order):
    """Algorithm 1 on the rows themselves; `order` of the others for each row."""
    total = torch.zeros_like(rows[0])
    for i, others in enumerate(order):
        left = rows[i].clone()
        for j in others:
            left -= min((left @ rows[j]).item(), 0.0) / (rows[j] @ rows[j]) * rows[j]
        total += left
    return total


def test_of_three_rows_each_order_comes_up_and_gives_what_the_algorithm_gives():
    """Rows between which the order matters: 2^3 orders, all different."""
    rows = torch.tensor([[1.0, 0.1, 0.3], [-0.9, 1.0, -0.2], [-0.3, -1.1, 0.5]], dtype=torch.float64)
    others = [list(permutations(j for j in range(3) if j != i)) for i in range(3)]
    expected = torch.stack([surgery(rows, order) for order in product(*others)])
    assert torch.pdist(expected).min() > 1e-3
    seen = []
    for _ in range(200):
        distances = (PCGrad().combine(rows) - expected).norm(dim=1)
        assert distances.min() < 1e-12
        seen.append(distances.argmin().item())
    assert set(seen) == set(range(8))


def test_of_many_rows_the_weights_reproduce_the_algorithm_for_the_order_that_was_drawn():
    for rows in (*matrices(8, 17, columns=10), *matrices(8, 17, columns=2)):
        torch.manual_seed(3)
        found = PCGrad().combine(rows)
        torch.manual_seed(3)
        order = torch.rand(len(rows), len(rows), dtype=torch.float64).argsort(1).tolist()
        right = surgery(rows, [[j for j in own if j != i] for i, own in enumerate(order)])
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_the_order_is_drawn_from_the_global_generator():
    (rows,) = matrices(8, columns=10, count=1)
    torch.manual_seed(3)
    first, second = PCGrad().combine(rows), PCGrad().combine(rows)
    torch.manual_seed(3)
    assert torch.equal(PCGrad().combine(rows), first) and not torch.equal(first, second)
