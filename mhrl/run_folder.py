"""A run's folder: who made it, from what, and what became of it."""

import fcntl
import json
import os
import platform
import re
import secrets
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, final

from mhrl import __version__
from mhrl.files import written_whole

_PACKAGES = ("torch", "tensordict", "torchrl", "gymnasium", "hydra-core", "wandb", "numpy")


@final
class RunFolder:
    """The paths of one run and its `run.json`. Made by `create` or `open`.

    Args:
        path: The folder; kept absolute, so that a later change of directory does not move the run.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self._lock: int | None = None

    @classmethod
    def create(cls, run_dir: str | None, name: str, seed: int, root: str | Path = "outputs") -> "RunFolder":
        """Makes the folder of a new run and lets `<root>/last` point to it.

        Args:
            run_dir: The folder, made if it does not exist; left out, `<root>/<date_time>_<name>_s<seed>_<uid>`.
            name: The experiment's name.
            seed: The run's seed.
            root: Where runs live; like `run_dir`, relative to the current directory.

        Raises:
            FileExistsError: `run_dir` holds a run or anything else.
        """
        if run_dir is None:
            folder = cls(_make_unique(Path(root), name, seed))
        else:
            folder = cls(Path(run_dir))
            _refuse_used(folder.path, run_dir)
            folder.path.mkdir(parents=True, exist_ok=True)
        try:
            folder.checkpoints.mkdir()  # the one step that two runs with the same run_dir cannot both take
        except FileExistsError:
            raise FileExistsError(f"run_dir={run_dir} has just been taken by another run") from None
        folder.lock()
        folder._point_last(Path(root))
        return folder

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Finds the run of a run folder or of a checkpoint file in it.

        Raises:
            FileNotFoundError: It is neither; the message lists what is nearby.
        """
        given = Path(path).resolve()  # `outputs/last` may move on while we read
        given = given.parent if given.is_dir() and given.name == "checkpoints" else given
        run = given.parent.parent if given.is_file() and given.parent.name == "checkpoints" else given
        if _holds_run(run):
            return cls(run)
        nearby = given if given.is_dir() else next(parent for parent in given.parents if parent.is_dir())
        names = [entry.name for entry in sorted(nearby.iterdir())]
        listed = ", ".join(names[-8:]) or "nothing"
        if given.exists():
            what = "is neither a run folder nor a checkpoint in one (<run>/checkpoints/*.pt)"
        else:
            what = "does not exist"
        raise FileNotFoundError(f"{path} {what}; in {nearby} there is: {listed}")

    def lock(self) -> None:
        """Takes the folder for this process, until `unlock` or the process's end, a kill included.

        Raises:
            FileExistsError: Another process has it.
        """
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise FileExistsError(f"{self.path} is in use by another process: its run has not ended") from None

    def unlock(self) -> None:
        """Lets the folder go."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def run_json(self) -> Path:
        """Versions, git, argv, ids, status, times."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of `last.pt`, `best.pt`, `frames_<n>.pt`."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """What the console said, as text."""
        return self.path / "train.log"

    @property
    def videos(self) -> Path:
        """The folder of videos; made by whoever writes one."""
        return self.path / "videos"

    def read(self) -> dict[str, Any]:
        """The content of `run.json`; empty if there is none, or none that can be read."""
        try:
            found = json.loads(self.run_json.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_config(self, text: str) -> None:
        """Writes `config.yaml`."""
        with written_whole(self.config) as file:
            file.write(text.encode())

    def write_run_json(self, **fields: Any) -> None:  # noqa: ANN401
        """Writes `run.json` anew, status running: versions, git, argv, the start time, and `fields` over them."""
        self._write(
            {
                "status": "running",
                "started": _now(),
                "ended": None,
                "wandb_id": None,
                "argv": sys.argv,
                "git": _git(),
                "versions": _versions(),
                **fields,
            }
        )

    def update(self, **fields: Any) -> None:  # noqa: ANN401
        """Changes fields of `run.json`; a `status` sets `ended` too (to null when running again)."""
        if "status" in fields:
            fields.setdefault("ended", None if fields["status"] == "running" else _now())
        self._write({**self.read(), **fields})

    def write_resumed(self, frames: int) -> None:
        """Marks the run as running again; `run.json` lists every resumption."""
        this = {"frames": frames, "started": _now(), "argv": sys.argv, "git": _git(), "versions": _versions()}
        self.update(status="running", resumed=[*self.read().get("resumed", []), this])

    def _write(self, fields: dict[str, Any]) -> None:
        with written_whole(self.run_json) as file:
            file.write((json.dumps(fields, indent=2, default=str) + "\n").encode())

    def _point_last(self, root: Path) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            last = Path(os.path.abspath(root)) / "last"
            inside = self.path.is_relative_to(last.parent)
            partial = last.with_name(f".last-{secrets.token_hex(4)}")
            partial.symlink_to(self.path.relative_to(last.parent) if inside else self.path)
            try:
                os.replace(partial, last)
            finally:
                partial.unlink(missing_ok=True)
        except OSError:  # a convenience: no symlinks here, or a real folder of that name
            return


def _make_unique(root: Path, name: str, seed: int) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    safe = re.sub(r"[^\w.-]+", "-", name)
    while True:  # the time has seconds only, and a seeded RNG would give parallel runs the same id
        path = root / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{safe}_s{seed}_{secrets.token_hex(2)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _refuse_used(path: Path, given: str) -> None:
    if _holds_run(path):
        raise FileExistsError(f"run_dir={given} already holds a run: choose another run_dir")
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"run_dir={given} is a file: choose another run_dir")
    if path.is_dir() and (names := sorted(entry.name for entry in path.iterdir())):
        listed = ", ".join(names[:4])
        raise FileExistsError(f"run_dir={given} is not empty ({listed}): choose a new or an empty folder")


def _holds_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "config.yaml").is_file()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    versions = {"mhrl": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git() -> dict[str, Any] | None:
    """The commit of the current directory and whether tracked files differ from it; None outside a repository."""
    answers = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            done = subprocess.run(
                ["git", *command], capture_output=True, text=True, timeout=3, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode != 0:
            return None
        answers.append(done.stdout.strip())
    return {"sha": answers[0], "dirty": bool(answers[1])}
