"""Open mappings: config nodes whose keys the user makes up, so that overriding them needs no `+`."""

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

OPEN = (
    *("heads", "losses", "trunk", "objective", "aggregator", "optimizer", "exploration", "normaliser", "replay", "env"),
    *("collector", "eval", "checkpoint", "log", "wandb"),
)


def _open() -> DictConfig:
    return OmegaConf.create({}, flags={"struct": False})


def register() -> None:
    """Store the node `open_mappings`: these mappings accept any key, without `+`; we check them ourselves.

    `heads`, `losses` and `env.kwargs` hold names of the user's. The fields of a group depend on its choice, which on
    resume only the checkpoint knows: `resume=<run> trunk.lr=1e-4`.

    `env.vectorization_mode`, `env.step_timeout` and `env.action_mask` have their defaults here, so that an env YAML of
    a user's own need not repeat them.
    """
    node = OmegaConf.create({})
    for key in OPEN:
        node[key] = _open()
    node.env.kwargs, node.env.vectorization_mode, node.env.step_timeout = _open(), "sync", 300.0
    node.env.action_mask = "auto"
    ConfigStore.instance().store(name="open_mappings", node=node)
