import numpy as np
import pytest

from mhrl.envs import NonFiniteError, check_finite, finite_rows


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_h02_it_names_what_where_and_when(bad):
    values = np.array([[1.0, 2.0], [3.0, bad], [5.0, 6.0]])
    with pytest.raises(NonFiniteError, match=r"non-finite reward from env 1 at frames 7: .*3"):
        check_finite(values, "reward", "at frames 7")


def test_h02_an_action_is_for_an_env():
    with pytest.raises(NonFiniteError, match="non-finite action for env 0, 2 in an evaluation") as error:
        check_finite(np.array([np.nan, 1.0, np.inf]), "action", "in an evaluation", "for")
    assert error.value.envs == (0, 2)


def test_h02_finite_rows():
    values = np.array([[[1.0], [np.nan]], [[1.0], [2.0]], [[-np.inf], [1e39]]])
    assert finite_rows(values).tolist() == [False, True, False]
    assert finite_rows(np.array([-128, 127], np.int8)).tolist() == [True, True]


def test_the_largest_float32_passes():
    check_finite(np.array([3.4028234e38, -3.4028234e38, 0.0]), "observation", "")
