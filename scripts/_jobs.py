"""Runs as subprocesses, several at once: the finished are left alone, the broken go on, all stop when told to."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from _runs import Run

from mhrl.run_folder import RunFolder
from mhrl.signals import StopSignals

TRAIN = Path(__file__).parents[1] / "train.py"
RETURN = "eval/return_mean"
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_GLANCE = 0.1  # seconds between two looks at what runs


@final
@dataclass(frozen=True)
class Job:
    """One run.

    Args:
        path: its folder, which is the job's own.
        frames: its `total_frames`.
        words: what a new run is started with, besides these.
    """

    path: Path
    frames: int
    words: tuple[str, ...]

    @property
    def output(self) -> Path:
        """What the run has printed, beside its folder: there may be no folder if it fails early."""
        return self.path.with_name(f"{self.path.name}.log")

    def finished(self) -> bool:
        """Whether the run's last evaluation is there."""
        return (self.path / "metrics.jsonl").is_file() and self.frames in Run(self.path).metric(RETURN)[0]

    def command(self) -> list[str]:
        """What starts the run, or goes on with it; what a run without a checkpoint has left is removed.

        Raises:
            FileExistsError: another process has the run.
        """
        python = [sys.executable, str(TRAIN)]
        if any(self.path.glob("checkpoints/frames_*.pt")):
            return [*python, f"resume={self.path}"]
        if self.path.exists():
            folder = RunFolder(self.path)
            folder.lock()
            shutil.rmtree(self.path)
            folder.unlock()
        return [*python, *self.words, f"run_dir={self.path}", f"total_frames={self.frames}", "wandb.mode=disabled"]


def run_all(jobs: Sequence[Job], at_once: int, stop: StopSignals, say: Callable[[str], None]) -> list[Job]:
    """Do those of `jobs` that are not finished; after a signal no more are begun, and those that run save and stop.

    Args:
        jobs: in this order.
        at_once: how many at a time.
        stop: entered.
        say: prints a line.

    Returns:
        Those that failed.
    """
    waiting = deque(job for job in jobs if not job.finished())
    say(f"{len(jobs)} runs, of which {len(jobs) - len(waiting)} are finished")
    running: dict[Job, tuple[subprocess.Popen[bytes], float]] = {}
    failed: list[Job] = []
    told: set[Job] = set()

    def tell(number: int) -> None:
        """Let them save and stop, before a second signal ends this process."""
        for job in running.keys() - told:
            told.add(job)
            running[job][0].send_signal(signal.SIGINT)

    stop.pass_on = tell
    while running or (waiting and not stop.received):
        while waiting and len(running) < at_once and not stop.received:
            job = waiting.popleft()
            running[job] = _start(job), time.monotonic()
        if stop.received:
            tell(stop.received)  # one may have begun as the signal came
        for job, (process, began) in list(running.items()):
            if process.poll() is None:
                continue
            del running[job]
            left = f"{len(waiting) + len(running)} to go"
            if job.finished():
                say(f"{_name(job)}: finished after {time.monotonic() - began:.0f} s, {left}")
            elif process.returncode in INTERRUPTED:
                say(f"{_name(job)}: stopped, and can go on")
            else:
                failed.append(job)
                say(f"{_name(job)}: FAILED, {left}; the end of {job.output}:\n{_end(job.output)}")
        time.sleep(_GLANCE)
    return failed


def _start(job: Job) -> "subprocess.Popen[bytes]":
    """Begin a job in a session of its own: Ctrl-C in the terminal reaches it once, from here."""
    job.path.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    with job.output.open("ab") as output:
        try:
            command = job.command()
        except FileExistsError as error:  # told as the run's own failures are
            command = [sys.executable, "-c", f"raise SystemExit({str(error)!r})"]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=job.path.parent,
            env=environment,
            start_new_session=True,
        )


def _name(job: Job) -> str:
    return "/".join(job.path.parts[-3:])


def _end(output: Path) -> str:
    """The last lines."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-6:])
