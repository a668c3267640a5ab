"""How fast mhrl is, beside others on the same work: `python scripts/benchmark.py <command> [option=value ...]`.

  peers        env steps per CPU-second of DDPG: mhrl, stable-baselines3, skrl, tianshou, torchrl
  update       one update alone, over the matrix products of that update alone
  heads        heads computed together, over a loop and over their products alone
  aggregators  a whole step by aggregator, over the plain step; beside torchjd
  collect      frames per second of the collector, beside torchrl's
  profile      where the CPU time of an env step goes
  to_return    seconds from process start to a return, beside stable-baselines3 and skrl

Whatever is compared takes turns in short rounds within one process, after a warm-up that does not count; `to_return`
starts a process for each instead, and counts all of it. Time is CPU time, so that other work on the machine hardly
shows; but wall-clock time in `collect modes=async`, and where `threads` is more than 1, not in `profile`. `to_return`
gives both. `out=FILE.json` keeps the figures with settings, versions and machine. Needs `pip install 'mhrl[bench]'`.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from _bench_options import OPTIONS, parse, shown


def main(words: Sequence[str]) -> dict[str, Any]:
    """Run one command; returns what `out=` writes.

    Raises:
        SystemExit: if a command or an option cannot be used.
    """
    try:
        command, options = parse(words)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    # Pools are sized when the libraries are imported, so these come later. numpy's would fight torch's.
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "OPENBLAS_NUM_THREADS": "1"}
    return import_module("_bench_command").carry_out(command, options)


def usage() -> str:
    """What the command line takes."""
    lines = (f"  {command:<12} {' '.join(shown(values))}" for command, values in OPTIONS.items())
    return "\n".join([__doc__ or "", "Options and their defaults:", *lines])


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(usage())
    else:
        main(sys.argv[1:])
