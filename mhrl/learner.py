"""The learner: one update at a time, and what it leaves for the log."""

from collections.abc import Mapping
from typing import Any, Literal, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from mhrl.aggregators import BackwardAggregator
from mhrl.engine import Engine, NonFiniteLossError
from mhrl.normaliser import IdentityNormaliser, Normaliser
from mhrl.objectives import Objective

OnNonfinite = Literal["error", "skip"]


@final
class Learner:
    """One gradient update at a time.

    Args:
        objective: whose losses are minimised.
        engine: takes the step.
        aggregator: says which losses are active.
        on_nonfinite: `error` stops at the first loss that is NaN or infinite; `skip` leaves that update out and
            counts it. Either way parameters, optimizer and target stay as they were.
        normaliser: what batches pass through first; the one that acts and evaluates, too.

    Attributes:
        updates: gradient updates so far, skipped ones included.
        skipped_updates: those left out.
    """

    def __init__(
        self,
        objective: Objective,
        engine: Engine,
        aggregator: BackwardAggregator,
        on_nonfinite: OnNonfinite = "error",
        normaliser: Normaliser | None = None,
    ) -> None:
        if on_nonfinite not in ("error", "skip"):
            raise ValueError(f"on_nonfinite is {on_nonfinite!r}: error or skip is expected")
        self.objective = objective
        self.engine = engine
        self.aggregator = aggregator
        self.on_nonfinite = on_nonfinite
        self.normaliser = IdentityNormaliser((), 1) if normaliser is None else normaliser
        self.updates = 0
        self.skipped_updates = 0
        self._active: tuple[str, ...] = ()  # the losses whose weight is not 0, due or not
        self._losses: dict[str, Tensor] = {}
        self._metrics: dict[str, Tensor] = {}  # not reduced
        self._summary: dict[str, Tensor] = {}  # of a checkpoint, until newer metrics replace it
        self._statistics: dict[str, Tensor] = {}
        self._grad_norm: Tensor | None = None
        self._measure = False
        self._frames = 0

    def measure(self) -> None:
        """Measure rows and modules in the next update that computes every active loss, for the next report."""
        self._measure = True

    def update(self, batch: TensorDictBase, frames: int = 0) -> None:
        """One update on `batch` `[B]` or `[B, T]`.

        Args:
            batch: raw rows from replay; gets the entry `priority` `[*]` where the objective gives one.
            frames: env transitions so far, for schedules and messages.

        Raises:
            NonFiniteLossError: naming the losses, the update and the first entry of the batch that is not finite.
        """
        self._frames = frames
        active = self.aggregator.active(self.objective.due(self.updates), frames)
        if active:
            self._forget_dropped()
            measured = self._measure and set(active) == set(self._active)
            rows = self.normaliser.batch(batch)
            try:
                result = self.engine.step(rows, active, frames=frames, updates=self.updates + 1, statistics=measured)
            except NonFiniteLossError as error:
                if self.on_nonfinite == "error":
                    origin = first_nonfinite(batch) or "none: look at the network's parameters and the loss itself"
                    where = f"update {self.updates}, {frames} frames; first non-finite entry of the batch: {origin}"
                    raise NonFiniteLossError(f"{error} ({where})") from None
                self.skipped_updates += 1
                self.updates += 1
                return
            if (priority := result.metrics.get("priority", None)) is not None:
                batch.set("priority", priority)
            self._losses |= result.losses.items()
            self._metrics |= result.metrics.items()
            self._grad_norm = result.grad_norm
            if measured:
                self._measure, self._statistics = False, result.statistics
        else:
            self.objective.update_target(self.updates + 1)
        self.updates += 1

    def report(self) -> dict[str, float]:
        """Latest metrics by name.

        Those of a loss that is not computed in every update keep their last value; of one whose weight has become 0, on
        resume or by a schedule, there are none.
        """
        self._forget_dropped()
        metrics: dict[str, Tensor | float] = {f"loss/{name}": loss for name, loss in self._losses.items()}
        factors = self.aggregator.factors(self._losses, self._frames)
        metrics |= {f"loss_weight/{name}": factor for name, factor in factors.items()}
        metrics |= self._reduced() | self._statistics
        self._statistics = {}  # one update's figures, reported once
        self._measure = True  # so that the next report has some, even if no update falls on it
        if self._grad_norm is not None:
            metrics["grad/norm"] = self._grad_norm
        if self.on_nonfinite == "skip":
            metrics["skipped_updates"] = self.skipped_updates
        return {name: float(value) for name, value in metrics.items()}

    def _reduced(self) -> dict[str, Tensor]:
        """The objective's metrics as scalars."""
        return self._summary | self.objective.summary(self._metrics)

    def _forget_dropped(self) -> None:
        """Once a loss is dropped, what it left says nothing any more; metrics are not told apart by loss here."""
        active = self.aggregator.active(self.objective.routes, self._frames)
        if not set(self._active) <= set(active):
            self._losses = {name: loss for name, loss in self._losses.items() if name in active}
            self._metrics, self._summary, self._statistics = {}, {}, {}
        self._active = active

    def state_dict(self) -> dict[str, Any]:
        """Counters, and what the next report would say."""
        return {
            "updates": self.updates,
            "skipped_updates": self.skipped_updates,
            "report": {
                "frames": self._frames,
                "active": list(self._active),
                "losses": dict(self._losses),
                "summary": self._reduced(),
                "statistics": dict(self._statistics),
                "grad_norm": self._grad_norm,
                "measure": self._measure,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.updates, self.skipped_updates = state["updates"], state["skipped_updates"]
        report = state["report"]
        self._frames, self._active = report["frames"], tuple(report["active"])
        self._losses, self._metrics, self._summary = dict(report["losses"]), {}, dict(report["summary"])
        self._statistics, self._grad_norm = dict(report["statistics"]), report["grad_norm"]
        self._measure = report["measure"]


def first_nonfinite(batch: TensorDictBase) -> str | None:
    """Name and first row of the first floating-point entry of `batch` that holds NaN or infinity."""
    for key, entry in batch.items(include_nested=True, leaves_only=True):
        if entry.is_floating_point() and not torch.isfinite(entry).all():
            row = int((~torch.isfinite(entry)).reshape(len(entry), -1).any(1).nonzero()[0])
            return f"{key if isinstance(key, str) else '/'.join(key)} in row {row}"
    return None
