"""Weights of rows that are used in several backward passes.

Shapes: `K` rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor


@final
class KeptWeights:
    """For each set of rows that are not zero the weights that they had last.

    Args:
        refresh: uses after which weights are due to be found anew.
    """

    def __init__(self, refresh: int) -> None:
        self.refresh = refresh
        self._kept: dict[str, tuple[Tensor, int]] = {}

    def recall(self, rows: Sequence[str], live: Tensor) -> Tensor | None:
        """The weights `[K]` of `rows`, 0 where they are not `live` `[K]`; None if they are due, or there are none."""
        weights, uses = self._kept.get(_key(rows, live), (None, 0))
        if weights is None or uses >= self.refresh:
            return None
        return torch.zeros(len(rows), dtype=weights.dtype, device=live.device).masked_scatter(
            live, weights.to(live.device)
        )

    def keep(self, rows: Sequence[str], weights: Tensor, live: Tensor) -> None:
        """Count one use of weights, new ones or those that were recalled; of what is not finite nothing is kept.

        Args:
            rows: the names.
            weights: `[K]`.
            live: `[K]`, which rows are not zero; their weight may be.
        """
        if not torch.isfinite(weights).all():
            return
        key = _key(rows, live)
        uses = self._kept[key][1] if key in self._kept else self.refresh
        self._kept[key] = (weights[live], uses + 1 if uses < self.refresh else 1)

    def state_dict(self) -> dict[str, Any]:
        """The weights and how often they were used, by set of rows."""
        return {key: {"weights": weights, "uses": uses} for key, (weights, uses) in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._kept = {key: (kept["weights"].clone(), kept["uses"]) for key, kept in state.items()}


def _key(rows: Sequence[str], live: Tensor) -> str:
    """The names of the live rows as the key of a dict that a checkpoint can hold."""
    return ",".join(name for name, is_live in zip(rows, live.tolist(), strict=True) if is_live)
