"""Exploration noise around the greedy action.

Shapes: `*` batch (the envs), `A` dimensions of the flattened action leaf.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor

from mhrl.functional import center_and_half_range
from mhrl.network import GreedyPolicy, Network, conform
from mhrl.trunks import Key


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise, independent per env, dimension and update of the action; linear schedule over frames.

    Attributes:
        std: standard deviation at frame 0, in half-ranges of each dimension.
        std_end: standard deviation from `anneal_frames` on; None keeps `std`.
        anneal_frames: length of the linear schedule in env transitions.

    Raises:
        ValueError: if a standard deviation is negative or the schedule has no length.
    """

    std: float = 0.1
    std_end: float | None = None
    anneal_frames: int = 0

    def __post_init__(self) -> None:
        for name, std in (("std", self.std), ("std_end", self.end)):
            if not 0 <= std < float("inf"):
                raise ValueError(f"exploration.{name} is {std}: a number >= 0 is expected")
        least = 0 if self.std_end is None else 1
        if self.anneal_frames != int(self.anneal_frames) or self.anneal_frames < least:
            raise ValueError(
                f"exploration.anneal_frames is {self.anneal_frames}: a whole number >= {least} is expected"
            )

    @property
    def end(self) -> float:
        """The standard deviation that the schedule ends at."""
        return self.std if self.std_end is None else self.std_end


@final
class GaussianNoise(TensorDictModuleBase):
    """Add each head's Gaussian noise to its dimensions of the action and clip to the box.

    Args:
        network: says which dimensions each head covers.
        schedules: `{head: Gaussian}` for every acting head.
        seed: of the module's own generator.
    """

    frames: Tensor
    start: Tensor
    end: Tensor
    anneal_frames: Tensor

    def __init__(self, network: Network, schedules: Mapping[str, Gaussian], seed: int) -> None:
        super().__init__()
        self.leaf = network.leaf
        self.in_keys = self.out_keys = [self.leaf.key]
        covered = [(network.specs[head].dims, schedules[head]) for head in network.acting]
        by_dim = dict(sorted((dim, schedule) for dims, schedule in covered for dim in dims))
        space = self.leaf.box
        low = torch.as_tensor(space.low, dtype=torch.float32).flatten()
        high = torch.as_tensor(space.high, dtype=torch.float32).flatten()
        _, half_range = center_and_half_range(low, high)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.register_buffer("start", half_range * torch.tensor([s.std for s in by_dim.values()]), persistent=False)
        self.register_buffer("end", half_range * torch.tensor([s.end for s in by_dim.values()]), persistent=False)
        anneal_frames = torch.tensor([float(max(1, s.anneal_frames)) for s in by_dim.values()])
        self.register_buffer("anneal_frames", anneal_frames, persistent=False)
        self.register_buffer("frames", torch.zeros((), dtype=torch.long))
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, frames: int) -> None:
        """Tell the schedule how many env transitions have passed in all."""
        self.frames.fill_(frames)

    def perturb(self, action: Tensor) -> Tensor:
        """Noisy action `[*, *leaf shape]`, on the CPU."""
        flat = action.detach().cpu().reshape(-1, self.start.numel())
        progress = (self.frames / self.anneal_frames).clamp(max=1)
        noise = torch.randn(flat.shape, generator=self.generator) * torch.lerp(self.start, self.end, progress)
        return torch.clamp(flat + noise, self.low, self.high).reshape(action.shape)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replace the greedy action in `tensordict` by a noisy one of the action space's dtype and inside the space."""
        action = self.perturb(tensordict.get(self.leaf.key))
        return tensordict.set(self.leaf.key, conform(action, self.leaf.space))

    def get_extra_state(self) -> dict[str, Tensor]:
        """The generator's state."""
        return {"generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore the generator's state."""
        self.generator.set_state(state["generator"])


@final
class ExploringPolicy(TensorDictSequential):
    """trunk > action heads > exploration: what collects.

    Args:
        greedy: the network's policy.
        noise: what is added to its action.
    """

    def __init__(self, greedy: GreedyPolicy, noise: GaussianNoise) -> None:
        super().__init__(greedy, noise)

    @property
    def greedy(self) -> GreedyPolicy:
        """The network's policy."""
        return self.module[0]

    @property
    def noise(self) -> GaussianNoise:
        """What is added to its action."""
        return self.module[1]

    @torch.no_grad()
    def act(self, observation: Mapping[Key, Tensor], frames: int) -> dict[Key, Tensor]:
        """Noisy action leaves `{key: [N, *leaf shape]}` after `frames` env transitions."""
        self.noise.step(frames)
        return {key: self.noise.perturb(action) for key, action in self.greedy.act(observation).items()}


__all__: Sequence[str] = ["ExploringPolicy", "Gaussian", "GaussianNoise"]
