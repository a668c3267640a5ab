"""From what a user wrote to a config that says everything: each head with its leaf and dimensions, each loss."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhrl.config import ConfigError, Rate, as_annotated, check_arguments, check_fields, nearest
from mhrl.envs import Leaf
from mhrl.network import VALUE

HEAD_FIELDS: dict[str, Any] = {
    "kind": str,
    "leaf": str | None,
    "dims": list[int] | None,
    "in_keys": str | list[str],
    "lr": Rate,
    "exploration": dict[str, Any] | None,
}
"""Fields of a head that are not arguments of its class."""

LOSS_FIELDS: dict[str, Any] = {"weight": float, "trunk_grad": float}
IN_KEYS = ("features", "observation")
ACTING_KIND, VALUE_KIND = "deterministic", "critic"
"""Kinds of the heads that DDPG derives."""


def resolve_heads(
    listed: Mapping[str, Mapping[str, Any] | None], actions: Sequence[Leaf], kinds: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Derive the heads that were not listed, and complete those that were.

    Every action leaf that no listed head covers gets a head of its name; `value` is always there. What is listed
    is merged over the defaults of its kind.

    Args:
        listed: `heads` of the config.
        actions: the env's action leaves.
        kinds: `{kind: defaults}`, `_target_` among them.

    Returns:
        `{head: fields}`, the acting heads first; every field of `HEAD_FIELDS` and every argument is there.

    Raises:
        ConfigError: naming the head and the field, leaf or dimension.
    """
    leaves = {leaf.name: leaf for leaf in actions}
    heads: dict[str, dict[str, Any]] = {}
    for name, given in listed.items():
        if name != VALUE:
            heads[name] = _complete(name, given, ACTING_KIND, kinds)
            _place(name, heads[name], leaves)
    covered = {head["leaf"] for head in heads.values()}
    for name in leaves:
        if name not in covered:
            heads[name] = _complete(name, {}, ACTING_KIND, kinds)
            _place(name, heads[name], leaves)
    _check_cover(heads, leaves)
    heads[VALUE] = _complete(VALUE, listed.get(VALUE), VALUE_KIND, kinds)
    for field in ("leaf", "dims", "exploration"):
        if heads[VALUE][field]:
            raise ConfigError(f"heads.{VALUE}.{field} means nothing: the critic judges the whole action")
    return heads


def resolve_losses(
    listed: Mapping[str, Mapping[str, Any] | None], names: Sequence[str], acting_trunk_grad: float
) -> dict[str, dict[str, float]]:
    """Complete `losses`: weight 1; `trunk_grad` 1, and the trunk's own default for acting losses.

    Args:
        listed: `losses` of the config.
        names: the objective's losses.
        acting_trunk_grad: the trunk's default for every loss but `value`.

    Raises:
        ConfigError: for an unknown loss or field, a value that is no number, or weights that are all zero.
    """
    losses = {name: {"weight": 1.0, "trunk_grad": 1.0 if name == VALUE else acting_trunk_grad} for name in names}
    for name, given in listed.items():
        if name not in losses:
            raise ConfigError(f"unknown loss losses.{name}{nearest(name, losses)}")
        given = _mapping(f"losses.{name}", given)
        losses[name] |= check_fields(given, LOSS_FIELDS, f"losses.{name}.")
    if all(loss["weight"] == 0 for loss in losses.values()):
        raise ConfigError("every loss has weight 0: nothing would be trained")
    return losses


def _complete(name: str, given: Any, kind: str, kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:  # noqa: ANN401
    """One head's fields, over the defaults of its kind."""
    given = _mapping(f"heads.{name}", given)
    kind = as_annotated(given.get("kind", kind), str, f"heads.{name}.kind")
    if "_target_" not in given and kind not in kinds:
        raise ConfigError(f"heads.{name}.kind is {kind!r}, which is no kind of head{nearest(kind, kinds)}")
    defaults = {} if "_target_" in given else kinds[kind]
    head: dict[str, Any] = {
        "kind": kind,
        "leaf": None,
        "dims": None,
        "in_keys": ["features"],
        "lr": None,
        "exploration": {},
    }
    head |= {**defaults, **given}
    if "_target_" in given and "kind" not in given:
        head["kind"] = str(given["_target_"]).rsplit(".", 1)[-1]
    head = check_arguments(head, f"heads.{name}", injected=("in_features", "space"), also=HEAD_FIELDS)
    head["exploration"] = head["exploration"] or {}
    in_keys = [head["in_keys"]] if isinstance(head["in_keys"], str) else head["in_keys"]
    if not in_keys or not set(in_keys) <= set(IN_KEYS) or len(set(in_keys)) != len(in_keys):
        raise ConfigError(f"heads.{name}.in_keys is {in_keys}: a list of {' and '.join(IN_KEYS)} is expected")
    head["in_keys"] = [key for key in IN_KEYS if key in in_keys]
    return head


def _place(name: str, head: dict[str, Any], leaves: Mapping[str, Leaf]) -> None:
    """Settle which leaf a head covers, and which of its dimensions."""
    if head["leaf"] is None:
        if name in leaves:
            head["leaf"] = name
        elif len(leaves) == 1:
            head["leaf"] = next(iter(leaves))
        else:
            raise ConfigError(f"heads.{name}.leaf is missing{nearest(name, leaves)}")
    if head["leaf"] not in leaves:
        raise ConfigError(
            f"heads.{name}.leaf is {head['leaf']!r}, which is no action leaf{nearest(head['leaf'], leaves)}"
        )
    space = leaves[head["leaf"]].box
    size = space.low.size
    dims = list(range(size)) if head["dims"] is None else head["dims"]
    if not dims or any(not 0 <= dim < size for dim in dims):
        raise ConfigError(
            f"heads.{name}.dims is {head['dims']}: a list of dimensions 0 to {size - 1} of {space} is expected"
        )
    head["dims"] = dims


def _check_cover(heads: Mapping[str, Mapping[str, Any]], leaves: Mapping[str, Leaf]) -> None:
    """Every dimension of every leaf belongs to exactly one head."""
    owners: dict[tuple[str, int], str] = {}
    for name, head in heads.items():
        for dim in head["dims"]:
            if (other := owners.setdefault((head["leaf"], dim), name)) != name or head["dims"].count(dim) > 1:
                raise ConfigError(
                    f"dimension {dim} of action leaf {head['leaf']!r} is covered twice, by heads {other!r} and "
                    f"{name!r}: set heads.<name>.dims, or correct a misspelt head"
                )
    for name, leaf in leaves.items():
        missing = [dim for dim in range(leaf.box.low.size) if (name, dim) not in owners]
        if missing:
            raise ConfigError(f"no head covers dimension {', '.join(map(str, missing))} of action leaf {name!r}")


def _mapping(where: str, given: Any) -> dict[str, Any]:  # noqa: ANN401
    """A listed entry as a dict; None is an empty one."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {given!r}: a mapping of fields is expected")
    return dict(given or {})
