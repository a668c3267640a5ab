"""What an earlier report of the study says, of runs whose folders may be elsewhere."""

import json
from collections.abc import Mapping
from pathlib import Path

from _balancing import Findings


def known(file: Path, frames: Mapping[str, int]) -> dict[str, Findings]:
    """The findings in a `balancing.json`, by experiment.

    Args:
        file: what `report` wrote.
        frames: `{experiment: frames of each run}`.

    Raises:
        SystemExit: it is not what `report` writes, or its runs have other frames.
    """
    try:
        found = {
            experiment: Findings(
                experiment,
                part["frames"],
                {
                    method: {int(seed): value for seed, value in figures["final_return"].items()}
                    for method, figures in part["methods"].items()
                },
                part["tuning"]["losses"],
                part["tuning"]["weight"],
                {float(weight): mean for weight, mean in part["tuning"]["mean_return"].items()},
                {package: {*versions.split(", ")} for package, versions in part["versions"].items()},
            )
            for experiment, part in json.loads(file.read_text(encoding="utf-8")).items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SystemExit(f"--known {file}: a balancing.json is expected ({error})") from None
    theirs = {experiment: findings.frames for experiment, findings in found.items()}
    if theirs != dict(frames):
        raise SystemExit(f"--known {file}: its runs have other frames, {theirs} instead of {dict(frames)}")
    return found
