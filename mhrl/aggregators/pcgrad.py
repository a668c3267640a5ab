"""PCGrad: from each row that part is taken which goes against another, one other after the other."""

from typing import final

import torch
from torch import Tensor

from mhrl.aggregators.gram import without_zeros
from mhrl.aggregators.row_weighting import RowWeighting


@final
class PCGrad(RowWeighting):
    """Go through the other rows in random order, take away what points against one of them; d is the sum of the rest.

    The order is drawn for each row anew, from torch's global generator, which is in the checkpoint (several processes
    need it in the same state). Of two rows nothing depends on it. Of more rows d may still be in conflict with one.

    Yu et al. (2020), "Gradient surgery for multi-task learning", algorithm 1.
    """

    name = "pcgrad"

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`."""
        return without_zeros(_surgery, gram)


def _surgery(gram: Tensor) -> Tensor:
    """The weights `[K]`; all rows go through the others side by side."""
    count = len(gram)
    order = torch.rand(count, count, dtype=gram.dtype).argsort(1)
    itself = order == torch.arange(count)[:, None]
    per_dot = torch.where(itself, 0.0, -1 / gram.diagonal()[order])
    met, dots, added = gram[order], gram, []  # dots: of what is left of each row and every row as it was
    for step in range(count):
        at = slice(step, step + 1)
        added.append(dots.gather(1, order[:, at]).clamp(max=0) * per_dot[:, at])
        dots = torch.addcmul(dots, added[-1], met[:, step])
    return torch.ones(count, dtype=gram.dtype).scatter_add(0, order.flatten(), torch.cat(added, 1).flatten())
