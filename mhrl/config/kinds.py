"""Files of a config group, wherever Hydra's search path finds them; to be read while Hydra is initialised."""

from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from mhrl.config.errors import ConfigError, nearest


def head_kinds() -> dict[str, dict[str, Any]]:
    """`{kind: defaults}`: every YAML in the group `head`."""
    return {name: _composed("head", name) for name in _names("head")}


def group_choice(group: str, name: str) -> dict[str, Any]:
    """What `group=name` stands for.

    Raises:
        ConfigError: if there is no such file, with the nearest one.
    """
    if name not in (names := _names(group)):
        raise ConfigError(f"{group}={name} is no file in configs/{group}{nearest(name, names)}")
    return _composed(group, name)


def _names(group: str) -> list[str]:
    return GlobalHydra.instance().config_loader().get_group_options(group)


def _composed(group: str, name: str) -> dict[str, Any]:
    return OmegaConf.to_container(compose(f"{group}/{name}")[group], resolve=True)
