import pytest
import torch

from mhrl.aggregators import FanOut


def plain_sum(rows):
    return rows.sum(0)


def fan(features, factors, combine=plain_sum, probe=None):
    return FanOut.apply(features, probe, torch.tensor(factors, dtype=features.dtype), combine, len(factors))


def features_of(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("factors", [[1.0], [1.0, 1.0], [0.25, -2.0, 3.0]])
def test_b01_gradcheck_and_scaled_sum(factors):
    # With factors 1 the gradient is that of the function; others scale it on purpose: no finite difference shows it.
    features = features_of(2, 3)
    if set(factors) == {1.0}:
        assert torch.autograd.gradcheck(lambda x: fan(x, factors), features)
    cotangents = torch.randn(len(factors), 2, 3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(fan(features, factors), features, list(cotangents))
    right = sum(factor * cotangent for factor, cotangent in zip(factors, cotangents, strict=True))
    torch.testing.assert_close(gradient, right, rtol=0, atol=1e-14)


def test_aliases_have_the_values_of_the_features():
    features = features_of(2, 3, 4)
    rows = fan(features, [1.0, 0.5])
    assert len(rows) == 2 and all(torch.equal(row, features) for row in rows)


def test_the_rule_sees_every_row_scaled_and_its_answer_is_what_the_trunk_gets():
    features, seen = features_of(2, 3), []

    def rule(rows):
        seen.append(rows)
        return torch.full_like(rows[0], 7.0)

    a, b = fan(features, [1.0, -0.5], rule)
    (a.sum() + (3 * b).sum()).backward()
    assert len(seen) == 1
    assert seen[0].tolist() == [[[1.0] * 3] * 2, [[-1.5] * 3] * 2]
    assert features.grad.tolist() == [[7.0] * 3] * 2


def test_a_row_that_nobody_reads_counts_as_zero():
    features, probe = features_of(2, 3), torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    a, _ = fan(features, [1.0, 1.0], probe=probe)
    a.sum().backward()
    assert features.grad.tolist() == [[1.0] * 3] * 2
    assert probe.grad.tolist() == [[6.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)])
def test_b01_gram_through_the_probe_equals_brute_force_inner_products(shape):
    factors = [1.0, 0.5, -2.0]
    features, probe = features_of(*shape), torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    functions = [torch.sin, lambda x: x.pow(3), lambda x: (x * x.detach().flip(-1)).exp()]
    weights = [0.3, 2.0, 1.0]
    rows = fan(features, factors, probe=probe)
    sum(w * f(row).mean() for w, f, row in zip(weights, functions, rows, strict=True)).backward()

    separate = []
    for weight, factor, function in zip(weights, factors, functions, strict=True):
        x = features.detach().clone().requires_grad_()
        function(x).mean().backward()
        separate.append(weight * factor * x.grad)
    for i in range(3):
        for j in range(3):
            assert probe.grad[i, j].item() == pytest.approx((separate[i] * separate[j]).sum().item(), abs=1e-12)
    torch.testing.assert_close(features.grad, sum(separate), rtol=0, atol=1e-12)


def test_b01_inside_func_grad_with_its_gram():
    torch.manual_seed(0)
    weight, x = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)

    def loss(weight, probe):
        a, b = FanOut.apply(x @ weight, probe, torch.tensor([1.0, 0.5], dtype=torch.float64), plain_sum, 2)
        return a.sin().sum() + b.square().sum()

    gradient, gram = torch.func.grad(loss, argnums=(0, 1))(weight, torch.zeros(2, 2, dtype=torch.float64))
    features = x @ weight
    rows = [features.cos(), 0.5 * 2 * features]
    torch.testing.assert_close(gradient, x.T @ (rows[0] + rows[1]))
    torch.testing.assert_close(gram, torch.stack([torch.stack([(r * s).sum() for s in rows]) for r in rows]))
