"""Evaluations of several runs side by side: `python scripts/summarise.py RUN [RUN ...]`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from _runs import Run

RETURN = "eval/return_mean"


def read(folder: Path, by: Sequence[str]) -> tuple[str, int, dict[int, float]]:
    """What a run is called, its seed, and `{frames: mean return}` of its evaluations.

    Args:
        folder: a run folder.
        by: config keys whose values are part of the name.

    Raises:
        SystemExit: if it is no run folder, has no evaluation, or lacks a key.
    """
    run = Run(folder)
    frames, returns = run.metric(RETURN)
    if not len(frames):
        raise SystemExit(f"{folder}: no evaluation in metrics.jsonl")
    name = " ".join([run.setting("name"), *(f"{key}={run.setting(key)}" for key in by)])
    return name, run.setting("seed"), dict(zip(frames.astype(int).tolist(), returns.tolist(), strict=True))


def value_at(evaluations: Mapping[int, float], frames: int | None, window: int) -> float:
    """The mean of the last `window` evaluations up to `frames` (all, if None); NaN if the run did not get there."""
    if frames is not None and max(evaluations) < frames:
        return float("nan")
    seen = [value for at, value in sorted(evaluations.items()) if frames is None or at <= frames]
    return float(np.mean(seen[-window:]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each name: mean and standard deviation (population) over seeds, and each seed's value."""
    parser = argparse.ArgumentParser(description="Evaluations of several runs side by side.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--at", nargs="+", type=int, metavar="FRAMES", help="where to look; at the end, if left out")
    parser.add_argument("--window", type=int, default=1, help="evaluations that are averaged, ending there")
    parser.add_argument("--by", nargs="+", default=[], metavar="KEY", help="config keys that tell runs apart")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write all evaluations there, as JSON")
    options = parser.parse_args(arguments)
    if options.window < 1:
        parser.error(f"--window is {options.window}: a positive number is expected")

    groups: dict[str, dict[int, dict[int, float]]] = {}
    for run in options.runs:
        name, seed, evaluations = read(run, options.by)
        if seed in groups.setdefault(name, {}):
            parser.error(f"{run}: there is another run of {name!r} with seed {seed}; tell them apart with --by")
        groups[name][seed] = evaluations

    lines = [("name", "frames", "mean", "std", "by seed")]
    for name, seeds in groups.items():
        for frames in options.at or [None]:
            values = {seed: value_at(seeds[seed], frames, options.window) for seed in sorted(seeds)}
            at = frames or max(max(evaluations) for evaluations in seeds.values())
            mean, std = float(np.mean(list(values.values()))), float(np.std(list(values.values())))
            listed = "  ".join(f"{seed}: {_number(value)}" for seed, value in values.items())
            lines.append((name, f"{at:,}", _number(mean), _number(std), listed))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *numbers, listed in lines:
        columns = [
            name.ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=False)),
        ]
        print("   ".join([*columns, listed]))
    if options.save is not None:
        content = {name: {str(seed): _columns(seeds[seed]) for seed in sorted(seeds)} for name, seeds in groups.items()}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(content, indent=1) + "\n")


def _number(value: float) -> str:
    """One decimal, or three significant digits of a small number."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _columns(evaluations: Mapping[int, float]) -> dict[str, list[float]]:
    """Evaluations as two columns."""
    rows = sorted(evaluations.items())
    return {"frames": [frames for frames, _ in rows], RETURN: [round(value, 4) for _, value in rows]}


if __name__ == "__main__":
    main()
