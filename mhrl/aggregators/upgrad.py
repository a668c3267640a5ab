"""UPGrad: the mean of the rows, each projected to where no row is harmed."""

from typing import final

import torch
from torch import Tensor

from mhrl.aggregators.row_weighting import RowWeighting
from mhrl.functional import nonnegative_least_squares


@final
class UPGrad(RowWeighting):
    """Project each row onto the dual cone, the vectors whose inner product with no row is negative; take the mean.

    So d is in no conflict with any row: <g_i, d> >= 0, at the level of the rule. The projection of g_i is
    g_i + sum_j s_j g_j with the s >= 0 that makes its norm least. Exact, and without a package for such problems.

    Quinton and Rey (2024), "Jacobian descent for multi-objective optimization", section 3.
    """

    name = "upgrad"

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`."""
        own = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        others, left = nonnegative_least_squares(gram, gram, gram.diagonal())
        # What has cancelled out is left out: its direction is that of rounding errors.
        return (left > 0).to(gram.dtype) @ (own + others) / (gram.diagonal() > 0).sum()
