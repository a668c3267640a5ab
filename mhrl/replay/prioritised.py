"""Prioritised replay, the proportional variant (Schaul et al., 2016, section 3.3).

    P(i) = (p_i + eps)^alpha / sum_j (p_j + eps)^alpha,    w_i = (P(i) / min_j P(j))^-beta

with p the priority that the objective gave a row when it was last drawn, its absolute TD error. A row that was never
drawn has the largest priority held. `w` is (N P(i))^-beta (section 3.4), divided by its largest value over the rows.

Shapes: `T` time, `N` envs, `B` batch.
"""

from collections.abc import Iterator
from typing import Any, final

import torch
from tensordict import TensorDictBase

from mhrl.replay.base import Replay, Storage
from mhrl.replay.trees import Trees


@final
class PrioritisedReplay(Replay):
    """Transitions with a large error are drawn more often, and weigh less.

    Batches get `priority_weight` `[B]` float32 and `index` `[B]` int64, the number of the transition in the order of
    writing. They are drawn one at a time, so that each sees the priorities from the update before.

    Args:
        capacity: as in `Replay`, like all that is not named here.
        batch_size: `B`.
        num_envs: `N`.
        seed: of the sampler's own generator.
        storage: `memory` or `memmap`.
        scratch_dir: for `memmap`.
        row_bytes: bytes of a transition.
        alpha: how much priorities matter, from 0 (uniform) to 1 (proportional).
        beta: how much the weights correct for it at first, from 0 (nothing) to 1 (all).
        beta_end: `beta` from `anneal_frames` on.
        anneal_frames: length of the linear schedule of `beta` in env transitions.
        eps: added to every priority, so that a row without an error is still drawn.

    Raises:
        ValueError: as `Replay`, or if one of these numbers is out of range, or torchrl's compiled part does not load.
    """

    INDEX_BYTES = 3 * 4 * 8  # three trees of float64, of less than four nodes a row

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        num_envs: int,
        seed: int,
        storage: Storage = "memory",
        scratch_dir: str | None = None,
        row_bytes: int = 0,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_end: float = 1.0,
        anneal_frames: int = 100_000,
        eps: float = 1e-6,
    ) -> None:
        for name, number in (("alpha", alpha), ("beta", beta), ("beta_end", beta_end)):
            if not 0 <= number <= 1:
                raise ValueError(f"replay.{name} is {number}: a number from 0 to 1 is expected")
        if anneal_frames != int(anneal_frames) or anneal_frames < 1:
            raise ValueError(f"replay.anneal_frames is {anneal_frames}: a positive whole number is expected")
        if not 0 < eps < float("inf"):
            raise ValueError(f"replay.eps is {eps}: a positive number is expected")
        self.alpha, self.eps = alpha, eps
        self._betas, self._anneal_frames = (beta, beta_end), anneal_frames
        super().__init__(capacity, batch_size, num_envs, seed, storage, scratch_dir, row_bytes)
        self._trees = Trees(self.capacity)

    @property
    def beta(self) -> float:
        """The exponent of the weights now."""
        start, end = self._betas
        return start + (end - start) * min(1.0, self._written * self.num_envs / self._anneal_frames)

    def _batches(self, count: int) -> Iterator[TensorDictBase]:
        """Draw `count` batches `[B]`, each when it is asked for."""
        for _ in range(count):
            mass = torch.rand(self.batch_size, dtype=torch.float64, generator=self._generator)
            place, weight = self._trees.draw(mass, len(self), self.beta)
            newest = self._written * self.num_envs - 1
            rows = self._ring.take(place).set("index", newest - (newest - place) % self.capacity)
            yield rows.set("priority_weight", weight.float())

    def update_priority(self, batch: TensorDictBase) -> None:
        """Give the rows of a drawn `batch` the priorities `[B]` under its key `priority`.

        Without that key, after an update that was skipped, they keep theirs. So does a row that was overwritten since.

        Raises:
            ValueError: if a priority is negative or not finite, or their shape is not `[B]`; then none is changed.
        """
        priority = batch.get("priority", None)
        if priority is None:
            return
        number = batch.get("index").to("cpu")
        priority = priority.detach().to("cpu", torch.float64)
        if priority.shape != number.shape:
            raise ValueError(f"priority has shape {list(priority.shape)}: {list(number.shape)} is expected")
        if (wrong := ~((priority >= 0) & priority.isfinite())).any():
            row = int(wrong.nonzero()[0])
            raise ValueError(f"priority of row {row} is {priority[row]}: a finite number >= 0 is expected")
        held = number >= self._written * self.num_envs - self.capacity
        self._trees.put(number[held] % self.capacity, (priority[held] + self.eps) ** self.alpha)

    def state_dict(self) -> dict[str, Any]:
        """As `Replay.state_dict`, and the rows' `(p + eps)^alpha` `[T, N]`."""
        return super().state_dict() | {"priorities": self._trees.leaves(len(self)).reshape(-1, self.num_envs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `Replay.load_state_dict`; `alpha`, `beta` and `eps` are this replay's own."""
        super().load_state_dict(state)
        leaves = state["priorities"].reshape(-1)
        self._trees = Trees(self.capacity)
        self._trees.put(torch.arange(len(leaves)), leaves)

    def _write(self, rows: TensorDictBase) -> None:
        """Append rows `[T, N]`, which enter with the largest `(p + eps)^alpha`, or 1 if they are the first."""
        first = self._written * self.num_envs
        super()._write(rows)
        places = torch.arange(first, self._written * self.num_envs) % self.capacity
        self._trees.put(places, torch.full((len(places),), self._trees.largest, dtype=torch.float64))
