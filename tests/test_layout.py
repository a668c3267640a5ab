import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from mhrl.envs import action_leaves
from mhrl.envs.masks import MaskReader
from mhrl.layout import HeadSpec, Layout


def test_values_of_discrete_leaves_are_counted_from_their_start():
    leaves = action_leaves(Dict({"a": Discrete(3, start=-1), "b": MultiDiscrete([3, 2], start=[5, -1])}))
    specs = {
        "a": HeadSpec("a", (0,), values=3),
        "b_0": HeadSpec("b", (0,), values=3),
        "b_1": HeadSpec("b", (1,), values=2),
    }
    layout = Layout(leaves, specs)
    index = torch.tensor([[0, 2, 1], [2, 0, 0]])
    written = layout.write(torch.zeros(2, 0), index)
    assert written["action", "a"].tolist() == [-1, 1]
    assert written["action", "b"].tolist() == [[7, 0], [5, -1]]
    batch = TensorDict({"action": {"a": written["action", "a"], "b": written["action", "b"]}}, [2])
    action, back = layout.stored(batch)
    assert action.shape == (2, 0) and back.tolist() == index.tolist()
    assert layout.sizes == (3, 3, 2) and layout.branches == ("a", "b_0", "b_1") and layout.rounded == (True,) * 3
    assert layout.valid.tolist() == [[True] * 3, [True] * 3, [True, True, False]]


def test_a_large_start_is_exact():
    (leaf,) = action_leaves(Discrete(3, start=2**40 + 1))
    layout = Layout((leaf,), {"action": HeadSpec("action", (0,), values=3)})
    written = layout.write(torch.zeros(3, 0), torch.tensor([[0], [1], [2]]))["action"]
    assert written.tolist() == [2**40 + 1, 2**40 + 2, 2**40 + 3]
    assert layout.stored(TensorDict({"action": written}, [3]))[1].tolist() == [[0], [1], [2]]


def test_a_dimension_that_is_cut_has_evenly_spaced_values_and_the_nearest_one_counts():
    (leaf,) = action_leaves(Box(np.float32([-1, 2]), np.float32([3, 4])))
    specs = {"x": HeadSpec("action", (0,), values=5), "y": HeadSpec("action", (1,))}
    layout = Layout((leaf,), specs)
    index = torch.arange(5).unsqueeze(-1)
    action = layout.write(torch.full((5, 1), 2.5), index)["action"]
    assert action.tolist() == [[-1.0, 2.5], [0.0, 2.5], [1.0, 2.5], [2.0, 2.5], [3.0, 2.5]]
    assert layout.rounded == (False,) and layout.owners == ("y",)
    between = layout.write(torch.full((1, 1), 2.5), torch.tensor([[1.25]]))["action"]
    assert between.tolist() == [[0.25, 2.5]]
    seen = torch.tensor([[-0.51, 2.0], [-0.49, 2.0], [2.6, 4.0]])
    proposed, found = layout.stored(TensorDict({"action": seen}, [3]))
    assert found.tolist() == [[0], [1], [4]] and proposed.tolist() == [[2.0], [2.0], [4.0]]


def test_a_zero_width_dimension_that_is_cut_is_its_constant():
    (leaf,) = action_leaves(Box(np.float32([-1, 2]), np.float32([3, 2])))
    layout = Layout((leaf,), {f"d{i}": HeadSpec("action", (i,), values=3) for i in range(2)})
    action = layout.write(torch.zeros(1, 0), torch.tensor([[2, 2]]))["action"]
    assert action.tolist() == [[3.0, 2.0]]
    assert layout.stored(TensorDict({"action": action}, [1]))[1].tolist() == [[2, 0]]


def test_heads_in_any_order_share_one_flat_order():
    leaves = action_leaves(Tuple([Box(-1, 1, (2, 2)), MultiBinary(2), Box(0, 5, ())]))
    specs = {
        "last": HeadSpec("item_2", (0,)),
        "odd": HeadSpec("item_0", (3, 1)),
        "second": HeadSpec("item_1", (1,), values=2),
        "even": HeadSpec("item_0", (0, 2)),
        "first": HeadSpec("item_1", (0,), values=2),
    }
    layout = Layout(leaves, specs)
    assert layout.proposing == ("last", "odd", "even") and layout.branches == ("first", "second")
    assert layout.owners == ("even", "odd", "even", "odd", "last") and layout.high.tolist() == [1, 1, 1, 1, 5]
    parts = {"last": torch.tensor([4.0]), "odd": torch.tensor([3.0, 1.0]), "even": torch.tensor([0.0, 2.0])}
    action = layout.assemble(parts)
    assert action.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    written = layout.write(action, torch.tensor([1, 0]))
    assert written["action", "item_0"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert written["action", "item_1"].tolist() == [1, 0] and written["action", "item_2"].item() == 4.0


def test_masks_are_laid_out_by_branch_and_never_allow_padding():
    space = Dict({"a": Discrete(2), "b": MultiDiscrete([3, 1]), "x": Box(-1, 1, (1,))})
    leaves = action_leaves(space)
    specs = {
        "b_1": HeadSpec("b", (1,), values=1),
        "b_0": HeadSpec("b", (0,), values=3),
        "a": HeadSpec("a", (0,), values=2),
        "x": HeadSpec("x", (0,), values=3),
    }
    layout = Layout(leaves, specs, MaskReader(space, leaves).leaves)
    masks = {
        ("action_mask", "a"): torch.tensor([[False, True]]),
        ("action_mask", "b"): torch.tensor([[True, False, True, True]]),
    }
    assert layout.branches == ("a", "b_0", "b_1", "x")
    assert layout.mask(masks).tolist() == [
        [[False, True, False], [True, False, True], [True, False, False], [True, True, True]]
    ]
    assert Layout(leaves, specs).mask({}) is None


@given(data=st.data(), shape=st.sampled_from([(), (1,), (3,), (2, 2)]), cut=st.sets(st.integers(0, 3)))
def test_writing_and_reading_are_inverse(data, shape, cut):
    size = int(np.prod(shape))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    low = rng.uniform(-5, 0, shape).astype(np.float32)
    (leaf,) = action_leaves(Box(low, low + rng.uniform(0.5, 9, shape).astype(np.float32)))
    specs = {f"d{i}": HeadSpec("action", (i,), values=int(rng.integers(2, 40)) if i in cut else 0) for i in range(size)}
    layout = Layout((leaf,), specs)
    action = layout.low + torch.rand(7, len(layout.owners)) * (layout.high - layout.low)
    index = (
        torch.stack([torch.randint(n, (7,)) for n in layout.sizes], -1) if layout.sizes else torch.zeros(7, 0).long()
    )
    written = layout.write(action, index)["action"]
    assert written.shape == (7, *shape)
    read = layout.stored(TensorDict({"action": written}, [7]))
    assert torch.equal(read[0], action) and torch.equal(read[1], index)


@pytest.mark.parametrize("shape", [(2,), (2, 3)])
def test_any_batch_shape(shape):
    leaves = action_leaves(Dict({"a": Discrete(3), "x": Box(-1, 1, (2,))}))
    layout = Layout(leaves, {"a": HeadSpec("a", (0,), values=3), "x": HeadSpec("x", (0, 1))})
    written = layout.write(torch.zeros(*shape, 2), torch.ones(*shape, 1, dtype=torch.int64))
    action, index = layout.stored(TensorDict({"action": {name: written["action", name] for name in "ax"}}, shape))
    assert action.shape == (*shape, 2) and index.shape == (*shape, 1) and (index == 1).all()
