import pytest
import torch

from mhrl.aggregators import Aliases, FanOut, stack_rows


def plain_sum(rows, outputs):
    return rows.sum(0), rows @ rows.T


def fan(features, factors, rule=plain_sum, probe=None):
    """The aliases of one output, row by row."""
    scale = None if set(factors) == {1.0} else torch.tensor(factors, dtype=features.dtype)
    (together,) = FanOut.apply(rule, scale, probe, len(factors), features)
    return together.unbind()


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


def test_aliases_have_the_values_and_the_memory_of_the_outputs():
    wide, narrow = features_of(2, 3, 4), features_of(2, 3)
    together = FanOut.apply(plain_sum, None, None, 5, wide, narrow)
    for aliases, output in zip(together, (wide, narrow), strict=True):
        assert aliases.shape == (5, *output.shape) and aliases.data_ptr() == output.data_ptr()
        assert all(torch.equal(alias, output) for alias in aliases)


def test_the_rule_sees_every_row_scaled_and_its_answer_is_what_the_trunk_gets():
    features, seen = features_of(2, 3), []

    def rule(rows, outputs):
        seen.append((rows, outputs))
        return torch.full_like(rows[0], 7.0), rows[:, :0]

    a, b = fan(features, [1.0, -0.5], rule)
    (a.sum() + (3 * b).sum()).backward()
    ((rows, outputs),) = seen
    assert rows.tolist() == [[1.0] * 6, [-1.5] * 6]
    assert torch.equal(outputs[0], features)
    assert features.grad.tolist() == [[7.0] * 3] * 2


def test_two_outputs_are_one_row_each_and_an_output_that_a_row_leaves_out_is_zero():
    wide, narrow, seen = features_of(2, 2), features_of(3), []

    def rule(rows, outputs):
        seen.append(rows)
        return torch.arange(7.0, dtype=torch.float64), rows

    scale = torch.tensor([1.0, 10.0], dtype=torch.float64)
    (a_wide, b_wide), (a_narrow, _) = FanOut.apply(rule, scale, None, 2, wide, narrow)
    (a_wide.sum() + 2 * a_narrow.sum() + 3 * b_wide.sum()).backward()
    assert seen[0].tolist() == [[1.0] * 4 + [2.0] * 3, [30.0] * 4 + [0.0] * 3]
    assert wide.grad.tolist() == [[0, 1], [2, 3]] and narrow.grad.tolist() == [4, 5, 6]


def test_a_row_that_nobody_reads_is_one_of_zeros():
    features, probe = features_of(2, 3), torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    a, _, c = fan(features, [1.0, 1.0, 1.0], probe=probe)
    (a.sum() - 2 * c.sum()).backward()
    assert features.grad.tolist() == [[-1.0] * 3] * 2
    assert probe.grad.tolist() == [[6.0, 0.0, -12.0], [0.0, 0.0, 0.0], [-12.0, 0.0, 24.0]]


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
        a, b = fan(x @ weight, [1.0, 0.5], probe=probe)
        return a.sin().sum() + b.square().sum()

    gradient, gram = torch.func.grad(loss, argnums=(0, 1))(weight, torch.zeros(2, 2, dtype=torch.float64))
    features = x @ weight
    rows = [features.cos(), 0.5 * 2 * features]
    torch.testing.assert_close(gradient, x.T @ (rows[0] + rows[1]))
    torch.testing.assert_close(gram, torch.stack([torch.stack([(r * s).sum() for s in rows]) for r in rows]))


def test_aliases_by_name_and_together():
    features = features_of(2, 3)
    (together,) = FanOut.apply(plain_sum, None, None, 2, features)
    frozen = features.detach()
    rows = Aliases(together, ["a", "c"], ["a", "b", "c"], {"b": frozen})
    assert list(rows) == ["a", "b", "c"] and len(rows) == 3 and "d" not in rows
    assert rows["b"] is frozen and rows["a"] is rows["a"] and rows["a"] is not rows["c"]
    assert rows.stack(["a", "c"]) is together
    with pytest.raises(KeyError):
        rows["d"]
    # by name and together, both reach the trunk: 1 + 10 from row a, 10 from row c, 100 from row c
    (rows["a"].sum() + 10 * rows.stack(["a", "c"]).sum() + 100 * rows.stack(["c", "b"])[0].sum()).backward()
    assert features.grad.tolist() == [[121.0] * 3] * 2
    plain = {"x": features, "y": frozen}
    assert torch.equal(stack_rows(plain, ["y", "x"]), torch.stack([frozen, features]))
    assert stack_rows(rows, ["a", "c"]) is together
