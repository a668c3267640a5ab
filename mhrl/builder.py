"""Builds the nouns of a run from a resolved config; the only place that calls `_target_`s."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from gymnasium.spaces import Box
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate

from mhrl.aggregators import BackwardAggregator
from mhrl.config import ConfigError, check_arguments, check_env
from mhrl.engine import EagerEngine, Engine
from mhrl.envs import EnvError, Leaf, make_factory
from mhrl.envs.vector import Factory
from mhrl.exploration import GaussianNoise, HeadNoise
from mhrl.heads import ActionHead, CriticHead
from mhrl.network import VALUE, HeadSpec, Network
from mhrl.normaliser import Normaliser
from mhrl.objectives import Objective
from mhrl.objectives.ddpg import ACTOR_ROW
from mhrl.replay import Replay, transition_bytes
from mhrl.resolve import HEAD_FIELDS
from mhrl.trunks import IdentityTrunk, Trunk

Config = Mapping[str, Any]

INPUT_ERRORS = (ValueError, TypeError, ImportError, gym.error.Error, HydraException)
"""What building raises where the input is at fault; anything else is a fault of the program."""


def build(node: Config, where: str, skip: Collection[str] = (), **injected: Any) -> Any:  # noqa: ANN401
    """Check and call the `_target_` of `node`.

    Args:
        node: `_target_` and its arguments.
        where: the node's key, for messages.
        skip: fields of `node` that are not arguments.
        injected: arguments that are passed beside those of `node`.

    Raises:
        ConfigError: naming the key.
    """
    node = {key: value for key, value in node.items() if key not in skip}
    node = check_arguments(node, where, injected)
    target = get_object(node["_target_"])
    arguments = instantiate({k: v for k, v in node.items() if k != "_target_"}, _convert_="all") | injected
    try:
        return target(**arguments)
    except (TypeError, ValueError, LookupError) as error:
        raise ConfigError(f"{where}: {error}") from error


def build_env_factory(env: Config) -> Factory:
    """The factory of one canonical env: `_target_` with its sibling fields and the entries of `kwargs`."""
    return make_factory(*check_env(env))


def build_trunk(config: Config, observations: Sequence[Leaf]) -> Trunk:
    """The trunk over the env's observation leaves."""
    spaces = {leaf.key: leaf.space for leaf in observations}
    trunk = build(config["trunk"], "trunk", skip=("lr",), spaces=spaces)
    if config["trunk"].get("lr") is not None and not any(True for _ in trunk.parameters()):
        raise ConfigError(f"trunk.lr is {config['trunk']['lr']}: {type(trunk).__name__} has no parameters to train")
    return trunk


def build_network(config: Config, trunk: Trunk, actions: Sequence[Leaf]) -> Network:
    """The network of a resolved config: the trunk, and its heads at their places."""
    (leaf,) = actions
    low, high = leaf.box.low.reshape(-1), leaf.box.high.reshape(-1)
    sizes = {"features": trunk.out_features, "observation": IdentityTrunk(trunk.spaces).out_features}
    heads, specs = {}, {}
    for name, head in config["heads"].items():
        dims = slice(None) if name == VALUE else head["dims"]
        space = Box(low[dims], high[dims], dtype=leaf.box.low.dtype)
        in_features = sum(sizes[key] for key in head["in_keys"])
        heads[name] = build(head, f"heads.{name}", skip=HEAD_FIELDS, in_features=in_features, space=space)
        expected = CriticHead if name == VALUE else ActionHead
        if not isinstance(heads[name], expected):
            raise ConfigError(f"heads.{name}: {head['_target_']} is no {expected.__name__}")
        specs[name] = HeadSpec(head["leaf"] or "", tuple(head["dims"] or ()), tuple(head["in_keys"]))
    return Network(trunk, heads, specs, actions)


def build_aggregator(config: Config) -> BackwardAggregator:
    """The aggregator with the losses' static weights, and the factor of every loss and row on the trunk."""
    losses = config["losses"]
    trunk_grad = {name: loss["trunk_grad"] for name, loss in losses.items()}
    acting = {factor for name, factor in trunk_grad.items() if name != VALUE}
    if len(acting) == 1:  # then the acting losses share one row
        trunk_grad.setdefault(ACTOR_ROW, acting.pop())
    weights = {name: loss["weight"] for name, loss in losses.items()}
    return build(config["aggregator"], "aggregator", weights=weights, trunk_grad=trunk_grad)


def build_optimizer(config: Config, objective: Objective) -> torch.optim.Optimizer:
    """One optimizer over everything that the objective trains, parameters of equal settings in one group."""
    default = config["optimizer"].get("lr")
    if default is None:
        raise ConfigError("optimizer.lr is missing")
    rates = {f"head_{name}": head["lr"] for name, head in config["heads"].items()} | {
        "trunk": config["trunk"].get("lr")
    }
    groups: dict[float, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in objective.network.named_parameters():
        rate = rates.get(name.split(".")[0])
        groups.setdefault(default if rate is None else rate, []).append((name, parameter))
    params = [{"params": parameters, "lr": rate} for rate, parameters in groups.items()]
    return build(config["optimizer"], "optimizer", skip=("clip_norm",), params=params)


def build_engine(config: Config, objective: Objective, optimizer: torch.optim.Optimizer) -> Engine:
    """The engine of the config's name."""
    engines = {"eager": partial(EagerEngine, clip_norm=config["optimizer"].get("clip_norm"))}
    return engines[config["engine"]](objective, objective.aggregator, optimizer)


def build_noise(config: Config, network: Network, seed: int) -> GaussianNoise:
    """Exploration noise: each head's own settings over those of the group, unless it names another `_target_`."""
    group, heads = check_arguments(config["exploration"], "exploration"), {}
    for name in network.acting:
        own = config["heads"][name]["exploration"] or {}
        same = own.get("_target_", group.get("_target_")) == group.get("_target_")
        where = f"heads.{name}.exploration"
        heads[name] = build({**group, **own} if same else own, where)
        if not isinstance(heads[name], HeadNoise):
            raise ConfigError(f"{where}: {own.get('_target_', group['_target_'])} is no HeadNoise")
    return GaussianNoise(network, heads, seed, config["num_envs"])


def build_normaliser(config: Config, observations: Sequence[Leaf]) -> Normaliser:
    """The normaliser of the env's observation leaves."""
    return build(config["normaliser"], "normaliser", observations=observations, num_envs=config["num_envs"])


def build_replay(config: Config, seed: int, observations: Sequence[Leaf], actions: Sequence[Leaf]) -> Replay:
    """The replay buffer, refused before it allocates anything if its rows would not fit.

    Raises:
        ConfigError: that, or if `learning_starts` would let an update find nothing stored.
    """
    n_steps, num_envs = config["objective"].get("n_steps", 1), config["num_envs"]
    learning_starts = config["learning_starts"]
    if n_steps > 1 and learning_starts < n_steps * num_envs:
        raise ConfigError(
            f"learning_starts is {learning_starts}: with objective.n_steps={n_steps} rows enter replay late, so that "
            f"at least n_steps * num_envs = {n_steps * num_envs} are expected"
        )
    row_bytes = transition_bytes(observations, actions, n_steps)
    sizes = {"batch_size": config["batch_size"], "num_envs": num_envs, "row_bytes": row_bytes}
    return build(config["replay"], "replay", **sizes, seed=seed)


def explain_memory(error: Exception, config: Config) -> str:
    """A failed allocation as the keys to lower, with the allocator's own words."""
    widths = {"trunk.widths": config["trunk"].get("widths")}
    widths |= {f"heads.{name}.widths": head.get("widths") for name, head in config["heads"].items()}
    keys = {"batch_size": config["batch_size"], **{key: value for key, value in widths.items() if value}}
    lower = ", ".join(f"{key} ({value})" for key, value in keys.items())
    return f"out of memory in an update on {config['device']}: lower {lower}. {error}"


def explain(error: Exception) -> str:
    """An error of the build phase as one sentence; a missing extra is named."""
    message = str(error)
    cause = error.__cause__ if isinstance(error, EnvError) else error
    if isinstance(cause, ImportError | gym.error.DependencyNotInstalled):
        for extra, packages in {"mujoco": ("mujoco", "imageio"), "box2d": ("box2d", "Box2D", "pygame")}.items():
            if any(package in message for package in packages):
                return f"{message}\nThis env needs an extra: pip install 'mhrl[{extra}]'"
    return message or type(error).__name__
