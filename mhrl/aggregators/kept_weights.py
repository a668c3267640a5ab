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

    def keep(self, rows: Sequence[str], noted: Tensor) -> None:
        """Count one use of weights, new ones or those that were recalled; of what is not finite nothing is kept.

        Args:
            rows: the names.
            noted: `[K, K]`, see `note`.
        """
        if not torch.isfinite(noted).all():
            return
        live = noted.any(1)
        key = _key(rows, live)
        uses = self._kept[key][1] if key in self._kept else self.refresh
        self._kept[key] = (noted.diagonal()[live], uses + 1 if uses < self.refresh else 1)

    def state_dict(self) -> dict[str, Any]:
        """The weights and how often they were used, by set of rows."""
        return {key: {"weights": weights, "uses": uses} for key, (weights, uses) in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._kept = {key: (kept["weights"].clone(), kept["uses"]) for key, kept in state.items()}


def note(weights: Tensor, live: Tensor) -> Tensor:
    """Weights `[K]` as a matrix `[K, K]`, which may leave a backward as a probe's gradient.

    They are its diagonal; beside it are ones, but zeros in the row of what is not `live` `[K]`: a weight may be 0, too.
    """
    return torch.ones_like(weights).expand(len(live), -1).diagonal_scatter(weights) * live[:, None]


def _key(rows: Sequence[str], live: Tensor) -> str:
    """The names of the live rows as the key of a dict that a checkpoint can hold."""
    return ",".join(name for name, is_live in zip(rows, live.tolist(), strict=True) if is_live)
