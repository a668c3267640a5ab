"""Where the heads sit: the flat orders of the action's dimensions, and the way between them and the env's leaves.

Every dimension of every action leaf belongs to one acting head. A *proposing* head gives continuous dimensions their
values; a *branch* chooses one of the values of one dimension, by index. Both have a flat order, which is that of the
sorted leaves and row-major within each: it does not depend on the order of a Dict's keys.

Shapes: `*` batch, `A` continuous dimensions, `K` branches, `n` most values of a branch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, final

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from mhrl.envs import Key, Leaf, mask_key

VALUE = "value"
"""Name of the head and of the loss that belong to no action leaf: Q(s, a), a dueling V(s), or the joint Q."""


@dataclass(frozen=True)
class HeadSpec:
    """Where a head sits: the leaf and dimensions that it covers, and what it reads.

    Attributes:
        leaf: name of the action leaf; empty for `value`.
        dims: the covered dimensions of the flattened leaf, in the order of the head's output; one for a branch.
        in_keys: `features`, `observation` (bypasses the trunk), or both.
        values: how many values a branch chooses from; 0 for a head that proposes, and for `value`.
    """

    leaf: str = ""
    dims: tuple[int, ...] = ()
    in_keys: tuple[str, ...] = ("features",)
    values: int = 0


@final
class _Place(nn.Module):
    """One leaf: which of its dimensions are proposed, and which are chosen from values."""

    start: Tensor
    step: Tensor
    per_step: Tensor
    order: Tensor
    chosen: Tensor
    proposed: Tensor

    def __init__(self, leaf: Leaf, proposed: Sequence[int], chosen: Sequence[int], sizes: Sequence[int]) -> None:
        super().__init__()
        self.leaf, self.shape = leaf, tuple(leaf.box.shape)
        self.counts = [len(proposed), len(chosen)]
        low, high = (bound.reshape(-1)[list(chosen)] for bound in (leaf.box.low, leaf.box.high))
        if leaf.discrete:
            start, step = torch.as_tensor(low.astype(np.int64)), torch.ones(len(chosen), dtype=torch.int64)
        else:
            width = high.astype(np.float64) - low.astype(np.float64)
            start = torch.as_tensor(low).to(torch.get_default_dtype())
            step = torch.as_tensor(width / np.maximum(np.asarray(sizes) - 1, 1)).to(start.dtype)
        per_step = torch.where(step > 0, 1 / step.clamp(min=torch.finfo(torch.float32).tiny), 0.0)
        self.register_buffer("per_step", per_step, persistent=False)  # 0 where all values are one
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("step", step, persistent=False)
        for name, dims in (("proposed", proposed), ("chosen", chosen)):
            self.register_buffer(name, torch.tensor(list(dims), dtype=torch.int64), persistent=False)
        order = torch.as_tensor(np.argsort([*proposed, *chosen]))
        self.register_buffer("order", order, persistent=False)

    def read(self, values: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Env values `[*, *shape]` as proposed values `[*, a]` and indices `[*, k]`; None where there are none."""
        flat = self._flat(values)
        proposed, chosen = self.counts
        if not chosen:
            return flat, None
        ours = flat if not proposed else flat[..., self.chosen]
        if self.leaf.discrete:
            return None, ours.long() - self.start
        index = ((ours.to(self.start.dtype) - self.start) * self.per_step).round().long()
        return flat[..., self.proposed] if proposed else None, index

    def write(self, action: Tensor, index: Tensor) -> Tensor:
        """Proposed values `[*, a]` and indices `[*, k]` as env values `[*, *shape]`."""
        proposed, chosen = self.counts
        if not chosen:
            flat = action
        else:
            whole = index.round().long() if self.leaf.discrete and index.is_floating_point() else index
            flat = self.start + whole * self.step
            if proposed:
                flat = torch.cat([action, flat], -1)[..., self.order]
        return flat.reshape((*flat.shape[:-1], *self.shape))

    def _flat(self, values: Tensor) -> Tensor:
        dims = len(self.shape)
        return values if dims == 1 else values.flatten(-dims) if dims else values.unsqueeze(-1)


@final
class Layout(nn.Module):
    """The flat orders of a set of heads.

    Args:
        leaves: the env's action leaves, sorted.
        specs: where each head sits; together they cover each dimension of each leaf once.
        masks: the leaves that say which values of the discrete leaves are allowed.

    Attributes:
        proposing: names of the heads that propose, in the order of `specs`.
        branches: names of the branches, in flat order.
        owners: the head of each continuous dimension, `A`.
        sizes: how many values each branch has, `K`.
        rounded: for each branch, whether only whole indices are actions (its leaf is discrete).
        low, high: bounds of the continuous dimensions `[A]`.
        valid: `[K, n]`, which entries are values of a branch and not padding.
    """

    low: Tensor
    high: Tensor
    order: Tensor
    valid: Tensor
    columns: Tensor
    no_index: Tensor

    def __init__(self, leaves: Sequence[Leaf], specs: Mapping[str, HeadSpec], masks: Sequence[Leaf] = ()) -> None:
        super().__init__()
        self.leaves = tuple(leaves)
        at = {(spec.leaf, dim): name for name, spec in specs.items() if name != VALUE for dim in spec.dims}
        owners: list[str] = []
        branches: list[str] = []
        places: list[_Place] = []
        bounds: tuple[list[Tensor], list[Tensor]] = ([], [])
        for leaf in self.leaves:
            names = [at[leaf.name, dim] for dim in range(leaf.size)]
            chosen = [dim for dim, name in enumerate(names) if specs[name].values]
            proposed = [dim for dim, name in enumerate(names) if not specs[name].values]
            owners += [names[dim] for dim in proposed]
            branches += [names[dim] for dim in chosen]
            places.append(_Place(leaf, proposed, chosen, [specs[names[dim]].values for dim in chosen]))
            for side, bound in zip(bounds, (leaf.box.low, leaf.box.high), strict=True):
                side.append(torch.as_tensor(bound.reshape(-1)[proposed].astype(np.float64)))
        self.places = cast(Sequence[_Place], nn.ModuleList(places))
        self.proposing = tuple(name for name in specs if name in owners)
        self.branches = tuple(branches)
        self.owners = tuple(owners)
        self.sizes = tuple(specs[name].values for name in branches)
        discrete = {leaf.name: leaf.discrete for leaf in self.leaves}
        self.rounded = tuple(discrete[specs[name].leaf] for name in branches)
        for name, side in zip(("low", "high"), bounds, strict=True):
            self.register_buffer(name, torch.cat(side).to(torch.get_default_dtype()), persistent=False)
        # The position in the concatenated heads' outputs of each continuous dimension.
        covered = [
            (self._rank(spec.leaf), dim) for name in self.proposing for spec in [specs[name]] for dim in spec.dims
        ]
        ranks = sorted(range(len(covered)), key=covered.__getitem__)
        self._in_order = ranks == list(range(len(covered)))
        self.register_buffer("order", torch.tensor(ranks, dtype=torch.int64), persistent=False)
        self.register_buffer("no_index", torch.zeros(0, dtype=torch.int64), persistent=False)
        most = max(self.sizes, default=1)
        valid = torch.arange(most) < torch.tensor(self.sizes, dtype=torch.int64).unsqueeze(-1)
        self.register_buffer("valid", valid, persistent=False)
        self.padded = not bool(valid.all())
        self.masks = tuple(masks)
        self.register_buffer("columns", self._mask_columns(specs, most), persistent=False)

    def stored(self, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The executed action of a batch: its continuous dimensions `[*, A]` and its branches' indices `[*, K]`.

        The index of a discretised dimension is that of the nearest of its values.
        """
        parts = [place.read(batch.get(place.leaf.key)) for place in self.places]
        action = self._join([action for action, _ in parts if action is not None], self.low, batch)
        return action, self._join([index for _, index in parts if index is not None], self.no_index, batch)

    def write(self, action: Tensor, index: Tensor) -> dict[Key, Tensor]:
        """Action leaves `{key: [*, *shape]}` in env units.

        Args:
            action: continuous dimensions `[*, A]`.
            index: of the branches' values, `[*, K]`; where a branch is not `rounded`, a fraction lies between two.
        """
        if len(self.places) == 1:
            (place,) = self.places
            return {place.leaf.key: place.write(action, index)}
        actions = action.split([place.counts[0] for place in self.places], -1)
        indices = index.split([place.counts[1] for place in self.places], -1)
        return {
            place.leaf.key: place.write(*parts) for place, *parts in zip(self.places, actions, indices, strict=True)
        }

    def assemble(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Put the proposing heads' actions `{head: [*, D]}` in flat order: `[*, A]`."""
        parts = [actions[name] for name in self.proposing]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return joined if self._in_order else joined[..., self.order]

    def mask(self, observation: Mapping[Key, Tensor]) -> Tensor | None:
        """Which values branches may choose, bool `[*, K, n]`, False on padding; None where the env gives no mask."""
        if not self.masks:
            return None
        flat = [observation[leaf.key] for leaf in self.masks]
        always = torch.ones_like(flat[0][..., :1])
        return torch.cat([*flat, always, ~always], -1)[..., self.columns].unflatten(-1, self.valid.shape)

    def _mask_columns(self, specs: Mapping[str, HeadSpec], most: int) -> Tensor:
        """For each entry of `[K, n]` its column in `[masks..., always, never]`."""
        offsets: dict[Key, int] = {}
        total = 0
        for mask in self.masks:
            offsets[mask.key] = total
            total += mask.size
        columns = []
        for name in self.branches:
            spec = specs[name]
            leaf = self.leaves[self._rank(spec.leaf)]
            values = torch.arange(most)
            found = torch.full_like(values, total)
            if mask_key(leaf) in offsets:
                found = values + offsets[mask_key(leaf)] + sum(leaf.sizes[: spec.dims[0]])
            columns.append(torch.where(values < spec.values, found, total + 1))
        return torch.cat(columns) if columns else self.no_index

    def _rank(self, leaf: str) -> int:
        return [one.name for one in self.leaves].index(leaf)

    @staticmethod
    def _join(parts: list[Tensor], empty: Tensor, batch: TensorDictBase) -> Tensor:
        if not parts:
            return empty[:0].expand(*batch.batch_size, 0)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
