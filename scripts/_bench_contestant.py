"""What every library that is compared does: DDPG on one env, step by step, in the library's own loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn


class BenchmarkError(Exception):
    """What cannot be measured, and why."""


class Contestant(ABC):
    """DDPG of one library: after each env step an update of the critic, with every `policy_delay`-th of the actor."""

    name: str

    @abstractmethod
    def fill(self) -> None:
        """Take the random steps."""

    @abstractmethod
    def advance(self, steps: int) -> None:
        """Take `steps` env steps, each followed by one update."""

    @abstractmethod
    def counted(self, steps: int) -> dict[str, int]:
        """Advance, and count the updates of `actor` and `critic`."""

    @abstractmethod
    def act(self, observations: np.ndarray) -> np.ndarray:
        """The greedy actions `[N, A]` for observations `[N, O]`, in env units."""

    @property
    @abstractmethod
    def networks(self) -> Mapping[str, nn.Module]:
        """`actor` and `critic`."""

    @abstractmethod
    def close(self) -> None:
        """Close the env."""


class Peer(Contestant):
    """A contestant with an optimizer for the actor and one for the critic."""

    delays: ClassVar[bool] = True
    """Whether the library's DDPG knows a delay of the policy."""

    @property
    @abstractmethod
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """Those of `actor` and `critic`."""

    def counted(self, steps: int) -> dict[str, int]:
        """See `Contestant`; a step of an optimizer is an update."""
        counts = dict.fromkeys(self.optimizers, 0)

        def count(name: str) -> Any:  # noqa: ANN401
            def hook(*_: object) -> None:
                counts[name] += 1

            return hook

        hooks = [one.register_step_post_hook(count(name)) for name, one in self.optimizers.items()]
        self.advance(steps)
        for hook in hooks:
            hook.remove()
        return counts


def verify(contestant: Contestant, steps: int, policy_delay: int) -> None:
    """Advance, and see that the contestant does the work.

    Raises:
        BenchmarkError: if actor or critic was not updated as often as it should be, or a parameter of it stayed.
    """
    before = {name: [p.detach().clone() for p in net.parameters()] for name, net in contestant.networks.items()}
    counts = contestant.counted(steps)
    expected = {"actor": steps // policy_delay, "critic": steps}
    if counts != expected:
        raise BenchmarkError(f"{contestant.name}: updates are {counts}, {expected} are expected")
    for name, network in contestant.networks.items():
        stayed = [torch.equal(a, b) for a, b in zip(before[name], network.parameters(), strict=True)]
        if not stayed or any(stayed):
            raise BenchmarkError(
                f"{contestant.name}: {sum(stayed)} of {len(stayed)} parameters of its {name} stayed as they were in "
                f"{steps} steps: it is not trained, or `widths` are so narrow that no ReLU of a layer is active"
            )


def half_range(low: np.ndarray, high: np.ndarray) -> float:
    """That of a box which is symmetric and the same in all dimensions.

    Raises:
        BenchmarkError: if the box is another.
    """
    half = float(high.flat[0])
    if not (np.isfinite(half) and (high == half).all() and (low == -half).all()):
        raise BenchmarkError(
            f"actions are from {low} to {high}: skrl and torchrl are set up here for a finite box that is symmetric "
            "and the same in all dimensions"
        )
    return half
