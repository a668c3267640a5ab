"""Open mappings: config nodes whose keys the user makes up, so that overriding them needs no `+`."""

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf


def _open() -> DictConfig:
    return OmegaConf.create({}, flags={"struct": False})


def register() -> None:
    """Store the node `open_mappings`: `heads`, `losses` and `env.kwargs` accept any key; we check them ourselves.

    `env.vectorization_mode` has its default here, so that an env YAML of a user's own need not repeat it.
    """
    node = OmegaConf.create({"heads": {}, "losses": {}, "env": {"kwargs": {}, "vectorization_mode": "sync"}})
    node.heads, node.losses, node.env.kwargs = _open(), _open(), _open()
    ConfigStore.instance().store(name="open_mappings", node=node)
