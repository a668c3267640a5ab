"""A row of a whole agent is exactly what its losses, taken alone, do to the trunk."""

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from mhrl.aggregators import RowWeighting, UPGrad
from mhrl.objectives import ValueBased

HYBRID = Dict(throttle=Box(-1, 2, (2,)), gear=Discrete(3), lights=MultiDiscrete([2, 4]))


class Seen(RowWeighting):
    """The plain sum, which notes the rows that it was given."""

    name = "seen"
    rows_seen: torch.Tensor

    def row_weights(self, gram):
        return torch.ones(len(gram), dtype=gram.dtype)

    def cotangent(self, rows, names, outputs):
        self.rows_seen, self.names = rows, names
        return super().cotangent(rows, names, outputs)


def alone(network, batch, loss, **options):
    """The gradient of one loss at the features, by autograd, on its own graph and without any row."""
    objective = ValueBased(network, Seen(), **options)
    features = network.trunk_features(network.observe(batch)).detach().requires_grad_()
    network.trunk_features = lambda observation: features
    try:
        losses, _ = objective.losses(batch, [loss])
    finally:
        del network.trunk_features
    return torch.autograd.grad(losses[loss], features)[0].flatten()


@pytest.mark.parametrize("rows", ["objectives", "losses"])
@pytest.mark.parametrize("dueling", ["none", "mean", "max"])
@pytest.mark.parametrize("twin", [False, True])
def test_each_row_is_the_gradient_of_its_losses(make_agent, make_batch, rows, dueling, twin):
    network = make_agent(HYBRID, double=True, dueling=dueling, twin=twin)
    batch = make_batch(network, 5)
    aggregator = Seen(rows=rows)
    objective = ValueBased(network, aggregator)
    losses, _ = objective.losses(batch)
    aggregator.backward(losses)
    assert aggregator.names == (
        ("actor", "gear", "lights_0", "lights_1")
        if rows == "objectives"
        else ("throttle", "gear", "lights_0", "lights_1")
    )
    for name, row in zip(aggregator.names, aggregator.rows_seen, strict=True):
        right = sum(alone(network, batch, loss) for loss in objective.routes if objective.row_of[loss] == name)
        torch.testing.assert_close(row, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean_q", "summed"])
def test_a_joint_value_is_one_row(make_agent, make_batch, reduction):
    network = make_agent(MultiDiscrete([2, 3]), double=True, dueling="mean")
    aggregator = Seen()
    objective = ValueBased(network, aggregator, loss_reduction=reduction)
    batch = make_batch(network, 5)
    aggregator.backward(objective.losses(batch)[0])
    assert aggregator.names == ("value",)
    right = alone(network, batch, "value", loss_reduction=reduction)
    torch.testing.assert_close(aggregator.rows_seen[0], right, rtol=0, atol=1e-12)


def test_what_upgrad_promises_holds_in_an_agent(make_agent, make_batch):
    network = make_agent(HYBRID, double=True, dueling="mean")
    batch = make_batch(network, 7)
    for level in ("features", "params"):
        aggregator = UPGrad(level=level, shared=network.trunk.parameters())
        objective = ValueBased(network, aggregator)
        with aggregator.recording() as record:
            losses, _ = objective.losses(batch)
        aliases = [part for parts in record.aliases for part in parts]
        found = torch.autograd.grad(sum(losses.values()), aliases, retain_graph=True)
        rows = torch.stack([row.flatten() for row in found])
        gram = aggregator.gram(rows, record.outputs)
        dots = gram @ aggregator.weigh(gram)
        assert (dots >= -1e-9 * gram.diagonal().max()).all()
        assert (gram < 0).any()  # there was something to do
