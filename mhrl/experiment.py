"""The experiment: builds the nouns of a run, and the loop that they go through."""

import logging
import math
import shlex
import sys
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, final

import gymnasium as gym
import numpy as np
from omegaconf import OmegaConf

from mhrl import builder
from mhrl.checkpoint import is_trusted, save_checkpoint, targets
from mhrl.collector import Collector
from mhrl.config import ConfigError
from mhrl.envs import action_leaves, env_seeds, make_vector_env, observation_leaves
from mhrl.evaluator import MAX_ENVS, Evaluator
from mhrl.exploration import ExploringPolicy
from mhrl.learner import Learner
from mhrl.loggers import ConsoleLogger, JsonlLogger, Loggers, Outcome, WandbLogger
from mhrl.network import GreedyPolicy
from mhrl.process import resolve_device, set_up_process
from mhrl.resolve import resolve_heads, resolve_losses
from mhrl.run_folder import RunFolder
from mhrl.start_up import run_info

_log = logging.getLogger("mhrl")


@final
class Experiment:
    """One run.

    Args:
        config: the composed config as plain values; resolved here in full.
        kinds: `{head kind: defaults}`.

    Raises:
        ConfigError: if anything in the config cannot be built.
    """

    def __init__(self, config: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
        self.config = dict(config)
        self.frames = 0
        self.best_return: float | None = None
        self.best_frames: int | None = None
        self._envs: list[gym.vector.VectorEnv] = []
        try:
            self._build(kinds)
        except Exception as error:
            self.close()
            if isinstance(error, builder.INPUT_ERRORS) and not isinstance(error, ConfigError):
                raise ConfigError(builder.explain(error)) from error
            raise

    def _build(self, kinds: Mapping[str, Any]) -> None:
        """Build every noun; nothing is written and no env is stepped."""
        config = self.config
        seed = config["seed"]
        set_up_process(seed, config["threads"])
        noise_seed, replay_seed, warmup_seed = np.random.SeedSequence(seed).generate_state(3).tolist()

        self.wandb = WandbLogger(config["wandb"]["mode"], **self._wandb_options())
        factory = builder.build_env_factory(config["env"])
        mode = config["env"]["vectorization_mode"]
        env = self._own(make_vector_env(factory, config["num_envs"], mode))
        eval_env = self._own(make_vector_env(factory, min(MAX_ENVS, config["eval"]["episodes"])))
        observations = observation_leaves(env.single_observation_space)
        actions = action_leaves(env.single_action_space)

        config["heads"] = resolve_heads(config["heads"], actions, kinds)
        device = resolve_device(config["device"])
        trunk = builder.build_trunk(config, observations)
        self.network = network = builder.build_network(config, trunk, actions).to(device)
        config["losses"] = resolve_losses(config["losses"], list(network.specs), trunk.acting_trunk_grad)
        aggregator = builder.build_aggregator(config)
        self.objective = builder.build(config["objective"], "objective", network=network, aggregator=aggregator)
        self.objective.to(device).eval()  # as it acts; the engine trains it
        self.optimizer = builder.build_optimizer(config, self.objective)
        engine = builder.build_engine(config, self.objective, self.optimizer)
        self.learner = Learner(self.objective, engine, aggregator, config["on_nonfinite"])
        self.policy = ExploringPolicy(GreedyPolicy(network), builder.build_noise(config, network, noise_seed))
        self.replay = builder.build_replay(config, replay_seed)
        self.collector = Collector(
            env,
            self.policy,
            observation_leaves=observations,
            action_leaves=actions,
            seeds=env_seeds(seed, env.num_envs, "train"),
            warmup_seed=warmup_seed,
            learning_starts=config["learning_starts"],
            total_frames=config["total_frames"],
            frames_per_rollout=config["collector"]["frames_per_rollout"],
        )
        self.evaluator = Evaluator(
            eval_env,
            self.policy.greedy,
            observation_leaves=observations,
            action_leaves=actions,
            seeds=env_seeds(seed, eval_env.num_envs, "eval"),
            episodes=config["eval"]["episodes"],
        )
        self.device = device

    def run(self) -> None:
        """Train, evaluate and checkpoint; whatever ends the run, the loggers and `run.json` say how."""
        config = self.config
        try:
            self.folder = RunFolder.create(config["run_dir"], config["name"], config["seed"])
        except OSError as error:
            self.close()
            raise ConfigError(f"run_dir: {error}") from error
        self.folder.write_config(OmegaConf.to_yaml(OmegaConf.create(config)))
        self.folder.write_run_json(status="running")
        self.loggers = Loggers(ConsoleLogger(), JsonlLogger(), self.wandb)
        start, status = time.monotonic(), "failed"
        try:
            wandb = f"{self.wandb.mode} ({self.wandb.reason})"
            self.loggers.start(run_info(config, self.network, self.objective, wandb, self.folder.path))
            self.folder.update(wandb_id=self.wandb.run_id)
            self._loop()
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except Exception as error:
            _log.error("the run failed at %d frames: %s", self.frames, error, exc_info=True)
            raise
        finally:
            # Say how it ended before anything else can fail: closing the envs of a dead worker may.
            seconds = time.monotonic() - start
            updates, commands = self.learner.updates, self._next_commands()
            outcome = Outcome(status, self.frames, updates, seconds, self.best_return, self.best_frames, commands)
            self.loggers.finish(outcome)
            ended = {"status": status, "frames": self.frames, "updates": updates, "seconds": seconds}
            self.folder.update(**ended, logger_errors=self.loggers.errors)
            self.close()

    def _loop(self) -> None:
        """THE loop: nothing here belongs to one algorithm."""
        config = self.config
        utd_ratio = Fraction(config["utd_ratio"]).limit_denominator(1_000_000)
        clock, before = time.monotonic(), (0, 0)
        for rollout in self.collector:
            previous, self.frames = self.frames, self.collector.frames
            last = self.frames >= config["total_frames"]
            log, evaluate, save = (
                last or self.frames // config[group]["every"] > previous // config[group]["every"]
                for group in ("log", "eval", "checkpoint")
            )
            if log:
                self.learner.measure()
            self.replay.extend(self.objective.process_rollout(rollout))
            owed = math.floor(utd_ratio * max(0, self.frames - config["learning_starts"])) - self.learner.updates
            for batch in self.replay.batches(owed):
                self.learner.update(batch.to(self.device), self.frames)
                self.replay.update_priority(batch)
            row: dict[str, float] = {}
            if log:
                row |= self.learner.report() | self._episodes()
                seconds = max(time.monotonic() - clock, 1e-9)
                row["perf/frames_per_s"] = (self.frames - before[0]) / seconds
                row["perf/updates_per_s"] = (self.learner.updates - before[1]) / seconds
                clock, before = time.monotonic(), (self.frames, self.learner.updates)
            training = time.monotonic()
            if evaluate:
                row |= self._evaluate()
            if save:
                save_checkpoint(self.folder.checkpoints / "last.pt", self.state())
            clock += time.monotonic() - training  # speed is that of training, without evaluations and checkpoints
            if row:
                self.loggers.log({"frames": self.frames, "updates": self.learner.updates, **row})

    def _episodes(self) -> dict[str, float]:
        """Mean return and length of the training episodes that ended since the last call; empty if none did."""
        returns, lengths = self.collector.pop_episodes()
        if not returns:
            return {}
        return {"episode/return": float(np.mean(returns)), "episode/length": float(np.mean(lengths))}

    def _evaluate(self) -> dict[str, float]:
        """Evaluate, and keep the best network so far as `best.pt`."""
        metrics = self.evaluator.run().metrics()
        if self.best_return is None or metrics["eval/return_mean"] > self.best_return:
            self.best_return, self.best_frames = metrics["eval/return_mean"], self.frames
            save_checkpoint(self.folder.checkpoints / "best.pt", self.state())
        return metrics

    def state(self) -> dict[str, Any]:
        """All that a checkpoint holds."""
        return {
            "config": self.config,
            "counters": {"frames": self.frames, "updates": self.learner.updates, "best_return": self.best_return},
            "network": self.network.state_dict(),
            "target": self.objective.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "aggregator": self.objective.aggregator.state_dict(),
            "exploration": self.policy.noise.state_dict(),
        }

    def _wandb_options(self) -> dict[str, Any]:
        """What W&B is told beside the config."""
        options = {key: value for key, value in self.config["wandb"].items() if key != "mode"}
        return options | {"name": f"{self.config['name']}_s{self.config['seed']}", "group": self.config["name"]}

    def _next_commands(self) -> tuple[str, ...]:
        """What a user may want to type now."""
        folder = self.folder.path
        if folder.is_relative_to(Path.cwd()):
            folder = folder.relative_to(Path.cwd())
        found = [name for name in ("last.pt", "best.pt") if (self.folder.checkpoints / name).is_file()]
        run = folder if "last.pt" in found else folder / "checkpoints" / "best.pt"
        trusted = all(is_trusted(target) for _, target in targets(self.config))
        script = Path(sys.argv[0]).parent / "scripts" / "evaluate.py"
        script = script if script.is_file() else Path("scripts/evaluate.py")
        evaluate = f"python {shlex.quote(str(script))} {shlex.quote(f'run={run}')}"
        commands = [evaluate if trusted else f"{evaluate} trust_config=true"] if found else []
        if self.wandb.mode == "offline":
            commands.append(f"wandb leet inspect --summary {shlex.quote(self.config['wandb']['dir'] + '/wandb')}")
        return tuple(commands)

    def _own(self, env: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
        """Remember an env, to close it."""
        self._envs.append(env)
        return env

    def close(self) -> None:
        """Close every env."""
        while self._envs:
            env = self._envs.pop()
            try:
                env.close()
            except Exception as error:  # a worker that died cannot be asked to close
                _log.warning("an env did not close (%s), its processes are ended", type(error).__name__)
                env.close(terminate=True)
