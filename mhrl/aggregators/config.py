"""ConFIG: the direction that makes the same angle with every row, as long as the rows together reach along it."""

from typing import final

import torch
from torch import Tensor

from mhrl.aggregators.row_weighting import RowWeighting

NOTHING = 1e-12
"""Below this square the direction in terms of unit rows has cancelled out."""


@final
class ConFIG(RowWeighting):
    """A unit vector u with the same positive cosine with all rows, times the sum of the rows' projections onto it.

    With unit rows of Gram matrix C, u is in the direction of their sum weighted by C^+ 1. There is no such u if rows
    depend on each other in the wrong way; then it is the nearest to it, and where nothing is left the trunk gets
    nothing.

    Liu, Chu and Thuerey (2024), "ConFIG: towards conflict-free training of physics informed neural networks",
    equation 2.
    """

    name = "config"

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`."""
        norms = gram.diagonal().sqrt()
        inverse = torch.where(norms > 0, 1 / norms, 0.0)
        cosines = gram * inverse * inverse[:, None]
        weights = torch.linalg.pinv(cosines, hermitian=True) @ (norms > 0).to(gram.dtype)
        dots = cosines @ weights
        square = weights @ dots
        return torch.where(square > NOTHING, weights * inverse * (norms @ dots) / square, 0.0)
