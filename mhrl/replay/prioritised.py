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
from torch import Tensor
from torchrl.data.replay_buffers.samplers import PrioritizedSampler
from torchrl.data.replay_buffers.storages import TensorStorage

from mhrl.replay.base import Replay, Storage

TORCH = "2.14.1"
"""The torch that the compiled part of torchrl 0.14.1 is built for."""


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

    def _sampler(self) -> "_Sampler":
        try:
            self._trees = _Sampler(self.capacity)
        except RuntimeError as error:
            raise ValueError(
                f"prioritised replay needs the compiled part of torchrl, which loads with torch {TORCH} and not with "
                f"{torch.__version__}: {error}"
            ) from error
        return self._trees

    @property
    def beta(self) -> float:
        """The exponent of the weights now."""
        start, end = self._betas
        return start + (end - start) * min(1.0, self._written * self.num_envs / self._anneal_frames)

    def batches(self, count: int) -> Iterator[TensorDictBase]:
        """Draw `count` batches `[B]`, each when it is asked for.

        Raises:
            ValueError: if nothing is held.
        """
        if count > 0 and not len(self):
            raise ValueError("replay is empty: there is nothing to sample")
        for _ in range(count):
            self._trees.beta = self.beta
            rows, drawn = self._buffer.sample(self.batch_size, return_info=True)
            time, env = drawn["index"]
            age = (self._written - 1 - time) % self._ring
            rows.set("index", (self._written - 1 - age) * self.num_envs + env)
            yield rows.set("priority_weight", drawn["priority_weight"])

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
        held = number >= (self._written - self._ring) * self.num_envs
        self._trees.put(number[held] % self.capacity, (priority[held] + self.eps) ** self.alpha)

    def state_dict(self) -> dict[str, Any]:
        """As `Replay.state_dict`, and the rows' `(p + eps)^alpha` `[T, N]`."""
        return super().state_dict() | {"priorities": self._trees.leaves(len(self)).reshape(-1, self.num_envs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `Replay.load_state_dict`; `alpha`, `beta` and `eps` are this replay's own."""
        super().load_state_dict(state)
        leaves = state["priorities"].reshape(-1)
        self._trees.put(torch.arange(len(leaves)), leaves)


@final
class _Sampler(PrioritizedSampler):
    """torchrl's trees in float64, over the leaves `(p + eps)^alpha` that `put` is given.

    torchrl's own draws are in float32, too coarse for a million rows, and its new rows enter with the largest priority
    that there ever was, at least 1. A tree of float64 holds no rounding error beyond that of one sum: each node is the
    sum of its two children, never a running total.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, alpha=1.0, beta=1.0, dtype=torch.float64)

    def _init(self) -> None:
        super()._init()
        self._max_tree = type(self._min_tree)(self._max_capacity)  # of the negatives
        self._any = False

    def put(self, index: Tensor, leaves: Tensor) -> None:
        """Set leaves `[B]` float64 by the number of the row in the ring `[B]`."""
        if len(index):
            self._sum_tree[index] = leaves
            self._min_tree[index] = leaves
            self._max_tree[index] = -leaves
            self._any = True

    def leaves(self, count: int) -> Tensor:
        """The first `count` leaves."""
        return self._sum_tree[torch.arange(count)] if count else torch.zeros(0, dtype=torch.float64)

    def mark_update(self, index: Tensor, *, storage: TensorStorage) -> None:
        """Let rows `[B, 2]` that were just written enter with the largest leaf, or 1 if they are the first."""
        largest = -self._max_tree.query(0, self._max_capacity) if self._any else 1.0
        time, env = index.unbind(-1)
        self.put(time * storage.shape[1] + env, torch.full((len(index),), largest, dtype=torch.float64))

    def sample(self, storage: TensorStorage, batch_size: int) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        """Rows `([B], [B])` in time and env, and their weights `[B]` float32."""
        total, least = (tree.query(0, len(storage)) for tree in (self._sum_tree, self._min_tree))
        mass = torch.rand(batch_size, dtype=torch.float64, generator=self._rng) * total
        row = self._sum_tree.scan_lower_bound(mass).clamp_max_(len(storage) - 1)
        weight = (self._sum_tree[row] / least) ** -self._beta
        return (row // storage.shape[1], row % storage.shape[1]), {"priority_weight": weight.float()}
