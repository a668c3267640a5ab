"""What rules on rows promise, in float64. Each is a function of `make`, the rule's class or what stands for it.

@pytest.mark.parametrize("promise", PROMISES)
def test_it_keeps_its_promises(promise):
    promise(UPGrad)
"""

import io
from unittest.mock import patch

import pytest
import torch
from tensordict import TensorDict
from torch import nn

LEVELS = ("features", "params")
SIZES = (2, 3, 8, 17)


def matrices(*sizes, columns=60, count=3):
    """Random rows `[K, columns]`, some of them longer than others."""
    generator = torch.Generator().manual_seed(0)
    for size in sizes or SIZES:
        for _ in range(count):
            rows = torch.randn(size, columns, generator=generator, dtype=torch.float64)
            yield rows * torch.rand(size, 1, generator=generator, dtype=torch.float64).exp()


class Model(nn.Module):
    """A trunk of two layers and a head for each loss; the losses are distances to noise, so that rows conflict."""

    def __init__(self, names="abc"):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
        self.x = torch.randn(6, 3, dtype=torch.float64)
        self.heads, self.y = nn.ModuleDict(), {}
        for name in names:
            torch.manual_seed(ord(name))
            self.heads[name] = nn.Linear(4, 2).double()
            self.y[name] = torch.randn(6, 2, dtype=torch.float64)

    def loss(self, name, features):
        return (self.heads[name](features) - self.y[name]).square().mean()

    def losses(self, aggregator, rows=None, vanish=()):
        """The losses that are active, and read `rows` (all); those in `vanish` have a gradient of zero."""
        aliases = aggregator.fan_out(self.trunk(self.x), rows or list(aggregator.active(self.heads)))
        read = aggregator.active(name for name in self.heads if name in aliases)
        return TensorDict({n: self.loss(n, aliases[n]) * (0.0 if n in vanish else 1.0) for n in read})

    def jacobian(self, level, factors):
        """The gradient of each loss at the trunk's output or parameters, times its factor: one backward a loss."""
        found = []
        for name, factor in factors.items():
            features = self.trunk(self.x)
            sources = [features] if level == "features" else [*self.trunk.parameters()]
            gradients = torch.autograd.grad(self.loss(name, features), sources)
            found.append(factor * torch.cat([gradient.flatten() for gradient in gradients]))
        return torch.stack(found)

    def gradients(self, module=None):
        """`{parameter: gradient}` of those that have one, which then are dropped."""
        module = self if module is None else module
        found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        self.zero_grad()
        return found

    def trunk_gradient(self):
        return torch.cat([gradient.flatten() for gradient in self.gradients(self.trunk).values()])


def close(a, b, tolerance=1e-11):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def build(make, model, level, **options):
    return make(level=level, shared=model.trunk.parameters(), **options)


def one_backward_and_one_pass_through_the_trunk(make):
    for level in LEVELS:
        model, passes = Model(), []
        model.trunk.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        aggregator = build(make, model, level)
        with patch("torch.autograd.backward", wraps=torch.autograd.backward) as backward:
            aggregator.backward(model.losses(aggregator))
        assert backward.call_count == len(passes) == 1


def weights_are_those_of_the_exact_gram_matrix(make):
    static, trunk_grad = {"a": 0.3, "b": 2.0, "c": 1.0}, {"a": 2.0, "b": 1.0, "c": 0.5}
    factors = {name: static[name] * trunk_grad[name] for name in static}
    for level in LEVELS:
        model = Model()
        aggregator = build(make, model, level, weights=static, trunk_grad=trunk_grad)
        rows = model.jacobian(level, factors)
        assert (rows @ rows.T).min() < 0  # or many rules would have nothing to do
        torch.manual_seed(7)
        weights = aggregator.weigh(rows @ rows.T)
        torch.manual_seed(7)
        aggregator.backward(model.losses(aggregator))
        for name, head in model.heads.items():
            (alone,) = torch.autograd.grad(model.loss(name, model.trunk(model.x)), head.weight)
            close(head.weight.grad, static[name] * alone)
        close(model.trunk_gradient(), weights @ model.jacobian("params", factors), 1e-9)


def scaled_gradients_give_a_scaled_direction(make):
    for level in LEVELS:
        model, found = Model(), []
        for factor in (1.0, 1000.0, 1e-4):
            aggregator = build(make, model, level, weights=factor)
            torch.manual_seed(7)
            aggregator.backward(model.losses(aggregator))
            found.append(model.trunk_gradient() / factor)
        close(found[1], found[0], 1e-8)
        close(found[2], found[0], 1e-8)


def a_row_of_zeros_takes_no_part(make):
    aggregator = make()
    for rows in matrices(1, 2, 3, 8):
        torch.manual_seed(7)
        without, state = aggregator.weigh(rows @ rows.T), torch.get_rng_state()
        for at in (0, len(rows) // 2, len(rows)):
            padded = torch.cat([rows[:at], torch.zeros_like(rows[:1]), rows[at:]])
            torch.manual_seed(7)
            weights = aggregator.weigh(padded @ padded.T)
            close(torch.cat([weights[:at], weights[at + 1 :]]), without, 1e-8)
            assert weights.isfinite().all() and torch.equal(torch.get_rng_state(), state)


def a_loss_that_is_not_there_leaves_no_trace(make):
    """Whether its weight is 0, nothing reads its row, or its gradient is zero."""
    for level in LEVELS:
        for refresh in (1, 3):
            right_model = Model("ac")
            right = build(make, right_model, level, refresh=refresh)
            missing = [({"b": 0.0}, {}), ({}, {"rows": list("abc")}), ({}, {"vanish": "b"})]
            for static, how in missing:
                model = Model("ac" if "rows" in how else "abc")
                aggregator = build(make, model, level, refresh=refresh, weights=static)
                for _ in range(2):
                    torch.manual_seed(7)
                    right.backward(right_model.losses(right))
                    expected, random = right_model.gradients(), torch.get_rng_state()
                    torch.manual_seed(7)
                    aggregator.backward(model.losses(aggregator, **how))
                    found = model.gradients()
                    assert torch.equal(torch.get_rng_state(), random)
                    assert ("heads.b.weight" in found) == ("vanish" in how)
                    close({name: found[name] for name in expected}, expected, 1e-9)
                right_state, state = right.get_extra_state(), aggregator.get_extra_state()
                assert state["kept"].keys() == right_state["kept"].keys() and (refresh == 1 or "a,c" in state["kept"])
                for key, kept in state["kept"].items():
                    assert kept["uses"] == right_state["kept"][key]["uses"]
                    close(kept["weights"], right_state["kept"][key]["weights"], 1e-9)
                right = build(make, right_model, level, refresh=refresh)


def a_single_row_keeps_its_gradient(make):
    for level in LEVELS:
        model = Model("a")
        aggregator = build(make, model, level, weights=0.5)
        aggregator.backward(model.losses(aggregator))
        found = model.gradients()
        (0.5 * model.loss("a", model.trunk(model.x))).backward()
        close(found, model.gradients(), 1e-14)


def without_active_losses_nothing_happens(make):
    for level in LEVELS:
        model = Model()
        aggregator = build(make, model, level, weights=0.0)
        assert aggregator.active(model.heads) == ()
        aggregator.backward(model.losses(aggregator, rows=list("abc")))
        assert model.gradients() == {} and aggregator.get_extra_state()["kept"] == {}


def several_outputs_are_one_row(make):
    """The same trunk, whose output is cut in two."""
    for level in LEVELS:
        model, gradients = Model(), []
        for cut in (False, True):
            aggregator = build(make, model, level)
            features = model.trunk(model.x)
            if cut:
                parts = {"left": features[:, :1].clone(), "right": features[:, 1:].clone()}
                aliases = aggregator.fan_out(parts, model.heads)
                rows = {name: torch.cat([own["left"], own["right"]], 1) for name, own in aliases.items()}
            else:
                rows = aggregator.fan_out(features, model.heads)
            torch.manual_seed(7)
            aggregator.backward(TensorDict({name: model.loss(name, rows[name]) for name in model.heads}))
            gradients.append(model.gradients())
        close(*gradients, 1e-10)


def nothing_shared_is_refused(make):
    with pytest.raises(ValueError, match=r"has nothing to balance: the features do not require grad"):
        make().fan_out(torch.ones(2, 3), "ab")
    with pytest.raises(ValueError, match=r"level params needs parameters that the losses share"):
        make(level="params")
    with pytest.raises(ValueError, match=r"level params needs parameters that the losses share"):
        make(level="params", shared=[nn.Parameter(torch.ones(2), requires_grad=False)])


def a_resumed_run_goes_on_bit_for_bit(make):
    """Weights are used three times; the state is taken after each of the first passes."""
    for level in LEVELS:

        def run(aggregator, model, steps):
            for step in steps:
                model.x = model.x.roll(1, 0) * (1 + 0.1 * step)
                aggregator.backward(model.losses(aggregator, vanish="b" if step == 4 else ""))
                yield model.trunk_gradient()

        model = Model()
        torch.manual_seed(7)
        whole = list(run(build(make, model, level, refresh=3), model, range(8)))
        for stop in range(1, 6):
            model = Model()
            torch.manual_seed(7)
            before = build(make, model, level, refresh=3)
            found = list(run(before, model, range(stop)))
            file = io.BytesIO()
            torch.save({"aggregator": before.state_dict(), "rng": torch.get_rng_state()}, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
            after = build(make, model, level, refresh=3)
            after.load_state_dict(state["aggregator"])
            torch.manual_seed(0)
            torch.set_rng_state(state["rng"])
            found += run(after, model, range(stop, 8))
            assert all(torch.equal(a, b) for a, b in zip(found, whole, strict=True))


def degenerate_rows_have_finite_weights(make):
    aggregator, (rows,) = make(), matrices(4, count=1)
    equal, opposite = rows.clone(), rows.clone()
    equal[1], opposite[1] = rows[0], -rows[0]
    line = torch.tensor([[1.0], [-2.0], [0.5], [3.0]], dtype=torch.float64) * rows[:1]
    short = rows * torch.tensor([[1e-8], [1.0], [1e-4], [1e4]], dtype=torch.float64)
    for case in (equal, opposite, line, short, rows[:, :2], 0 * rows, rows.float(), line.float(), rows * 1e-12):
        weights = aggregator.weigh(case @ case.T)
        assert weights.isfinite().all() and weights.dtype == case.dtype
    rows[0, 0] = torch.nan
    assert aggregator.weigh(rows @ rows.T).isnan().all()
    assert aggregator.combine(rows).isnan().all()


def statistics_name_the_weights_and_leave_no_trace(make):
    for level in LEVELS:
        model = Model()
        aggregator = build(make, model, level, refresh=3)
        features = model.trunk(model.x)
        rows = model.jacobian("features", dict.fromkeys("abc", 1.0))
        torch.manual_seed(7)
        found = aggregator.statistics(rows, ("a", "b", "c"), (features,))
        assert aggregator.get_extra_state()["kept"] == {}
        exact = model.jacobian(level, dict.fromkeys("abc", 1.0))
        torch.manual_seed(7)
        weights = aggregator.weigh(exact @ exact.T)
        direction = weights @ exact
        prefix = "trunk" if level == "features" else "trunk/params"
        for i, name in enumerate("abc"):
            close(found[f"trunk/grad_weight/{name}"], weights[i], 1e-9)
            close(found[f"{prefix}/grad_dot/{name}"], exact[i] @ direction, 1e-9)
        close(found[f"{prefix}/combined_norm"], direction.norm(), 1e-9)
        assert ("trunk/sign_agreement" in found) == (level == "params")


PROMISES = (
    one_backward_and_one_pass_through_the_trunk,
    weights_are_those_of_the_exact_gram_matrix,
    scaled_gradients_give_a_scaled_direction,
    a_row_of_zeros_takes_no_part,
    a_loss_that_is_not_there_leaves_no_trace,
    a_single_row_keeps_its_gradient,
    without_active_losses_nothing_happens,
    several_outputs_are_one_row,
    nothing_shared_is_refused,
    a_resumed_run_goes_on_bit_for_bit,
    degenerate_rows_have_finite_weights,
    statistics_name_the_weights_and_leave_no_trace,
)
"""Kept by every rule."""


def the_order_of_rows_does_not_matter(make):
    aggregator = make()
    for rows in matrices():
        order = torch.randperm(len(rows))
        close(aggregator.weigh(rows[order] @ rows[order].T), aggregator.weigh(rows @ rows.T)[order], 1e-7)


def it_works_inside_func_grad(make):
    model = Model()
    heads = [(head.weight.detach(), model.y[name]) for name, head in model.heads.items()]

    def total(weight):
        rows = aggregator.fan_out(torch.tanh(model.x @ weight), list("abc"))
        losses = [(rows[n] @ w.T - y).square().mean() for n, (w, y) in zip("abc", heads, strict=True)]
        return torch.stack(losses).sum()

    weight = torch.randn(3, 4, dtype=torch.float64)
    aggregator = make()
    torch.manual_seed(7)
    found = torch.func.grad(total)(weight)
    torch.manual_seed(7)
    total(weight.requires_grad_()).backward()
    close(found, weight.grad, 1e-13)
