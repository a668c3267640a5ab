"""What all probe envs share: gymnasium's own checks, and a place where all are found."""

import warnings

import pytest
from gymnasium.utils.env_checker import check_env

from mhrl.envs import probe


@pytest.mark.parametrize("name", ["Bandit", "Conflict", "ConstObs", "Counter", "Gearbox", "Platform"])
def test_gymnasiums_checks_pass(name):
    arguments = {"ConstObs": (3, "truncated"), "Counter": (3,)}.get(name, ())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(getattr(probe, name)(*arguments))
    said = {str(warning.message) for warning in caught}
    # Action boxes in units of their own, and envs built without an id: both are meant.
    assert not {text for text in said if "symmetric and normalized" not in text and "not having a spec" not in text}


def test_all_are_listed():
    assert {*probe.__all__} == {"Bandit", "Conflict", "ConstObs", "Counter", "Gearbox", "Platform"}
