"""A run's checkpoints: which files there are, how many stay, and which one a run goes on from."""

import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any, final

from mhrl.checkpoint import CheckpointError, TornCheckpointError, load_checkpoint, save_checkpoint

_log = logging.getLogger("mhrl")


@final
class CheckpointFolder:
    """`frames_<n>.pt`, `last.pt` (a hard link to the newest of them) and `best.pt`.

    Args:
        path: the folder.
        keep_last: how many `frames_<n>.pt` stay; None keeps all.
    """

    def __init__(self, path: Path, keep_last: int | None = None) -> None:
        self.path = path
        self.keep_last = keep_last

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.path / "last.pt"

    @property
    def best(self) -> Path:
        """The network of the best evaluation; holds no replay."""
        return self.path / "best.pt"

    def numbered(self) -> dict[int, Path]:
        """`{n: frames_<n>.pt}`, the newest first."""
        found = ((re.fullmatch(r"frames_(\d+)\.pt", path.name), path) for path in self.path.glob("frames_*.pt"))
        return dict(sorted(((int(match[1]), path) for match, path in found if match), reverse=True))

    def save(self, frames: int, state: dict[str, Any]) -> Path:
        """Write `frames_<n>.pt`, let `last.pt` be the same file, then remove what is past `keep_last`.

        Raises:
            CheckpointError: if it cannot be written; nothing was removed.
        """
        path = self.path / f"frames_{frames}.pt"
        save_checkpoint(path, state)
        self._point_last(path)
        if self.keep_last is not None:
            for old in list(self.numbered().values())[self.keep_last :]:
                if old != path:
                    old.unlink(missing_ok=True)
        return path

    def save_best(self, state: dict[str, Any]) -> None:
        """Write `best.pt`.

        Raises:
            CheckpointError: if it cannot be written.
        """
        save_checkpoint(self.best, state)

    def newest(self, *, trust_config: bool = False) -> tuple[Path, dict[str, Any], tuple[str, ...]]:
        """The newest checkpoint that can be read, its content, and what is wrong with the newer ones.

        Raises:
            CheckpointError: if there is none, or the newest one is not trusted.
        """
        torn: list[str] = []
        for path in (*self.numbered().values(), self.last):  # a kill may have come before last.pt was linked
            if path.is_file():
                try:
                    return path, load_checkpoint(path, trust_config=trust_config), tuple(torn)
                except TornCheckpointError as error:
                    torn.append(str(error))
        raise CheckpointError("\n".join([f"{self.path} holds no checkpoint that can be read", *torn]))

    def go_on_from(self, path: Path, frames: int) -> None:
        """Make `path` the newest: later ones, of a future that will now be another, are set aside as `later_<n>.pt`."""
        for n, later in self.numbered().items():
            if n > frames:
                self._set_aside(later, f"later_{n}", frames)
        if self.best.is_file():
            try:
                n = load_checkpoint(self.best, trust_config=True)["counters"]["frames"]
            except CheckpointError as error:
                _log.warning("%s; it is left alone until there is a better one", error)
            else:
                if n > frames:
                    self._set_aside(self.best, f"later_best_{n}", frames)
        if path != self.last and not (self.last.exists() and self.last.samefile(path)):
            self._point_last(path)
        for torn in self.path.glob(".*.tmp"):  # what a kill in the middle of a save has left
            torn.unlink(missing_ok=True)

    def _set_aside(self, path: Path, name: str, frames: int) -> None:
        """Rename a checkpoint that lies past `frames`, over no other."""
        names = (f"{name}{suffix}.pt" for suffix in ("", *(f"_{i}" for i in range(2, 10_000))))
        free = next(path.with_name(each) for each in names if not path.with_name(each).exists())
        path.rename(free)
        _log.info("%s lies past %d frames, it is kept as %s", path.name, frames, free.name)

    def _point_last(self, path: Path) -> None:
        """Let `last.pt` be the same file as `path`.

        Raises:
            CheckpointError: if it cannot.
        """
        link = self.path / ".last.pt.tmp"
        try:
            link.unlink(missing_ok=True)
            try:
                os.link(path, link)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, link)
            os.replace(link, self.last)
        except OSError as error:
            link.unlink(missing_ok=True)
            raise CheckpointError(f"{self.last} could not be written: {error}") from error
