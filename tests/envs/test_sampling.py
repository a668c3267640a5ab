import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from mhrl.envs import EmptyMaskError, Leaf, action_leaves, uniform_actions


def leaf_of(space, name="action"):
    (leaf,) = action_leaves(space)
    return Leaf(name, leaf.key, leaf.space)


def frequencies(values):
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), (counts / counts.sum()).tolist(), strict=True))


@pytest.mark.parametrize(
    ("space", "right"),
    [
        (Discrete(3, start=-1), [{-1, 0, 1}]),
        (Discrete(1, start=2), [{2}]),
        (MultiDiscrete([3, 2], start=[5, -1]), [{5, 6, 7}, {-1, 0}]),
        (MultiDiscrete([1, 3]), [{0}, {0, 1, 2}]),
        (MultiDiscrete([[2], [2]]), [{0, 1}, {0, 1}]),
        (Box(-128, 127, (1,), np.int8), [set(range(-128, 128))]),
    ],
)
def test_b07_every_value_and_no_other_is_drawn(space, right):
    leaf = leaf_of(space)
    drawn = uniform_actions(np.random.default_rng(0), leaf, 5_000)
    assert drawn.dtype == leaf.space.dtype and drawn.shape == (5_000, *leaf.space.shape)
    for column, values in zip(drawn.reshape(5_000, -1).T, right, strict=True):
        assert set(column.tolist()) == values
        share = 1 / len(values)
        tolerance = 5 * (share * (1 - share) / 5_000) ** 0.5  # five standard deviations
        assert all(abs(found - share) <= tolerance for found in frequencies(column).values())


def test_branches_are_drawn_independently():
    drawn = uniform_actions(np.random.default_rng(0), leaf_of(MultiDiscrete([2, 2, 3])), 20_000)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.04


def test_b06_only_what_each_env_allows_is_drawn_and_that_evenly():
    leaf = leaf_of(MultiDiscrete([2, 3], start=[5, -1]))
    mask = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 0, 1, 0, 1]], np.bool_)
    right = [({5: 1 / 2, 6: 1 / 2}, {0: 1}), ({6: 1}, {-1: 1 / 3, 0: 1 / 3, 1: 1 / 3}), ({5: 1}, {-1: 1 / 2, 1: 1 / 2})]
    rng = np.random.default_rng(0)
    drawn = np.stack([uniform_actions(rng, leaf, 3, mask) for _ in range(5_000)])
    assert drawn.dtype == np.int64
    for env, branches in enumerate(right):
        for branch, share in enumerate(branches):
            assert frequencies(drawn[:, env, branch]) == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("shape", [(), (2,), (2, 1)])
def test_b06_an_empty_mask_names_env_and_head(shape):
    leaf = leaf_of(Discrete(3) if shape == () else MultiDiscrete(np.full(shape, 3)), "gear")
    mask = np.ones((4, 3 * leaf.size), np.bool_)
    mask[2:, -3:] = False
    head = "gear" if shape == () else "gear_1"
    with pytest.raises(EmptyMaskError, match=rf"env 2: action_mask allows nothing for head '{head}'") as error:
        uniform_actions(np.random.default_rng(0), leaf, 4, mask)
    assert (error.value.env, error.value.head) == (2, head)


def test_a06_a_float_box_is_drawn_with_both_bounds():
    space = Box(np.array([0.1, 2.0]), np.array([0.3, 2.0]), dtype=np.float64)
    drawn = uniform_actions(np.random.default_rng(0), leaf_of(space), 10_000)
    assert all(space.contains(one) for one in drawn)
    assert (drawn[:, 1] == 2.0).all() and abs(drawn[:, 0].mean() - 0.2) < 0.005
    unit = np.random.default_rng(0).integers(2**53, size=(10_000, 2), endpoint=True) / 2**53
    np.testing.assert_allclose(drawn, space.low + unit * (space.high - space.low), rtol=1e-15)
