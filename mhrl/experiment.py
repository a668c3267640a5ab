"""The experiment: one run from its first line to its last, and the loop that its parts go through."""

import logging
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from omegaconf import OmegaConf

from mhrl import builder
from mhrl.aggregators import NegativeLossError
from mhrl.assembly import Assembly, NonFiniteParameterError
from mhrl.checkpoint import CheckpointError
from mhrl.checkpoint_folder import CheckpointFolder
from mhrl.config import ConfigError
from mhrl.distributions import Distributions
from mhrl.engine import NonFiniteLossError
from mhrl.envs import EmptyMaskError, EnvError, NonFiniteError
from mhrl.health import Health
from mhrl.loggers import ConsoleLogger, JsonlLogger, Loggers, Outcome, RunInfo, WandbLogger, best_evaluation
from mhrl.resume import Resumption
from mhrl.run_folder import RunFolder
from mhrl.signals import StopSignals
from mhrl.start_up import next_commands, run_info

FAULTS = (
    *(EnvError, EmptyMaskError, NonFiniteError, NonFiniteLossError, NegativeLossError, NonFiniteParameterError),
    *(CheckpointError, torch.OutOfMemoryError),
)
"""What may end a run although the program is right."""

_log = logging.getLogger("mhrl")


@final
class Experiment:
    """One run, new or resumed.

    Args:
        config: the composed config as plain values; resolved here in full.
        kinds: `{head kind: defaults}`.
        resumption: where to go on; None begins a new run.
        choices: the file chosen from each config group; a resumed run has those in its `run.json`.

    Raises:
        ConfigError: if anything in the config cannot be built, or the checkpoint does not fit it.

    Attributes:
        frames: env transitions so far.
        best: the best evaluation so far, return and frames.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        kinds: Mapping[str, Any],
        resumption: Resumption | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        self.config = dict(config)
        self.resumption = resumption
        self.choices = dict(choices or {})
        if resumption is not None:
            self.choices = resumption.folder.read().get("choices", {}) | dict(resumption.choices)
        self.frames = 0
        self.inexact: str | None = None
        self._launched = Path.cwd()
        self._warned = False  # whether it was said that this env's state cannot be saved
        self.best: tuple[float, int] | None = None
        self.health = Health()
        try:
            self.wandb = WandbLogger(config["wandb"]["mode"], **self._wandb_options())
            self.parts = Assembly(self.config, kinds)
            watch, heads = config["wandb"]["watch"], config["wandb"]["histograms"]
            seen = self.wandb.mode != "disabled"  # else nobody would draw them
            self.distributions = Distributions(self.parts.policy.greedy, seen and watch, heads=seen and heads)
            if resumption is not None:
                self._load(resumption)
        except Exception as error:
            if resumption is not None:
                resumption.folder.unlock()
            if isinstance(error, builder.INPUT_ERRORS) and not isinstance(error, ConfigError):
                raise ConfigError(builder.explain(error)) from error
            raise

    def _load(self, resumption: Resumption) -> None:
        """Take over the state of a checkpoint; nothing is written yet."""
        try:
            self.inexact = self.parts.load_state_dict(resumption.state, resumption.file, resumption.fresh)
        except BaseException:
            self.close()
            raise
        self.resumption = replace(resumption, state={})  # whose tensors are no longer needed
        self.frames = self.parts.collector.frames
        self.best = best_evaluation(resumption.folder.metrics, self.frames)

    def run(self) -> None:
        """Train, evaluate and checkpoint; whatever ends the run, the loggers and `run.json` say how.

        Raises:
            SystemExit: 130 after SIGINT, 143 after SIGTERM, once the checkpoint is written.
        """
        with StopSignals() as self.stop, ExitStack() as cleanup:
            cleanup.callback(self.close)
            self._open()
            cleanup.callback(self.folder.unlock)
            start, status = time.monotonic(), "failed"
            try:
                wandb = f"{self.wandb.mode} ({self.wandb.reason})"
                network, objective, timid = self.parts.network, self.parts.objective, self.parts.policy.noise.timid
                info = run_info(self.config, network, objective, wandb, self.folder.path, timid)
                info = replace(info, tags=self._tags())
                self.loggers.start(info if self.resumption is None else self._resumed(info, self.resumption))
                self._note(wandb_id=self.wandb.run_id, aggregator=objective.aggregator.label, choices=self.choices)
                if self.resumption is not None:
                    self.checkpoints.go_on_from(self.resumption.file, self.frames)
                    self.best = self.best if self.checkpoints.best.is_file() else None
                self._loop()
                status = "finished" if self.frames >= self.config["total_frames"] else "interrupted"
            except BaseException as error:
                # Where signals are not ours, in a thread or a notebook, Ctrl-C comes as an exception.
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                _log.error("the run %s at %d frames: %s", status, self.frames, error, exc_info=True)
                self._save_what_is_left()
                raise
            finally:
                seconds, updates = time.monotonic() - start, self.parts.learner.updates
                best, at = self.best or (None, None)
                commands = next_commands(self.config, self.checkpoints, status, self.wandb.mode, self._launched)
                newest = list(self.checkpoints.numbered().values())[:1]
                files = (path for path in (self.checkpoints.best, *newest) if path.is_file())
                self.loggers.finish(Outcome(status, self.frames, updates, seconds, best, at, commands, (*files,)))
                ended = {"status": status, "frames": self.frames, "updates": updates, "seconds": seconds}
                self._note(**ended, logger_errors=self.loggers.errors)
        if self.stop.received:
            raise SystemExit(128 + self.stop.received)

    def _open(self) -> None:
        """Make or reopen the run's folder."""
        config, resumption = self.config, self.resumption
        try:
            if resumption is None:
                self.folder = RunFolder.create(config["run_dir"], config["name"], config["seed"])
                self.folder.write_run_json(status="running")
            else:
                self.folder = resumption.folder
                self.folder.write_resumed(self.frames)
            self.folder.write_config(OmegaConf.to_yaml(OmegaConf.create(config)))
        except OSError as error:
            raise ConfigError(f"{'run_dir' if resumption is None else 'resume'}: {error}") from error
        self.checkpoints = CheckpointFolder(self.folder.checkpoints, config["checkpoint"]["keep_last"])
        keep_until = None if resumption is None else self.frames
        after = -1 if resumption is None else self.frames
        self.loggers = Loggers(ConsoleLogger(), JsonlLogger(keep_until), self.wandb, after=after)

    def _note(self, **fields: Any) -> None:  # noqa: ANN401
        """Change fields of `run.json`; a full disk, or a file that somebody has spoilt, is no reason to stop."""
        try:
            self.folder.update(**fields)
        except (OSError, ValueError) as error:
            _log.warning("run.json could not be written: %s", error)

    def _loop(self) -> None:
        """THE loop: nothing here belongs to one algorithm."""
        config, parts = self.config, self.parts
        utd_ratio = Fraction(config["utd_ratio"]).limit_denominator(1_000_000)
        clock, before = time.monotonic(), (self.frames, parts.learner.updates)
        early = not self.checkpoints.last.exists()
        for rollout in parts.collector:
            previous, self.frames = self.frames, parts.collector.frames
            last = self.frames >= config["total_frames"]
            log, evaluate, save = (
                last or self.frames // config[group]["every"] > previous // config[group]["every"]
                for group in ("log", "eval", "checkpoint")
            )
            if log:
                parts.learner.measure()
            parts.normaliser.update(rollout)
            parts.replay.extend(parts.objective.process_rollout(rollout))
            owed = math.floor(utd_ratio * max(0, self.frames - config["learning_starts"])) - parts.learner.updates
            self._learn(owed)
            row: dict[str, float] = {}
            if log:
                row |= parts.learner.report() | self._episodes()
                seconds = max(time.monotonic() - clock, 1e-9)
                row["perf/frames_per_s"] = (self.frames - before[0]) / seconds
                row["perf/updates_per_s"] = (parts.learner.updates - before[1]) / seconds
                clock, before = time.monotonic(), (self.frames, parts.learner.updates)
            training = time.monotonic()
            if evaluate:
                row |= self._evaluate()
            if row:
                row = {"frames": self.frames, "updates": parts.learner.updates, **row}
                self.loggers.log(row)
            if log:
                for warning in self.health.observe(row):
                    _log.warning("%s", warning)
            if log and (distributions := self.distributions.collect()):
                self.loggers.histograms(distributions, self.frames)
            # After the row, which a resumed run would not write again; and once as soon as there is an update to lose.
            stop = self.stop.received is not None
            if save or stop or (early and parts.learner.updates):
                early = False
                self._save(must=last or stop)
            clock += time.monotonic() - training  # speed is that of training, without evaluations and checkpoints
            if stop:
                _log.warning("stopped by %s at %d frames", self.stop.name, self.frames)
                return

    def _learn(self, updates: int) -> None:
        """Draw batches and update on each.

        Raises:
            torch.OutOfMemoryError: naming the keys to lower.
        """
        parts = self.parts
        try:
            for batch in parts.replay.batches(updates):
                batch = batch.to(parts.device)
                parts.learner.update(batch, self.frames)
                self.distributions.see(batch)
                parts.replay.update_priority(batch)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            # The CPU's allocator has no class of its own.
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            raise torch.OutOfMemoryError(builder.explain_memory(error, self.config)) from error

    def _episodes(self) -> dict[str, float]:
        """Mean return and length of the training episodes that ended since the last call; empty if none did."""
        row: dict[str, float] = {}
        returns, lengths = self.parts.collector.pop_episodes()
        if returns:
            row = {"episode/return": float(np.mean(returns)), "episode/length": float(np.mean(lengths))}
        if self.config["on_nonfinite"] == "skip":
            row["skipped_rows"] = self.parts.collector.skipped_rows
        return row

    def _evaluate(self) -> dict[str, float]:
        """Evaluate, and keep the best network so far as `best.pt`."""
        metrics = self.parts.evaluator.run().metrics()
        if self.best is None or metrics["eval/return_mean"] > self.best[0]:
            self.best = (metrics["eval/return_mean"], self.frames)
            try:
                self.checkpoints.save_best({"config": self.config, **self.parts.policy_state()})
            except CheckpointError as error:
                _log.warning("%s; the run goes on", error)
        if self.parts.video is not None:
            film = self.parts.video.film(self.folder.videos / f"eval_{self.frames}.mp4")
            if film is not None:
                self.loggers.video(film, self.frames)
        return metrics

    def _save(self, *, must: bool) -> None:
        """Write a checkpoint; one that fails is warned about, unless it is the run's last chance.

        Raises:
            NonFiniteParameterError: if there is nothing worth saving; the older checkpoints are good.
        """
        self.parts.check_finite()
        state = self.parts.state_dict()
        if not self._warned and (reason := self.parts.collector.inexact) is not None:
            _log.warning("resume will not be exact, new episodes will begin: %s", reason)
            self._warned = True
        try:
            self.checkpoints.save(self.frames, {"config": self.config, **state})
        except CheckpointError as error:
            if must:
                raise
            _log.warning("%s; the run goes on and tries again at the next checkpoint", error)

    def _save_what_is_left(self) -> None:
        """After a failure: keep what was trained since the last checkpoint, without the envs, if it is sound."""
        newest = next(iter(self.checkpoints.numbered()), -1)
        if self.frames <= newest or not self.parts.learner.updates:
            return
        try:
            self.parts.check_finite()
            state = {"config": self.config, **self.parts.state_dict(envs=False)}
            _log.info("saved as %s", self.checkpoints.save(self.frames, state).name)
        except Exception as error:  # whatever broke the run may break this, too
            _log.warning("no checkpoint was saved: %s", error)

    def _resumed(self, info: RunInfo, resumption: Resumption) -> RunInfo:
        """`info`, with where the run comes from, and what is to be known about that."""
        inexact = () if self.inexact is None else (f"resume is not exact, new episodes begin: {self.inexact}",)
        notes = (*inexact, *resumption.notes, *info.notes)
        return replace(info, resumed=resumption.file.name, frames=self.frames, notes=notes)

    def _wandb_options(self) -> dict[str, Any]:
        """What W&B is told beside the config."""
        other = ("mode", "watch", "histograms")
        options = {key: value for key, value in self.config["wandb"].items() if key not in other}
        names = {"name": f"{self.config['name']}_s{self.config['seed']}", "group": self.config["name"]}
        run_id = None if self.resumption is None else self.resumption.folder.read().get("wandb_id")
        return {**options, **names, "run_id": run_id}

    def _tags(self) -> tuple[str, ...]:
        """By what a run is found among others, `key:value`, as far as it is known."""
        tags = {
            "experiment": self.choices.get("experiment", self.config["name"]),
            "env": self.config["env"].get("id") or self.choices.get("env"),
            "objective": self.choices.get("objective"),
            "aggregator": self.parts.learner.aggregator.label,
            "seed": self.config["seed"],
        }
        return tuple(f"{key}:{value}" for key, value in tags.items() if value is not None)

    def close(self) -> None:
        """Close every env."""
        self.parts.close()
