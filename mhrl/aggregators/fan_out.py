"""FanOut: one alias of the trunk's outputs per row, one cotangent back to the trunk.

Shapes: `*` batch, `F` features, `K` rows, `N` numbers in all outputs of the trunk together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

Rule = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]
"""`(rows [K, N], the trunk's outputs) -> (cotangent [N], the probe's gradient, for instance the Gram matrix)`."""


class FanOut(torch.autograd.Function):
    """Hand out `K` aliases of each of the trunk's outputs and combine their gradients in one place.

    Autograd calls `backward` once, after every row's gradient is complete. There all rows are seen together: each is
    scaled by its `trunk_grad` (`[K]`, or None where all are 1, which saves a copy of the rows), the rule combines them
    into the one cotangent that the trunk receives, and what is to be known about them (their Gram matrix, or what else
    the rule returns) leaves as the gradient of `probe`: an attribute written in backward would break compilation. A row
    that no loss reads is one of zeros. The aliases of an output are one tensor, so that heads on it can be computed
    together and their gradients arrive together: nothing is copied. Written with `setup_context`, so that `torch.func`
    transforms take it.
    """

    @staticmethod
    def forward(
        rule: Rule, trunk_grad: Tensor | None, probe: Tensor | None, count: int, *outputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Return each output `[*]` as `[K, *]`, a view."""
        return tuple(output.expand(count, *output.shape) for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
        """Keep what `backward` needs."""
        ctx.rule, trunk_grad, probe, ctx.count, *outputs = inputs
        ctx.scaled, ctx.with_probe = trunk_grad is not None, probe is not None
        ctx.save_for_backward(*(() if trunk_grad is None else (trunk_grad,)), *outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Combine the rows' gradients `[K, *]` into one of each output, and give the probe its gradient."""
        outputs = ctx.saved_tensors[ctx.scaled :]
        parts = [gradient.reshape(ctx.count, -1) for gradient in gradients]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if ctx.scaled:
            rows = rows * ctx.saved_tensors[0][:, None]
        cotangent, gram = ctx.rule(rows, outputs)
        pieces = cotangent.split([output.numel() for output in outputs])
        combined = (piece.view_as(output) for piece, output in zip(pieces, outputs, strict=True))
        return None, None, gram if ctx.with_probe else None, None, *combined


@final
class Aliases(Mapping[str, Tensor]):
    """`{row: alias}` of one output of the trunk, and the aliases as one tensor.

    Args:
        together: `[K, *, F]`, of `FanOut`.
        names: of these `K` rows.
        order: of all rows.
        others: the aliases of those that are not among `names`.
    """

    def __init__(
        self, together: Tensor, names: Sequence[str], order: Sequence[str], others: Mapping[str, Tensor]
    ) -> None:
        self._together, self._names, self._order = together, tuple(names), tuple(order)
        self._apart = dict(others)

    def __getitem__(self, row: str) -> Tensor:
        if row not in self._apart and row in self._names:  # unbound once, by whoever is the first to ask
            self._apart |= zip(self._names, self._together.unbind(), strict=True)
        return self._apart[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def stack(self, rows: Sequence[str]) -> Tensor:
        """The aliases of `rows`, `[len(rows), *, F]`: without a copy, where these are all that get a gradient."""
        if tuple(rows) == self._names:
            return self._together
        return torch.stack([self[row] for row in rows])


def stack_rows(aliases: Mapping[str, Tensor], rows: Sequence[str]) -> Tensor:
    """The aliases of `rows` as one tensor `[len(rows), *, F]`."""
    if isinstance(aliases, Aliases):
        return aliases.stack(rows)
    return torch.stack([aliases[row] for row in rows])
