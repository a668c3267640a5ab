"""The check of `_target_` nodes against the signature of what they name."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from hydra.utils import get_object

from mhrl.config.check import check_fields
from mhrl.config.errors import ConfigError
from mhrl.config.extras import extra_for
from mhrl.config.values import kind_of

_NESTED = ("_args_", "_convert_", "_partial_", "_recursive_")
"""What Hydra reads in a node below the first."""

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Signature:
    """What a target takes by name.

    Attributes:
        fields: annotations by name, Any where there is none.
        required: names without a default.
        is_open: whether it takes further names.
    """

    fields: Mapping[str, Any]
    required: tuple[str, ...]
    is_open: bool

    def check(self, given: Mapping[str, Any], where: str, injected: Iterable[str] = ()) -> dict[str, Any]:
        """`given` with each value as its annotation has it; nested nodes are checked against their own targets.

        Raises:
            ConfigError: naming the key, and the nearest valid one or the value and what is expected.
        """
        fields = {name: annotation for name, annotation in self.fields.items() if name not in set(injected)}
        if self.is_open:
            fields = {**dict.fromkeys((name for name in given if name not in self.fields), Any), **fields}
        nodes = {name: value for name, value in given.items() if _holds_node(value)}
        plain = check_fields(given, {**fields, **dict.fromkeys(nodes.keys() & fields.keys(), Any)}, where)
        return {**plain, **{name: _check_nodes(value, f"{where}{name}") for name, value in nodes.items()}}

    def check_required(self, given: Iterable[str], where: str) -> None:
        """Refuse a call that lacks an argument.

        Raises:
            ConfigError: naming the key and what is expected.
        """
        for name in self.required:
            if name not in set(given):
                kind = kind_of(self.fields[name])
                raise ConfigError(f"{where}{name} is missing" + (f": {kind.words} is expected" if kind else ""))


def signature_of(target: Callable[..., Any]) -> Signature:
    """Read what `target` takes: through `**kwargs`, what the `__init__` of its base classes take too."""
    fields: dict[str, Any] = {}
    required: list[str] = []
    for depth, function in enumerate(_functions(target)):
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # written in C, says nothing
            break
        named = [parameter for parameter in parameters if parameter.kind in _BY_NAME]
        for parameter in named[1:] if function is not target else named:  # without self
            fields.setdefault(parameter.name, _annotation(parameter, function))
            if depth == 0 and parameter.default is parameter.empty:
                required.append(parameter.name)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            return Signature(fields, tuple(required), is_open=False)
    return Signature(fields, tuple(required), is_open=True)


def find_target(node: Mapping[str, Any], where: str) -> Callable[..., Any]:
    """What `_target_` of `node` names.

    Raises:
        ConfigError: if there is none, or it cannot be imported or called.
    """
    if "_target_" not in node:
        raise ConfigError(f"{where} has no _target_: a dotted path to a class or function is expected")
    try:
        target = get_object(str(node["_target_"]))
    except Exception as error:
        missing = re.search(r"No module named '\w+'", str(error))
        hint = extra_for(missing[0]) if missing else ""
        raise ConfigError(f"{where}._target_={node['_target_']} cannot be imported: {error}{hint}") from error
    if not callable(target):
        raise ConfigError(f"{where}._target_ is {node['_target_']!r}: a class or function is expected")
    return target


def check_arguments(
    node: Mapping[str, Any], where: str, injected: Iterable[str] = (), also: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`node` with each value as the target's signature has it.

    Args:
        node: `_target_` and its arguments.
        where: the node's key, for the message.
        injected: arguments that mhrl passes itself; not to be configured.
        also: annotations of further fields of the node, which are no arguments.

    Raises:
        ConfigError: for a target that cannot be imported, an argument that is unknown or missing, or a value of the
            wrong kind; naming the key.
    """
    injected, also = tuple(injected), also or {}
    signature = signature_of(find_target(node, where))
    fields = {**signature.fields, **also}
    given = {name: value for name, value in node.items() if name != "_target_"}
    checked = Signature(fields, signature.required, signature.is_open).check(given, f"{where}.", injected)
    signature.check_required((*given, *injected), f"{where}.")
    return {"_target_": node["_target_"], **checked}


def _functions(target: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Whose parameters count: the `__init__`s of a class and its bases, or the target itself."""
    classes = target.__mro__[:-1] if inspect.isclass(target) else ()
    return [vars(base)["__init__"] for base in classes if "__init__" in vars(base)] or [target]


def _annotation(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:  # noqa: ANN401
    """A parameter's annotation, Any where there is none or it names what only type checkers see."""
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))
        except Exception:
            annotation = Any
    return Optional[annotation] if parameter.default is None else annotation  # noqa: UP045


def _holds_node(value: Any) -> bool:  # noqa: ANN401
    return (isinstance(value, Mapping) and "_target_" in value) or any(_holds_node(part) for _, part in _parts(value))


def _check_nodes(value: Any, where: str) -> Any:  # noqa: ANN401
    """`value` with every node in it checked."""
    if isinstance(value, Mapping) and "_target_" in value:
        signature = signature_of(find_target(value, where))
        fields = {**signature.fields, **dict.fromkeys(("_target_", *_NESTED), Any)}
        checked = Signature(fields, (), signature.is_open).check(value, f"{where}.")
        if not value.keys() & {"_args_", "_partial_"}:
            signature.check_required(value, f"{where}.")
        return checked
    parts = {name: _check_nodes(part, f"{where}.{name}") for name, part in _parts(value)}
    return parts if isinstance(value, Mapping) else list(parts.values()) if isinstance(value, list) else value


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    """The entries of a mapping or a list, by name or number."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)
