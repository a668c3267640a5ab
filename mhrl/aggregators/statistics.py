"""What the rows' gradients say about the losses: norms, shares, conflicts.

Shapes: `K` rows, `N` numbers in all outputs of the trunk together.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

MOST_PAIRED = 20
"""Rows up to which the cosine of every pair is a statistic; of more there are too many pairs to log."""


def row_statistics(
    gram: Tensor, dots: Tensor, combined_norm: Tensor, rows: Iterable[str], prefix: str = "trunk"
) -> dict[str, Tensor]:
    """What the rows' Gram matrix says about them.

    Args:
        gram: `[K, K]`, inner products of the rows' gradients as the trunk receives them.
        dots: `[K]`, inner products of the rows and the direction that the trunk receives.
        combined_norm: that direction's norm.
        rows: the `K` names.
        prefix: what the names of the statistics begin with.

    Returns:
        `grad_norm/<row>`; `grad_share/<row>`, the norm over the sum of norms; `grad_dot/<row>`; `combined_norm`; and of
        two rows or more `conflict_fraction`, that of the pairs whose cosine is negative, and up to `MOST_PAIRED` rows
        `grad_cos/<a>__<b>`, the cosine of two rows (0 where one of them is zero).
    """
    names, tiny = list(rows), torch.finfo(gram.dtype).tiny
    norms = gram.diagonal().clamp(min=0).sqrt()
    shares = norms / norms.sum().clamp(min=tiny)
    statistics = {f"{prefix}/grad_norm/{name}": norms[i] for i, name in enumerate(names)}
    statistics |= {f"{prefix}/grad_share/{name}": shares[i] for i, name in enumerate(names)}
    statistics |= {f"{prefix}/grad_dot/{name}": dots[i] for i, name in enumerate(names)}
    statistics[f"{prefix}/combined_norm"] = combined_norm
    if len(names) > 1:
        a, b = torch.triu_indices(len(names), len(names), 1)
        cosines = (gram / (norms[:, None] * norms).clamp(min=tiny))[a, b]
        statistics[f"{prefix}/conflict_fraction"] = (cosines < 0).to(gram.dtype).mean()
        if len(names) <= MOST_PAIRED:
            pairs = zip(a.tolist(), b.tolist(), cosines, strict=True)
            statistics |= {f"{prefix}/grad_cos/{names[i]}__{names[j]}": cosine for i, j, cosine in pairs}
    return statistics


def sign_agreement(a: Tensor, b: Tensor) -> Tensor:
    """Fraction of the pairs of rows that two Gram matrices `[K, K]` call in conflict, or not, alike."""
    i, j = torch.triu_indices(len(a), len(a), 1)
    return ((a[i, j] < 0) == (b[i, j] < 0)).to(a.dtype).mean()
