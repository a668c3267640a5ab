"""An env's whole state in mid-episode, as plain values and arrays that a safe file holds.

`capture` walks an env, its wrappers and their helpers through their attributes; `restore` writes the attributes of
another instance that was built the same way, which then goes on bit for bit. What it knows:

- None, bool, int, float, str, tuple, list, dict, deque, enum members, numpy arrays and scalars;
- random generators: numpy's `Generator` and `RandomState`, Python's `random.Random`, those in gymnasium's spaces;
- objects whose whole state is in their attributes, and their bound methods;
- functions, with the variables around them;
- constants, which must be equal in both: functions without, classes, modules, dtypes, paths, ranges, loggers;
- MuJoCo's model (a constant) and data (`mhrl.envs.mujoco_state`);
- gymnasium's Lunar Lander, by replaying its episode (`mhrl.envs.lander`).

What draws pictures is left as it is. Anything else, arrays that share memory among them, has no snapshot, and so has
the env, unless the object says itself what its state is:

    def state_dict(self): ...              # plain values and arrays, as above
    def load_state_dict(self, state): ...  # go on exactly from there, or raise

An env or a wrapper may have the two as well (a wrapper's are about itself, not about the env it wraps). An env with
state that no attribute shows, in a server that it knows by a number for one, has `state_dict = None`: no snapshot.
"""

import enum
import logging
import random
import types
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePath
from typing import Any, NoReturn, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.lib.array_utils import byte_bounds

from mhrl.envs import mujoco_state
from mhrl.envs.lander import EpisodeRecorder

Plain: TypeAlias = Any
"""None, bool, int, float, str, numpy arrays; lists, and dicts with str keys, of these."""

_PLAIN = (type(None), bool, int, float, str)
_DTYPES = {"bool", "float16", "float32", "float64", "complex64", "complex128"} | {
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
_BIT_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
_PICTURES = ("pygame", "gymnasium.envs.mujoco.mujoco_rendering", "mujoco.renderer", "mujoco.viewer")


class NoSnapshotError(Exception):
    """Why an env cannot be captured, or not be restored exactly."""


def capture(env: gymnasium.Env[Any, Any]) -> Plain:
    """Return the state of `env`; nothing in it is shared with the env.

    Raises:
        NoSnapshotError: naming the attribute that has its state elsewhere.
    """
    try:
        return _Capture().root(env)
    except RecursionError as error:
        raise NoSnapshotError("its objects refer to one another too deeply") from error


def restore(env: gymnasium.Env[Any, Any], snapshot: Plain) -> None:
    """Put `env`, built as the captured one was, into the captured state.

    Raises:
        NoSnapshotError: if that is not exact; `env` then needs a reset.
    """
    _Restore().root(env, snapshot)


@final
class _Capture:
    """Turns values into plain ones; what is met twice is referred to by its number, in order of meeting."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []  # keeps ids from being used again

    def root(self, env: Any) -> Plain:  # noqa: ANN401
        state = self.value(env, type(env).__name__)
        self._refuse_overlaps()
        return state

    def value(self, value: Any, where: str) -> Plain:  # noqa: ANN401
        if type(value) in _PLAIN:
            return value
        if id(value) in self._numbers:
            return {"is": "same", "as": self._numbers[id(value)]}
        if (constant := _constant(value)) is not None:
            return {"is": "constant", "of": constant}
        if isinstance(value, enum.Enum):
            return {"is": "enum", "of": value.name}
        if type(value) is tuple:
            return {"is": "tuple", "of": [self.value(one, f"{where}[{i}]") for i, one in enumerate(value)]}
        if isinstance(value, np.generic) and value.dtype.name in _DTYPES:
            return {"is": "scalar", "of": np.array(value)}
        if isinstance(value, types.MethodType):
            return {"is": "method", "of": self.value(value.__self__, where), "name": value.__name__}
        if isinstance(value, EnvSpec) or _name(type(value)).startswith(_PICTURES):
            return {"is": "left"}
        self._numbers[id(value)] = len(self._met)
        self._met.append(value)
        return self._mutable(value, where)

    def _mutable(self, value: Any, where: str) -> Plain:  # noqa: ANN401
        match value:
            case np.ndarray() if type(value) is np.ndarray:
                if value.dtype.name not in _DTYPES or not value.dtype.isnative:
                    raise NoSnapshotError(f"{where} is an array of {value.dtype}")
                if not _is_own(value):
                    raise NoSnapshotError(f"{where} is an array in memory that is not its own")
                return value.copy(order="K")
            case list() if type(value) is list:
                return [self.value(one, f"{where}[{i}]") for i, one in enumerate(value)]
            case deque() if type(value) is deque:
                items = [self.value(one, f"{where}[{i}]") for i, one in enumerate(value)]
                return {"is": "deque", "of": items, "maxlen": value.maxlen}
            case dict() if type(value) is dict:
                keys = [self.value(key, f"{where} key") for key in value]
                return {
                    "is": "dict",
                    "keys": keys,
                    "of": [self.value(one, f"{where}[{k!r}]") for k, one in value.items()],
                }
            case np.random.Generator() if type(value.bit_generator).__name__ in _BIT_GENERATORS:
                return {"is": "generator", "of": self.value(value.bit_generator.state, where)}
            case np.random.RandomState() if type(value) is np.random.RandomState:
                return {"is": "random_state", "of": self.value(value.get_state(legacy=False), where)}
            case random.Random() if type(value) is random.Random:
                return {"is": "random", "of": self.value(value.getstate(), where)}
            case EpisodeRecorder() if value.state is not None:
                return {"is": "episode", "of": self.value(value.state, where)}
        if mujoco_state.is_model(value):
            return {"is": "model", "of": mujoco_state.digest(value)}
        if mujoco_state.is_data(value):
            return {"is": "data", **mujoco_state.capture(value)}
        return self._object(value, where)

    def _object(self, value: Any, where: str) -> Plain:  # noqa: ANN401
        if getattr(value, "state_dict", True) is None:
            raise NoSnapshotError(f"{where} says that it has none")
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            state = {"is": "own", "kind": _kind(value), "of": self.value(value.state_dict(), f"{where}.state_dict()")}
            if isinstance(value, gymnasium.Wrapper):
                state["env"] = self.value(value.env, f"{where}.env")
            return state
        if not _is_transparent(value):
            raise NoSnapshotError(f"{where} is of {_kind(value)}, which has no state_dict and load_state_dict")
        state = {key: self.value(one, f"{where}.{key}") for key, one in _attributes(value).items()}
        return {"is": "object", "kind": _kind(value), "of": state}

    def _refuse_overlaps(self) -> None:
        """Views of one array, once apart, would not follow each other any more."""
        arrays = sorted(byte_bounds(one) for one in self._met if isinstance(one, np.ndarray) and one.size)
        if any(one[1] > two[0] for one, two in pairwise(arrays)):
            raise NoSnapshotError("two of its arrays share memory")


@final
class _Restore:
    """Turns plain values back; writes into existing objects are done last, when nothing can fail any more."""

    def __init__(self) -> None:
        self._met: list[Any] = []
        self._loads: list[Callable[[], None]] = []
        self._writes: list[Callable[[], None]] = []

    def root(self, env: Any, snapshot: Plain) -> None:  # noqa: ANN401
        self.value(snapshot, env)
        for write in self._loads + self._writes:
            write()

    def value(self, state: Plain, now: Any) -> Any:  # noqa: ANN401
        """The value that `state` stands for; `now` is what is in its place."""
        if type(state) in _PLAIN:
            return state
        if isinstance(state, np.ndarray):
            return self._meet(state.copy(order="K"))
        if isinstance(state, list):
            new = self._meet([])
            new += self._items(state, now)
            return new
        match state["is"]:
            case "same":
                return self._met[state["as"]]
            case "constant":
                if _constant(now) != state["of"]:
                    raise NoSnapshotError(f"{_constant(now) or type(now).__name__} was {state['of']}")
                return now
            case "enum":
                return type(now)[state["of"]] if isinstance(now, enum.Enum) else _refuse(now, "an enum member")
            case "tuple":
                return tuple(self._items(state["of"], now))
            case "scalar":
                return state["of"][()]
            case "method":
                return getattr(self.value(state["of"], getattr(now, "__self__", None)), state["name"])
            case "left":
                return now
            case _:
                return self._mutable(state, now)

    def _mutable(self, state: dict[str, Any], now: Any) -> Any:  # noqa: ANN401
        match state["is"]:
            case "deque":
                queue = self._meet(deque(maxlen=state["maxlen"]))
                queue.extend(self._items(state["of"], now))
                return queue
            case "dict":
                new = self._meet({})
                at = now if isinstance(now, dict) else {}
                keys = self._items(state["keys"], list(at))
                new.update((key, self.value(one, at.get(key))) for key, one in zip(keys, state["of"], strict=True))
                return new
            case "generator":
                number = len(self._met)
                self._meet(None)
                inner = self.value(state["of"], None)
                bits = _BIT_GENERATORS[inner["bit_generator"]]()
                bits.state = inner
                self._met[number] = np.random.Generator(bits)
                return self._met[number]
            case "random_state":
                generator = self._meet(np.random.RandomState())
                generator.set_state(self.value(state["of"], None))
                return generator
            case "random":
                generator = self._meet(random.Random())
                generator.setstate(self.value(state["of"], None))
                return generator
            case _:
                if now is not None and any(one is now for one in self._met):
                    raise NoSnapshotError(f"two objects of the captured env are one {type(now).__name__} here")
                self._meet(now)
                self._in_place(state, now)
                return now

    def _in_place(self, state: dict[str, Any], now: Any) -> None:  # noqa: ANN401
        match state["is"]:
            case "model":
                if not mujoco_state.is_model(now) or mujoco_state.digest(now) != state["of"]:
                    raise NoSnapshotError("the MuJoCo model is another one")
            case "data":
                if not mujoco_state.is_data(now):
                    _refuse(now, "MjData")
                self._loads.append(lambda: mujoco_state.restore(now, state))
            case "episode":
                inner = self.value(state["of"], None)
                if not isinstance(now, EpisodeRecorder):
                    _refuse(now, "an episode")
                self._loads.append(lambda: self._load(now.replay, inner))
            case "own":
                if _kind(now) != state["kind"]:
                    _refuse(now, state["kind"])
                inner = self.value(state["of"], None)
                if "env" in state:
                    self.value(state["env"], now.env)
                self._loads.append(lambda: self._load(now.load_state_dict, inner))
            case "object":
                if _kind(now) != state["kind"]:
                    _refuse(now, state["kind"])
                before = _attributes(now)
                after = {key: self.value(one, before.get(key)) for key, one in state["of"].items()}
                self._writes.append(lambda: _write(now, before, after))

    def _load(self, load: Callable[[Any], None], state: Any) -> None:  # noqa: ANN401
        try:
            load(state)
        except Exception as error:
            raise NoSnapshotError(f"{type(error).__name__}: {error}") from error

    def _items(self, states: list[Plain], now: Any) -> list[Any]:  # noqa: ANN401
        at = list(now) if isinstance(now, (list, tuple, deque)) else []
        at += [None] * (len(states) - len(at))
        return [self.value(state, one) for state, one in zip(states, at, strict=False)]

    def _meet(self, value: Any) -> Any:  # noqa: ANN401
        self._met.append(value)
        return value


def _attributes(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """What makes up the state of a transparent object; of a function, the variables around it."""
    if isinstance(value, types.FunctionType):
        return {name: cell.cell_contents for name, cell in _cells(value).items()}
    attributes = vars(value)
    if isinstance(value, gymnasium.Space):  # its bounds are constants, and large for pictures
        return {key: one for key, one in attributes.items() if not isinstance(one, np.ndarray)}
    if isinstance(value, gymnasium.Env) and not isinstance(value, gymnasium.Wrapper):  # a class may have the spaces
        own = {name: getattr(value, name, None) for name in ("observation_space", "action_space")}
        return own | attributes
    return dict(attributes)


def _write(value: Any, before: dict[str, Any], after: dict[str, Any]) -> None:  # noqa: ANN401
    changed = {key: one for key, one in after.items() if key not in before or one is not before[key]}
    if isinstance(value, types.FunctionType):
        cells = _cells(value)
        for name, one in changed.items():
            cells[name].cell_contents = one
        return
    for key in before.keys() - after.keys():
        del vars(value)[key]
    vars(value).update(changed)


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _is_transparent(value: Any) -> bool:  # noqa: ANN401
    """Whether all that an object holds is in its `__dict__`: it is no larger than Python makes it."""
    if isinstance(value, types.FunctionType):
        return True
    kind = type(value)
    pointers = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return hasattr(value, "__dict__") and kind.__basicsize__ == object.__basicsize__ + pointers * np.intp().nbytes


def _is_own(array: np.ndarray) -> bool:
    """Whether an array's memory is numpy's, not that of a simulator, a file or another process."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, (type(None), bytes, bytearray))


def _constant(value: Any) -> str | None:  # noqa: ANN401
    """What tells one constant from another; None for what is no constant."""
    match value:
        case types.FunctionType() if value.__closure__ is None:
            return _kind(value)
        case types.BuiltinFunctionType() if isinstance(value.__self__, types.ModuleType):
            return f"function {value.__self__.__name__}.{value.__qualname__}"
        case type():
            return f"class {_name(value)}"
        case types.ModuleType() | logging.Logger():
            return f"{type(value).__name__} {value.__name__ if isinstance(value, types.ModuleType) else value.name}"
        case np.ufunc():
            return f"function numpy.{value.__name__}"
        case np.dtype() | PurePath() | range() | slice() | complex() | bytes():
            return repr(value)
    return None


def _kind(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, types.FunctionType):
        return f"function {value.__module__}.{value.__qualname__}"
    return _name(type(value))


def _name(kind: type) -> str:
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"  # SWIG's own types are in no module


def _refuse(now: Any, was: str) -> NoReturn:  # noqa: ANN401
    raise NoSnapshotError(f"{was} is expected in the place of {type(now).__name__}")
