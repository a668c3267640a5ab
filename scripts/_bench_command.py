"""One command, from its options to its report."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from _bench_contestant import BenchmarkError
from _bench_report import begin, show

from mhrl.config import ConfigError

EXTRA = ("stable_baselines3", "skrl", "tianshou", "torchjd")
"""What comes with the extra `bench`."""


def carry_out(command: str, options: SimpleNamespace) -> dict[str, Any]:
    """Run a command and report; returns what `out` holds.

    Raises:
        SystemExit: naming what cannot be used or measured, does not fit into memory, or is not installed.
    """
    begin(command, options)
    try:
        result = import_module(f"_bench_{command}").run(options)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise SystemExit(f"error: {error}: pip install 'mhrl[bench]'") from None
    except (ConfigError, BenchmarkError) as error:
        raise SystemExit(f"error: {error}") from None
    except (RuntimeError, MemoryError) as error:
        if "allocate" not in str(error):  # torch's allocator has no class of its own
            raise
        raise SystemExit(f"error: out of memory: lower batch, widths or heads. {error}") from None
    return show(command, options, result)
