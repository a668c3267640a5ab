"""Non-negative least squares in terms of inner products, many problems at once, by exchanges of active sets.

Shapes: `K` vectors, `R` problems about them.
"""

import torch
from torch import Tensor

RIDGE = 1e-14
"""Least addition to the diagonal of the unit vectors' Gram matrix that makes every problem strictly convex."""

BLOCKS = 10
"""Exchanges of all infeasible variables at once; later ones are of a single variable."""


@torch.no_grad()
def nonnegative_least_squares(gram: Tensor, inner: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """The `x >= 0` at which `|a + sum_i x_i b_i|` is least, for each of several a.

    Block principal pivoting (Júdice and Pires, 1994): guess which variables are 0, solve for the others, exchange all
    that came out infeasible (a negative variable, or a negative derivative at 0) until none is; two or three times, as
    a rule. After `BLOCKS` of them only the most infeasible one is exchanged, and at last that of the highest number
    (Murty, 1974), which comes to an end for every positive definite matrix. To be one, the Gram matrix is raised on its
    diagonal by the least power of ten from `RIDGE` on that will do, and a hundred times as much each time that rounding
    errors have kept problems from their end; solutions are refined without it. So the sum is exact also where x is not
    unique. Of equal vectors each gets about the same share.

    Args:
        gram: `[K, K]`, float64, symmetric, inner products of the `b_i`; the variable of a zero vector stays 0.
        inner: `[R, K]`, inner products of each a and the `b_i`.
        squares: `[R]`, the squared norms of the a.

    Returns:
        x, `[R, K]`, finite; and `[R]`, the squares of what they leave, 0 where so much has cancelled out that the rest
        has a direction of rounding errors.
    """
    diagonal = gram.diagonal()
    scale = torch.where(diagonal > 0, diagonal, torch.inf).rsqrt()
    unit = gram * scale * scale[:, None]
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    ridge, convex = _convex(unit, eye)
    q, squares = inner * scale, squares[:, None]
    lengths = squares.sqrt()
    solution, rest, at = torch.zeros_like(q), torch.zeros_like(squares), torch.arange(len(q), device=q.device)
    free = q < -ridge * lengths
    for step in range(80 * len(gram)):
        turn = step % (10 * len(gram))
        if step and not turn:
            ridge, convex = 100 * ridge, unit + 100 * ridge * eye
        factor = torch.linalg.cholesky_ex(torch.where(free[:, :, None] & free[:, None, :], convex, eye))[0]
        x = torch.cholesky_solve((-q * free)[..., None], factor)[..., 0]
        error = torch.addmm(q, x, unit) * free
        x = x - torch.cholesky_solve(error[..., None], factor)[..., 0]
        derivative = torch.addmm(q, x, unit)
        size = x.abs().sum(1, keepdim=True) + lengths
        left = squares + (x * (q + derivative)).sum(1, keepdim=True)
        nothing = left < 100 * ridge * size.square()  # what it was made of has cancelled out: derivatives are noise
        solution, rest = solution.index_copy(0, at, x), rest.index_copy(0, at, left.masked_fill(nothing, 0.0))
        value = torch.where(free, x, derivative)
        infeasible = (value < -0.3 * ridge * size) & (free | ~nothing)
        open_ = infeasible.any(1).nonzero().flatten()
        if not len(open_):
            break
        if turn >= BLOCKS:
            first = value if turn < 5 * len(gram) else -torch.arange(len(gram), dtype=q.dtype, device=q.device)
            first = torch.where(infeasible, first, torch.inf)
            infeasible = infeasible & (first == first.amin(1, keepdim=True))
        free = free ^ infeasible
        if 2 * len(open_) <= len(at):
            at, q, free, squares, lengths = at[open_], q[open_], free[open_], squares[open_], lengths[open_]
    return solution.clamp(min=0) * scale, rest[:, 0]


def _convex(unit: Tensor, eye: Tensor) -> tuple[float, Tensor]:
    """What had to be added to the diagonal of `unit` for a Cholesky factor to exist, and the sum."""
    ridge = RIDGE
    while torch.linalg.cholesky_ex(raised := unit + ridge * eye)[1] and ridge < 1:  # 1: it is no Gram matrix
        ridge *= 10
    return ridge, raised
