"""A process from its start to the evaluation that reaches a return, with the time that it takes until then."""

import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL = 0.02
"""Seconds between two looks at what a process has written."""


@dataclass(frozen=True)
class Reached:
    """When an evaluation reached the target: seconds since the process started, and env frames; infinite if none did.

    Attributes:
        cpu: seconds of the process and of those that it started.
        wall: seconds by the clock.
        frames: of the env.
    """

    cpu: float = math.inf
    wall: float = math.inf
    frames: float = math.inf


def watch(name: str, command: Sequence[str], cache: Path, target: float, after: int = 0) -> Reached:
    """Start a process in a folder of its own, and end it once it has written an evaluation that counts.

    Args:
        name: of the process, for messages.
        command: its words.
        cache: where inductor keeps what it has compiled.
        target: the return to reach.
        after: frames; evaluations up to there do not count.

    Raises:
        SystemExit: with its last words, if the process fails.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Path(folder, "said").open("w+") as said:
        here = Path(folder, "here")
        here.mkdir()
        settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        start = time.perf_counter()
        with subprocess.Popen(
            command, cwd=here, env=settings, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ) as process:
            watched, ended = psutil.Process(process.pid), False
            while not ended:
                ended = watched.status() == psutil.STATUS_ZOMBIE  # its times can be read until it is waited for
                frames = first_reached(here, target, after)
                if frames is not None:
                    wall = time.perf_counter() - start
                    return Reached(end(watched), wall, frames)
                time.sleep(POLL)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"error: {name} failed:\n{said.read()[-2000:].strip()}")
    return Reached()


def first_reached(folder: Path, target: float, after: int) -> int | None:
    """The frames of the first evaluation in `metrics.jsonl` that reaches the target, of those past `after` frames."""
    for path in folder.rglob("metrics.jsonl"):
        for line in path.read_text().rpartition("\n")[0].splitlines():  # not one that is half written
            row = json.loads(line)
            if row["frames"] > after and row.get("eval/return_mean", -math.inf) >= target:
                return row["frames"]
    return None


def end(process: psutil.Process) -> float:
    """End a process and all that it started; CPU seconds of them, and of what they have waited for.

    What ended without being waited for is in no account.
    """
    process.suspend()  # so that it starts and waits for nothing more
    family, seconds = [*process.children(recursive=True), process], 0.0
    for one in family:
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
            one.kill()
    return seconds
