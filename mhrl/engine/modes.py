"""Training and evaluation mode of a network, where they differ at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from torch import nn

from mhrl.layers import ACTIVATIONS

INDIFFERENT = (
    *(nn.Linear, nn.Conv2d, nn.LayerNorm, nn.Flatten, nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict),
    *ACTIVATIONS.values(),
)
"""Modules of torch that do the same in both modes."""


@final
class Modes:
    """A network lives in evaluation mode, as it acts; its losses are computed in training mode.

    Args:
        network: switched where it has a module that may tell the modes apart: one that is neither mhrl's own nor
            `INDIFFERENT`. To switch each module takes 4 % of a small update.
    """

    def __init__(self, network: nn.Module) -> None:
        kinds = {type(module) for module in network.modules()}
        plain = (kind in INDIFFERENT or kind.__module__.startswith("mhrl.") for kind in kinds)
        self._switched = None if all(plain) else network

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode within."""
        if self._switched is not None:
            self._switched.train()
        yield
        if self._switched is not None:
            self._switched.eval()
