"""The engine: the only code that differentiates the losses and steps the optimizer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from tensordict import TensorDict, TensorDictBase
from torch import Tensor


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
    """One gradient step."""

    @abstractmethod
    def step(
        self, batch: TensorDictBase, active: Iterable[str], *, frames: int = 0, statistics: bool = False
    ) -> StepResult:
        """Losses, one backward, clip, one optimizer step.

        Args:
            batch: `[B]` or `[B, T]`.
            active: names of the losses to compute.
            frames: env transitions so far, for schedules.
            statistics: whether to measure the rows at the trunk, and how the step treats each module. Either way the
                step is the same, bit for bit.

        Raises:
            NonFiniteLossError: before the optimizer is touched.
        """
