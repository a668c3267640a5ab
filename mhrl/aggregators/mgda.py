"""MGDA: the shortest vector in the convex hull of the rows."""

from typing import final

import torch
from torch import Tensor

from mhrl.aggregators.row_weighting import RowWeighting
from mhrl.functional import nonnegative_least_squares


@final
class MGDA(RowWeighting):
    """The convex combination of the rows whose norm is least: <g_i, d> >= |d|^2 for all of them, exactly.

    It follows the short rows; where 0 is in the hull the trunk gets nothing. With one more coordinate, equal in all
    rows, the hull keeps its nearest point and its cone gets an apex, so that the weights are, but for their sum, those
    of the non-negative combination that comes nearest to a point on that axis.

    Désidéri (2012), "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization"; Sener and Koltun
    (2018), "Multi-task learning as multi-objective optimization".
    """

    name = "mgda"

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`."""
        squares = gram.diagonal()
        live = squares > 0
        square = torch.where(live, squares, torch.inf).min()  # of the new coordinate: as short as the shortest row
        found, _ = nonnegative_least_squares(gram + square, -live.to(gram.dtype)[None], 1 / square[None])
        return found[0] / found.sum()
