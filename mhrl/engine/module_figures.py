"""How hard an update pulls at each module of a network, and how far it moves it.

Shapes: `M` modules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn


@final
class ModuleFigures:
    """Norms over the parameters of each child of a network that has some.

    Args:
        network: its children are the modules: `trunk`, `head_<name>`, `twin_<name>`.
    """

    def __init__(self, network: nn.Module) -> None:
        parameters = {name: list(module.parameters()) for name, module in network.named_children()}
        self._modules = {name: found for name, found in parameters.items() if found}

    @torch.no_grad()
    def before(self) -> Callable[[], dict[str, Tensor]]:
        """Note gradients and parameters, after the backward pass and before anything changes them.

        Returns:
            What to call after the optimizer's step, for `module/<module>/grad_norm`; `.../param_norm`, before the step;
            and `.../update_ratio`, the norm of the parameters' change over theirs (0 where theirs is 0). Left out is a
            module without a gradient: the update does not train it.
        """
        gradients = {
            name: [parameter.grad for parameter in parameters if parameter.grad is not None]
            for name, parameters in self._modules.items()
        }
        names = [name for name, found in gradients.items() if found]
        parameters = {name: self._modules[name] for name in names}
        kept = {name: [parameter.clone() for parameter in parameters[name]] for name in names}
        if not names:
            return dict
        pulls, sizes = norms({name: gradients[name] for name in names}), norms(kept)

        @torch.no_grad()
        def after() -> dict[str, Tensor]:
            changes = {
                name: [new - old for new, old in zip(parameters[name], kept[name], strict=True)] for name in names
            }
            ratios = torch.where(sizes > 0, norms(changes) / sizes, 0.0)
            figures = {"grad_norm": pulls, "param_norm": sizes, "update_ratio": ratios}
            return {
                f"module/{name}/{figure}": value
                for figure, values in figures.items()
                for name, value in zip(names, values.unbind(), strict=True)
            }

        return after


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all tensors as a whole: a scalar, 0 for none."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors))) if tensors else torch.zeros(())


def norms(tensors: Mapping[str, Sequence[Tensor]]) -> Tensor:
    """The norm of each of `M` lists of tensors as a whole, `[M]`, in few kernels however many there are."""
    each = torch.stack(torch._foreach_norm([tensor for found in tensors.values() for tensor in found]))
    owner = [i for i, found in enumerate(tensors.values()) for _ in found]
    squares = each.new_zeros(len(tensors)).index_add(0, torch.tensor(owner, device=each.device), each.square())
    return squares.sqrt()
