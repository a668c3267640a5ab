"""Rows of several steps, made of rollouts as they come.

Shapes: `T` time, `N` envs.
"""

from typing import Any, final

import torch
from tensordict import TensorDict, TensorDictBase

from mhrl.functional import cut_episodes, n_step


@final
class NStepRows:
    """Turns rollouts `[T, N]` into rows of up to `n_steps` steps, `n_steps` - 1 rows later; see `functional.n_step`.

    Args:
        n_steps: env steps in a row; with 1, rollouts pass as they are.
        gamma: the discount between them.
    """

    def __init__(self, n_steps: int, gamma: float) -> None:
        self.n_steps, self.gamma = n_steps, gamma
        self._kept: TensorDictBase | None = None  # rows [<= n_steps - 1, N] that wait for the steps after them

    def take(self, rollout: TensorDictBase) -> TensorDictBase:
        """The rows that are complete with `rollout`, perhaps none."""
        if self.n_steps == 1:
            return rollout
        window = rollout if self._kept is None else torch.cat([self._kept, rollout])
        whole = max(0, len(window) - self.n_steps + 1)
        self._kept = window[whole:].clone()
        return n_step(window, self.n_steps, self.gamma) if whole else window[:0]

    def cut(self) -> None:
        """End every env's episode with the newest row kept back."""
        if self._kept is not None and len(self._kept):
            cut_episodes(self._kept[-1])

    def state_dict(self) -> dict[str, Any]:
        """The rows kept back, if any, as plain values and tensors."""
        return {} if self._kept is None else {"carry": self._kept.to_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        rows = state.get("carry")
        self._kept = None if rows is None else TensorDict(rows, rows["next"]["reward"].shape[:2]).clone()
