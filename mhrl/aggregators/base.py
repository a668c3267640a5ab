"""The backward aggregator: how per-head losses become one gradient.

Shapes: `*` batch, `F` features, `K` rows, `L` losses, `N` numbers in all outputs of the trunk together.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal, overload

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from mhrl.aggregators.fan_out import Aliases, FanOut
from mhrl.aggregators.recording import Record
from mhrl.aggregators.statistics import row_statistics
from mhrl.functional import inner_products

PerLoss = float | Mapping[str, float]
RowScheme = Literal["objectives", "losses"]


class BackwardAggregator(nn.Module, ABC):
    """Turn a TensorDict of named losses into gradients with one backward.

    Used in three places of an update: `active` before the forward pass, `fan_out` at the trunk's output,
    `backward` on the losses. A rule is one file: `LossWeighting` for factors on the losses, `RowWeighting` for factors
    on their gradients at the trunk, or `combine` itself for any other function of these.

    Args:
        weights: factor on a loss, on its head and on the trunk; one number for all or one per loss (default 1).
        trunk_grad: factor on a row, on the trunk only; one number for all or one per row (default 1).
        rows: whether losses whose sum is one objective share a row (`objectives`), or each has its own (`losses`). An
            objective reads it.

    Raises:
        ValueError: if a weight or `trunk_grad` is not finite, or `rows` is neither.
    """

    name: ClassVar[str] = ""
    """What the rule is called in configs and figures; its class's name, if empty."""

    balances: bool = False
    """Whether the rule needs every row's gradient, and so a trunk with parameters."""

    def __init__(self, weights: PerLoss = 1.0, trunk_grad: PerLoss = 1.0, rows: RowScheme = "objectives") -> None:
        super().__init__()
        for option, factors in (("weights", weights), ("trunk_grad", trunk_grad)):
            for name, factor in factors.items() if isinstance(factors, Mapping) else [("every loss", factors)]:
                if not math.isfinite(factor):
                    raise ValueError(f"{option} of {name} is {factor}: a finite number is expected")
        if rows not in ("objectives", "losses"):
            raise ValueError(f"rows is {rows!r}: objectives or losses is expected")
        self._weights = weights
        self._trunk_grad = trunk_grad
        self.rows: RowScheme = rows
        self._record: Record | None = None
        self._probe: Tensor | None = None
        self._fanned: tuple[str, ...] = ()
        self._handed_out = False

    @property
    def label(self) -> str:
        """The rule's name, and at which level it works where that is a question: `upgrad@features`."""
        return self.name or type(self).__name__

    def weight(self, loss: str, frames: int = 0) -> float:
        """The weight of `loss` that is known before it is computed; at 0 it is not computed."""
        return self._weights.get(loss, 1.0) if isinstance(self._weights, Mapping) else self._weights

    def trunk_grad(self, row: str) -> float:
        """The factor on `row`'s gradient on its way into the trunk."""
        return self._trunk_grad.get(row, 1.0) if isinstance(self._trunk_grad, Mapping) else self._trunk_grad

    def active(self, losses: Iterable[str], frames: int = 0) -> tuple[str, ...]:
        """Those of `losses` that are to be computed at `frames`: a loss of weight 0 is dropped, not multiplied."""
        return tuple(name for name in losses if self.weight(name, frames) != 0)

    @overload
    def fan_out(self, features: Tensor, rows: Iterable[str]) -> Mapping[str, Tensor]: ...
    @overload
    def fan_out(self, features: Mapping[str, Tensor], rows: Iterable[str]) -> Mapping[str, dict[str, Tensor]]: ...
    def fan_out(
        self, features: Tensor | Mapping[str, Tensor], rows: Iterable[str]
    ) -> Mapping[str, Tensor] | Mapping[str, dict[str, Tensor]]:
        """Give each row its alias of the features.

        Args:
            features: `[*, F]`, the trunk's output, or several by name; a row's gradient is then that w.r.t. all of
                them.
            rows: the rows' names (any iterable of names, a `ModuleDict` of heads for instance).

        Returns:
            `{row: [*, F]}`, or `{row: {output: [*, F]}}`, all views of one memory: do not modify them in place. A row
            whose `trunk_grad` is 0 reads detached features. Where nobody looks at the rows' gradients, rows of equal
            `trunk_grad` are one tensor.

        Raises:
            ValueError: if a rule balances and there is no graph under the features: nothing is shared.
        """
        names, self._handed_out = tuple(rows), True
        if isinstance(features, Tensor):
            return self._fan_out((features,), names)[0]
        fanned = self._fan_out(tuple(features.values()), names)
        return {name: {key: of[name] for key, of in zip(features, fanned, strict=True)} for name in names}

    def _fan_out(self, outputs: tuple[Tensor, ...], names: tuple[str, ...]) -> Sequence[Mapping[str, Tensor]]:
        """For each output the alias that each row reads."""
        if not any(output.requires_grad for output in outputs):
            if self.balances and torch.is_grad_enabled():
                raise ValueError(
                    f"{self.label} has nothing to balance: the features do not require grad, the losses share no "
                    "parameters"
                )
            return [dict.fromkeys(names, output) for output in outputs]
        factors = {name: self.trunk_grad(name) for name in names}
        live = tuple(name for name in names if factors[name] != 0)
        detached = [{name: output.detach() for name in names if name not in live} for output in outputs]
        if not live:
            return detached
        if self._record is not None:
            record, self._record = self._record, None
            record.names, record.factors, record.outputs = live, tuple(factors[name] for name in live), outputs
            record.aliases = tuple(tuple(output.view_as(output) for output in outputs) for _ in live)
            by_output = zip(*record.aliases, strict=True)
            return [dict(zip(live, own, strict=True)) | rest for own, rest in zip(by_output, detached, strict=True)]
        if self.balances:
            self._fanned, self._probe = live, self.probe(live, outputs[0])
            together = self._together(live, [factors[name] for name in live], outputs)
            return [Aliases(own, live, names, rest) for own, rest in zip(together, detached, strict=True)]
        # Nobody looks at the rows: those of one factor are one tensor, so that their heads can be computed together.
        distinct = list(dict.fromkeys(factors[name] for name in live))
        if distinct == [1.0]:  # the plain sum needs no FanOut
            by_factor = [{1.0: output.view_as(output)} for output in outputs]
        else:
            together = self._together([str(factor) for factor in distinct], distinct, outputs)
            by_factor = [dict(zip(distinct, own.unbind(), strict=True)) for own in together]
        return [
            {name: own[factors[name]] for name in live} | rest for own, rest in zip(by_factor, detached, strict=True)
        ]

    def _together(
        self, names: Sequence[str], factors: Sequence[float], outputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The aliases of each output, one for each name, `[K, *]`."""

        def rule(rows: Tensor, outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            return self.cotangent(rows, tuple(names), outputs)

        plain = all(factor == 1 for factor in factors)
        scale = None if plain else torch.tensor(factors, dtype=outputs[0].dtype, device=outputs[0].device)
        return FanOut.apply(rule, scale, self._probe, len(names), *outputs)

    def probe(self, rows: Sequence[str], like: Tensor) -> Tensor | None:
        """`[K, K]` zeros that require grad, on `like`'s device, if `observe` wants the Gram matrix, their gradient."""
        return None

    def cotangent(self, rows: Tensor, names: tuple[str, ...], outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What the trunk receives for `rows` `[K, N]`: `[N]`; and the Gram matrix `[K, K]`, empty if none is needed."""
        return self.combine(rows), rows.new_zeros(0)

    def statistics(self, rows: Tensor, names: tuple[str, ...], outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """What is to be said about `rows` `[K, N]` as the trunk receives them: see `row_statistics`.

        Args:
            rows: each row's gradient w.r.t. `outputs`, times its `trunk_grad`.
            names: theirs.
            outputs: the trunk's, with their graph.
        """
        direction = self.combine(rows)
        return row_statistics(inner_products(rows), rows @ direction, direction.norm(), names)

    @contextmanager
    def recording(self) -> Iterator[Record]:
        """Within, the first `fan_out` gives each row an alias of its own, and notes them; its rule is not applied."""
        self._record = record = Record()
        try:
            yield record
        finally:
            self._record = None

    def static_weights(self, losses: Iterable[str], frames: int, like: Tensor) -> Tensor:
        """The weights that are known before the losses are, `[L]`, of dtype and device of `like`."""
        return like.new_tensor([self.weight(name, frames) for name in losses])

    def weights(self, losses: TensorDictBase, static: Tensor | None = None) -> TensorDict:
        """The factor of each loss in the one backward, in the losses' shape.

        Args:
            losses: by name.
            static: their `static_weights`, `[L]`; those at 0 frames, if None.
        """
        static = self.static_weights(losses.keys(), 0, _first(losses)) if static is None else static
        pairs = zip(losses.items(), static.unbind(), strict=True)
        return TensorDict({name: weight.expand_as(loss) for (name, loss), weight in pairs})

    def adapted(self, losses: TensorDictBase) -> TensorDictBase:
        """The losses that are differentiated in place of `losses`, for rules with parameters of their own."""
        return losses

    def factors(self, losses: Iterable[str], frames: int = 0) -> dict[str, float | Tensor]:
        """The whole factor on each loss, for the log."""
        return {name: self.weight(name, frames) for name in losses}

    def bind(self, row_of: Mapping[str, str], signed: Iterable[str]) -> None:
        """Hear of the objective, before its first update.

        Args:
            row_of: `{loss: row}`.
            signed: losses that are known to become negative.

        Raises:
            ValueError: if the rule cannot take one of these.
        """

    def sets(self, loss: str) -> str:
        """Which factor the rule itself puts on `loss`, beside the static weight, in a word or two; empty if none."""
        return ""

    def backward(self, losses: TensorDictBase, frames: int = 0) -> None:
        """Differentiate all losses at once: one `torch.autograd.backward`.

        A loss of weight 0 is left out: 0 times NaN is NaN, and a gradient of zero still moves Adam.

        Args:
            losses: named scalars that require grad.
            frames: env transitions so far, for schedules.

        Raises:
            ValueError: if a loss is no scalar, or carries no gradient (it would be ignored in silence); or if a rule
                balances and `fan_out` was not called since the last backward (it would see no rows).
        """
        losses = losses.select(*self.active(losses.keys(), frames))
        self.check(losses)
        if losses.is_empty():
            self._probe, self._handed_out = None, False
            return
        rows, gram = self.differentiate(losses, self.static_weights(losses.keys(), frames, _first(losses)))
        self.observe(losses.detach(), rows, gram)

    def differentiate(self, losses: TensorDictBase, static: Tensor) -> tuple[tuple[str, ...], Tensor | None]:
        """The mathematics of `backward`: tensors in, `.grad` out.

        Args:
            losses: named scalars that require grad, at least one.
            static: their `static_weights`, `[L]`.

        Returns:
            What `observe` has to know: names of the rows, and the gradient of the `probe`, if there was one.

        Raises:
            ValueError: see `backward`.
        """
        (probe, self._probe), (handed_out, self._handed_out) = (self._probe, None), (self._handed_out, False)
        if self.balances and not handed_out:
            raise ValueError(f"{self.label} has seen no rows: let the heads read fan_out(features, rows) each time")
        for name, loss in losses.items():
            if loss.dim():
                raise ValueError(f"loss {name!r} has shape {tuple(loss.shape)}: a scalar is expected, reduce it")
            if not loss.requires_grad:
                raise ValueError(f"loss {name!r} does not require grad: nothing that it depends on can be trained")
        self.adapted(losses).backward(gradient=self.weights(losses, static))
        return self._fanned, None if probe is None else probe.grad

    @property
    def untraceable(self) -> str:
        """Why updates by this rule cannot be one traced graph; empty if they can."""
        return ""

    @contextmanager
    def standing_in(self, tensors: Mapping[Tensor, Tensor]) -> Iterator[None]:
        """Within, `tensors` stand in for the parameters that the rule was given, which are the mapping's keys."""
        yield

    def accepts(self, losses: TensorDictBase) -> Tensor:
        """Whether each loss has a value that the rule can take, bool `[L]`."""
        return torch.isfinite(torch.stack([*losses.values()]))

    def check(self, losses: TensorDictBase) -> None:
        """Refuse finite losses that the rule cannot take, by an error of its own."""

    def observe(self, losses: TensorDictBase, rows: tuple[str, ...], gram: Tensor | None) -> None:
        """Learn from one backward, for rules with a state of their own; they ignore what is not finite.

        A step that is refused later, for a gradient that is not finite while losses and Gram matrix are, has been seen.

        Args:
            losses: as they were computed, detached.
            rows: names of the rows.
            gram: `[K, K]`, if there was a `probe`.
        """

    @abstractmethod
    def combine(self, rows: Tensor) -> Tensor:
        """The rule: the rows' gradients `[K, N]` to the trunk's cotangent `[N]`; pure tensor mathematics."""


def _first(losses: TensorDictBase) -> Tensor:
    """Some loss, whose dtype and device are those of all."""
    return next(iter(losses.values()))
