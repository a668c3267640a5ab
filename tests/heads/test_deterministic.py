import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mhrl.heads import ActionHead, DeterministicHead


def saturated(head, value):
    """Make the head's output before tanh `value` whatever it reads."""
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    nn.init.constant_(head.body[-1].bias, value)
    return head


def box(low, high, dtype=np.float32):
    return Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(("raw", "right"), [(-100.0, [-1, 0]), (0.0, [1, 0.25]), (100.0, [3, 0.5])])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a03_tanh_is_mapped_to_each_dimension_of_the_box(raw, right, dtype):
    head = saturated(DeterministicHead(3, box([-1, 0], [3, 0.5], dtype), [4]), raw)
    action = head(torch.randn(5, 3))
    assert action.dtype == torch.float32
    torch.testing.assert_close(action, torch.tensor(right, dtype=torch.float32).expand(5, 2))


def test_a03_zero_width_dimension_is_constant_and_passes_no_gradient():
    torch.manual_seed(0)
    head = DeterministicHead(3, box([-1, 2], [1, 2]), [4])
    action = head(torch.randn(6, 3))
    assert (action[:, 1] == 2.0).all()
    action[:, 1].sum().backward()
    assert all((p.grad == 0).all() for p in head.parameters())


def test_a03_huge_bounds_stay_finite():
    head = saturated(DeterministicHead(3, box([-1.6e38], [1.6e38]), [4]), 100.0)
    assert head(torch.zeros(1, 3)).item() == pytest.approx(1.6e38, rel=1e-6)


def test_output_is_tanh_of_the_layers_times_half_range_plus_center():
    torch.manual_seed(0)
    head, x = DeterministicHead(3, box([-1, 0], [3, 0.5]), [4], layer_norm=True, activation="elu"), torch.randn(2, 5, 3)
    right = torch.tanh(head.body(x)) * torch.tensor([2.0, 0.25]) + torch.tensor([1.0, 0.25])
    torch.testing.assert_close(head(x), right)
    assert [type(layer).__name__ for layer in head.body] == ["Linear", "LayerNorm", "ELU", "OutputLayer"]


def test_bounds_are_of_the_space_not_of_the_checkpoint():
    head = DeterministicHead(3, box([-1], [1]), [4])
    assert list(head.state_dict()) == ["body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias"]


@given(
    dims=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    widths=st.lists(st.integers(1, 5), max_size=2),
    layer_norm=st.booleans(),
    shared=st.booleans(),
    batch=st.lists(st.integers(1, 3), max_size=2),
    seed=st.integers(0, 1000),
)
def test_stacked_is_the_loop_of_the_base_class(dims, widths, layer_norm, shared, batch, seed):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    low = [rng.integers(-4, 4, size).astype(np.float32) for size in dims]
    boxes = [Box(bound, bound + rng.integers(0, 5, bound.shape).astype(np.float32)) for bound in low]
    heads = nn.ModuleList(DeterministicHead(3, x, widths, layer_norm=layer_norm, final_init=None) for x in boxes)
    heads.double()
    features = [torch.randn(*batch, 3, dtype=torch.float64, requires_grad=True) for _ in dims]
    features = features[:1] if shared else features
    given = features[0] if shared else torch.stack(features)
    found = DeterministicHead.stacked(heads, given, apart=not shared)
    right = ActionHead.stacked.__func__(DeterministicHead, heads, given, apart=not shared)
    assert found.shape == (*batch, sum(dims))
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    arguments, cotangent = [*heads.parameters(), *features], torch.randn_like(right)
    for ours, theirs in zip(
        torch.autograd.grad(found, arguments, cotangent),
        torch.autograd.grad(right, arguments, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("widths", [[], [4]])
def test_one_head_alone_gives_the_bits_of_its_forward(widths):
    head, features = DeterministicHead(3, box([-1, 0], [3, 0.5]), widths, final_init=None), torch.randn(7, 3)
    assert torch.equal(DeterministicHead.stacked([head], features), head(features))
    assert torch.equal(DeterministicHead.stacked([head], features[None], apart=True), head(features))


def test_stack_keys_differ_where_stacking_would_be_wrong():
    boxes = [box([-1], [1]), box([0, 0], [3, 0.5])]
    keys = [DeterministicHead(3, boxes[0], [4]).stack_key(), DeterministicHead(3, boxes[1], [4]).stack_key()]
    assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1])
    assert DeterministicHead(3, boxes[0], [5]).stack_key() != keys[0]
