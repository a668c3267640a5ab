import pytest
import torch

from mhrl.functional import inner_products


@pytest.mark.parametrize("count", [1, 3, 12, 13, 17, 24, 25, 64])
@pytest.mark.parametrize("length", [5, 4096, 5000, 3 * 4096])
def test_inner_products_are_those_of_every_two_rows(count, length):
    rows = torch.randn(count, length, dtype=torch.float64)
    found = inner_products(rows)
    right = (rows[:, None] * rows).sum(-1)
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-10)


def test_rows_need_not_lie_in_one_piece():
    rows = torch.randn(4096, 17, dtype=torch.float64).T
    torch.testing.assert_close(inner_products(rows), rows @ rows.T, rtol=1e-12, atol=1e-10)


def test_infinity_and_nan_stay_where_they_are():
    rows = torch.ones(17, 4096)
    rows[14, 7] = torch.nan
    found = inner_products(rows)
    assert found[14].isnan().all() and found[:, 14].isnan().all()
    assert (found.isnan().sum() == 33) and found[0, 16] == 4096
