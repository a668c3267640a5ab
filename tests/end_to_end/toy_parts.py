"""Heads and objectives of a user's own, that go wrong."""

import torch

from mhrl.heads import ActionHead
from mhrl.objectives import ValueBased


class NanHead(ActionHead):
    """NaN for whatever it reads."""

    def __init__(self, in_features, space):
        super().__init__(in_features, space)
        self.weight = torch.nn.Parameter(torch.zeros(space.shape))

    def forward(self, features):
        return self.weight.expand(*features.shape[:-1], -1) * float("nan")


class Changed(ValueBased):
    """DDPG, but for what a subclass does to the losses."""

    def losses(self, batch, active=None):
        return self.change(*super().losses(batch, active))


class NanLoss(Changed):
    """Its value loss is NaN."""

    def change(self, losses, metrics):
        losses["value"] = losses["value"] * float("nan")
        return losses, metrics


class Hungry(Changed):
    """Asks for more memory than there is."""

    def change(self, losses, metrics):
        torch.empty(2**60)
        return losses, metrics
