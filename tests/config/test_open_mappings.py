from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

from mhrl.config import register

CONFIGS = Path(__file__).parents[2] / "configs"


def composed(*overrides):
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def test_heads_losses_and_env_kwargs_take_new_keys_without_a_plus():
    config = composed("heads.arm.lr=0.5", "losses.arm.weight=2", "env.kwargs.gravity=1.0")
    assert config.heads.arm.lr == 0.5 and config.losses.arm.weight == 2 and config.env.kwargs.gravity == 1.0


def test_they_are_empty_at_first_and_not_shared_between_runs():
    composed("heads.arm.lr=0.5")
    config = composed()
    assert config.heads == {} and config.losses == {} and config.env.kwargs == {}


@pytest.mark.parametrize("override", ["sed=1", "eval.evry=1", "replay.capacty=5"])
def test_e01_everything_else_stays_closed(override):
    with pytest.raises(ConfigCompositionException):
        composed(override)


def test_an_experiment_may_list_heads_and_the_command_line_may_add_fields():
    config = composed("+experiment=ddpg", "heads.actor.widths=[8]", "heads.value.lr=0.1", "heads.new.bins=3")
    assert config.heads.actor == {"kind": "deterministic", "widths": [8]}
    assert config.heads.value.lr == 0.1 and config.heads.new == {"bins": 3}
