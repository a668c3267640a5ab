import numpy as np
import pytest

from mhrl.envs import NonFiniteError, check_finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_h02_it_names_what_where_and_when(bad):
    values = np.array([[1.0, 2.0], [3.0, bad], [5.0, 6.0]])
    with pytest.raises(NonFiniteError, match=r"non-finite reward from env 1 at frames 7: .*3"):
        check_finite(values, "reward", "at frames 7")


def test_the_largest_float32_passes():
    check_finite(np.array([3.4028234e38, -3.4028234e38, 0.0]), "observation", "")
