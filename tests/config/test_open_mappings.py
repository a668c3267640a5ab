from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from mhrl.config import ConfigError, check_config, register

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


def test_e01_the_root_stays_closed():
    with pytest.raises(ConfigCompositionException):
        composed("sed=1")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("eval.evry=1", "unknown key eval.evry: did you mean every?"),
        ("wandb.projct=x", "unknown key wandb.projct: did you mean project?"),
    ],
)
def test_e01_what_is_open_is_judged_by_our_own_check(override, said):
    with pytest.raises(ConfigError) as error:
        check_config(OmegaConf.to_container(composed(override)))
    assert str(error.value).startswith(said)


def test_an_experiment_may_list_heads_and_the_command_line_may_add_fields():
    config = composed("+experiment=ddpg", "heads.actor.widths=[8]", "heads.value.lr=0.1", "heads.new.bins=3")
    assert config.heads.actor == {"kind": "deterministic", "widths": [8]}
    assert config.heads.value.lr == 0.1 and config.heads.new == {"bins": 3}
