"""What benchmarks of a step share: their options, what they say of themselves, and how they take the time."""

import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console

NO_ACTION = gym.spaces.Box(np.zeros(0, np.float32), np.zeros(0, np.float32))


def begin(description: str, heads: Sequence[int], blocks: int, updates: int) -> tuple[Namespace, Console]:
    """Read the command line, set the process up, and print the settings.

    Args:
        description: of the command.
        heads: default numbers of heads.
        blocks: default number of turns.
        updates: default number of updates of a turn.
    """
    parser = ArgumentParser(description=description, formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--heads", type=int, nargs="+", default=heads, help="numbers of heads")
    parser.add_argument("--widths", type=int, nargs="*", default=[], help="hidden layers of each head")
    parser.add_argument("--outputs", type=int, default=33, help="outputs of a head")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument("--blocks", type=int, default=blocks, help="turns of each")
    parser.add_argument("--updates", type=int, default=updates, help="updates of a turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in training
    console = Console()
    console.print(
        f"trunk 64-256-256, hidden layers of a head {options.widths}, {options.outputs} outputs a head, batch "
        f"{options.batch}, float32, 1 thread, torch {torch.__version__}; medians of {options.blocks} blocks of "
        f"{options.updates} updates"
    )
    return options, console


def block(update: Callable[[], object], updates: int) -> float:
    """CPU milliseconds an update."""
    start = time.process_time()
    for _ in range(updates):
        update()
    return (time.process_time() - start) / updates * 1e3
