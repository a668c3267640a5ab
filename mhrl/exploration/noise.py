"""The exploration of all heads together: one recursion over the whole action.

Shapes: `*` batch, `N` envs, `A` continuous dimensions, `K` branches, `C` columns (the `A` dimensions in env units, then
the `K` branches in values, counted from 0), `H` acting heads in the order of their first columns, `n` most values of a
branch.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from mhrl.exploration.base import HeadNoise
from mhrl.functional import center_and_half_range
from mhrl.network import Network
from mhrl.policy import Choice


@final
class ActionNoise(nn.Module):
    """Add each head's noise to its part of the greedy action, or put a random action in its place.

    Per env and column `x <- decay * x + scale * eps`, independent standard normal `eps`. The noisy action is clipped to
    the range of its column (or the noise drawn again, where the head says so), and a branch takes the allowed value
    that is nearest, the lower of two. Heads of different kinds differ in numbers only. Where no head has a memory,
    nothing is remembered and any batch may be given. All of it is on the CPU.

    Each call draws from the module's own generator, in this order: `N x C` standard normals; and, if the probability of
    a random action is above 0 for any head at any frame, `N x H` uniforms, which say where heads act at random, and
    `N x C` uniforms in float64, the random actions. What is drawn does not depend on the actions.

    Args:
        network: says what each head covers.
        heads: `{head: HeadNoise}` for every acting head.
        seed: of the module's own generator.
        num_envs: `N`, the rows that have a memory of their own.

    Attributes:
        timid: branches whose noise is too small to change their choice, and that take no random action.
    """

    frames: Tensor
    x: Tensor

    def __init__(self, network: Network, heads: Mapping[str, HeadNoise], seed: int, num_envs: int = 1) -> None:
        super().__init__()
        layout = network.layout
        owners = [*layout.owners, *layout.branches]
        names = list(dict.fromkeys(owners))
        kinds = [heads[name] for name in owners]
        low = torch.cat([layout.low.to("cpu", torch.float32), torch.zeros(len(layout.sizes))])
        high = torch.cat([layout.high.to("cpu", torch.float32), torch.tensor(layout.sizes) - 1.0])
        _, half_range = center_and_half_range(low, high)
        fraction = [
            not (heads[name].rounds or whole) for name, whole in zip(layout.branches, layout.rounded, strict=True)
        ]
        # Plain attributes, not buffers, which a module finds more slowly than it adds them.
        self.head = torch.tensor([names.index(name) for name in owners])
        self.low, self.high = low, high
        self.start = half_range * torch.tensor([kind.gain * kind.std for kind in kinds])
        self.end = half_range * torch.tensor([kind.gain * kind.last_std for kind in kinds])
        self.decay = torch.tensor([kind.decay for kind in kinds])
        self.epsilon = torch.tensor([kind.epsilon for kind in kinds])
        self.epsilon_end = torch.tensor([kind.last_epsilon for kind in kinds])
        self.anneal_start = torch.tensor([float(kind.anneal_start) for kind in kinds])
        self.anneal_frames = torch.tensor([float(max(1, kind.anneal_frames)) for kind in kinds])
        self.redraw = torch.tensor([kind.redraws for kind in kinds])
        self.fraction = torch.tensor(fraction, dtype=torch.bool)  # [K]: may execute what lies between two values
        self.valid = layout.valid.cpu()  # [K, n]
        self.values = torch.arange(layout.valid.shape[-1])
        self.register_buffer("frames", torch.zeros((), dtype=torch.long))
        self.register_buffer("x", torch.zeros(num_envs, len(kinds)))
        self.timid = tuple(
            name for name, size in zip(layout.branches, layout.sizes, strict=True) if _is_timid(heads[name], size)
        )
        self.anneals = any(kind.anneal_frames for kind in kinds)
        self.remembers = any(kind.decay for kind in kinds)
        self.randomises = any(kind.epsilon or kind.last_epsilon for kind in kinds)
        self.redraws = any(kind.redraws for kind in kinds)
        self.fractions = any(fraction)
        self.columns = len(kinds)
        self.dims, self.branches, self.num_heads = len(layout.owners), len(layout.branches), len(names)
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, frames: int) -> None:
        """Tell the schedule how many env transitions have passed in all."""
        self.frames.fill_(frames)

    def perturb(self, choice: Choice, is_init: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The action to execute, on the CPU.

        Args:
            choice: greedy, with its mask; with a memory `*` holds one row for each env, in order.
            is_init: bool `[N]`, True where an episode starts and the memory is cleared; None: nowhere.

        Returns:
            The continuous dimensions `[*, A]` in env units, and the branches' values `[*, K]`, counted from 0: int64,
            or floats where a head does not round. These are whole where the mask forbids a value of the branch.

        Raises:
            ValueError: if there is a memory and the rows are not those of the envs.
        """
        greedy = torch.cat([choice.action, choice.index], -1) if self.branches else choice.action
        greedy = greedy.detach().cpu().reshape(-1, self.columns)
        scale, epsilon = self._schedule()
        eps = torch.randn(greedy.shape, generator=self.generator)
        noise = self._remember(eps * scale, is_init) if self.remembers else eps * scale
        noisy = torch.clamp(greedy + noise, self.low, self.high)
        if self.redraws:
            noisy = torch.where(self.redraw, self._redrawn(greedy, eps, scale), noisy)
        mask = self.valid if choice.mask is None else choice.mask.cpu().reshape(len(greedy), *self.valid.shape)
        if self.randomises:
            at_random = torch.rand(len(greedy), self.num_heads, generator=self.generator)[:, self.head] < epsilon
            noisy = torch.where(at_random, self._random(len(greedy), mask).to(noisy.dtype), noisy)
        if not self.branches:
            return noisy.reshape(choice.action.shape), choice.index.cpu()
        index = self._index(noisy[:, self.dims :], mask)
        return noisy[:, : self.dims].reshape(choice.action.shape), index.reshape(choice.index.shape)

    def _schedule(self) -> tuple[Tensor, Tensor]:
        """Standard deviation of what is new, and probability of a random action, of each column now: `[C]`, `[C]`."""
        if not self.anneals:
            return self.start, self.epsilon
        progress = ((self.frames - self.anneal_start) / self.anneal_frames).clamp(0, 1)
        return torch.lerp(self.start, self.end, progress), torch.lerp(self.epsilon, self.epsilon_end, progress)

    def _remember(self, noise: Tensor, is_init: Tensor | None) -> Tensor:
        """Carry `x` `[N, C]` one step on and return it."""
        if noise.shape != self.x.shape:
            raise ValueError(f"noise with a memory is for {len(self.x)} envs, got actions of {len(noise)}")
        if is_init is not None:
            self.x.masked_fill_(is_init.cpu().reshape(-1, 1), 0.0)
        return self.x.mul_(self.decay).add_(noise)

    def _redrawn(self, greedy: Tensor, eps: Tensor, scale: Tensor) -> Tensor:
        """Noisy columns `[N, C]` that follow the normal distribution within their range.

        Drawing until the noise is in range is the inverse of the truncated distribution at a uniform number, here that
        of `eps`: no further draws, whose number would depend on the action.
        """
        scale = scale.double().clamp(min=torch.finfo(torch.float64).tiny)  # without noise: 0 / tiny, not 0 / 0
        below, above = (torch.special.ndtr((bound - greedy.double()) / scale) for bound in (self.low, self.high))
        redrawn = torch.special.ndtri(torch.lerp(below, above, torch.special.ndtr(eps.double())))
        return torch.clamp((greedy + scale * redrawn).to(greedy.dtype), self.low, self.high)

    def _random(self, count: int, mask: Tensor) -> Tensor:
        """Random columns `[N, C]`: uniform over the box, or over the values that `mask` `[(N,) K, n]` allows."""
        uniform = torch.rand(count, len(self.low), dtype=torch.float64, generator=self.generator)
        low, high = self.low[: self.dims], self.high[: self.dims]
        action = low + (high - low) * uniform[:, : self.dims]
        rank = (mask.sum(-1) * uniform[:, self.dims :]).floor()  # below the sum: the largest uniform is 1 - 2**-53
        index = (mask.cumsum(-1) <= rank.unsqueeze(-1)).sum(-1)
        return torch.cat([action, index], -1)

    def _index(self, value: Tensor, mask: Tensor) -> Tensor:
        """The branches' values to execute, `[N, K]`: those nearest to `value` that `mask` `[(N,) K, n]` allows."""
        distance = (value.unsqueeze(-1) - self.values).abs()
        index = distance.masked_fill(~mask, float("inf")).argmin(-1)  # argmin takes the first of equals
        if not self.fractions:
            return index
        return torch.where(self.fraction & (mask | ~self.valid).all(-1), value, index)

    def get_extra_state(self) -> dict[str, Tensor]:
        """The generator's state."""
        return {"generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore the generator's state."""
        self.generator.set_state(state["generator"])


def _is_timid(kind: HeadNoise, size: int) -> bool:
    """Whether a branch of `size` values hardly leaves its greedy one: the next is half a value away, two deviations."""
    randomises = kind.epsilon or kind.last_epsilon
    spread = max(kind.std, kind.last_std) * (size - 1) / 2
    return size > 1 and not randomises and not kind.decay and spread < 0.25
