import sys

import pytest
import torch
from _properties import PROMISES, close, matrices
from scipy.optimize import minimize
from torchjd import aggregation

from mhrl.aggregators import CAGrad


@pytest.mark.parametrize("promise", PROMISES)
def test_it_keeps_its_promises(promise):
    promise(CAGrad)


@pytest.mark.parametrize("c", [0.0, 0.4, 2.0])
def test_it_equals_torchjd(c):
    for rows in matrices(2, 3, 8, count=2):
        close(CAGrad(c=c).combine(rows), aggregation.CAGrad(c=c)(rows), 1e-6)


def test_it_serves_the_worst_row_best_within_its_ball():
    """Against scipy, in the coordinates of the rows: maximise min_i <g_i, d> subject to |d - g_0| <= c |g_0|."""
    for rows in matrices(2, 3, columns=3, count=3):
        mean = rows.mean(0)
        radius = 0.4 * mean.norm().item()

        def worst(d, rows=rows):
            return (rows @ torch.as_tensor(d)).min().item()

        found = CAGrad(c=0.4).combine(rows)
        assert (found - mean).norm().item() <= radius * (1 + 1e-6)
        ball = {"type": "ineq", "fun": lambda d, m=mean, r=radius: r**2 - ((d[:-1] - m.numpy()) ** 2).sum()}
        rule = {"type": "ineq", "fun": lambda d, g=rows: g.numpy() @ d[:-1] - d[-1]}
        start = [*mean.tolist(), worst(mean)]
        best = minimize(lambda d: -d[-1], start, constraints=[ball, rule], method="SLSQP", options={"ftol": 1e-12})
        assert worst(found) >= -best.fun - 1e-5 * rows.norm().item()


def test_at_c_0_it_is_the_mean():
    (rows,) = matrices(3, count=1)
    close(CAGrad(c=0.0).combine(rows), rows.mean(0), 1e-9)


def test_a_negative_c_is_refused():
    with pytest.raises(ValueError, match=r"c must be non-negative"):
        CAGrad(c=-0.1)


def test_without_torchjd_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(ImportError, match=r"aggregator=cagrad needs more packages: pip install 'mhrl\[balancing\]'"):
        CAGrad()


def test_without_a_solver_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("torchjd._mixins.find_spec", lambda name: None if name == "cvxpy" else object())
    with pytest.raises(ImportError, match=r"pip install 'mhrl\[balancing\]' \(.*cvxpy"):
        CAGrad()
