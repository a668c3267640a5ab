"""Rules that act on the rows: a factor on each loss's gradient into the trunk, chosen from their inner products.

Shapes: `K` rows, `N` numbers in all outputs of the trunk together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mhrl.aggregators.base import BackwardAggregator, PerLoss, RowScheme
from mhrl.aggregators.gram import parameter_gram
from mhrl.aggregators.kept_weights import KeptWeights
from mhrl.aggregators.opaque import weigh
from mhrl.aggregators.statistics import row_statistics, sign_agreement
from mhrl.functional import inner_products

Level = Literal["features", "params"]


class RowWeighting(BackwardAggregator, ABC):
    """The trunk receives `d = sum_i w_i g_i` of the rows g_i, with w by their inner products; heads get their own loss.

    At level `features` the Gram matrix is that of the gradients at the trunk's output, which the one backward has
    anyway. At level `params` it is that of the gradients of the shared parameters, exact, by pulling all rows back
    through the trunk, one by one; methods that were published for several tasks are defined there. The two are not
    the same: <J'a, J'b> is not <a, b>. Either way the weights are applied to the rows at the features, and what the
    parameters receive is J' (sum_i w_i g_i).

    A rule sees the Gram matrix divided by its trace, in float64 and on the CPU (it is small, and not every device has
    float64): the direction's length is proportional to the gradients'. Of a single row the weight is 1, whatever the
    rule. A row of zeros takes no part: the others get the weights that they have without it.

    Args:
        weights: see `BackwardAggregator`; the rows are those of the weighted losses.
        trunk_grad: see `BackwardAggregator`; the rows are multiplied by it before the rule sees them.
        rows: see `BackwardAggregator`.
        level: `features` or `params`.
        refresh: backward passes in which a set of weights is used, counted for each set of rows that are not zero.
        shared: the trunk's parameters, for level `params`.

    Attributes:
        reduce: applied to sums over a batch before the rule sees them, for several processes that hold parts of one
            batch and have the same rows: to the Gram matrix at the features, and at level `params` to the rows'
            gradients of each parameter, `[K, *]`. Identity.

    Raises:
        ValueError: if an argument is not what it should be, or level `params` has no shared parameters.
    """

    balances = True
    reduce: Callable[[Tensor], Tensor]

    def __init__(
        self,
        weights: PerLoss = 1.0,
        trunk_grad: PerLoss = 1.0,
        rows: RowScheme = "objectives",
        level: Level = "features",
        refresh: int = 1,
        shared: Iterable[nn.Parameter] | None = None,
    ) -> None:
        super().__init__(weights, trunk_grad, rows)
        if level not in ("features", "params"):
            raise ValueError(f"level is {level!r}: features or params is expected")
        if refresh < 1:
            raise ValueError(f"refresh is {refresh}: a positive whole number is expected")
        # A plain list: they are the trunk's parameters, not this module's.
        self._shared: list[Tensor] = [
            parameter for parameter in (() if shared is None else shared) if parameter.requires_grad
        ]
        if level == "params" and not self._shared:
            raise ValueError("level params needs parameters that the losses share: shared=trunk.parameters()")
        self.level: Level = level
        self.refresh = refresh
        self.reduce = _identity
        self._kept = KeptWeights(refresh)

    @property
    def label(self) -> str:
        """The rule's name and level: `upgrad@features`."""
        return f"{super().label}@{self.level}"

    @property
    def untraceable(self) -> str:
        """See `BackwardAggregator.untraceable`."""
        return f"refresh is {self.refresh}: most passes need no new weights" if self.refresh > 1 else ""

    @abstractmethod
    def row_weights(self, gram: Tensor) -> Tensor:
        """The rule.

        Args:
            gram: `[K, K]`, float64, positive semi-definite, of trace 1; K is at least 2. A row of zeros is that of a
                loss whose gradient is zero.

        Returns:
            The weights `[K]`, finite.
        """

    @torch.no_grad()
    def weigh(self, gram: Tensor, names: Sequence[str] = ()) -> Tensor:
        """The weights `[K]` for any Gram matrix `[K, K]`; NaN where it is not finite.

        Args:
            gram: inner products of the rows.
            names: theirs.
        """
        if len(gram) == 1:
            return torch.ones_like(gram[0])
        exact = gram.to("cpu", torch.float64)
        exact = (exact + exact.T) / 2  # a product is symmetric only up to rounding
        sound, trace = torch.isfinite(exact).all(), exact.diagonal().sum()
        anything = torch.eye(len(exact), dtype=exact.dtype) / len(exact)  # where no weights are right, or all are
        weights = self.row_weights(torch.where(sound & (trace > 0), exact / trace, anything))
        return torch.where(sound, weights, torch.nan).to(gram)

    def combine(self, rows: Tensor) -> Tensor:
        """`[K, N]` to `[N]`, by the Gram matrix of `rows` themselves."""
        return self.weigh(inner_products(rows)) @ rows

    def probe(self, rows: Sequence[str], like: Tensor) -> Tensor | None:
        """There is one where weights are kept for later."""
        if self.refresh == 1:
            return None
        return torch.zeros(2, len(rows), dtype=like.dtype, device=like.device, requires_grad=True)

    def cotangent(self, rows: Tensor, names: tuple[str, ...], outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The rows times their weights; and, where weights are kept, what `observe` has to know about them."""
        parts = self._parts(rows)
        weights = self._recalled(names, parts)
        if weights is None:
            weights = rows.new_ones(1) if len(rows) == 1 else weigh(self, self.gram(rows, outputs), names)
        weights = weights.to(rows)
        noted = rows.new_zeros(0) if parts is None else torch.stack([weights * parts, (parts > 0).to(weights)])
        return weights @ rows, noted

    def statistics(self, rows: Tensor, names: tuple[str, ...], outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """See `BackwardAggregator`; with the weight of every row, at level `params` the statistics there, too.

        These are `trunk/grad_weight/<row>`; and `trunk/params/...` beside `trunk/sign_agreement`, the fraction of pairs
        of rows that are in conflict at both levels or at neither.
        """
        gram = self.reduce(inner_products(rows))
        level = gram if self.level == "features" else self.gram(rows, outputs)
        kept = self._recalled(names, self._parts(rows))
        weights = self.weigh(level, names) if kept is None else kept.to(rows)
        found = _weighed(gram, weights, names, "trunk")
        found |= {f"trunk/grad_weight/{name}": weights[i] for i, name in enumerate(names)}
        if self.level == "params":
            found |= _weighed(level, weights, names, "trunk/params")
            if len(names) > 1:
                found["trunk/sign_agreement"] = sign_agreement(gram, level)
        return found

    @contextmanager
    def standing_in(self, tensors: Mapping[Tensor, Tensor]) -> Iterator[None]:
        """See `BackwardAggregator.standing_in`."""
        own, self._shared = self._shared, [tensors.get(parameter, parameter) for parameter in self._shared]
        try:
            yield
        finally:
            self._shared = own

    def gram(self, rows: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """The rows' inner products `[K, K]` at the level of the rule.

        Args:
            rows: `[K, N]`.
            outputs: the trunk's outputs, with their graph.
        """
        if self.level == "features":
            return self.reduce(inner_products(rows))
        return parameter_gram(rows, outputs, self._shared, self.reduce)

    def _parts(self, rows: Tensor) -> Tensor | None:
        """Each row's norm over that of all together `[K]`, at the features; None where no weights are kept.

        Kept is a weight times this part: the weight of a row that was tiny is huge, and wrong once the row has grown.
        """
        if self.refresh == 1:
            return None
        squares = self.reduce(torch.linalg.vector_norm(rows, dim=1).square())
        return (squares / squares.sum().clamp(min=torch.finfo(rows.dtype).tiny)).sqrt()

    def _recalled(self, names: Sequence[str], parts: Tensor | None) -> Tensor | None:
        """The weights `[K]` that are kept for these rows, if there are any."""
        if parts is None or (kept := self._kept.recall(names, parts > 0)) is None:
            return None
        return torch.where(parts > 0, kept.to(parts) / parts, 0.0)

    def observe(self, losses: Any, rows: tuple[str, ...], gram: Tensor | None) -> None:  # noqa: ANN401
        """Keep the weights that were used, if weights are kept.

        Args:
            losses: see `BackwardAggregator`.
            rows: names of the rows.
            gram: `[2, K]`, not the Gram matrix, but what `cotangent` noted: what to keep, and which rows are not zero.
        """
        if gram is not None:
            weights, live = gram
            self._kept.keep(rows, weights, live > 0)

    def get_extra_state(self) -> dict[str, Any]:
        """The weights that are kept, and the level at which they were found."""
        return {"kept": self._kept.state_dict(), "level": self.level}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_extra_state` returned; weights of another level are not taken over."""
        self._kept.load_state_dict(state["kept"] if state["level"] == self.level else {})


def _weighed(gram: Tensor, weights: Tensor, names: Sequence[str], prefix: str) -> dict[str, Tensor]:
    """The statistics of rows and their weighted sum, whose inner products follow from the Gram matrix."""
    dots = gram @ weights
    return row_statistics(gram, dots, (weights @ dots).clamp(min=0).sqrt(), names, prefix)


def _identity(tensor: Tensor) -> Tensor:
    return tensor
