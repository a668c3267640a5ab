"""Snapshots as a checkpoint holds them, and the oracle for them: a second env that must do the same."""

import io

import numpy as np
import pytest
import torch

from mhrl.envs import CanonicalEnv


def change_leaves(tree, change):
    if isinstance(tree, dict):
        return {key: change_leaves(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [change_leaves(value, change) for value in tree]
    return change(tree)


def load_saved(snapshot):
    """As a checkpoint holds it: arrays as tensors, loaded by torch's safe loader."""
    file = io.BytesIO()
    torch.save(change_leaves(snapshot, lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    return change_leaves(loaded, lambda x: x.numpy() if isinstance(x, torch.Tensor) else x)


def play_twins(make, warm_up, steps, seed=0):
    """Take `warm_up` random steps, capture, restore into a new env, take `steps` more in both; return the ends."""
    rng = np.random.default_rng(seed)
    one, two = CanonicalEnv(make()), CanonicalEnv(make())
    space = one.action_space

    def action():
        if space.dtype.kind == "f":
            return rng.uniform(space.low, space.high).astype(space.dtype)
        return rng.integers(space.low, space.high, endpoint=True)

    def advance(env, act):
        observation, *rest, _ = env.step(act)
        return observation, *rest, env.reset()[0] if rest[1] or rest[2] else None

    one.reset(seed=4)
    for _ in range(warm_up):
        advance(one, action())
    two.reset(seed=99)
    for _ in range(5):
        advance(two, action())
    two.snapshot = load_saved(one.snapshot)
    assert two.inexact is None
    ends = 0
    for t in range(steps):
        act = action()
        mine, yours = advance(one, act), advance(two, act)
        for a, b in zip(mine, yours, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"step {t}", strict=isinstance(a, np.ndarray))
        ends += mine[-1] is not None
    one.close()
    two.close()
    return ends


@pytest.fixture(scope="session")
def each():
    return change_leaves


@pytest.fixture(scope="session")
def through_a_file():
    return load_saved


@pytest.fixture(scope="session")
def twins_agree():
    return play_twins
