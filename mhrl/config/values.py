"""A value and the annotation that it has to fit: judged by pydantic, said in plain words."""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen
from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo

from mhrl.config.errors import ConfigError, either

_STRICT = ConfigDict(strict=True)  # true is no number, "5" is no number, 5 is no text
_LISTS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


@dataclass(frozen=True)
class Kind:
    """The part of an annotation that YAML has values for.

    Attributes:
        annotation: that part, without classes such as Tensor.
        words: one such value, as a user would say it.
        plural: several of them.
    """

    annotation: Any
    words: str
    plural: str


_SCALARS = {
    kind.annotation: kind
    for kind in (
        Kind(int, "a whole number", "whole numbers"),
        Kind(float, "a number", "numbers"),
        Kind(bool, "true or false", "truth values"),
        Kind(str, "text", "texts"),
        Kind(type(None), "null", "nulls"),
    )
}


def as_annotated(value: Any, annotation: Any, key: str) -> Any:  # noqa: ANN401
    """`value` as `annotation` has it: 1e6 becomes an int for an int, 1 a float for a float, a list a tuple for a tuple.

    An annotation that YAML has no values for is not judged.

    Args:
        value: plain, as a YAML file has it.
        annotation: of an argument; bounds are those of annotated_types.
        key: the value's dotted key, for the message.

    Raises:
        ConfigError: naming the key, the value and what is expected.
    """
    kind = kind_of(annotation)
    if kind is None:
        return value
    adapter = _adapter(kind.annotation)
    for candidate in (value, _whole(value)):
        with contextlib.suppress(TypeError, ValueError):  # no JSON value; not valid
            return adapter.validate_json(json.dumps(candidate))
    raise ConfigError(f"{key} is {value!r}: {kind.words} is expected")


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:  # noqa: ANN401
    """What judges by `annotation`; making one takes longer than judging a whole config with those that there are."""
    return TypeAdapter(annotation, config=_STRICT)


def kind_of(annotation: Any) -> Kind | None:  # noqa: ANN401
    """What YAML can say of `annotation`; None if nothing, or anything."""
    if annotation is None or (isinstance(annotation, type) and annotation in _SCALARS):
        return _SCALARS[annotation or type(None)]
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Annotated:
        return _bounded(kind_of(arguments[0]), arguments[1:])
    if origin is Literal:
        words = either(json.dumps(choice).strip('"') for choice in arguments)
        return Kind(annotation, words, words)
    if origin in (Union, UnionType):
        return _union([kind_of(argument) for argument in arguments])
    if origin is tuple and arguments and arguments[-1] is not ...:
        return _tuple([kind_of(argument) for argument in arguments])
    if origin in _LISTS:
        item = kind_of(arguments[0]) if arguments else None
        of = f" of {item.plural}" if item else ""
        inner = (_annotation(item), ...) if origin is tuple else (_annotation(item),)
        return Kind(GenericAlias(tuple if origin is tuple else list, inner), f"a list{of}", f"lists{of}")
    if origin in _MAPPINGS:
        of_kind = kind_of(arguments[1]) if arguments else None
        of = f" to {of_kind.plural}" if of_kind else " of fields"
        return Kind(GenericAlias(dict, (str, _annotation(of_kind))), f"a mapping{of}", f"mappings{of}")
    return None


def _bounded(kind: Kind | None, metadata: Sequence[Any]) -> Kind | None:
    """A kind within bounds."""
    if kind is None:
        return None
    bounds, unit = [], "characters" if kind.annotation is str else "entries"
    for bound in _flat(metadata):
        match bound:
            case Ge(least):
                bounds.append(f">= {least}")
            case Gt(least):
                bounds.append(f"> {least}")
            case Le(most):
                bounds.append(f"<= {most}")
            case Lt(most):
                bounds.append(f"< {most}")
            case MinLen(least):
                bounds.append(f"of at least {least} {unit}")
            case MaxLen(most):
                bounds.append(f"of at most {most} {unit}")
            case BaseMetadata():
                bounds.append(f"with {bound}")
    said = "".join([" ", " and ".join(bounds)]) if bounds else ""
    return Kind(Annotated[kind.annotation, *metadata], kind.words + said, kind.plural + said)


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    """Each constraint alone: those of an `Interval`, of a `Field`."""
    for entry in metadata:
        if isinstance(entry, GroupedMetadata):
            yield from _flat(entry)
        else:
            yield from _flat(entry.metadata) if isinstance(entry, FieldInfo) else [entry]


def _union(kinds: Sequence[Kind | None]) -> Kind | None:
    """One of several; `Tensor | None` is not judged, `float | Tensor` is a number."""
    plain = [kind for kind in kinds if kind is not None]
    if len(plain) < len(kinds) and all(kind.annotation is type(None) for kind in plain):
        return None
    annotation: Any = Union[tuple(kind.annotation for kind in plain)]  # noqa: UP007
    words = dict.fromkeys(kind.words for kind in plain)
    return Kind(annotation, either(words), either(dict.fromkeys(kind.plural for kind in plain)))


def _tuple(kinds: Sequence[Kind | None]) -> Kind:
    """A list of a given length."""
    plurals = {kind.plural if kind else "entries" for kind in kinds}
    of = plurals.pop() if len(plurals) == 1 else f"entries ({', '.join(k.words if k else 'any' for k in kinds)})"
    annotation = GenericAlias(tuple, tuple(_annotation(kind) for kind in kinds))
    return Kind(annotation, f"a list of {len(kinds)} {of}", f"lists of {len(kinds)} {of}")


def _annotation(kind: Kind | None) -> Any:  # noqa: ANN401
    return Any if kind is None else kind.annotation


def _whole(value: Any) -> Any:  # noqa: ANN401
    """`value` with whole floats as ints, at every level."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, list | tuple):
        return [_whole(entry) for entry in value]
    return {key: _whole(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value
