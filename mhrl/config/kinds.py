"""Head kinds: every YAML in the group `head`, wherever Hydra's search path finds it."""

from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf


def head_kinds() -> dict[str, dict[str, Any]]:
    """`{kind: defaults}`; to be called while Hydra is initialised."""
    names = GlobalHydra.instance().config_loader().get_group_options("head")
    return {name: OmegaConf.to_container(compose(f"head/{name}").head, resolve=True) for name in names}
