"""The engine: the only code that differentiates the losses and steps the optimizer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from mhrl.aggregators import BackwardAggregator, row_gradients
from mhrl.engine.modes import Modes
from mhrl.engine.module_figures import ModuleFigures
from mhrl.generators import generator_states, restore_generators
from mhrl.objectives import Objective

ClipScope = Literal["global", "variable"]
Precision = Literal["fp32", "bf16"]


class NonFiniteLossError(FloatingPointError):
    """A loss, or the gradient's norm, is NaN or infinite; nothing was changed."""


@dataclass(frozen=True)
class StepResult:
    """What one step leaves for the log.

    Attributes:
        losses: detached scalars by loss.
        metrics: the objective's metrics, detached, not reduced.
        grad_norm: norm of the whole gradient before clipping.
        statistics: of the rows at the trunk and of the network's modules, where asked for.
    """

    losses: TensorDict
    metrics: TensorDict
    grad_norm: Tensor
    statistics: dict[str, Tensor] = field(default_factory=dict)


class Engine(ABC):
    """One gradient step.

    Args:
        objective: whose losses are computed.
        aggregator: combines and differentiates them.
        optimizer: one optimizer over every parameter.
        clip_norm: bound on the norm of the gradient; None leaves it alone.
        clip_scope: of what: `global`, the whole gradient; or `variable`, that of each parameter by itself.
        precision: of the matrix products of hidden layers; `bf16` by torch's autocast. Parameters, optimizer, features,
            values, actions and targets are what they are in `fp32`.

    Raises:
        ValueError: if an option is none of these.
    """

    def __init__(
        self,
        objective: Objective,
        aggregator: BackwardAggregator,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None = None,
        clip_scope: ClipScope = "global",
        precision: Precision = "fp32",
    ) -> None:
        if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
            raise ValueError(f"optimizer.clip_norm is {clip_norm}: a positive number or null is expected")
        if clip_scope not in ("global", "variable"):
            raise ValueError(f"optimizer.clip_scope is {clip_scope!r}: global or variable is expected")
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision is {precision!r}: fp32 or bf16 is expected")
        self.objective = objective
        self.aggregator = aggregator
        self.optimizer = optimizer
        self.clip_norm, self.clip_scope, self.precision = clip_norm, clip_scope, precision
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._modules = ModuleFigures(objective.network)
        self._modes = Modes(objective.network)
        self._autocast: AbstractContextManager[Any] = nullcontext()
        if precision == "bf16":
            self._autocast = torch.autocast(self.parameters[0].device.type, torch.bfloat16)

    def step(
        self,
        batch: TensorDictBase,
        active: Iterable[str],
        *,
        frames: int = 0,
        updates: int = 0,
        statistics: bool = False,
    ) -> StepResult:
        """Losses, one backward, clip, one optimizer step, and the target's where it is due.

        Args:
            batch: `[B]` or `[B, T]`.
            active: names of the losses to compute, at least one.
            frames: env transitions so far, for schedules.
            updates: the number of this update, from 1; 0 leaves the target where it is.
            statistics: whether to measure the rows at the trunk, and how the step treats each module. Either way the
                step is the same, bit for bit.

        Raises:
            NonFiniteLossError: before the optimizer is touched.
        """
        with flush_denormals():
            active = tuple(active)
            measured = self._measure(batch, active, frames) if statistics else {}
            result = self._step(batch, active, frames, updates, statistics)
        result.statistics.update(measured)
        return result

    @abstractmethod
    def _step(
        self, batch: TensorDictBase, active: tuple[str, ...], frames: int, updates: int, statistics: bool
    ) -> StepResult:
        """The step itself; with `statistics`, also the figures of modules."""

    def losses(self, batch: TensorDictBase, active: tuple[str, ...]) -> tuple[TensorDict, TensorDict]:
        """The objective's losses and metrics, in training mode and in this precision."""
        with self._modes.training(), self._autocast:
            return self.objective.losses(batch, active)

    def _measure(self, batch: TensorDictBase, active: tuple[str, ...], frames: int) -> dict[str, Tensor]:
        """Statistics of the rows, by a pass of its own.

        Rows that are told apart are computed and added up in another order than rows that are not: in one pass, what is
        logged would change the last bits of what is trained.
        """
        with self._leaving_no_trace():
            with self.aggregator.recording() as record:
                losses, _ = self.losses(batch, active)
            weights = self.aggregator.weights(losses, self._static_weights(losses.keys(), frames))
            rows, names = row_gradients(record, losses, weights)
            return self.aggregator.statistics(rows, names, record.outputs) if names else {}

    def _static_weights(self, losses: Iterable[str], frames: int) -> Tensor:
        """See `BackwardAggregator.static_weights`."""
        return self.aggregator.static_weights(losses, frames, self.parameters[0])

    @contextmanager
    def _leaving_no_trace(self) -> Iterator[None]:
        """Within, a pass may draw random numbers and move what is no parameter: afterwards all is as it was."""
        random, rule = generator_states(), deepcopy(self.aggregator.state_dict())
        buffers = {buffer: buffer.clone() for buffer in self.objective.network.buffers()}
        yield
        with torch.no_grad():
            for buffer, before in buffers.items():
                buffer.copy_(before)
        self.aggregator.load_state_dict(rule)
        restore_generators(random)

    def clip(self, parameters: Iterable[Tensor], norm: Tensor) -> None:
        """Bound the gradients of `parameters`, whose norm as a whole is `norm`."""
        if self.clip_norm is None:
            return
        if self.clip_scope == "global":
            torch.nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, norm)
        else:
            for parameter in parameters:
                torch.nn.utils.clip_grad_norm_(parameter, self.clip_norm)

    def _drop_gradients(self) -> None:
        """None, not zero: a parameter without a gradient is not stepped, nor is its optimizer state."""
        for parameter in self.parameters:
            parameter.grad = None


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Treat denormal numbers as zero on this thread.

    Adam's moments of dead units decay into them, and a CPU takes many times as long for each: on Pendulum, with
    layers of 256 ReLU units and after 1,000 updates, the fused Adam kernel took 0.83 ms without and 0.09 ms with.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def refuse(losses: TensorDictBase, norm: Tensor) -> None:
    """Raise for what is not finite.

    Raises:
        NonFiniteLossError: naming the losses, or the norm of the gradient.
    """
    bad = [f"loss {name!r} is {loss.item()}" for name, loss in losses.items() if not torch.isfinite(loss)]
    raise NonFiniteLossError("; ".join(bad) or f"the norm of the gradient is {norm.item()} while every loss is finite")
