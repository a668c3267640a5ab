"""Aligned-MTL: the rows' principal components, all made equally long."""

from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from mhrl.aggregators.row_weighting import RowWeighting

Scale = Literal["min", "median", "rmse"]


@final
class AlignedMTL(RowWeighting):
    """Make the singular values of the matrix of rows equal, its condition number 1; d is the mean of its new rows.

    Senushkin et al. (2023), "Independent component alignment for multi-task learning", algorithm 1.

    Args:
        scale_mode: what the singular values become: the least of them but zeros (`min`), their median (`median`; of two
            in the middle the lower one), or the root of the mean of their squares (`rmse`).
        *arguments, **options: those of `RowWeighting`.

    Raises:
        ValueError: as `RowWeighting`, or for another `scale_mode`.
    """

    name = "aligned_mtl"

    def __init__(self, *arguments: Any, scale_mode: Scale = "min", **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        if scale_mode not in get_args(Scale):
            raise ValueError(f"scale_mode is {scale_mode!r}: min, median or rmse is expected")
        self.scale_mode: Scale = scale_mode

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`."""
        count, live = len(gram), (gram.diagonal() > 0).to(gram.dtype)
        squares, vectors = torch.linalg.eigh(gram)  # ascending: the squares of the singular values
        nonzero = squares > squares[-1] * count * torch.finfo(gram.dtype).eps
        rank = nonzero.sum(0, keepdim=True)
        if self.scale_mode == "min":
            scale = squares.gather(0, count - rank)
        elif self.scale_mode == "median":
            scale = squares.gather(0, count - rank + (rank - 1) // 2)
        else:
            scale = (squares * nonzero).sum() / rank
        factors = torch.where(nonzero, scale / squares, 0.0).sqrt()
        return live * (vectors * factors @ (vectors.T @ live)) / live.sum()
