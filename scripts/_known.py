"""What an earlier report of the study says of runs whose folders are elsewhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import final


@final
class Known:
    """Finished runs of which there is a `balancing.json` and, maybe, no folder: they were made elsewhere.

    Args:
        file: what `report` wrote; None for no runs.
        frames: `{experiment: frames of each run}`.

    Raises:
        SystemExit: it is not what `report` writes, or its runs have other frames.
    """

    def __init__(self, file: Path | None, frames: Mapping[str, int]) -> None:
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file else {}
            theirs = {experiment: part["frames"] for experiment, part in content.items()}
            self._finals = {
                (experiment, method): {int(seed): value for seed, value in figures["final_return"].items()}
                for experiment, part in content.items()
                for method, figures in part["methods"].items()
            }
            self._means = {
                experiment: {float(weight): mean for weight, mean in part["tuning"]["mean_return"].items()}
                for experiment, part in content.items()
            }
            self._versions = {
                experiment: {package: {*versions.split(", ")} for package, versions in part["versions"].items()}
                for experiment, part in content.items()
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise SystemExit(f"--known {file}: a balancing.json is expected ({error})") from None
        if content and theirs != dict(frames):
            raise SystemExit(f"--known {file}: its runs have other frames, {theirs} instead of {dict(frames)}")

    def finals(self, experiment: str, method: str) -> dict[int, float]:
        """`{seed: final return}`."""
        return self._finals.get((experiment, method), {})

    def means(self, experiment: str) -> dict[float, float]:
        """`{weight: mean final return}`."""
        return self._means.get(experiment, {})

    def versions(self, experiment: str) -> dict[str, set[str]]:
        """`{library: versions}`."""
        return self._versions.get(experiment, {})
