"""IMTL-G: a direction on which the projections of all rows are equal."""

from typing import final

import torch
from torch import Tensor

from mhrl.aggregators.row_weighting import RowWeighting

NOTHING = 1e-12
"""A sum of weights below this share of their absolute values is 0: no multiple of them sums to 1."""


@final
class IMTLG(RowWeighting):
    """Weights that sum to 1 and give d = sum_i w_i g_i the same inner product with every g_i / |g_i|.

    Weights may be negative, so may be the inner products. Where the rows are dependent, the weights are those of least
    norm before they are scaled; where these sum to 0, the trunk gets nothing.

    Liu et al. (2021), "Towards impartial multi-task learning", section 3.1; with dependent rows as in Quinton and Rey
    (2024), "Jacobian descent for multi-objective optimization", appendix B.
    """

    name = "imtl_g"

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`."""
        weights = torch.linalg.pinv(gram, hermitian=True) @ gram.diagonal().sqrt()
        total = weights.sum()
        return torch.where(total.abs() > NOTHING * weights.abs().sum(), weights / total, 0.0)
