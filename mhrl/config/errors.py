"""What is said about a config that cannot run."""

import difflib
from collections.abc import Iterable

from hydra.errors import CompactHydraException


class ConfigError(CompactHydraException, ValueError):
    """A configuration that cannot run; the message names the key. Hydra prints it without a traceback."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`: did you mean x?`, or the list of what is valid."""
    options = sorted(map(str, valid))
    if not options:
        return ": nothing can be set here"
    close = difflib.get_close_matches(name, options, 1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else f": choose from {', '.join(options)}"


def either(options: Iterable[str]) -> str:
    """`a, b or c`."""
    *others, last = options
    return f"{', '.join(others)} or {last}" if others else last
