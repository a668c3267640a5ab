"""The check of the group `env`: against its target, and behind `gymnasium.make` against the registered env itself."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mhrl.config.arguments import Signature, find_target, signature_of
from mhrl.config.check import check_fields
from mhrl.config.errors import ConfigError, either
from mhrl.config.schema import ENV_FIELDS

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


def check_env(env: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Check `env`; gymnasium is imported here, and the module of the env.

    Args:
        env: `_target_`, its arguments, more of them in `kwargs`, and `ENV_FIELDS`.

    Returns:
        What builds an env, and the arguments to call it with.

    Raises:
        ConfigError: for a target or id that does not exist, an argument that is unknown or missing, or a value of the
            wrong kind; naming the key.
    """
    import gymnasium

    target = find_target(env, "env")
    own = check_fields({name: value for name, value in env.items() if name in ENV_FIELDS}, ENV_FIELDS, "env.")
    fields = {name: value for name, value in env.items() if name not in ("_target_", *ENV_FIELDS)}
    kwargs = own.get("kwargs") or {}
    signature, settled = signature_of(target), {}
    if target is gymnasium.make:
        signature.check_required({**fields, **kwargs}, "env.")
        spec = find_spec(signature.check({"id": {**fields, **kwargs}["id"]}, "env.")["id"])
        signature, settled = _through_make(signature, spec), spec.kwargs
    beside = Signature({**signature.fields, **ENV_FIELDS}, (), signature.is_open)
    arguments = beside.check(fields, "env.") | signature.check(kwargs, "env.kwargs.")
    signature.check_required({**settled, **arguments}, "env.")
    return target, arguments


def find_spec(env_id: str) -> "EnvSpec":
    """The registered env of `env_id`, which may name a module to import (`module:Env-v0`) or leave out the version.

    Raises:
        ConfigError: naming the nearest ids, or the versions that there are.
    """
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id, registry
    from gymnasium.error import Error

    module, _, full_name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"env.id is {env_id!r}, whose module cannot be imported: {error}") from error
    try:
        namespace, name, version = parse_env_id(full_name)
    except Error:  # not of the form namespace/Name-v0
        namespace, name, version = None, full_name, None
    known = get_env_id(namespace, name, find_highest_version(namespace, name) if version is None else version)
    if known in registry:
        return registry[known]
    versions = [spec.id for spec in registry.values() if (spec.namespace, spec.name) == (namespace, name)]
    if versions:
        raise ConfigError(f"env.id is {env_id!r}: {either(versions)} is expected")
    lower = {known.lower(): known for known in registry}
    close = [lower[match] for match in difflib.get_close_matches(full_name.lower(), lower)]
    hint = f"did you mean {either(close)}?" if close else "an id of another package is written module:Name-v0"
    raise ConfigError(f"env.id is {env_id!r}, which is no registered env: {hint}")


def _through_make(make: Signature, spec: "EnvSpec") -> Signature:
    """What `gymnasium.make` takes for `spec`: its own arguments, and those of what it calls."""
    from gymnasium.envs.registration import load_env_creator

    entry = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    if entry is None:  # registered as a vector env only: make will say so
        return make
    creator = signature_of(entry)
    return Signature({**creator.fields, **make.fields}, (*make.required, *creator.required), creator.is_open)
