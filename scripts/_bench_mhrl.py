"""mhrl as a contestant: the parts of `+experiment=ddpg`, run through the loop of `mhrl.experiment` without its logs."""

from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace

import numpy as np
import torch
from _bench_contestant import Contestant
from _bench_task import Task
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import nn

from mhrl.assembly import Assembly
from mhrl.cli import CONFIGS
from mhrl.config import check_config, head_kinds, register

FOREVER = 10**9


def assemble(*words: str) -> Assembly:
    """The parts that `train.py <words>` would train."""
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", overrides=list(words))
        plain = check_config(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
        return Assembly(plain, head_kinds())


def words_of(task: Task) -> list[str]:
    """`task` as the command line has it."""
    widths = ",".join(map(str, task.widths))
    return [
        "+experiment=ddpg",
        f"env.id={task.env}",
        f"batch_size={task.batch}",
        f"seed={task.seed}",
        f"learning_starts={task.learning_starts}",
        f"heads.actor.widths=[{widths}]",
        f"heads.value.widths=[{widths}]",
        f"objective.policy_delay={task.policy_delay}",
        f"objective.target_every={task.policy_delay}",
        f"objective.gamma={task.gamma}",
        f"objective.tau={task.tau}",
        f"optimizer.lr={task.lr}",
        f"replay.capacity={task.capacity}",
        f"exploration.std={task.std}",
    ]


def variants(options: SimpleNamespace) -> dict[str, tuple[str, ...]]:
    """The words of each engine and precision that `options` ask for, by the name of its row."""
    found: dict[str, tuple[str, ...]] = {}
    for engine, precision in product(options.engine, options.precision):
        name = engine if precision == "fp32" else f"{engine} {precision}"
        found[name] = (f"engine={engine}", f"precision={precision}")
    return found


class Mhrl(Contestant):
    """mhrl.

    Args:
        task: what to do.
        words: further words of the command line.
        name: of the row.
    """

    def __init__(self, task: Task, words: tuple[str, ...] = (), name: str = "mhrl") -> None:
        self.name = name
        threads = f"threads={torch.get_num_threads()}"
        self.parts = assemble(*words_of(task), f"total_frames={FOREVER}", "eval.episodes=1", threads, *words)
        self.next_rollout = iter(self.parts.collector).__next__
        self.learning_starts = task.learning_starts

    def fill(self) -> None:
        """See `Contestant`."""
        while self.parts.collector.frames < self.learning_starts:
            self._step()

    def advance(self, steps: int) -> None:
        """See `Contestant`."""
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        """One round of the loop; `utd_ratio` is 1."""
        parts, rollout = self.parts, self.next_rollout()
        frames = parts.collector.frames
        parts.normaliser.update(rollout)
        parts.replay.extend(parts.objective.process_rollout(rollout))
        owed = max(0, frames - self.learning_starts) - parts.learner.updates
        for batch in parts.replay.batches(owed):
            batch = batch.to(parts.device)
            parts.learner.update(batch, frames)
            parts.replay.update_priority(batch)

    def counted(self, steps: int) -> dict[str, int]:
        """See `Contestant`; the learner counts, as an engine need not step the optimizer that it was given."""
        before, due = self.parts.learner.updates, self.parts.objective.due
        self.advance(steps)
        updates = [due(i) for i in range(before, self.parts.learner.updates)]
        return {
            name: sum(loss in losses for losses in updates) for name, loss in (("actor", "actor"), ("critic", "value"))
        }

    def act(self, observations: np.ndarray) -> np.ndarray:
        """See `Contestant`."""
        seen = torch.as_tensor(observations, dtype=torch.float32)
        return self.parts.policy.greedy.act({"observation": seen})["action"].numpy()

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """See `Contestant`."""
        return {"actor": self.parts.network.head("actor"), "critic": self.parts.network.head("value")}

    def close(self) -> None:
        """See `Contestant`."""
        self.parts.close()
