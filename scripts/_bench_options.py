"""The words of `benchmark.py`: which commands there are, which options each has, and what they may be.

Imports nothing heavy: threads are chosen before numpy and torch are imported.
"""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

Value = int | bool | str | tuple[int, ...] | tuple[str, ...]

_STEP: dict[str, Value] = {
    "env": "HalfCheetah-v5",
    "threads": 1,
    "rounds": 7,
    "batch": 256,
    "widths": (256, 256),
    "engine": ("eager",),
    "precision": ("fp32",),
    "learning_starts": 1_000,
    "out": "",
}
_HEADS: dict[str, Value] = {
    "threads": 1,
    "rounds": 15,
    "updates": 10,
    "batch": 256,
    "outputs": 33,
    "widths": (),
    "engine": ("eager",),
    "out": "",
}

OPTIONS: dict[str, dict[str, Value]] = {
    "peers": {**_STEP, "steps": 300, "policy_delay": 1, "check": True, "check_frames": 5_000},
    "update": {**_STEP, "rounds": 15, "updates": 100},
    "heads": {**_HEADS, "rounds": 21, "updates": 20, "heads": (1, 3, 17, 64, 100)},
    "aggregators": {**_HEADS, "heads": (3, 17)},
    "collect": {
        "env": "HalfCheetah-v5",
        "threads": 1,
        "rounds": 5,
        "envs": (1, 8, 64),
        "modes": ("sync", "async"),
        "rollout": 1,
        "frames": 2_000,
        "widths": (256, 256),
        "out": "",
    },
    "profile": {**_STEP, "steps": 300, "policy_delay": 1},
    "to_return": {
        "env": "Pendulum-v1",
        "target": -200,
        "every": 500,
        "frames": 20_000,
        "seeds": (0, 1, 2, 3, 4),
        "threads": 1,
        "batch": 256,
        "widths": (128, 128),
        "engine": ("eager",),
        "precision": ("fp32",),
        "learning_starts": 1_000,
        "out": "",
    },
}
"""Default values by command; a value's type is its default's, and a tuple is written `1,2`."""

CHOICES = {"engine": ("eager", "compiled"), "precision": ("fp32", "bf16"), "modes": ("sync", "async")}
LEAST = {"target": -math.inf, "seeds": 0}
"""The least value of options whose least is not 1."""


def parse(words: Sequence[str]) -> tuple[str, SimpleNamespace]:
    """The command and its options, of words like `update batch=64 widths=256,256`.

    Raises:
        ValueError: naming what is unknown, out of range or at odds with another option, and what there is.
    """
    command, *rest = words or [""]
    if command not in OPTIONS:
        raise ValueError(f"unknown command {command!r}; commands are {', '.join(OPTIONS)}")
    defaults = OPTIONS[command]
    values = dict(defaults)
    for word in rest:
        name, equals, text = word.partition("=")
        if name not in defaults or not equals:
            raise ValueError(f"unknown option {word!r} of {command}; options are {' '.join(shown(defaults))}")
        values[name] = _value(name, text, defaults[name])
    options = SimpleNamespace(**values)
    _fit(command, options)
    return command, options


def _fit(command: str, options: SimpleNamespace) -> None:
    """Refuse a training that would end before it has begun to learn, or to be evaluated."""
    name = {"peers": "check_frames", "to_return": "frames"}.get(command)
    if name is None or (command == "peers" and not options.check):
        return
    frames, every = vars(options)[name], vars(options).get("every", 1)
    if frames <= options.learning_starts:
        raise ValueError(f"{name}={frames}: more than learning_starts={options.learning_starts} is expected")
    if frames < every:
        raise ValueError(f"{name}={frames}: at least every={every} is expected")


def shown(values: Mapping[str, Any]) -> list[str]:
    """Options as they are typed."""
    return [f"{name}={_text(value)}" for name, value in values.items()]


def _text(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, text: str, default: Value) -> Value:
    """`text` as a value of the default's type."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"{name}={text}: true or false is expected")
        return text == "true"
    if isinstance(default, int):
        return _whole(name, text)
    if not isinstance(default, tuple):
        return text
    parts = text.split(",") if text else []
    if not parts and name != "widths":
        raise ValueError(f"{name}=: at least one value is expected")
    if name not in CHOICES:
        return tuple(_whole(name, part) for part in parts)
    unknown = [part for part in parts if part not in CHOICES[name]]
    if unknown:
        raise ValueError(f"{name}={text}: {' or '.join(CHOICES[name])} is expected, or both with a comma")
    return tuple(parts)


def _whole(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{name}={text}: whole numbers are expected") from None
    if number < LEAST.get(name, 1):
        raise ValueError(f"{name}={text}: at least {LEAST.get(name, 1)} is expected")
    return number
