"""The noise of all heads together: one recursion over the whole action.

Shapes: `*` batch, `N` envs, `A` dimensions of the flattened action leaf.
"""

from collections.abc import Mapping
from typing import final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from mhrl.exploration.base import HeadNoise
from mhrl.functional import center_and_half_range
from mhrl.network import Network, conform


@final
class GaussianNoise(TensorDictModuleBase):
    """Add each head's noise to its dimensions of the action and clip to the box.

    Per env and dimension `x <- decay * x + scale * eps`, independent standard normal `eps`. Heads of different kinds
    differ in `decay` and `scale` only. Where no head has a memory, nothing is remembered and any batch may be given.

    Args:
        network: says which dimensions each head covers.
        heads: `{head: HeadNoise}` for every acting head.
        seed: of the module's own generator.
        num_envs: `N`, the rows that have a memory of their own.
    """

    frames: Tensor
    x: Tensor
    start: Tensor
    end: Tensor
    decay: Tensor
    anneal_frames: Tensor

    def __init__(self, network: Network, heads: Mapping[str, HeadNoise], seed: int, num_envs: int = 1) -> None:
        super().__init__()
        self.leaf = network.leaf
        self.in_keys = self.out_keys = [self.leaf.key]
        covered = [(network.specs[head].dims, heads[head]) for head in network.acting]
        kinds = list(dict(sorted((dim, noise) for dims, noise in covered for dim in dims)).values())  # by dimension
        space = self.leaf.box
        low = torch.as_tensor(space.low, dtype=torch.float32).flatten()
        high = torch.as_tensor(space.high, dtype=torch.float32).flatten()
        _, half_range = center_and_half_range(low, high)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        start = half_range * torch.tensor([kind.gain * kind.std for kind in kinds])
        end = half_range * torch.tensor([kind.gain * kind.end for kind in kinds])
        anneal_frames = torch.tensor([float(max(1, kind.anneal_frames)) for kind in kinds])
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("end", end, persistent=False)
        self.register_buffer("anneal_frames", anneal_frames, persistent=False)
        self.register_buffer("decay", torch.tensor([kind.decay for kind in kinds]), persistent=False)
        self.register_buffer("frames", torch.zeros((), dtype=torch.long))
        self.register_buffer("x", torch.zeros(num_envs, len(kinds)))
        self.remembers = any(kind.decay for kind in kinds)
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, frames: int) -> None:
        """Tell the schedule how many env transitions have passed in all."""
        self.frames.fill_(frames)

    def perturb(self, action: Tensor, is_init: Tensor | None = None) -> Tensor:
        """Noisy action `[*, *leaf shape]`, on the CPU.

        Args:
            action: greedy, `[*, *leaf shape]`; with a memory `*` holds one row for each env, in order.
            is_init: bool `[N]`, True where an episode starts and the memory is cleared; None: nowhere.

        Raises:
            ValueError: if there is a memory and the rows are not those of the envs.
        """
        flat = action.detach().cpu().reshape(-1, self.start.numel())
        progress = (self.frames / self.anneal_frames).clamp(max=1)
        noise = torch.randn(flat.shape, generator=self.generator) * torch.lerp(self.start, self.end, progress)
        if self.remembers:
            noise = self._remember(noise, is_init)
        return torch.clamp(flat + noise, self.low, self.high).reshape(action.shape)

    def _remember(self, noise: Tensor, is_init: Tensor | None) -> Tensor:
        """Carry `x` `[N, A]` one step on and return it."""
        if noise.shape != self.x.shape:
            raise ValueError(f"noise with a memory is for {len(self.x)} envs, got actions of {len(noise)}")
        if is_init is not None:
            self.x.masked_fill_(is_init.cpu().reshape(-1, 1), 0.0)
        return self.x.mul_(self.decay).add_(noise)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replace the greedy action in `tensordict` by a noisy one of the action space's dtype and inside the space.

        Reads `is_init` where it is there (torchrl's `InitTracker` writes it); else no episode starts in these rows.
        """
        action = self.perturb(tensordict.get(self.leaf.key), tensordict.get("is_init", None))
        return tensordict.set(self.leaf.key, conform(action, self.leaf.space))

    def get_extra_state(self) -> dict[str, Tensor]:
        """The generator's state."""
        return {"generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore the generator's state."""
        self.generator.set_state(state["generator"])
