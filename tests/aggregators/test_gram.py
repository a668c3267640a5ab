import pytest
import torch
from _properties import close
from torch import nn

from mhrl.aggregators.gram import parameter_gram, without_zeros


def setting():
    """Two outputs of a trunk of three parameters and one that is not used, and three rows of gradients."""
    torch.manual_seed(0)
    trunk, second = nn.Linear(3, 4).double(), nn.Linear(4, 2, bias=False).double()
    unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    x = torch.randn(5, 3, dtype=torch.float64)
    wide = trunk(x).tanh()
    return (wide, second(wide)), [*trunk.parameters(), *second.parameters(), unused], torch.randn(3, 30).double()


def jacobian(outputs, parameters, rows):
    """One pull-back a row."""
    found = []
    for row in rows:
        parts = row.split([output.numel() for output in outputs])
        cotangents = [part.view_as(output) for part, output in zip(parts, outputs, strict=True)]
        gradients = torch.autograd.grad(outputs, parameters, cotangents, retain_graph=True, allow_unused=True)
        found.append(torch.cat([g.flatten() for g in gradients if g is not None]))
    return torch.stack(found)


def test_it_is_the_gram_matrix_of_the_rows_pulled_back_one_by_one():
    outputs, parameters, rows = setting()
    right = jacobian(outputs, parameters, rows)
    close(parameter_gram(rows, outputs, parameters), right @ right.T, 1e-12)
    outputs[0].sum().backward()  # the graph is still there
    assert all(parameter.grad is None for parameter in parameters[2:])


def test_a_part_of_the_output_without_a_graph_counts_as_zero():
    outputs, parameters, rows = setting()
    right = jacobian(outputs[:1], parameters, rows[:, :20])
    found = parameter_gram(rows, (outputs[0], outputs[1].detach()), parameters)
    close(found, right @ right.T, 1e-12)


def test_each_parameters_gradients_are_reduced_first():
    outputs, parameters, rows = setting()
    shapes = []

    def reduce(gradients):
        shapes.append(tuple(gradients.shape))
        return 3 * gradients

    close(parameter_gram(rows, outputs, parameters, reduce), 9 * parameter_gram(rows, outputs, parameters))
    assert shapes == [(3, 4, 3), (3, 4), (3, 2, 4)]


def test_a_convolution_and_a_normalisation_can_be_pulled_back():
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4)).double()
    output = trunk(torch.randn(5, 2, 4, 4, dtype=torch.float64))
    rows, parameters = torch.randn(3, 20, dtype=torch.float64), [*trunk.parameters()]
    right = jacobian((output,), parameters, rows)
    close(parameter_gram(rows, (output,), parameters), right @ right.T, 1e-12)


@pytest.mark.parametrize("zeros", [(), (0,), (1, 3), (0, 1, 2, 3)])
def test_a_rule_does_not_see_rows_of_zeros(zeros):
    rows = torch.eye(4, dtype=torch.float64) + 0.1
    rows[list(zeros)] = 0
    seen = []

    def rule(gram):
        seen.append(gram)
        return gram.diagonal() + 1

    weights = without_zeros(rule, rows @ rows.T)
    live = [i for i in range(4) if i not in zeros]
    assert weights[list(zeros)].tolist() == [0.0] * len(zeros)
    if live:
        assert torch.equal(seen[0], (rows @ rows.T)[live][:, live])
        assert torch.equal(weights[live], (rows @ rows.T).diagonal()[live] + 1)
    else:
        assert seen == []


def test_of_a_single_row_the_weight_is_one():
    assert without_zeros(None, torch.diag(torch.tensor([0.0, 0.25, 0.0]))).tolist() == [0.0, 1.0, 0.0]
