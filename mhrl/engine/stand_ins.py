"""Calls a function while other tensors stand in for a module's."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def with_stand_ins(module: nn.Module, tensors: Mapping[str, Tensor], function: Callable[[], Any]) -> Any:  # noqa: ANN401
    """`function()`, with `tensors` as the parameters and buffers of `module` that have these names."""
    return functional_call(_Shell(module), {f"module.{name}": tensor for name, tensor in tensors.items()}, (function,))


class _Shell(nn.Module):
    """`functional_call` wants a module to call."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        return function()
