"""`collect`: frames per second of the collector with an exploring policy, beside torchrl's."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace

from _bench_clock import clock_of, in_turns, name_of, ratio, take_turns
from _bench_mhrl import Mhrl
from _bench_report import Result, Row
from _bench_task import Task
from _bench_torchrl import make_actor, make_collector, make_env
from torchrl.envs import ParallelEnv, SerialEnv

KINDS = {"sync": SerialEnv, "async": partial(ParallelEnv, mp_start_method="fork")}


def run(options: SimpleNamespace) -> Result:
    """Measure each number of envs."""
    rows: list[Row] = []
    for mode in options.modes:
        for count in options.envs:
            rows += compare(count, mode, options)
    sizes = [frames_of(count, options) for count in options.envs]
    return Result(
        rows,
        [
            f"Perceptron {list(options.widths)}, Gaussian noise, rollouts of {options.rollout} frames an env.",
            f"sync: envs in this process, by its {name_of(options.threads)} time; torchrl's GymEnv or SerialEnv.",
            "async: a process for each, whose CPU time is not this one's: by wall-clock time; torchrl's ParallelEnv.",
            f"{in_turns(options.rounds, '/'.join(map(str, sizes)), 'frames')} Rounds are of whole rollouts.",
        ],
    )


def compare(count: int, mode: str, options: SimpleNamespace) -> list[Row]:
    """The rows of one number of envs, stepped in one way."""
    task, per_rollout = Task.of(options, learning_starts=0), count * options.rollout
    words = (f"num_envs={count}", f"env.vectorization_mode={mode}", f"collector.frames_per_rollout={options.rollout}")
    ours = Mhrl(task, words)
    env = make_env(task.env, count, None if (count, mode) == (1, "sync") else KINDS[mode])
    theirs = make_collector(env, make_actor(env, task.widths), task.std, per_rollout)
    nexts = {"mhrl": ours.next_rollout, "torchrl": iter(theirs).__next__}
    frames = frames_of(count, options)
    actions = {name: partial(drain, step, frames // per_rollout) for name, step in nexts.items()}
    for action in actions.values():
        action()
    clock = clock_of(options.threads) if mode == "sync" else time.perf_counter
    found = take_turns(actions, options.rounds, frames, clock)
    ours.close()
    theirs.shutdown()
    return [
        {
            "envs": count,
            "mode": mode,
            "collector": name,
            "frames/s": 1e3 / median(laps),
            "min": 1e3 / max(laps),
            "max": 1e3 / min(laps),
            "x torchrl": ratio(found["torchrl"], laps),
        }
        for name, laps in found.items()
    ]


def frames_of(count: int, options: SimpleNamespace) -> int:
    """Of a round of `count` envs: whole rollouts, one at least, and as many as `frames` holds."""
    per_rollout = count * options.rollout
    return per_rollout * max(1, options.frames // per_rollout)


def drain(step: Callable[[], object], times: int) -> None:
    """Take `times` rollouts."""
    for _ in range(times):
        step()
