"""Each row's gradient, for whoever wants to see it apart from an update.

Shapes: `K` rows, `N` numbers in all outputs of the trunk together.
"""

import torch
from tensordict import TensorDictBase
from torch import Tensor


class Record:
    """What `fan_out` handed out, for whoever wants to see each row's gradient: see `BackwardAggregator.recording`.

    Attributes:
        names: of the rows that reach the trunk, in order.
        factors: their `trunk_grad`.
        outputs: the trunk's.
        aliases: for each row the aliases of the outputs.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.factors: tuple[float, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self.aliases: tuple[tuple[Tensor, ...], ...] = ()


def row_gradients(record: Record, losses: TensorDictBase, weights: TensorDictBase) -> tuple[Tensor, tuple[str, ...]]:
    """The rows' gradients as the trunk receives them, `[K, N]`, and the names of the `K` rows that a loss reads.

    Args:
        record: of `BackwardAggregator.recording`, around the forward pass.
        losses: that pass's scalars, by name; the graph of their heads is freed.
        weights: the factor of each.
    """
    aliases = [alias for parts in record.aliases for alias in parts]
    if not aliases:
        return torch.zeros(0), ()
    leaves = list(losses.keys())
    gradients = torch.autograd.grad(
        [losses[name] for name in leaves], aliases, [weights[name] for name in leaves], allow_unused=True
    )
    width = len(record.outputs)
    rows, names = [], []
    for i, (name, factor) in enumerate(zip(record.names, record.factors, strict=True)):
        parts = gradients[i * width : (i + 1) * width]
        if any(part is not None for part in parts):
            filled = (
                torch.zeros_like(output) if part is None else part
                for part, output in zip(parts, record.outputs, strict=True)
            )
            rows.append(factor * torch.cat([part.flatten() for part in filled]))
            names.append(name)
    return (torch.stack(rows) if rows else torch.zeros(0)), tuple(names)
