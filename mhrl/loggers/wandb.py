"""Weights & Biases: never a prompt, never a hang, one run per logger. wandb itself is imported only when needed."""

import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

from mhrl.loggers.base import Logger, Outcome, Row, RunInfo

if TYPE_CHECKING:
    import numpy as np
    import wandb

MODES = ("auto", "online", "offline", "disabled")
_FINISH_TIMEOUT = 60.0  # seconds for the last upload; what is left stays on disk
_TAG_LENGTH = 64  # longer ones W&B refuses
_BINS = 64
_log = logging.getLogger("mhrl")


def resolve_mode(mode: str) -> tuple[str, str]:
    """Decides the W&B mode: the explicit value, then `WANDB_MODE`, then online if a key is found, else offline.

    Args:
        mode: `auto` or an explicit `online`, `offline`, `disabled`.

    Returns:
        The effective mode (never `auto`), and why, as the end of a sentence.

    Raises:
        ValueError: The value, or that of `WANDB_MODE`, is none of these.
    """
    if mode not in MODES:
        raise ValueError(f"wandb.mode={mode!r} is not one of {', '.join(MODES)}")
    if mode != "auto":
        return mode, "set by wandb.mode"
    variable = os.environ.get("WANDB_MODE", "")
    if not variable:
        os.environ.pop("WANDB_MODE", None)  # set and empty, as containers have it, wandb refuses
    if variable:
        effective = {"run": "online", "dryrun": "offline"}.get(variable, variable)  # wandb's older names
        if effective not in MODES[1:]:
            raise ValueError(f"WANDB_MODE={variable!r} is not one of {', '.join(MODES[1:])}")
        return effective, "set by WANDB_MODE"
    try:
        return ("online", "API key found") if has_key() else ("offline", "no API key found; `wandb login` adds one")
    except ImportError:
        return "disabled", "wandb cannot be imported"
    except Exception as error:  # a malformed key or file is no reason to stop
        return "offline", f"the API key cannot be used: {error}"


@final
class WandbLogger(Logger):
    """Logs a run to W&B; when online does not answer, offline, with a warning.

    Args:
        mode: As for `resolve_mode`; `disabled` never imports wandb.
        project: The project's name.
        dir: The folder that holds `wandb/` for all runs, so that `wandb leet` and `wandb sync` find them.
        name: The run's display name; the run folder's name if left out.
        group: Groups runs, such as the seeds of a sweep.
        tags: Tags of the run, beside those of its `RunInfo`.
        entity: The user or team; the account's default if left out.
        notes: Free text.
        artifacts: Whether the checkpoints of the `Outcome` are uploaded, as versions of one artifact that is called as
            the run's folder.
        run_id: On resume, the id of the run to continue. Online its rows are added to the run's; offline they make a
            second folder with the same id, and `wandb sync` joins the two. Rows carry their `frames` and no step of
            W&B's own, which would be refused where it goes back.
        init_timeout: Seconds to wait for the server before falling back.

    Attributes:
        mode: The effective mode; after `start`, the one in use.
        reason: Why.
        run_id: The run's id; None before the start of a new run, and when it is not logged.
    """

    def __init__(
        self,
        mode: str = "auto",
        *,
        project: str = "mhrl",
        dir: str | Path = "outputs",
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        entity: str | None = None,
        notes: str | None = None,
        artifacts: bool = False,
        run_id: str | None = None,
        init_timeout: float = 20.0,
    ) -> None:
        self.mode, self.reason = resolve_mode(mode)
        if self.mode != "disabled" and not _importable():
            self.mode, self.reason = "disabled", "wandb cannot be imported"
        self.run_id = self._continued = run_id
        self._dir = Path(dir).absolute()
        self._init_timeout = init_timeout
        self._resume = "allow" if run_id else None
        self._about = {"project": project, "name": name, "group": group, "entity": entity, "notes": notes}
        self._tags = tuple(tags)
        self._artifacts = artifacts
        self._run: wandb.Run | None = None

    def start(self, info: RunInfo) -> None:
        """Opens the run; a failing online start becomes an offline one, and leaves nothing behind."""
        if self.mode == "disabled":
            return
        self._owned = not _in_use()
        try:
            self._open(info)
        finally:
            if self._run is None:
                self.mode, self.reason, self.run_id = "disabled", "the start failed", self._continued
                self._release()

    def _open(self, info: RunInfo) -> None:
        self._dir.mkdir(parents=True, exist_ok=True)  # wandb warns about a root that does not exist yet
        self.run_id = self.run_id or _new_id()
        self._run_dir = info.run_dir
        if self.mode == "online":
            older = self._folders()
            try:
                if not has_key():  # asked for by name, on a terminal, wandb would now prompt
                    raise RuntimeError("no API key found; `wandb login` adds one")
                self._run = self._init("online", info)
                _log.info("W&B: %s", self._run.url)
            except Exception as error:
                self.mode, self.reason = "offline", "the online start failed"
                _log.warning("W&B did not start online, the run is logged offline: %s", str(error).splitlines()[0])
                self._release()  # after a failed start only a new service begins from a clean state
                for folder in self._folders() - older:
                    shutil.rmtree(folder, ignore_errors=True)
        if self._run is None:
            self._run = self._init("offline", info)
        self._run.define_metric("frames")
        self._run.define_metric("*", step_metric="frames")

    def log(self, row: Row) -> None:
        """Sends one row, on the axis `frames`."""
        if self._run is not None:
            self._run.log(dict(row))

    def video(self, path: Path, frames: int) -> None:
        """Sends a film, as `eval/video`."""
        if self._run is not None:
            import wandb

            self._run.log({"frames": frames, "eval/video": wandb.Video(str(path), format="mp4")})

    def histograms(self, values: Mapping[str, "np.ndarray"], frames: int) -> None:
        """Sends a histogram of each array's finite numbers, on the axis `frames`."""
        if self._run is not None:
            import numpy as np
            import wandb

            drawn = {}
            for name, array in values.items():
                finite = array[np.isfinite(array)].astype(np.float64)  # in which float32's smallest range has 64 parts
                if finite.size:
                    drawn[name] = wandb.Histogram(np_histogram=np.histogram(finite, _BINS))
            self._run.log({"frames": frames, **drawn})

    def finish(self, outcome: Outcome) -> None:
        """Closes the run and wandb's service process, after what is uploaded last."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            try:
                if self._artifacts and outcome.checkpoints:
                    self._upload(run, outcome.checkpoints)
            finally:
                run.finish(exit_code=0 if outcome.status == "finished" else 1)
        except TimeoutError:
            folder = Path(run.dir).parent
            _log.warning("W&B: not all of it was uploaded in time; `wandb sync %s` sends the rest", folder)
        finally:
            self._release()

    def _upload(self, run: "wandb.Run", checkpoints: Sequence[Path]) -> None:
        """Hands files to W&B where they are, without the copies that it makes by default."""
        import wandb

        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "_", self._run_dir.name)[:128], type="model")
        for path in checkpoints:
            artifact.add_file(str(path), policy="immutable", skip_cache=True)
        run.log_artifact(artifact)

    def _init(self, mode: str, info: RunInfo) -> "wandb.Run":
        import wandb

        wandb.setup(wandb.Settings(silent=True))  # some of its chatter is printed before init reads its settings
        return wandb.init(
            mode=mode,  # type: ignore[arg-type]
            dir=self._dir,
            id=self.run_id,
            resume=self._resume,  # type: ignore[arg-type]
            config=info.config,
            tags=list(dict.fromkeys(tag[:_TAG_LENGTH] for tag in (*info.tags, *self._tags))),
            **self._about | {"name": self._about["name"] or info.run_dir.name},  # type: ignore[arg-type]
            settings=wandb.Settings(
                silent=True,
                console="off",
                reinit="create_new",  # the default hands out a run that is still active
                init_timeout=self._init_timeout,
                finish_timeout=_FINISH_TIMEOUT,
                finish_timeout_raises=True,
                x_disable_stats=True,
                x_transaction_log_flush_interval=1.0,  # what a kill may lose, in seconds
            ),
        )

    def _folders(self) -> set[Path]:
        return set((self._dir / "wandb").glob(f"run-*-{self.run_id}"))

    def _release(self) -> None:
        """Ends wandb's service process, unless somebody else in this process uses it."""
        if self._owned:
            _teardown()


def _new_id() -> str:
    """The id that W&B's sweep agent has given this process; else one of our own, as a fixed one would merge runs."""
    return (os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None) or secrets.token_hex(4)


def _importable() -> bool:
    try:
        import wandb  # noqa: F401
    except Exception:  # an installation may be broken in any way
        return False
    return True


def _in_use() -> bool:
    from wandb.sdk import wandb_setup

    return wandb_setup._singleton is not None


def _teardown() -> None:
    import wandb

    with suppress(SystemExit):  # it exits the program with the service's exit status
        wandb.teardown()


def has_key() -> bool:
    """Whether wandb finds credentials (environment, netrc, its settings file), by its own look-up, without a prompt.

    Raises:
        ImportError: wandb is not installed.
        Exception: There are credentials and wandb refuses them.
    """
    import wandb
    from wandb.sdk import wandb_setup
    from wandb.sdk.lib import wbauth

    owned = not _in_use()
    try:
        settings = wandb_setup._setup(wandb.Settings(silent=True), start_service=False).settings
        host = wbauth.HostUrl(settings.base_url)
        return wbauth.authenticate_session(host=host, source="mhrl", prompt=False, update_session=False) is not None
    finally:
        if owned:
            _teardown()  # it keeps a copy of the environment, which the next run must read afresh
