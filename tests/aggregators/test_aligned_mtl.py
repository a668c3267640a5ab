from functools import partial

import pytest
import torch
from _properties import PROMISES, it_works_inside_func_grad, matrices, the_order_of_rows_does_not_matter
from torchjd.aggregation import AlignedMTLWeighting

from mhrl.aggregators import AlignedMTL

MODES = ["min", "median", "rmse"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("promise", [*PROMISES, the_order_of_rows_does_not_matter, it_works_inside_func_grad])
def test_it_keeps_its_promises(promise, mode):
    promise(partial(AlignedMTL, scale_mode=mode))


@pytest.mark.parametrize("mode", MODES)
def test_it_equals_torchjd_with_dependent_rows_too(mode):
    for rows in [*matrices(), *matrices(3, 8, columns=2)]:
        gram = rows @ rows.T
        weights = AlignedMTLWeighting(scale_mode=mode)(gram)
        torch.testing.assert_close(AlignedMTL(scale_mode=mode).weigh(gram), weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("mode", "length"), [("min", 1.0), ("median", 2.0), ("rmse", ((1 + 4 + 16) / 3) ** 0.5)])
def test_orthogonal_rows_become_equally_long(mode, length):
    rows = torch.diag(torch.tensor([4.0, 1.0, 2.0], dtype=torch.float64))
    assert AlignedMTL(scale_mode=mode).combine(rows).tolist() == pytest.approx([length / 3] * 3)


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match=r"scale_mode is 'mean': min, median or rmse is expected"):
        AlignedMTL(scale_mode="mean")
