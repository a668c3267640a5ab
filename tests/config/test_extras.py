import sys

import pytest

from mhrl.config import ConfigError, extra_for, find_target


class Missing:
    """As if torchjd were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchjd":
            raise ModuleNotFoundError("No module named 'torchjd'", name="torchjd")


@pytest.mark.parametrize(
    ("message", "extra"),
    [
        ('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`', "mujoco"),
        ("No module named 'Box2D'", "box2d"),
        ("No module named 'torchjd'", "balancing"),
        ("cannot import name 'x'", None),
    ],
)
def test_a_missing_package_names_its_extra(message, extra):
    assert extra_for(message) == ("" if extra is None else f"\nThis needs an extra: pip install 'mhrl[{extra}]'")


def test_a_target_in_a_missing_package_names_the_extra_and_a_misspelt_one_does_not(monkeypatch):
    node = {"_target_": "torchjd.aggregation.DualProjWeightin"}
    with pytest.raises(ConfigError, match=r"weighting._target_=torchjd.*cannot be imported") as misspelt:
        find_target(node, "aggregator.weighting")
    assert "extra" not in str(misspelt.value)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchjd"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(
        ConfigError, match=r"cannot be imported[^$]*This needs an extra: pip install 'mhrl\[balancing\]'"
    ):
        find_target(node, "aggregator.weighting")
