"""A peer's training script for `to_return`: `_bench_train.py JSON`, see `main`.

Imports nothing of mhrl, whose time would be the peer's.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import torch
from _bench_contestant import BenchmarkError, Contestant
from _bench_play import play, playground
from _bench_task import Task


def main(text: str) -> None:
    """Train one peer, and write each evaluation to `metrics.jsonl` in the folder it runs in.

    Evaluates where mhrl does, at each multiple of `every` and at the end: before `learning_starts`, too.

    Args:
        text: JSON with `module` and `kind` of the peer, `task`, `threads`, `every`, `frames`, and the evaluations'
            `seeds`, one an episode.

    Raises:
        SystemExit: if the peer cannot be measured.
    """
    job = json.loads(text)
    torch.set_num_threads(job["threads"])
    task = Task(**{**job["task"], "widths": tuple(job["task"]["widths"])})
    try:
        contestant: Contestant = getattr(import_module(job["module"]), job["kind"])(task)
    except BenchmarkError as error:
        raise SystemExit(str(error)) from None
    envs, done = playground(task.env, len(job["seeds"])), 0
    with Path("metrics.jsonl").open("w", buffering=1) as file:
        for frames in sorted({*range(job["every"], job["frames"], job["every"]), job["frames"]}):
            if frames >= task.learning_starts and not done:  # until then no weight changes
                contestant.fill()
                done = task.learning_starts
            if done and frames > done:
                contestant.advance(frames - done)
                done = frames
            file.write(json.dumps({"frames": frames, "eval/return_mean": play(contestant, envs, job["seeds"])}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
