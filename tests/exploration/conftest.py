"""The places of heads without their networks."""

from types import SimpleNamespace

import pytest
import torch

from mhrl.policy import Choice


def build_places(boxes=None, branches=None):
    """What `ActionNoise` reads of a network.

    Args:
        boxes: `{head: [(low, high), ...]}`, in flat order.
        branches: `{head: n}`, or `{head: (n, rounded)}`; `rounded` is True where it is not given.
    """
    boxes, branches = boxes or {}, branches or {}
    branches = {head: value if isinstance(value, tuple) else (value, True) for head, value in branches.items()}
    bounds = torch.tensor([bound for box in boxes.values() for bound in box]).reshape(-1, 2)
    sizes = [n for n, _ in branches.values()]
    valid = [[value < n for value in range(max(sizes))] for n in sizes]
    layout = SimpleNamespace(
        owners=tuple(head for head, box in boxes.items() for _ in box),
        branches=tuple(branches),
        low=bounds[:, 0],
        high=bounds[:, 1],
        sizes=tuple(sizes),
        rounded=tuple(rounded for _, rounded in branches.values()),
        valid=torch.tensor(valid, dtype=torch.bool).reshape(len(sizes), max(sizes, default=1)),
    )
    return SimpleNamespace(acting=(*boxes, *branches), layout=layout)


def build_choice(count, action=(), index=(), mask=None):
    """The greedy choice of `count` envs: tensors with a row for each, or a list that is the same for all."""
    action = torch.as_tensor(action, dtype=None if isinstance(action, torch.Tensor) else torch.float32)
    index = torch.as_tensor(index, dtype=torch.long)
    mask = mask if mask is None else torch.as_tensor(mask).bool().expand(count, -1, -1)
    return Choice(action.expand(count, -1), index.expand(count, -1), mask)


@pytest.fixture(scope="session")
def make_places():
    return build_places


@pytest.fixture(scope="session")
def make_choice():
    return build_choice
