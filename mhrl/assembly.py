"""Every part of a run that has state: built from a config, saved and restored as one."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, final

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from mhrl import builder
from mhrl.checkpoint import CheckpointError, load_module, load_optimizer
from mhrl.collector import Collector
from mhrl.envs import env_seeds, make_vector_env
from mhrl.evaluator import MAX_ENVS, Evaluator
from mhrl.exploration import ExploringPolicy
from mhrl.generators import generator_states, isolated_generators, restore_generators
from mhrl.learner import Learner
from mhrl.policy import GreedyPolicy
from mhrl.process import resolve_device, set_up_process
from mhrl.resolve import resolve_heads, resolve_losses
from mhrl.video import VideoRecorder, filmed, prepare_rendering


class NonFiniteParameterError(FloatingPointError):
    """A parameter is NaN or infinite."""


@final
class Assembly:
    """The nouns of one run. Building them writes nothing; one env is built and tried beforehand (`inspect_env`).

    Args:
        config: the composed config as plain values; resolved in place: every head and every loss in full.
        kinds: `{head kind: defaults}`.

    Raises:
        ConfigError: if anything in the config cannot be built.
        builder.INPUT_ERRORS: what users' own classes raise.
    """

    def __init__(self, config: dict[str, Any], kinds: Mapping[str, Any]) -> None:
        self._envs: list[gym.vector.VectorEnv] = []
        self.video: VideoRecorder | None = None
        try:
            self._build(config, kinds)
        except BaseException:
            self.close()
            raise

    def _build(self, config: dict[str, Any], kinds: Mapping[str, Any]) -> None:
        seed = config["seed"]
        set_up_process(seed, config["threads"])
        prepare_rendering()
        noise_seed, replay_seed, warmup_seed = np.random.SeedSequence(seed).generate_state(3).tolist()

        with isolated_generators(seed):  # envs and what tries them may draw
            config["env"], spaces = builder.inspect(config["env"])
        factory = builder.build_env_factory(config["env"])
        mode, timeout = config["env"]["vectorization_mode"], config["env"]["step_timeout"]
        env = self._own(make_vector_env(factory, config["num_envs"], mode, step_timeout=timeout))
        eval_count = min(MAX_ENVS, config["eval"]["episodes"])
        eval_env = self._own(make_vector_env(factory, eval_count, step_timeout=timeout))

        objective = config["objective"]
        needed = {name: objective[name] for name in ("bins", "dueling") if name in objective}
        config["heads"] = heads = resolve_heads(config["heads"], spaces.actions, kinds, **needed)
        self.device = resolve_device(config["device"])
        trunk = builder.build_trunk(config, spaces)
        self.network = network = builder.build_network(config, trunk, spaces).to(self.device)
        names = builder.loss_names(config, network)
        factor = trunk.acting_trunk_grad
        config["losses"] = resolve_losses(config["losses"], names, network.proposing, factor, heads)
        aggregator = builder.build_aggregator(config, network.proposing, trunk)
        self.objective = builder.build_objective(config, network, aggregator)
        self.objective.to(self.device).eval()  # as it acts; the engine trains it
        self.optimizer = builder.build_optimizer(config, self.objective)
        engine = builder.build_engine(config, self.objective, self.optimizer)
        self.normaliser = builder.build_normaliser(config, spaces)
        self.learner = Learner(self.objective, engine, aggregator, config["on_nonfinite"], self.normaliser)
        noise = builder.build_noise(config, network, noise_seed)
        self.policy = ExploringPolicy(GreedyPolicy(network, self.normaliser), noise)
        self.replay = builder.build_replay(config, replay_seed, spaces)
        leaves = {"observation_leaves": spaces.seen, "action_leaves": spaces.actions}
        self.collector = Collector(
            env,
            self.policy,
            **leaves,
            seeds=env_seeds(seed, env.num_envs, "train"),
            warmup_seed=warmup_seed,
            learning_starts=config["learning_starts"],
            total_frames=config["total_frames"],
            frames_per_rollout=config["collector"]["frames_per_rollout"],
            on_nonfinite=config["on_nonfinite"],
        )
        seeds = env_seeds(seed, eval_env.num_envs, "eval")
        greedy = self.policy.greedy
        self.evaluator = Evaluator(eval_env, greedy, **leaves, seeds=seeds, episodes=config["eval"]["episodes"])
        if config["eval"]["video"]:
            film = filmed(config["env"])
            self.video = VideoRecorder(lambda: builder.build_env_factory(film)(), greedy, **leaves, seed=seeds[0])

    def policy_state(self) -> dict[str, Any]:
        """What acting takes, and the counters: the content of `best.pt`."""
        return {
            "counters": {"frames": self.collector.frames, **self.learner.state_dict()},
            "optimizer": self.optimizer.state_dict(),
            **{name: module.state_dict() for name, module in self._modules().items()},
        }

    def state_dict(self, *, envs: bool = True) -> dict[str, Any]:
        """All that the rest of the run depends on.

        Args:
            envs: whether to ask the envs for their state; without it, resuming begins new episodes.
        """
        return {
            **self.policy_state(),
            "replay": {"rows": self.replay.state_dict(), "process": self.objective.process_state()},
            "env": self.collector.state_dict(envs=envs),
            "rng": generator_states(),
        }

    def load_state_dict(self, state: Mapping[str, Any], path: Path, fresh: Collection[str] = ()) -> str | None:
        """Restore what `state_dict` returned.

        Args:
            state: content of a checkpoint.
            path: its file, for messages.
            fresh: modules among its entries that are not restored, nor what the optimizer holds for them.

        Returns:
            None, or why an env is not exactly where it was: then new episodes begin.

        Raises:
            CheckpointError: naming the entry and the key that do not fit.
        """
        try:
            return self._load_state_dict(state, path, fresh)
        except KeyError as error:
            raise CheckpointError(f"{path} has no entry {error}") from error

    def _load_state_dict(self, state: Mapping[str, Any], path: Path, fresh: Collection[str]) -> str | None:
        for name, module in self._modules().items():
            if name not in fresh:
                load_module(module, state[name], name, path)
        load_optimizer(self.optimizer, state["optimizer"], path, fresh)
        self.learner.load_state_dict(state["counters"])
        try:
            self.replay.load_state_dict(state["replay"]["rows"])
        except ValueError as error:
            raise CheckpointError(f"{path}: entry 'replay' does not fit this configuration: {error}") from error
        self.objective.load_process_state(state["replay"]["process"])
        inexact = self.collector.load_state_dict(state["env"], state["counters"]["frames"])
        if inexact is not None:
            self.objective.cut()
            self.replay.cut()
        restore_generators(state["rng"])
        return inexact

    def check_finite(self) -> None:
        """Refuse to go on with parameters that are NaN or infinite: an update between two checks may have made them so.

        Raises:
            NonFiniteParameterError: naming the first of them.
        """
        for where, module in (("network", self.network), ("target", self.objective.target)):
            for name, value in module.state_dict().items():
                if not torch.isfinite(value).all():
                    raise NonFiniteParameterError(
                        f"{where}: {name} is not finite at {self.collector.frames} frames; no checkpoint is saved"
                    )

    def _modules(self) -> dict[str, nn.Module]:
        """The entries of a checkpoint that are modules."""
        return {
            "network": self.network,
            "target": self.objective.target,
            "aggregator": self.objective.aggregator,
            "exploration": self.policy.noise,
            "normaliser": self.normaliser,
        }

    def _own(self, env: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
        """Remember an env, to close it."""
        self._envs.append(env)
        return env

    def close(self) -> None:
        """Close every env."""
        if self.video is not None:
            self.video.close()
        while self._envs:
            self._envs.pop().close()
