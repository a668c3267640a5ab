"""Rules whose factors follow what they have seen, and the refusal of losses that such a rule cannot take.

Shapes: `L` losses, sorted by name.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from mhrl.aggregators.base import PerLoss, RowScheme
from mhrl.aggregators.loss_weighting import LossWeighting


class NegativeLossError(ValueError):
    """A loss is negative, and the rule needs losses >= 0; nothing was changed."""


class AdaptiveWeighting(LossWeighting, ABC):
    """The factor of a loss is its static weight times one that the rule finds, on its head and on the trunk.

    Args:
        weights: see `BackwardAggregator`.
        trunk_grad: see `BackwardAggregator`.
        rows: see `BackwardAggregator`.
        losses: names of all losses; those of `weights`, if it lists them.

    Attributes:
        losses: the `L` names.
        row_of: `{loss: row}` for losses that do not read the row of their own name.

    Raises:
        ValueError: if no losses are named.
    """

    row_of: Mapping[str, str]

    def __init__(
        self,
        weights: PerLoss = 1.0,
        trunk_grad: PerLoss = 1.0,
        rows: RowScheme = "objectives",
        losses: Iterable[str] = (),
    ) -> None:
        super().__init__(weights, trunk_grad, rows)
        listed = weights if isinstance(weights, Mapping) else ()
        self.losses = tuple(sorted(losses)) or tuple(sorted(listed))
        if not self.losses:
            raise ValueError(f"{self.name} has a state for each loss: their names are expected, losses=[...]")
        self.row_of = {}
        self._index = {loss: i for i, loss in enumerate(self.losses)}

    @property
    def positive(self) -> bool:
        """Whether the rule takes losses >= 0 only."""
        return True

    @abstractmethod
    def adaptive(self) -> Tensor:
        """The rule's own factor of every loss, `[L]`, detached."""

    def bind(self, row_of: Mapping[str, str], signed: Iterable[str]) -> None:
        """See `BackwardAggregator.bind`.

        Raises:
            NegativeLossError: for a loss that is known to become negative, where the rule needs others.
        """
        self.row_of = row_of
        if self.positive and (refused := self.active(signed)):
            raise NegativeLossError(self.refusal(refused[0], "is known to become negative"))

    def sets(self, loss: str) -> str:
        """See `BackwardAggregator.sets`."""
        return self.name

    def at(self, losses: Iterable[str]) -> list[int]:
        """Where `losses` are among all.

        Raises:
            ValueError: naming the first that is not.
        """
        try:
            return [self._index[name] for name in losses]
        except KeyError as error:
            raise ValueError(f"loss {error} is none of those that {self.name} was made for: {self.losses}") from None

    def weights(self, losses: TensorDictBase, static: Tensor | None = None) -> TensorDict:
        """See `BackwardAggregator.weights`."""
        own = self.adaptive()[self.at(losses.keys())].unbind()
        pairs = zip(super().weights(losses, static).items(), own, strict=True)
        return TensorDict({name: (weight * factor).to(weight) for (name, weight), factor in pairs})

    def factors(self, losses: Iterable[str], frames: int = 0) -> dict[str, float | Tensor]:
        """See `BackwardAggregator.factors`."""
        names = list(losses)
        own = self.adaptive()[self.at(names)]
        return {name: factor * self.weight(name, frames) for name, factor in zip(names, own.unbind(), strict=True)}

    def accepts(self, losses: TensorDictBase) -> Tensor:
        """See `BackwardAggregator.accepts`."""
        accepted = super().accepts(losses)
        return accepted & (torch.stack([*losses.values()]) >= 0) if self.positive else accepted

    def check(self, losses: TensorDictBase) -> None:
        """See `BackwardAggregator.check`.

        Raises:
            NegativeLossError: for a loss that is negative, where the rule needs others.
            ValueError: for an unknown loss.
        """
        self.at(losses.keys())
        if not self.positive or losses.is_empty():
            return
        lowest = torch.stack([loss.detach().double().amin() for loss in losses.values()]).tolist()
        for name, value in zip(losses.keys(), lowest, strict=True):
            if -math.inf < value < 0:  # what is not finite is the engine's to refuse
                raise NegativeLossError(self.refusal(name, f"is {value:g}"))

    def refusal(self, loss: str, what: str) -> str:
        """The sentence that refuses a loss; `what` says what is wrong with it."""
        return (
            f"loss {loss!r} {what}: {self.name} needs losses that are never negative; upgrad, gradnorm with alpha=0, "
            "and static weights (weighted_sum, schedule) take any"
        )

    def get_extra_state(self) -> dict[str, Any]:
        """Whose state it is, in which order."""
        return {loss: i for i, loss in enumerate(self.losses)}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of other losses.

        Raises:
            ValueError: naming both.
        """
        if (held := tuple(sorted(state))) != self.losses:
            raise ValueError(f"the state is that of the losses {held}, {self.name} has {self.losses}")
