"""What every objective is: named losses, and what each of them trains, as data."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from mhrl.aggregators import BackwardAggregator


class Objective(nn.Module, ABC):
    """Losses of a batch, by name.

    Args:
        aggregator: hands each loss its row of the features (`fan_out`); it differentiates them elsewhere.
    """

    network: nn.Module
    """The online network: what the optimizer trains."""

    target: nn.Module
    """The target network: never trained."""

    aggregator: BackwardAggregator

    routes: Mapping[str, tuple[str, ...]]
    """`{loss: modules}`: the network's modules whose parameters a loss trains; all others it leaves alone."""

    row_of: Mapping[str, str]
    """`{loss: row}`: through which alias of the features each loss reads the trunk."""

    signed: tuple[str, ...] = ()
    """Losses that are known to become negative: some aggregators cannot take them."""

    target_every: int = 1
    """Updates between two moves of the target network."""

    def __init__(self, aggregator: BackwardAggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def rows(self, active: Iterable[str]) -> tuple[str, ...]:
        """The rows of the active losses, in order, each once."""
        return tuple(dict.fromkeys(self.row_of[loss] for loss in active))

    @classmethod
    @abstractmethod
    def loss_names(cls, network: Any, **options: Any) -> tuple[str, ...]:  # noqa: ANN401
        """The names of the losses, known before there is an objective: what `losses` may list.

        Args:
            network: as the objective gets it.
            options: the objective's other arguments, those that are given.
        """
        raise TypeError(f"{cls.__name__} does not name its losses: a class method loss_names(network) is expected")

    @abstractmethod
    def due(self, updates: int) -> tuple[str, ...]:
        """The losses that update number `updates` (from 0) computes."""

    @abstractmethod
    def losses(self, batch: TensorDictBase, active: Iterable[str] | None = None) -> tuple[TensorDict, TensorDict]:
        """Compute the active losses (all, if None).

        Args:
            batch: `[B]` or `[B, T]`.
            active: names of losses; the others are not computed and leave no trace.

        Returns:
            Scalar losses that require grad, by name; and detached metrics, not reduced (reducing what nobody
            logs would cost).
        """

    @abstractmethod
    def summary(self, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Reduce `losses`' metrics (those that are there) to the scalars that are logged, by metric name."""

    @abstractmethod
    def update_target(self, updates: int) -> None:
        """Move the target network after update number `updates` (from 1), if this is a multiple of `target_every`."""

    def process_rollout(self, rollout: TensorDictBase) -> TensorDictBase:
        """What enters replay for a rollout `[T, N]`: the rollout itself; elsewhere perhaps fewer rows, even none."""
        return rollout

    def cut(self) -> None:
        """End every env's episode with the newest row that `process_rollout` still keeps back."""

    def process_state(self) -> dict[str, Any]:
        """What `process_rollout` carries from one rollout to the next, as plain values and tensors."""
        return {}

    def load_process_state(self, state: dict[str, Any]) -> None:
        """Restore what `process_state` returned."""
