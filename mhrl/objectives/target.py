"""Target networks: own storage, never trained, moved towards the online network."""

from copy import deepcopy
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def make_target(network: M) -> M:
    """A deep copy of `network` whose parameters are buffers: nothing that collects parameters can train it.

    It is in evaluation mode: its running statistics move by `SoftUpdate` alone, not by its own forward passes.
    """
    target = deepcopy(network).eval()
    buffers = {parameter: parameter.detach() for parameter in target.parameters()}  # a tied parameter stays one tensor
    for module in target.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            delattr(module, name)
            module.register_buffer(name, buffers[parameter])
    return target


@final
class SoftUpdate:
    """Moves a target towards its online network: `t <- t + tau (o - t)` (Lillicrap et al., 2016, algorithm 1).

    Running statistics (float buffers) follow the same rule as parameters, integers are copied. Buffers that are not
    part of a state dict are constants, and stay. `tau` 1 copies exactly.

    Args:
        target: from `make_target`.
        network: what it was made from.
    """

    def __init__(self, target: nn.Module, network: nn.Module) -> None:
        # Places rather than tensors: `.to()` and plain assignment put other tensors there. Names are looked up once.
        self._places: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            (ours._buffers, theirs._parameters if theirs._parameters.get(name) is not None else theirs._buffers, name)
            for ours, theirs in zip(target.modules(), network.modules(), strict=True)
            for name, buffer in ours._buffers.items()
            if buffer is not None and name not in theirs._non_persistent_buffers_set
        ]

    @torch.no_grad()
    def __call__(self, tau: float) -> None:
        """Take one step of size `tau`."""
        # By identity: a tied parameter moves once.
        pairs = {id(ours[name]): (ours[name], theirs[name]) for ours, theirs, name in self._places}
        floats: tuple[list[Tensor], list[Tensor]] = ([], [])
        for target, online in pairs.values():
            if target.is_floating_point():
                floats[0].append(target)
                floats[1].append(online)
            else:
                target.copy_(online)
        torch._foreach_lerp_(*floats, tau)
