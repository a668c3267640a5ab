import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from mhrl.functional.least_squares import nonnegative_least_squares


def draw(count, columns, seed=0):
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solve(vectors, targets):
    """In terms of the vectors themselves: x and the sums `a + sum_i x_i b_i`."""
    x, left = nonnegative_least_squares(vectors @ vectors.T, targets @ vectors.T, targets.square().sum(1))
    return x, targets + x @ vectors, left


def oracle(vectors, targets):
    x = [torch.as_tensor(nnls(vectors.T.numpy(), -target.numpy(), maxiter=10_000)[0]) for target in targets]
    return targets + torch.stack(x) @ vectors


@pytest.mark.parametrize(
    ("count", "columns", "problems"),
    [(1, 3, 2), (2, 3, 5), (3, 50, 4), (8, 5, 8), (17, 60, 17), (17, 12, 3), (40, 30, 5)],
)
def test_it_equals_scipy(count, columns, problems):
    vectors, targets = draw(count, columns), draw(problems, columns, 1)
    x, sums, left = solve(vectors, targets)
    right = oracle(vectors, targets)
    assert x.min() >= 0
    torch.testing.assert_close(sums, right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(left, right.square().sum(1), rtol=1e-8, atol=1e-8)


def test_known_answer():
    # a = (1, 1), b = (-1, 0): x = 1 leaves (0, 1). a = (-1, 2): nothing to gain from b.
    x, sums, left = solve(
        torch.tensor([[-1.0, 0.0]], dtype=torch.float64), torch.tensor([[1.0, 1.0], [-1.0, 2.0]]).double()
    )
    assert x.tolist() == [[1.0], [0.0]] and sums.tolist() == [[0.0, 1.0], [-1.0, 2.0]] and left.tolist() == [1.0, 5.0]


@given(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 6), st.sampled_from([1, 2, 1000]))
def test_vectors_of_small_whole_numbers_give_the_nearest_sum(seed, count, columns, longest):
    """They are often zero, equal, opposite or dependent, and ties are exact."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randint(-longest, longest + 1, (count, columns), generator=generator).double()
    targets = torch.randint(-longest, longest + 1, (4, columns), generator=generator).double()
    x, sums, left = solve(vectors, targets)
    assert x.min() >= 0 and x.isfinite().all() and (x[:, vectors.square().sum(1) == 0] == 0).all()
    scale = targets.norm(dim=1, keepdim=True)
    torch.testing.assert_close(sums, oracle(vectors, targets), rtol=0, atol=1e-7 * scale.max().item())
    assert (left >= 0).all() and (left[sums.norm(dim=1) < 1e-9 * scale[:, 0]] == 0).all()


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_lengths_may_differ_by_much(scale):
    vectors, targets = draw(6, 20), draw(3, 20, 1)
    vectors[::2] *= scale
    _, sums, _ = solve(vectors, targets)
    torch.testing.assert_close(sums, oracle(vectors, targets), rtol=1e-8, atol=1e-8)


def test_equal_vectors_get_about_equal_shares():
    vectors, targets = draw(3, 10), draw(4, 10, 1)
    x, sums, _ = solve(torch.cat([vectors, vectors]), targets)
    torch.testing.assert_close(x[:, :3], x[:, 3:], rtol=0.1, atol=1e-9)
    torch.testing.assert_close(sums, oracle(vectors, targets), rtol=1e-9, atol=1e-9)


def test_a_gram_matrix_of_float32_that_is_not_quite_one_is_taken_for_the_nearest_that_is():
    """Five vectors in a plane: exactly, nothing is left of any of them or about as much as here."""
    for seed in range(50):
        vectors = draw(5, 2, seed).float() @ draw(2, 1000, 99).float()
        gram = (vectors @ vectors.T).double()
        gram = (gram + gram.T) / 2
        x, left = nonnegative_least_squares(gram, gram, gram.diagonal())
        assert x.isfinite().all() and x.max() < 1e4
        right = oracle(vectors.double(), vectors.double()).norm(dim=1) / vectors.double().norm(dim=1)
        torch.testing.assert_close(left.sqrt() / gram.diagonal().sqrt(), right, rtol=0, atol=0.02)


def test_the_arguments_are_left_alone():
    gram = draw(4, 9) @ draw(4, 9).T
    before = gram.clone()
    nonnegative_least_squares(gram, gram, gram.diagonal())
    assert torch.equal(gram, before)


@pytest.fixture
def solves(monkeypatch):
    """How many rounds there were: one batch of factors each."""
    rounds, factor = [], torch.linalg.cholesky_ex

    def count(matrix):
        rounds.extend([1] * (matrix.dim() == 3))
        return factor(matrix)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", count)
    return rounds


def test_most_problems_take_a_few_rounds(solves):
    for seed in range(20):
        solves.clear()
        vectors = draw(17, 1000, seed)
        solve(vectors, vectors)
        assert len(solves) <= 4


def test_it_comes_to_an_end_where_there_are_more_vectors_than_dimensions(solves):
    """Then nothing is left of many a target, and the derivatives are rounding errors: at 0 as good as any."""
    for seed in range(60):
        solves.clear()
        vectors = draw(17, 2 + seed % 9, seed)
        solve(vectors, vectors)
        assert len(solves) < 170


@pytest.mark.parametrize("seed", [469, 529, 1048, 1565, 5957, 8200, 8609])
def test_it_comes_to_an_end_where_rounding_errors_lead_in_circles(solves, seed):
    """Two vectors are nearly opposite among more than there are dimensions: the matrix is raised further."""
    count = 4 + seed % 14
    vectors = draw(count, max(2, count // 2 + seed % 3), seed)
    vectors[0] = -0.7 * vectors[1] + 10.0 ** -(5 + seed % 4) * draw(1, vectors.shape[1], seed + 1)[0]
    x, sums, left = solve(vectors, vectors)
    assert len(solves) <= 20 * count and x.isfinite().all() and x.min() >= 0
    known = sums[left > 0]
    cosines = (known / known.norm(dim=1, keepdim=True)) @ (vectors / vectors.norm(dim=1, keepdim=True)).T
    assert (cosines >= -1e-6).all()
