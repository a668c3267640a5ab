import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mhrl.config.arguments import check_arguments
from mhrl.config.errors import ConfigError
from mhrl.heads import CriticHead, QHead

NO_ACTION = Box(np.zeros(0, np.float32), np.zeros(0, np.float32))
BOX = Box(np.array([-1.0, 0.0]), np.array([3.0, 0.5]), dtype=np.float64)


def test_a03_it_reads_the_action_in_half_ranges():
    torch.manual_seed(0)
    head, features, seen = QHead(3, BOX, 1, [4]), torch.randn(3, 3), []
    head.body.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    value = head(features, torch.tensor([[-1.0, 0.0], [1.0, 0.25], [3.0, 0.5]], dtype=torch.float64))
    assert value.shape == (3, 1) and value.dtype == torch.float32
    assert torch.equal(seen[0][:, :3], features)
    torch.testing.assert_close(seen[0][:, 3:], torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]))


def test_gradient_is_per_env_unit():
    torch.manual_seed(0)
    head = QHead(3, BOX, 1, [4], activation="tanh").double()
    features = torch.randn(3, dtype=torch.float64)
    action = torch.tensor([0.5, 0.1], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(head(features, action).squeeze(), action)
    for dim in range(2):
        step = torch.zeros(2, dtype=torch.float64).index_fill_(0, torch.tensor(dim), 1e-6)
        with torch.no_grad():
            slope = (head(features, action + step) - head(features, action - step)) / 2e-6
        torch.testing.assert_close(gradient[dim], slope.squeeze(), rtol=1e-6, atol=1e-8)


def test_a03_zero_width_dimension_of_the_action_is_harmless():
    torch.manual_seed(0)
    head = QHead(3, Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32)), 1, [4])
    action = torch.tensor([[0.3, 2.0]], requires_grad=True)
    value = head(torch.randn(1, 3), action)
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(action.grad).all()


def test_time_is_one_more_leading_dimension():
    head, features, action = QHead(3, BOX, 1, [4]), torch.randn(2, 5, 3), torch.rand(2, 5, 2)
    value = head(features, action)
    assert value.shape == (2, 5, 1)
    torch.testing.assert_close(value[1, 3], head(features[1, 3], action[1, 3]))


def test_an_output_for_each_value_of_a_branch():
    torch.manual_seed(0)
    head, features, action = QHead(3, BOX, 5, []), torch.randn(4, 3), torch.rand(4, 2)
    unit = (action - torch.tensor([1.0, 0.25])) / torch.tensor([2.0, 0.25])
    right = torch.cat([features, unit], -1) @ head.body[0].weight.T + head.body[0].bias
    torch.testing.assert_close(head(features, action), right)
    assert head(features, action).shape == (4, 5)


def test_without_a_continuous_action_it_reads_the_features_alone():
    head, features = QHead(3, NO_ACTION, 5, [4]), torch.randn(4, 3)
    assert torch.equal(head(features, torch.zeros(4, 0)), head.body(features))
    assert [p.shape for p in head.parameters()] == [(4, 3), (4,), (5, 4), (5,)]


def make_heads(outputs, box, widths=(4,), **options):
    heads = nn.ModuleList(QHead(3, box, size, widths, final_init=None, **options) for size in outputs)
    return heads.double()


@given(
    outputs=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    widths=st.lists(st.integers(1, 5), max_size=2),
    layer_norm=st.booleans(),
    shared=st.booleans(),
    box=st.sampled_from([BOX, NO_ACTION]),
    batch=st.lists(st.integers(1, 3), max_size=2),
    seed=st.integers(0, 1000),
)
def test_stacked_is_the_loop_of_the_base_class(outputs, widths, layer_norm, shared, box, batch, seed):
    torch.manual_seed(seed)
    heads = make_heads(outputs, box, widths, layer_norm=layer_norm)
    features = [torch.randn(*batch, 3, dtype=torch.float64, requires_grad=True) for _ in outputs]
    action = torch.rand(*batch, *box.shape, dtype=torch.float64, requires_grad=True)
    features = features[:1] if shared else features
    given = features[0] if shared else torch.stack(features)
    found = QHead.stacked(heads, given, action, apart=not shared)
    right = CriticHead.stacked.__func__(QHead, heads, given, action, apart=not shared)
    assert found.shape == (*batch, len(outputs), max(outputs))
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    arguments = [*heads.parameters(), *features, *([action] if box is BOX else [])]
    cotangent = torch.randn_like(right)
    for ours, theirs in zip(
        torch.autograd.grad(found, arguments, cotangent),
        torch.autograd.grad(right, arguments, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("box", [BOX, NO_ACTION])
def test_one_head_alone_gives_the_bits_of_its_forward(box):
    head, features, action = QHead(3, box, 5, [4]), torch.randn(7, 3), torch.rand(7, *box.shape)
    assert torch.equal(QHead.stacked([head], features, action), head(features, action).unsqueeze(-2))
    assert torch.equal(QHead.stacked([head], features[None], action, apart=True), head(features, action).unsqueeze(-2))


def test_stack_keys_differ_where_stacking_would_be_wrong():
    other = Box(np.array([-1.0, 0.0]), np.array([3.0, 0.75]), dtype=np.float64)
    heads = [QHead(3, BOX, 5, [4]), QHead(3, BOX, 1, [4]), QHead(3, BOX, 5, [5]), QHead(3, other, 5, [4])]
    keys = [head.stack_key() for head in heads]
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_a_config_is_checked_by_its_annotations():
    node = {"_target_": "mhrl.heads.QHead", "outputs": 3, "widths": [], "final_init": None}
    assert check_arguments(node, "heads.gear", ("in_features", "space")) == node
    with pytest.raises(ConfigError, match=r"heads\.gear\.outputs"):
        check_arguments({**node, "outputs": "many"}, "heads.gear", ("in_features", "space"))
