"""`to_return`: from the start of a process, imports included, to an evaluation that reaches a return."""

import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from _bench_contestant import Peer
from _bench_mhrl import assemble, variants, words_of
from _bench_play import EPISODES
from _bench_report import Result, Row, spread
from _bench_skrl import Skrl
from _bench_stable_baselines3 import StableBaselines3
from _bench_task import Task
from _bench_watch import Reached, watch

from mhrl.envs import env_seeds

SCRIPTS = Path(__file__).parent
PEERS: tuple[type[Peer], ...] = (StableBaselines3, Skrl)


def run(options: SimpleNamespace) -> Result:
    """Every seed, one process after the other."""
    ours = {f"mhrl {name}": words for name, words in variants(options).items()}
    for words in ours.values():  # what cannot be used is said before a process starts
        assemble(*our_words(Task.of(options), options, words)).close()
    found: dict[str, list[Reached]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        for seed in options.seeds:
            task = Task.of(options, seed=seed)
            commands = {name: our_command(task, options, words) for name, words in ours.items()}
            commands |= {peer.name: their_command(task, options, peer) for peer in PEERS}
            for name, command in commands.items():
                one = watch(name, command, Path(caches, name), options.target, options.learning_starts)
                found.setdefault(name, []).append(one)
    best = best_peer(found)
    rows: list[Row] = [
        {
            "row": name,
            **spread("CPU s", [one.cpu for one in runs]),
            "first CPU s": runs[0].cpu,
            "wall s": median(one.wall for one in runs),
            "frames": median(one.frames for one in runs),
            "reached": f"{sum(map(reached, runs))} of {len(runs)}",
            f"CPU / {best or 'best peer'}": over(runs, found[best]) if best else None,
        }
        for name, runs in found.items()
    ]
    return Result(rows, notes(options, Task.of(options)))


def reached(one: Reached) -> bool:
    """Whether the target was reached."""
    return math.isfinite(one.frames)


def best_peer(found: Mapping[str, Sequence[Reached]]) -> str | None:
    """The peer that reached the target with most seeds, and of these the one in least CPU time; None if none did."""
    times = {peer.name: [one.cpu for one in found[peer.name] if reached(one)] for peer in PEERS}
    return min(
        (name for name, some in times.items() if some),
        key=lambda name: (-len(times[name]), median(times[name])),
        default=None,
    )


def over(runs: Sequence[Reached], others: Sequence[Reached]) -> float | None:
    """The median ratio of CPU times, of the seeds with which both reached the target."""
    ratios = [a.cpu / b.cpu for a, b in zip(runs, others, strict=True) if reached(a) and reached(b)]
    return median(ratios) if ratios else None


def our_words(task: Task, options: SimpleNamespace, words: Sequence[str]) -> list[str]:
    """The options of mhrl's training command."""
    more = [f"total_frames={options.frames}", f"eval.every={options.every}", f"eval.episodes={EPISODES}"]
    return [*words_of(task), *more, f"threads={options.threads}", "run_dir=run", "wandb.mode=disabled", *words]


def our_command(task: Task, options: SimpleNamespace, words: Sequence[str]) -> list[str]:
    """The training command of mhrl."""
    return [sys.executable, str(SCRIPTS.parent / "train.py"), *our_words(task, options, words)]


def their_command(task: Task, options: SimpleNamespace, peer: type[Peer]) -> list[str]:
    """The script of a peer, evaluated on the seeds that mhrl's evaluator has for this seed."""
    job = {"module": peer.__module__, "kind": peer.__name__, "task": asdict(task), "threads": options.threads}
    job |= {"every": options.every, "frames": options.frames, "seeds": env_seeds(task.seed, EPISODES, "eval")}
    return [sys.executable, str(SCRIPTS / "_bench_train.py"), json.dumps(job)]


def notes(options: SimpleNamespace, task: Task) -> list[str]:
    """What the figures mean."""
    return [
        f"DDPG on {options.env}, the settings of +experiment=ddpg for all: hidden layers {list(options.widths)}, batch "
        f"{options.batch}, Adam {task.lr:g}, gamma {task.gamma:g}, tau {task.tau:g}, Gaussian noise of {task.std:g} "
        f"half-ranges, {task.learning_starts:,} random frames, then an update of critic and actor for each frame.",
        f"From the start of the process, imports included, to the first evaluation of {options.target} or more after "
        f"the random frames, within {options.frames:,} frames. CPU time is of the process and those it started.",
        f"Evaluations are in the time: {EPISODES} greedy episodes in one batch, at each multiple of {options.every} "
        "frames, for all on the same seeds. So is compiling: the first seed's process has an empty inductor cache, "
        "those after it find there what it compiled.",
        f"Medians over seeds {', '.join(map(str, options.seeds))}, where a seed that does not reach it is slower than "
        "any; the ratio is the median of the ratios of seeds that reach it in both. No process shows or uploads "
        "anything; mhrl writes checkpoints, metrics and log.",
        "mhrl's Adam is fused, the others' have their library's default, which is not. Initial weights are each "
        "library's own; mhrl draws last layers from +-3e-3. skrl's trainer resets its env when it is called, so an "
        "episode of skrl ends with each evaluation.",
    ]
