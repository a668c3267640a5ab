import math

import pytest
import torch

from mhrl.aggregators import row_statistics, sign_agreement


def of(rows, names, **options):
    """The statistics of rows that are added up."""
    direction = rows.sum(0)
    return row_statistics(rows @ rows.T, rows @ direction, direction.norm(), names, **options)


def test_row_statistics_by_hand():
    # rows (3, 0), (0, 4) and (-3, 0): norms 3, 4, 3; shares .3, .4, .3; cosines 0, -1, 0; their sum is (0, 4)
    statistics = of(torch.tensor([[3.0, 0.0], [0.0, 4.0], [-3.0, 0.0]]), ["a", "b", "c"])
    right = {
        "trunk/grad_norm/a": 3.0,
        "trunk/grad_norm/b": 4.0,
        "trunk/grad_norm/c": 3.0,
        "trunk/grad_share/a": 0.3,
        "trunk/grad_share/b": 0.4,
        "trunk/grad_share/c": 0.3,
        "trunk/grad_dot/a": 0.0,
        "trunk/grad_dot/b": 16.0,
        "trunk/grad_dot/c": 0.0,
        "trunk/combined_norm": 4.0,
        "trunk/conflict_fraction": 1 / 3,
        "trunk/grad_cos/a__b": 0.0,
        "trunk/grad_cos/a__c": -1.0,
        "trunk/grad_cos/b__c": 0.0,
    }
    assert {name: value.item() for name, value in statistics.items()} == pytest.approx(right)


def test_zero_rows_are_zero_not_nan():
    statistics = of(torch.zeros(2, 3), ["a", "b"], prefix="trunk/params")
    assert statistics["trunk/params/grad_cos/a__b"] == 0 and all(value.item() == 0 for value in statistics.values())


def test_one_row_has_no_pairs():
    assert {name.split("/")[1] for name in of(torch.ones(1, 3), ["a"])} == {
        "grad_norm",
        "grad_share",
        "grad_dot",
        "combined_norm",
    }


def test_of_more_than_twenty_rows_the_pairs_are_counted_and_not_listed():
    rows = torch.eye(21)
    rows[1] = torch.tensor([-1.0] + [0.0] * 20)  # in conflict with row 0, orthogonal to the others
    statistics = of(rows, [f"r{i}" for i in range(21)])
    assert statistics["trunk/conflict_fraction"].item() == pytest.approx(1 / 210)
    assert not any("grad_cos" in name for name in statistics)
    assert sum("grad_cos" in name for name in of(rows[:20], [f"r{i}" for i in range(20)])) == 190


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_they_do_not_depend_on_the_scale(scale):
    statistics = of(scale * torch.tensor([[1.0, 0.0], [1.0, 1.0]]), ["a", "b"])
    assert statistics["trunk/grad_cos/a__b"].item() == pytest.approx(1 / math.sqrt(2), rel=1e-5)
    assert statistics["trunk/grad_share/a"].item() == pytest.approx(1 / (1 + math.sqrt(2)), rel=1e-5)


def test_sign_agreement_by_hand():
    # pairs (0, 1), (0, 2), (1, 2): -, +, 0 and -, -, +: the first and the last are called alike
    a = torch.tensor([[1.0, -0.1, 0.2], [-0.1, 1.0, 0.0], [0.2, 0.0, 1.0]])
    b = torch.tensor([[1.0, -0.9, -0.2], [-0.9, 1.0, 0.5], [-0.2, 0.5, 1.0]])
    assert sign_agreement(a, b).item() == pytest.approx(2 / 3)
