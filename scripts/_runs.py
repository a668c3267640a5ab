"""A run folder, read: its config, who made it, and the metrics that it has logged so far."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf
from yaml import YAMLError

from mhrl.run_folder import RunFolder

Floats = NDArray[np.float64]


@final
class Run:
    """What a run folder says. Each file is read when it is first asked for.

    Args:
        path: a run folder, or a checkpoint in it.

    Raises:
        SystemExit: it is no run folder. So do all members where a file cannot be read or lacks what is asked for; the
            message names the file, and the key or the line.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self.folder = RunFolder.open(path)
        except OSError as error:
            raise SystemExit(f"{path} is no run folder: {error}") from error

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.yaml`: the resolved config."""
        file = self.folder.config
        try:
            config = OmegaConf.to_container(OmegaConf.load(file))
        except (OSError, ValueError, YAMLError) as error:
            raise SystemExit(f"{file} cannot be read: {error}") from error
        return _mapping(config, file)

    @cached_property
    def info(self) -> dict[str, Any]:
        """`run.json`: who made the run, and what became of it."""
        file = self.folder.run_json
        try:
            info = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SystemExit(f"{file} cannot be read: {error}") from error
        return _mapping(info, file)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """`metrics.jsonl`: a row of metrics for each log interval; one that is still being written is left out."""
        file = self.folder.metrics
        try:
            content = file.read_bytes()
        except OSError as error:
            raise SystemExit(f"{file} cannot be read: {error}") from error
        whole = content[: content.rfind(b"\n") + 1]  # a run that goes on, or was killed, may leave half a line
        rows = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise SystemExit(f"{file}: line {number} is no JSON: {error}") from error
            if not isinstance(row, dict) or not isinstance(row.get("frames"), int):
                raise SystemExit(f"{file}: line {number} has no frames, which are a whole number")
            rows.append(row)
        return rows

    def setting(self, key: str) -> Any:  # noqa: ANN401
        """A value of `config.yaml`, by its dotted key."""
        return _at(self.config, key, self.folder.config)

    def fact(self, key: str) -> Any:  # noqa: ANN401
        """A value of `run.json`, by its dotted key."""
        return _at(self.info, key, self.folder.run_json)

    def metric(self, key: str) -> tuple[Floats, Floats]:
        """A metric over frames, both `[points]`, from the rows that have it; NaN where it was not finite."""
        found = [(row["frames"], row[key]) for row in self.rows if key in row]
        wrong = [f"{value!r} at {frames} frames" for frames, value in found if not _is_number(value)]
        if wrong:
            raise SystemExit(f"{self.folder.metrics}: {key} is {wrong[0]}, no number")
        frames, values = zip(*found, strict=True) if found else ((), ())
        return np.array(frames, float), np.array([np.nan if value is None else value for value in values], float)

    def names(self, prefix: str) -> list[str]:
        """What follows `prefix` in the names of all metrics, up to the next slash; each once, in order."""
        keys = dict.fromkeys(key for row in self.rows for key in row if key.startswith(prefix))
        return list(dict.fromkeys(key.removeprefix(prefix).split("/")[0] for key in keys))


def _mapping(content: object, file: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise SystemExit(f"{file} holds no mapping")
    return content


def _at(content: Mapping[str, Any], key: str, file: Path) -> Any:  # noqa: ANN401
    found: Any = content
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise SystemExit(f"{file} has no {key}")
        found = found[part]
    return found


def _is_number(value: object) -> bool:
    """Null is one: what was not finite is written as null."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
