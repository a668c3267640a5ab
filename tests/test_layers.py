import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from mhrl.layers import ACTIVATIONS, OutputLayer, mlp, side_by_side, stack_key, stacked
from mhrl.objectives.target import make_target


def kinds(module):
    return [type(layer) for layer in module]


def test_order_of_layers():  # the last one keeps the precision of its parameters
    assert kinds(mlp(3, [4, 5])) == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert kinds(mlp(3, [4], 2)) == [nn.Linear, nn.ReLU, OutputLayer]
    assert kinds(mlp(3, [], 2)) == [OutputLayer]
    assert kinds(mlp(3, [4], layer_norm=True)) == [nn.Linear, nn.LayerNorm, nn.ReLU]
    assert kinds(mlp(3, [4, 5], 2, layer_norm=True)) == [nn.Linear, nn.LayerNorm, nn.ReLU] * 2 + [OutputLayer]


@pytest.mark.parametrize("layer_norm", [False, True])
def test_forward_of_two_layers(layer_norm):
    torch.manual_seed(0)
    module, x = mlp(3, [4], 2, activation="elu", layer_norm=layer_norm), torch.randn(2, 5, 3)
    first, last = module[0], module[-1]
    hidden = x @ first.weight.T + first.bias
    if layer_norm:
        hidden = (hidden - hidden.mean(-1, keepdim=True)) / (hidden.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(module(x), F.elu(hidden) @ last.weight.T + last.bias)


BY_NAME = pytest.mark.parametrize(
    ("name", "right"),
    [
        ("relu", torch.relu),
        ("tanh", torch.tanh),
        ("elu", F.elu),
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("leaky_relu", F.leaky_relu),
    ],
)


@BY_NAME
def test_every_activation_by_name(name, right):
    module, x = mlp(2, [3], activation=name), torch.randn(4, 2)
    torch.testing.assert_close(module(x), right(module[0](x)))


@BY_NAME
@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradients_of_every_activation_in_autograd_and_in_func(name, right, layer_norm):
    # An activation that overwrites what another layer's gradient still needs would show here.
    module, x = (
        mlp(2, [3, 4], 1, activation=name, layer_norm=layer_norm).double(),
        torch.randn(5, 2, dtype=torch.float64),
    )

    def plain(x):
        for layer in module:
            x = right(x) if type(layer) is ACTIVATIONS[name] else layer(x)
        return x

    arguments = (x.requires_grad_(), *module.parameters())
    before = x.detach().clone()
    wanted = torch.autograd.grad(plain(x).square().sum(), arguments)
    for found, gradient in zip(torch.autograd.grad(module(x).square().sum(), arguments), wanted, strict=True):
        torch.testing.assert_close(found, gradient)
    with torch.no_grad():
        value, pull = torch.func.vjp(module, x.detach())
        torch.testing.assert_close(pull(2 * value)[0], wanted[0])
    assert torch.equal(x, before)


def test_every_activation_is_listed_above():
    assert set(ACTIVATIONS) == {"relu", "tanh", "elu", "silu", "gelu", "leaky_relu"}


@pytest.mark.parametrize(("widths", "out"), [([], None), ([4, 0], 2), ([-1], None)])
def test_widths_that_make_no_network_are_refused(widths, out):
    with pytest.raises(ValueError, match=r"must be positive"):
        mlp(3, widths, out)


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"unknown activation 'swish': choose one of relu, tanh"):
        mlp(3, [4], activation="swish")


def make_bodies(outputs, widths=(), *, inputs=3, **options):
    """Perceptrons in float64 of unequal outputs, their norms' parameters away from ones and zeros."""
    bodies = nn.ModuleList(mlp(inputs, widths, size, **options) for size in outputs).double()
    for parameter in bodies.parameters():
        nn.init.normal_(parameter)
    return bodies


def together(bodies, inputs):
    """`stacked`, with one input for all or a list of one for each."""
    if isinstance(inputs, torch.Tensor):
        return stacked(bodies, inputs)
    return stacked(bodies, torch.stack(inputs), apart=True)


def one_by_one(bodies, inputs):
    """The oracle: each perceptron's own forward pass, zeros behind it."""
    inputs = [inputs] * len(bodies) if isinstance(inputs, torch.Tensor) else inputs
    values = [body(x) for body, x in zip(bodies, inputs, strict=True)]
    size = max(value.shape[-1] for value in values)
    return torch.stack([torch.cat([v, v.new_zeros(*v.shape[:-1], size - v.shape[-1])], -1) for v in values], -2)


def make_inputs(*shape, count=None):
    x = torch.randn(*(() if count is None else (count,)), *shape, dtype=torch.float64)
    return x.requires_grad_() if count is None else [part.clone().requires_grad_() for part in x]


def assert_close(found, right):
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


def assert_same_gradients(found, right, arguments):
    """Of one random linear function of both."""
    cotangent = torch.randn_like(right)
    for ours, theirs in zip(
        torch.autograd.grad(found, arguments, cotangent),
        torch.autograd.grad(right, arguments, cotangent),
        strict=True,
    ):
        assert_close(ours, theirs)


@given(
    outputs=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    widths=st.lists(st.integers(1, 5), max_size=2),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    layer_norm=st.booleans(),
    shared=st.booleans(),
    batch=st.lists(st.integers(0, 3), max_size=2),
    seed=st.integers(0, 1000),
)
def test_stacked_is_a_loop_in_value_and_gradient(outputs, widths, activation, layer_norm, shared, batch, seed):
    torch.manual_seed(seed)
    bodies = make_bodies(outputs, widths, activation=activation, layer_norm=layer_norm)
    inputs = make_inputs(*batch, 3) if shared else make_inputs(*batch, 3, count=len(outputs))
    before = [x.detach().clone() for x in ([inputs] if shared else inputs)]
    found, right = together(bodies, inputs), one_by_one(bodies, inputs)
    assert found.shape == (*batch, len(outputs), max(outputs))
    assert_close(found, right)
    arguments = [*bodies.parameters(), *([inputs] if shared else inputs)]
    assert_same_gradients(found, right, arguments)
    assert all(map(torch.equal, [inputs] if shared else inputs, before))


SHARED = pytest.mark.parametrize("shared", [True, False])
WIDTHS = pytest.mark.parametrize("widths", [[], [4]])


@SHARED
@WIDTHS
def test_padding_is_exactly_zero_and_passes_no_gradient(widths, shared):
    bodies = make_bodies([1, 3, 2], widths, layer_norm=True)
    inputs = make_inputs(5, 3) if shared else make_inputs(5, 3, count=3)
    values = together(bodies, inputs)
    padding = torch.tensor([[False, True, True], [False, False, False], [False, False, True]])
    assert (values[:, padding] == 0).all()
    arguments = [*bodies.parameters(), *([inputs] if shared else inputs)]
    for gradient in torch.autograd.grad(values[:, padding].square().sum() + values[:, padding].sum(), arguments):
        assert (gradient == 0).all()


@SHARED
@WIDTHS
@pytest.mark.parametrize("reduce", ["max", "mean", "softmax", "logsumexp"])
def test_padding_does_not_leak_through_a_consumer_that_masks_it(reduce, widths, shared):
    sizes = [1, 3, 2]
    bodies = make_bodies(sizes, widths)
    for body in bodies:
        nn.init.constant_(body[-1].bias, -20.0)  # below the padding's zeros
    inputs = make_inputs(5, 3) if shared else make_inputs(5, 3, count=3)
    there = torch.arange(3) < torch.tensor(sizes).unsqueeze(-1)
    padded = {
        "max": lambda v: v.masked_fill(~there, -torch.inf).amax(-1),
        "mean": lambda v: v.sum(-1) / there.sum(-1),
        "softmax": lambda v: v.masked_fill(~there, -torch.inf).softmax(-1).square().sum(-1),
        "logsumexp": lambda v: v.masked_fill(~there, -torch.inf).logsumexp(-1),
    }[reduce]
    alone = {
        "max": lambda v: v.amax(-1),
        "mean": lambda v: v.mean(-1),
        "softmax": lambda v: v.softmax(-1).square().sum(-1),
        "logsumexp": lambda v: v.logsumexp(-1),
    }[reduce]
    each = [inputs] * 3 if shared else inputs
    found = padded(together(bodies, inputs))
    right = torch.stack([alone(body(x)) for body, x in zip(bodies, each, strict=True)], -1)
    assert_close(found, right)
    assert_same_gradients(found, right, [*bodies.parameters(), *([inputs] if shared else inputs)])


@SHARED
@WIDTHS
def test_stacked_twins_are_the_same_to_the_bit(widths, shared):
    (body,) = make_bodies([2], widths)
    x = make_inputs(5, 3)
    values = together([body, make_target(body), body], x if shared else [x, x, x])
    assert torch.equal(values[:, 0], values[:, 1]) and torch.equal(values[:, 0], values[:, 2])


@WIDTHS
def test_one_perceptron_gives_the_bits_of_its_forward(widths):
    body, x = mlp(3, widths, 2), torch.randn(7, 3)
    assert torch.equal(stacked([body], x), body(x).unsqueeze(-2))
    assert torch.equal(together([body], [x]), body(x).unsqueeze(-2))


@SHARED
def test_stacked_in_func(shared):
    bodies = make_bodies([1, 3, 2], [4, 5], layer_norm=True)
    parameters = {name: parameter.detach() for name, parameter in bodies.named_parameters()}
    inputs = make_inputs(5, 3) if shared else make_inputs(5, 3, count=3)
    inputs = inputs.detach() if shared else [x.detach() for x in inputs]

    def loss(parameters, inputs, run):
        return torch.func.functional_call(Runner(bodies, run), parameters, (inputs,)).square().sum()

    class Runner(nn.Module):
        def __init__(self, bodies, run):
            super().__init__()
            self.bodies, self.run = bodies, run

        def forward(self, inputs):
            return self.run(self.bodies, inputs)

    parameters = {f"bodies.{name}": parameter for name, parameter in parameters.items()}
    found, right = (torch.func.grad(loss, argnums=(0, 1))(parameters, inputs, run) for run in (together, one_by_one))
    torch.utils._pytree.tree_map(assert_close, found, right)
    with torch.no_grad():
        value, pull = torch.func.vjp(lambda inputs: together(bodies, inputs), inputs)
        right, pull_right = torch.func.vjp(lambda inputs: one_by_one(bodies, inputs), inputs)
        assert_close(value, right)
        torch.utils._pytree.tree_map(assert_close, pull(value), pull_right(value))


@SHARED
def test_stacked_targets_whose_parameters_are_buffers(shared):
    bodies = make_bodies([1, 3], [4], layer_norm=True)
    target = make_target(bodies)
    assert not list(target.parameters())
    inputs = make_inputs(5, 3) if shared else make_inputs(5, 3, count=2)
    found, right = together(target, inputs), one_by_one(bodies, inputs)
    assert_close(found, right)
    assert_same_gradients(found, right, [inputs] if shared else inputs)


def test_a_frozen_perceptron_among_others_gets_no_gradient():
    bodies, x = make_bodies([1, 3], [4]), make_inputs(5, 3)
    bodies[0].requires_grad_(False)
    stacked(bodies, x).sum().backward()
    assert all(parameter.grad is None for parameter in bodies[0].parameters())
    assert all(parameter.grad is not None for parameter in bodies[1].parameters())


@SHARED
def test_stacked_compiles_as_one_graph(shared):
    bodies = make_bodies([1, 3], [4], layer_norm=True)
    inputs = make_inputs(5, 3) if shared else make_inputs(5, 3, count=2)

    def gradient(inputs):
        return torch.func.grad(lambda inputs: together(bodies, inputs).square().sum())(inputs)

    # The graph is what matters; its translation to machine code takes 20 s.
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    torch.utils._pytree.tree_map(assert_close, compiled(inputs), gradient(inputs))


def test_stack_keys_differ_where_stacking_would_be_wrong():
    base = {"in_features": 3, "widths": [4, 5], "out_features": 2}

    def key(**changes):
        return stack_key(mlp(**{**base, **changes}))

    assert key() == key(out_features=7) == key(final_init=1e-3) and len({key(), key(out_features=7)}) == 1
    others = [{"in_features": 4}, {"widths": [4]}, {"widths": [4, 6]}, {"activation": "tanh"}, {"layer_norm": True}]
    assert len({key(), *(key(**changes) for changes in others)}) == 1 + len(others)
    assert key(widths=[]) != key(widths=[], in_features=4)
    eps = mlp(**base, layer_norm=True)
    eps[1].eps = 1e-3
    assert stack_key(eps) != key(layer_norm=True)


def test_side_by_side_leaves_the_padding_out():
    outputs = torch.tensor([[[1.0, 0.0], [2.0, 3.0]]])
    assert side_by_side(outputs, [1, 2]).tolist() == [[1.0, 2.0, 3.0]]
    assert side_by_side(outputs, [2, 2]).tolist() == [[1.0, 0.0, 2.0, 3.0]]


@WIDTHS
@pytest.mark.parametrize("batch", [(5,), (2, 3)])
def test_aliases_of_one_input_are_one_product_and_get_a_gradient_each(widths, batch):
    bodies = make_bodies([1, 3, 2], widths, layer_norm=True)
    (x,) = make_inputs(*batch, 3, count=1)
    aliases = x.detach().expand(3, *x.shape).requires_grad_()
    copies = x.detach().repeat(3, *[1] * x.dim()).requires_grad_()
    found, right = stacked(bodies, aliases, apart=True), stacked(bodies, copies, apart=True)
    assert_close(found, right)
    cotangent = torch.randn_like(right)
    ours = torch.autograd.grad(found, [*bodies.parameters(), aliases], cotangent)
    theirs = torch.autograd.grad(right, [*bodies.parameters(), copies], cotangent)
    for own, other in zip(ours, theirs, strict=True):
        assert_close(own, other)
    assert ours[-1].shape == (3, *x.shape) and not torch.equal(ours[-1][0], ours[-1][1])

    def loss(x, run):
        return run(x.expand(3, *x.shape)).square().sum()

    shared = torch.func.grad(loss)(x.detach(), lambda x: stacked(bodies, x, apart=True))
    assert_close(shared, torch.func.grad(loss)(x.detach(), lambda x: stacked(bodies, x + 0.0, apart=True)))
