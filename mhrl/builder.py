"""Builds the nouns of a run from a resolved config; the only place that calls `_target_`s."""

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import torch
from gymnasium.spaces import Box
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate

from mhrl.aggregators import BackwardAggregator, Curve, Schedule
from mhrl.config import (
    OBJECTIVE_FIELDS,
    OPTIMIZER_FIELDS,
    ConfigError,
    check_arguments,
    check_env,
    extra_for,
    find_target,
    signature_of,
)
from mhrl.engine import CompiledEngine, EagerEngine, Engine
from mhrl.envs import EnvError, EnvSpaces, inspect_env, make_factory
from mhrl.envs.vector import Factory
from mhrl.exploration import ActionNoise, HeadNoise
from mhrl.layout import HeadSpec, Layout
from mhrl.network import Dueling, Network
from mhrl.normaliser import Normaliser
from mhrl.objectives import Objective
from mhrl.objectives.value_based import ACTOR_ROW
from mhrl.replay import Replay, transition_bytes
from mhrl.resolve import HEAD_FIELDS, losses_named, values_of
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
    source = env.get("action_mask")
    return make_factory(*check_env(env), action_mask=None if source in ("auto", "none") else source)


def inspect(env: Config) -> tuple[dict[str, Any], EnvSpaces]:
    """The config's `env` with what was left to the env itself settled, and the env's leaves."""
    fields = ("action_mask", "vectorization_mode", "step_timeout")
    options = {name: env[name] for name in fields if name in env}
    spaces, source = inspect_env(*check_env(env), **options)
    return {**env, "action_mask": source or "none"}, spaces


def build_trunk(config: Config, spaces: EnvSpaces) -> Trunk:
    """The trunk over the env's observation leaves."""
    trunk = build(config["trunk"], "trunk", skip=("lr",), spaces={leaf.key: leaf.space for leaf in spaces.observations})
    if config["trunk"].get("lr") is not None and not any(True for _ in trunk.parameters()):
        raise ConfigError(f"trunk.lr is {config['trunk']['lr']}: {type(trunk).__name__} has no parameters to train")
    return trunk


def build_network(config: Config, trunk: Trunk, spaces: EnvSpaces) -> Network:
    """The network of a resolved config: the trunk, and its heads at their places."""
    leaves = {leaf.name: leaf for leaf in spaces.actions}
    specs = {
        name: HeadSpec(head["leaf"] or "", tuple(head["dims"] or ()), tuple(head["in_keys"]), values_of(head, leaves))
        for name, head in config["heads"].items()
    }
    layout = Layout(spaces.actions, specs)
    proposed = Box(layout.low.numpy(), layout.high.numpy(), dtype=layout.low.numpy().dtype)
    sizes = {"features": trunk.out_features, "observation": IdentityTrunk(trunk.spaces).out_features}
    heads: dict[str, torch.nn.Module] = {}
    twins: dict[str, torch.nn.Module] = {}
    twin = config["objective"].get("twin", False)
    for name, head in config["heads"].items():
        arguments: dict[str, Any] = {"in_features": sum(sizes[key] for key in head["in_keys"])}
        if name in layout.proposing:
            box, dims = leaves[head["leaf"]].box, head["dims"]
            low, high = (bound.reshape(-1)[dims] for bound in (box.low, box.high))
            arguments["space"] = Box(low, high, dtype=low.dtype)
        else:
            arguments |= {"space": proposed, "outputs": specs[name].values or 1}
        heads[name] = build(head, f"heads.{name}", skip=HEAD_FIELDS, **arguments)
        if twin and name not in layout.proposing:
            twins[name] = build(head, f"heads.{name}", skip=HEAD_FIELDS, **arguments)
    dueling: Dueling = config["objective"].get("dueling", "none") if layout.branches else "none"
    return Network(trunk, heads, specs, spaces.actions, spaces.masks, twins=twins, dueling=dueling)


def build_objective(config: Config, network: Network, aggregator: BackwardAggregator) -> Objective:
    """The objective over a network that already has what `OBJECTIVE_FIELDS` ask for.

    Raises:
        ConfigError: that, or for a loss that is known to become negative where the aggregator cannot take it.
    """
    arguments = {"network": network, "aggregator": aggregator}
    objective: Objective = build(config["objective"], "objective", skip=OBJECTIVE_FIELDS, **arguments)
    try:
        aggregator.bind(objective.row_of, objective.signed)
    except ValueError as error:
        raise ConfigError(f"aggregator: {error}") from error
    return objective


def loss_names(config: Config, network: Network) -> tuple[str, ...]:
    """The names of the losses that the objective will have."""
    node = check_arguments(config["objective"], "objective", ("network", "aggregator"), OBJECTIVE_FIELDS)
    options = {key: value for key, value in node.items() if key not in ("_target_", *OBJECTIVE_FIELDS)}
    return get_object(node["_target_"]).loss_names(network, **options)


def build_aggregator(config: Config, proposing: Collection[str], trunk: torch.nn.Module) -> BackwardAggregator:
    """The aggregator with the losses' static weights, and the factor of every loss and row on the trunk.

    Args:
        config: resolved.
        proposing: the heads whose losses share a row if their factors are one.
        trunk: what the losses share.

    Raises:
        ConfigError: if the rule balances and nothing is shared, or a schedule is that of no loss.
    """
    losses = config["losses"]
    trunk_grad = {name: loss["trunk_grad"] for name, loss in losses.items()}
    acting = {trunk_grad[name] for name in proposing if name in trunk_grad}
    if len(acting) == 1:
        trunk_grad.setdefault(ACTOR_ROW, acting.pop())
    weights = {name: loss["weight"] for name, loss in losses.items()}
    rule, shared = find_target(config["aggregator"], "aggregator"), list(trunk.parameters())
    if isinstance(rule, type) and issubclass(rule, BackwardAggregator) and rule.balances and not shared:
        raise ConfigError(
            f"aggregator={rule.name or rule.__name__} has nothing to balance: {type(trunk).__name__} has no "
            "parameters that the losses could share; trunk=mlp has"
        )
    skip = ("schedules",) if rule is Schedule else ()
    offered = {"losses": tuple(losses), "shared": shared, **({"schedules": _curves(config)} if skip else {})}
    taken = signature_of(rule).fields
    arguments = {name: value for name, value in offered.items() if name in taken}
    return build(config["aggregator"], "aggregator", skip, weights=weights, trunk_grad=trunk_grad, **arguments)


def _curves(config: Config) -> dict[str, Curve]:
    """`aggregator.schedules` by loss; what is listed under a leaf's name holds for the losses of all its heads."""
    curves: dict[str, Curve] = {}
    given = config["aggregator"].get("schedules") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"aggregator.schedules is {given!r}: a mapping of losses is expected")
    for name, losses in losses_named(given, "aggregator.schedules", config["losses"], config["heads"]):
        where, curve = f"aggregator.schedules.{name}", given[name]
        if not isinstance(curve, Mapping):
            raise ConfigError(f"{where} is {curve!r}: a mapping of kind, frames and values is expected")
        built = build({**curve, "_target_": f"{Curve.__module__}.{Curve.__qualname__}"}, where)
        curves |= dict.fromkeys(losses, built)
    return curves


def build_optimizer(config: Config, objective: Objective) -> torch.optim.Optimizer:
    """One optimizer over everything that the objective trains, parameters of equal settings in one group.

    Those of the aggregator have a group of their own, without weight decay.
    """
    default = config["optimizer"].get("lr")
    if default is None:
        raise ConfigError("optimizer.lr is missing")
    rates = {f"{kind}_{name}": head["lr"] for name, head in config["heads"].items() for kind in ("head", "twin")}
    rates["trunk"] = config["trunk"].get("lr")
    groups: dict[float, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in objective.network.named_parameters():
        rate = rates.get(name.split(".")[0])
        groups.setdefault(default if rate is None else rate, []).append((name, parameter))
    params: list[dict[str, Any]] = [{"params": parameters, "lr": rate} for rate, parameters in groups.items()]
    if own := [(f"aggregator.{name}", parameter) for name, parameter in objective.aggregator.named_parameters()]:
        rate = config["aggregator"].get("lr")
        params.append({"params": own, "lr": default if rate is None else rate, "weight_decay": 0.0})
    return build(config["optimizer"], "optimizer", skip=OPTIMIZER_FIELDS, params=params)


def build_engine(config: Config, objective: Objective, optimizer: torch.optim.Optimizer) -> Engine:
    """The engine of the config's name."""
    clip: dict[str, Any] = {name: config["optimizer"][name] for name in OPTIMIZER_FIELDS if name in config["optimizer"]}
    engines: dict[str, type[Engine]] = {"eager": EagerEngine, "compiled": CompiledEngine}
    return engines[config["engine"]](objective, objective.aggregator, optimizer, **clip, precision=config["precision"])


def build_noise(config: Config, network: Network, seed: int) -> ActionNoise:
    """Exploration noise: each head's own settings over those of the group, unless it names another `_target_`."""
    group, heads = check_arguments(config["exploration"], "exploration"), {}
    for name in network.acting:
        own = config["heads"][name]["exploration"] or {}
        same = own.get("_target_", group.get("_target_")) == group.get("_target_")
        where = f"heads.{name}.exploration"
        heads[name] = build({**group, **own} if same else own, where)
        if not isinstance(heads[name], HeadNoise):
            raise ConfigError(f"{where}: {own.get('_target_', group['_target_'])} is no HeadNoise")
    return ActionNoise(network, heads, seed, config["num_envs"])


def build_normaliser(config: Config, spaces: EnvSpaces) -> Normaliser:
    """The normaliser of the env's observation leaves."""
    return build(config["normaliser"], "normaliser", observations=spaces.observations, num_envs=config["num_envs"])


def build_replay(config: Config, seed: int, spaces: EnvSpaces) -> Replay:
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
    row_bytes = transition_bytes(spaces.seen, spaces.actions, n_steps)
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
        return f"{message}{extra_for(message)}"
    return message or type(error).__name__
