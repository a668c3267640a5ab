"""A trained run, back from its checkpoint: to act with, and to evaluate."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mhrl import builder
from mhrl.checkpoint import load_module
from mhrl.envs import Leaf, env_seeds, make_vector_env
from mhrl.envs.vector import Factory
from mhrl.evaluator import MAX_ENVS, Evaluation, Evaluator
from mhrl.policy import GreedyPolicy, act_once
from mhrl.resume import read_run
from mhrl.video import prepare_rendering

_log = logging.getLogger("mhrl")


@dataclass(frozen=True)
class TrainedRun:
    """What a checkpoint gives back.

    Attributes:
        config: the run's resolved config.
        policy: the greedy policy; a TensorDictModule, and `policy.act(observation)` without tensordicts.
        factory: builds one canonical env of the run's kind; its `native_action` turns an action into the wrapped env's.
        observation_leaves: what an observation of the env consists of, masks too.
        action_leaves: the env's action leaves.
    """

    config: Mapping[str, Any]
    policy: GreedyPolicy
    factory: Factory
    observation_leaves: tuple[Leaf, ...]
    action_leaves: tuple[Leaf, ...]

    def act(self, observation: np.ndarray | Mapping[str, np.ndarray]) -> Any:  # noqa: ANN401
        """The greedy action for one observation of a canonical env, which that env's space contains.

        Args:
            observation: as the env returns it: an array, or `{leaf name: array}`, masks too.

        Returns:
            What the env's `step` takes: the array of a single leaf, else `{"action": {name: array}}`.

        Raises:
            EmptyMaskError: if a mask allows nothing.
            ValueError: if the observation lacks a part.
        """
        names = [leaf.name for leaf in self.observation_leaves]
        if names != ["observation"] and not (isinstance(observation, Mapping) and observation.keys() >= set(names)):
            raise ValueError(f"an observation of the canonical env is expected, a mapping with {', '.join(names)}")
        return act_once(self.policy, observation, self.observation_leaves, self.action_leaves)


def load_run(path: str | Path, *, trust_config: bool = False) -> TrainedRun:
    """Load a run folder (its newest checkpoint that can be read) or a checkpoint file, onto the CPU.

    Args:
        path: a run folder or a checkpoint in one.
        trust_config: allow `_target_`s from outside mhrl and its libraries; they are code.

    Raises:
        FileNotFoundError: if `path` is neither.
        CheckpointError: if the file cannot be read, is not trusted, or does not fit its own config.
    """
    prepare_rendering()
    _, file, state, torn = read_run(path, trust_config=trust_config)
    for problem in torn:
        _log.warning("%s; %s is taken instead", problem, file.name)
    config = state["config"]
    factory = builder.build_env_factory(config["env"])
    env = factory()
    try:
        spaces = env.spaces
    finally:
        env.close()
    network = builder.build_network(config, builder.build_trunk(config, spaces), spaces)
    network.eval()
    load_module(network, state["network"], "network", file)
    normaliser = builder.build_normaliser(config, spaces)
    load_module(normaliser, state["normaliser"], "normaliser", file)
    return TrainedRun(config, GreedyPolicy(network, normaliser), factory, spaces.seen, spaces.actions)


def evaluate_run(
    path: str | Path, *, episodes: int | None = None, seed: int | None = None, trust_config: bool = False
) -> Evaluation:
    """Play greedy episodes of a trained run.

    Args:
        path: a run folder or a checkpoint in one.
        episodes: how many; the run's own `eval.episodes` if None.
        seed: draws the episodes; the run's own if None, which repeats its evaluations exactly.
        trust_config: see `load_run`.
    """
    run = load_run(path, trust_config=trust_config)
    episodes = run.config["eval"]["episodes"] if episodes is None else episodes
    env = make_vector_env(run.factory, min(MAX_ENVS, episodes))
    seeds = env_seeds(run.config["seed"] if seed is None else seed, env.num_envs, "eval")
    leaves = {"observation_leaves": run.observation_leaves, "action_leaves": run.action_leaves}
    evaluator = Evaluator(env, run.policy, **leaves, seeds=seeds, episodes=episodes)
    try:
        return evaluator.run()
    finally:
        evaluator.close()
