"""Heads and objectives of a user's own, that go wrong."""

import torch

from mhrl.heads import ActionHead
from mhrl.objectives import Objective
from mhrl.objectives.ddpg import DDPG


class NanHead(ActionHead):
    """NaN for whatever it reads."""

    def __init__(self, in_features, space):
        super().__init__(in_features, space)
        self.weight = torch.nn.Parameter(torch.zeros(space.shape))

    def forward(self, features):
        return self.weight.expand(*features.shape[:-1], -1) * float("nan")


class Changed(Objective):
    """DDPG, but for what a subclass does to the losses."""

    def __init__(self, network, aggregator, gamma, tau, target_every, policy_delay, loss_function, n_steps):
        super().__init__(aggregator)
        self.inner = DDPG(network, aggregator)
        self.network, self.target = self.inner.network, self.inner.target
        self.routes, self.row_of = self.inner.routes, self.inner.row_of

    def due(self, updates):
        return self.inner.due(updates)

    def losses(self, batch, active=None):
        return self.change(*self.inner.losses(batch, active))

    def summary(self, metrics):
        return self.inner.summary(metrics)

    def update_target(self, updates):
        self.inner.update_target(updates)


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
