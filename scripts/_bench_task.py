"""The task that every library is given."""

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, Self


@dataclass(frozen=True)
class Task:
    """DDPG on one env: two perceptrons of ReLU, one critic; noise is Gaussian and clipped to the box.

    Attributes:
        env: gymnasium's id, one env.
        batch: rows of a batch.
        widths: hidden layers of actor and critic.
        policy_delay: updates of the critic between two of the actor and of the targets.
        seed: of everything.
        learning_starts: steps of random actions, without updates.
        capacity: of the replay buffer.
        lr: Adam's, of actor and critic.
        gamma: the discount.
        tau: step of the targets towards the online networks.
        std: of the noise, in half-ranges of the action.
    """

    env: str
    batch: int = 256
    widths: tuple[int, ...] = (256, 256)
    policy_delay: int = 1
    seed: int = 0
    learning_starts: int = 1_000
    capacity: int = 100_000
    lr: float = 1e-3
    gamma: float = 0.99
    tau: float = 0.005
    std: float = 0.1

    @classmethod
    def of(cls, options: SimpleNamespace, **others: Any) -> Self:  # noqa: ANN401
        """The task that the options of a command ask for, and `others` instead of some."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: value for name, value in vars(options).items() if name in names} | others)
