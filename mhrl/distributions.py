"""What a log row may add as distributions: parameters and gradients, and what the heads decide.

`wandb.watch` does the first by hooks, which do not work here: they write to the process's global run, where ours is
not, and heads that are computed together never call the modules that are hooked. Here everything is read after the
update, and only then. Nothing is drawn and nothing changed: whatever is watched, the bits of training stay the same.
"""

from typing import Literal, final

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from mhrl.functional import best_index, best_value
from mhrl.policy import GreedyPolicy

Watch = Literal[False, "gradients", "parameters", "all"]


@final
class Distributions:
    """The distributions at one moment of a run.

    Args:
        policy: the greedy policy, whose network is looked at.
        watch: `gradients` (of the last update, after clipping), `parameters` or `all`, tensor by tensor; False: none.
        heads: whether to ask the heads what they decide for the batch of the last update.
    """

    def __init__(self, policy: GreedyPolicy, watch: Watch = False, *, heads: bool = False) -> None:
        self.policy = policy
        self.watch = watch
        self.heads = heads
        self._batch: TensorDictBase | None = None

    def see(self, batch: TensorDictBase) -> None:
        """Take note of an update's raw batch `[B]` or `[B, T]`; it is kept until the next one, and only if needed."""
        if self.heads:
            self._batch = batch

    def collect(self) -> dict[str, np.ndarray]:
        """The arrays by name, empty where nothing is asked for.

        `parameters/<parameter>` and `gradients/<parameter>` have the parameter's shape; parameters that the last update
        left alone have no gradient. For a head that proposes, `head/<head>/action` `[*, D]` is its action in env units;
        for a branch `head/<head>/index` `[*]` is the number of its value, from 0; for a critic `head/<critic>/value`
        `[*]` is its highest value of a legal choice, beside the proposed action.
        """
        found = self._of_heads(self._batch) if self._batch is not None else {}
        for name, parameter in self.policy.network.named_parameters():
            if self.watch in ("parameters", "all"):
                found[f"parameters/{name}"] = parameter
            if self.watch in ("gradients", "all") and parameter.grad is not None:
                found[f"gradients/{name}"] = parameter.grad
        return {name: values.numpy(force=True) for name, values in found.items()}

    @torch.no_grad()
    def _of_heads(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """What the heads decide for the observations of `batch`."""
        network, observation = self.policy.network, self.policy.network.observe(batch)
        if self.policy.normaliser is not None:
            observation = self.policy.normaliser.observation(observation)
        features = network.trunk_features(observation)
        actions = network.propose(network.proposing, features, observation)
        found = {f"head/{head}/action": action for head, action in actions.items()}
        if network.critics:
            action, mask = network.act(features, observation), network.mask(observation)
            values = network.action_values(features, observation, action, copies=1).squeeze(-3)
            index, best = best_index(values, mask), best_value(values, mask)
            found |= {f"head/{name}/index": index[..., k] for k, name in enumerate(network.branches)}
            found |= {f"head/{name}/value": best[..., k] for k, name in enumerate(network.critics)}
        return found
