"""CAGrad: the direction near the mean row that serves the worst-served row best."""

from typing import Any, final

from torch import Tensor

from mhrl.aggregators.gram import without_zeros
from mhrl.aggregators.row_weighting import RowWeighting


@final
class CAGrad(RowWeighting):
    """The d that makes min_i <g_i, d> largest among those with |d - g_0| <= c |g_0|, where g_0 is the mean row.

    Solved by torchjd and cvxpy, in milliseconds. Where g_0 can be left so far that some combination of the rows is
    (almost) zero, so is d. Of a single row d is the row, and not (1 + c) times it.

    Liu et al. (2021), "Conflict-averse gradient descent for multi-task learning", algorithm 1.

    Args:
        c: how far d may be from g_0: 0 is the mean, and the larger c, the more d is MGDA's direction, made longer.
        *arguments, **options: those of `RowWeighting`.

    Raises:
        ValueError: as `RowWeighting`, or if `c` is negative.
        ImportError: if a package is missing.
    """

    name = "cagrad"

    def __init__(self, *arguments: Any, c: float = 0.4, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        try:
            from torchjd.aggregation import CAGradWeighting

            self._solve = CAGradWeighting(c)
        except ImportError as error:
            raise ImportError(
                f"aggregator=cagrad needs more packages: pip install 'mhrl[balancing]' ({error})"
            ) from error

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`."""
        return without_zeros(self._solve, gram)
