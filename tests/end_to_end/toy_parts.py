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


class NanLoss(Objective):
    """DDPG whose value loss is NaN."""

    def __init__(self, network, aggregator, gamma, tau, target_every, policy_delay, loss_function, n_steps):
        super().__init__(aggregator)
        self.inner = DDPG(network, aggregator)
        self.network, self.target = self.inner.network, self.inner.target
        self.routes, self.row_of = self.inner.routes, self.inner.row_of

    def due(self, updates):
        return self.inner.due(updates)

    def losses(self, batch, active=None):
        losses, metrics = self.inner.losses(batch, active)
        losses["value"] = losses["value"] * float("nan")
        return losses, metrics

    def summary(self, metrics):
        return self.inner.summary(metrics)

    def update_target(self, updates):
        self.inner.update_target(updates)
