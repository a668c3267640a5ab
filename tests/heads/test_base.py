"""Heads as a user writes them: `forward` and nothing else."""

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from mhrl.heads import ActionHead, CriticHead


class Scaled(ActionHead):
    def forward(self, features):
        return self.center + features[..., :1]


class Ramp(CriticHead):
    def __init__(self, in_features, space, outputs):
        super().__init__(in_features, space)
        self.ramp = nn.Parameter(torch.arange(1.0, outputs + 1))

    def forward(self, features, action):
        return (features.sum(-1, keepdim=True) + action.sum(-1, keepdim=True)) * self.ramp


def box(low, high):
    return Box(np.array(low, np.float32), np.array(high, np.float32))


FEATURES = torch.tensor([[0.25, 1.0], [0.5, 2.0]])
ACTION = torch.tensor([[1.0], [-1.0]])


def test_actions_stand_side_by_side():
    heads = [Scaled(2, box([-1], [3])), Scaled(2, box([0, 10], [4, 20]))]
    assert Scaled.stacked(heads, FEATURES).tolist() == [[1.25, 2.25, 15.25], [1.5, 2.5, 15.5]]
    distinct = Scaled.stacked(heads, torch.stack([FEATURES, 2 * FEATURES]), apart=True)
    assert distinct.tolist() == [[1.25, 2.5, 15.5], [1.5, 3.0, 16.0]]


def test_values_are_padded_with_zeros_that_pass_no_gradient():
    heads = [Ramp(2, box([-1], [1]), 3), Ramp(2, box([-1], [1]), 1)]
    values = Ramp.stacked(heads, FEATURES, ACTION)
    assert values.tolist() == [[[2.25, 4.5, 6.75], [2.25, 0.0, 0.0]], [[1.5, 3.0, 4.5], [1.5, 0.0, 0.0]]]
    values.sum().backward()
    assert heads[0].ramp.grad.tolist() == [3.75, 3.75, 3.75] and heads[1].ramp.grad.tolist() == [3.75]
    distinct = Ramp.stacked(heads, torch.stack([FEATURES, 2 * FEATURES]), ACTION, apart=True)
    assert distinct[:, 1].tolist() == [[3.5, 0.0, 0.0], [4.0, 0.0, 0.0]]


def test_one_head_alone_gives_the_bits_of_its_forward():
    actor, critic = Scaled(2, box([-1], [3])), Ramp(2, box([-1], [1]), 3)
    assert torch.equal(Scaled.stacked([actor], FEATURES), actor(FEATURES))
    assert torch.equal(Ramp.stacked([critic], FEATURES, ACTION), critic(FEATURES, ACTION).unsqueeze(-2))


def test_each_is_alone_unless_its_class_says_otherwise():
    heads = [Scaled(2, box([-1], [3])) for _ in range(2)]
    assert heads[0].stack_key() != heads[1].stack_key() and heads[0].stack_key() == heads[0].stack_key()
