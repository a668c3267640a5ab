"""The check of named fields: unknown ones are refused with the nearest, values have to fit their annotation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mhrl.config.errors import ConfigError, nearest
from mhrl.config.values import as_annotated


@dataclass(frozen=True)
class Group:
    """A node with a `_target_`.

    Attributes:
        fields: annotations of the fields that mhrl itself reads; all others are arguments of the target.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)


def check_fields(given: Mapping[str, Any], fields: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """`given` with each value as its annotation has it.

    Args:
        given: nested, plain values.
        fields: an annotation, a mapping of further fields, or a `Group`, by name.
        where: what to put before a name in a message, its dot included.

    Raises:
        ConfigError: naming the key, and the nearest valid one or the value and what is expected.
    """
    for name in given:
        if name not in fields:
            raise ConfigError(f"unknown key {where}{name}{nearest(str(name), fields)}")
    return {name: _check(value, fields[name], f"{where}{name}") for name, value in given.items()}


def _check(value: Any, expected: Any, key: str) -> Any:  # noqa: ANN401
    """One value."""
    if not isinstance(expected, Mapping | Group):
        return as_annotated(value, expected, key)
    if not isinstance(value, Mapping):
        names = "" if isinstance(expected, Group) else f" with {', '.join(expected)}"
        raise ConfigError(f"{key} is {value!r}: a mapping{names} is expected")
    if isinstance(expected, Mapping):
        return check_fields(value, expected, f"{key}.")
    own = {name: entry for name, entry in value.items() if name in expected.fields}
    return {**value, **check_fields(own, expected.fields, f"{key}.")}


def check_present(given: Mapping[str, Any], fields: Mapping[str, Any], where: str = "") -> None:
    """Refuse a config that lacks one of `fields`, at every level that it spells out.

    Raises:
        ConfigError: naming the key.
    """
    for name, expected in fields.items():
        if name not in given:
            raise ConfigError(f"{where}{name} is missing")
        if isinstance(expected, Mapping):
            check_present(given[name], expected, f"{where}{name}.")
