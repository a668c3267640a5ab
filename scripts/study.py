"""Does balancing help inside one agent? `python scripts/study.py [--only WORD ...] [--report]`: one command, resumable.

Three experiments, six ways to make one gradient of their losses, five seeds. Each run has a folder,
`<out>/<experiment>/<method>/s<seed>`. Stop it with Ctrl-C, call it again: what is finished is left alone, what was
interrupted goes on, what failed is tried again. `--report` writes `balancing.md` and `balancing.json`.

`tuned_weights` is the weighted sum with a weight on some losses (below), the one of `GRID` that was best on
`TUNING_SEEDS`, which no other run has: its runs begin when those, `<out>/<experiment>/tuning_<weight>/s<seed>`, are
finished.

All of it is about 70,000 seconds of CPU, ten hours with `--jobs 2`: reckoned from 10 to 14 ms a frame, as measured on
two busy cores of an AMD EPYC. `--only`, `--seeds` and `--frames` make it smaller; a few frames try the command, and say
nothing about a method. With `--known balancing.json` the runs that are in an earlier report, made elsewhere maybe, are
not made again, and are in the new report: so one study can be made in parts.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _balancing import Findings, final_of, final_return, report
from _jobs import Job, run_all
from _known import known
from _runs import Run

from mhrl.run_folder import RunFolder
from mhrl.signals import StopSignals


class Setting(NamedTuple):
    """What all methods of an experiment have in common.

    Attributes:
        frames: a run's `total_frames`, a multiple of `EVALUATIONS`.
        starts: `learning_starts`, a tenth of the frames where there are fewer than here.
        weighed: the losses whose weight is tuned, against those of the other heads, whose weight stays 1.
        words: of the command line.
    """

    frames: int
    starts: int
    weighed: tuple[str, ...]
    words: tuple[str, ...]


SETTINGS = {
    "hybrid_q": Setting(10_000, 1_000, ("throttle",), ("eval.episodes=50",)),
    "pdqn_platform": Setting(60_000, 1_000, ("run", "hop", "leap"), ()),
    "bdq_lunarlander": Setting(100_000, 10_000, ("action_0",), ("replay.capacity=100_000", "checkpoint.every=10_000")),
}
METHODS = {
    "weighted_sum": (),
    "tuned_weights": (),
    "upgrad@features": ("aggregator=upgrad", "aggregator.level=features"),
    "mgda@features": ("aggregator=mgda", "aggregator.level=features"),
    "imtl_g@features": ("aggregator=imtl_g", "aggregator.level=features"),
    "upgrad@params": ("aggregator=upgrad", "aggregator.level=params"),
}
SUM, TUNED = "weighted_sum", "tuned_weights"
GRID = (0.25, 1.0, 4.0)
TUNING_SEEDS = (100, 101)
EVALUATIONS = 20  # of each run, evenly spaced


class Study:
    """The study in one folder.

    Args:
        out: the folder; it keeps the numbers of frames that its runs have.
        frames: of each run; None for those of `SETTINGS`.
        earlier: a `balancing.json` whose runs need no folder.

    Raises:
        SystemExit: the runs of the folder or of `earlier` have other numbers of frames, or `frames` cannot be divided.
    """

    def __init__(self, out: Path, frames: int | None = None, earlier: Path | None = None) -> None:
        if frames is not None and (frames < EVALUATIONS or frames % EVALUATIONS):
            raise SystemExit(f"--frames {frames}: a multiple of {EVALUATIONS} is expected, for as many evaluations")
        self.out = out.absolute()
        self.frames = {name: frames or setting.frames for name, setting in SETTINGS.items()}
        nothing = {name: Findings(name, count, {}, (), None, {}, {}) for name, count in self.frames.items()}
        self.known = known(earlier, self.frames) if earlier else nothing
        noted = self.out / "study.json"
        if noted.is_file() and (before := json.loads(noted.read_text())) != self.frames:
            raise SystemExit(f"the runs in {out} have other frames, {before}: keep to them, or choose another --out")
        self.out.mkdir(parents=True, exist_ok=True)
        noted.write_text(json.dumps(self.frames) + "\n")

    def job(self, experiment: str, method: str, seed: int, words: Sequence[str]) -> Job:
        """A run of an experiment."""
        frames, setting = self.frames[experiment], SETTINGS[experiment]
        starts = min(setting.starts, frames // 10)
        common = [f"+experiment={experiment}", f"seed={seed}", f"learning_starts={starts}", "checkpoint.keep_last=1"]
        common += [f"eval.every={frames // EVALUATIONS}", *setting.words]
        return Job(self.out / experiment / method / f"s{seed}", frames, (*common, *words))

    def tuning(self, experiment: str) -> dict[float, list[Job]]:
        """For each weight that is not judged yet the runs that judge it."""
        return {
            weight: [
                self.job(experiment, f"tuning_{weight:g}", seed, weigh(experiment, weight)) for seed in TUNING_SEEDS
            ]
            for weight in GRID
            if weight not in self.known[experiment].means
        }

    def tuned(self, experiment: str) -> tuple[float | None, dict[float, float]]:
        """The weight of the best mean final return, None while runs are missing; and these means."""
        means = dict(self.known[experiment].means) | {
            weight: float(np.mean([final_return(Run(job.path), job.frames) for job in jobs]))
            for weight, jobs in self.tuning(experiment).items()
            if all(job.finished() for job in jobs)
        }
        return (max(means, key=means.__getitem__) if len(means) == len(GRID) else None), means

    def jobs(self, experiment: str, method: str, seeds: int) -> dict[int, Job]:
        """The runs of a method by seed, without those that are known; tuned ones are none before there is a weight."""
        words: tuple[str, ...] | None = METHODS[method]
        if method == TUNED:
            weight, _ = self.tuned(experiment)
            words = None if weight is None else weigh(experiment, weight)
        missing = {*range(seeds)} - self.known[experiment].finals.get(method, {}).keys()
        return {} if words is None else {seed: self.job(experiment, method, seed, words) for seed in sorted(missing)}

    def findings(self, seeds: int) -> Iterator[Findings]:
        """What is finished, experiment by experiment."""
        for experiment, frames in self.frames.items():
            before = self.known[experiment]
            finals: dict[str, dict[int, float]] = {}
            versions = {package: {*several} for package, several in before.versions.items()}
            for method in METHODS:
                jobs = self.jobs(experiment, method, seeds)
                runs = {seed: Run(job.path) for seed, job in jobs.items() if job.finished()}
                new = {seed: final_of(run, frames, method, SUM) for seed, run in runs.items()}
                finals[method] = {**before.finals.get(method, {}), **new}
                for package, version in (fact for run in runs.values() for fact in run.fact("versions").items()):
                    versions.setdefault(package, set()).add(version)
            weight, means = self.tuned(experiment)
            yield Findings(experiment, frames, finals, SETTINGS[experiment].weighed, weight, means, versions)


def weigh(experiment: str, weight: float) -> tuple[str, ...]:
    """The words that give some of an experiment's losses a weight."""
    return tuple(f"losses.{loss}.weight={weight:g}" for loss in SETTINGS[experiment].weighed)


def chosen(only: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of experiment and method that `--only` names; all, if it names none.

    Raises:
        SystemExit: a word is neither an experiment, a method nor `<experiment>/<method>`.
    """
    pairs = [(experiment, method) for experiment in SETTINGS for method in METHODS]
    words = {*SETTINGS, *METHODS, *map("/".join, pairs)}
    for word in only:
        if word not in words:
            raise SystemExit(f"--only {word}: one of {', '.join((*SETTINGS, *METHODS))} or a pair a/b is expected")
    return [pair for pair in pairs if not only or {*pair, "/".join(pair)} & {*only}]


def run(study: Study, pairs: Sequence[tuple[str, str]], seeds: int, at_once: int) -> int:
    """Run what is missing, the judges of weights first, and return the exit status."""
    folder = RunFolder(study.out)
    try:
        folder.lock()
    except FileExistsError:
        raise SystemExit(f"{study.out} is in use by another study") from None
    with StopSignals() as stop:
        tuned = [experiment for experiment, method in pairs if method == TUNED]
        judges = [job for experiment in tuned for jobs in study.tuning(experiment).values() for job in jobs]
        failed = run_all(judges, at_once, stop, say) if judges else []
        if not stop.received:
            jobs = [job for pair in pairs for job in study.jobs(*pair, seeds).values()]
            failed += run_all(jobs, at_once, stop, say)
        for experiment in tuned:
            if study.tuned(experiment)[0] is None:
                say(f"{experiment}/{TUNED} waits for its {len(GRID) * len(TUNING_SEEDS)} tuning runs")
    folder.unlock()
    if failed:
        say(f"{len(failed)} failed: the same command tries them again")
    return 128 + stop.received if stop.received else int(bool(failed))


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Does balancing help inside one agent? Resumable.")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="experiments, methods, or pairs a/b")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on (default 5)")
    parser.add_argument("--frames", type=int, help="of each run, instead of the study's own")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--out", type=Path, default=Path("outputs/study"), help="where the runs are")
    parser.add_argument("--known", type=Path, metavar="FILE", help="a balancing.json whose runs are not made again")
    parser.add_argument("--report", action="store_true", help="run nothing, write the report of what is finished")
    parser.add_argument("--to", type=Path, default=Path("docs/results"), help="where the report goes")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are positive numbers")
    pairs = chosen(options.only)
    study = Study(options.out, options.frames, options.known)
    if options.report:
        for file in report(list(study.findings(options.seeds)), SUM, options.seeds, EVALUATIONS, options.to):
            say(str(file))
        return
    sys.exit(run(study, pairs, options.seeds, options.jobs))


if __name__ == "__main__":
    main()
