"""The network: one trunk and named heads.

Shapes: `*` batch, `F` features, `D` dimensions of a head, `A` continuous dimensions of the action, `C` copies of the
critics, `K` critics, `n` most values of one.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F

from mhrl.aggregators import Aliases, stack_rows
from mhrl.envs import Key, Leaf
from mhrl.heads import ActionHead, CriticHead
from mhrl.layout import VALUE, HeadSpec, Layout
from mhrl.trunks import IdentityTrunk, Trunk

Dueling = Literal["none", "mean", "max"]
Rows = Tensor | Mapping[str, Tensor]
"""Features `[*, F]` for all heads, or for each head its own alias of them."""


class ActorCritic(nn.Module, ABC):
    """What the family of value-based objectives asks of a network.

    Its heads either propose continuous actions or are critics. A critic gives a value to each of `n` choices: a branch
    to the values of its dimension, and where there is no branch the one critic `value` to the action as a whole (n =
    1). `observation`, `action` and `index` are what `observe` and `stored` read from a batch; only the network looks
    inside.
    """

    proposing: tuple[str, ...]
    """Names of the heads that propose."""

    critics: tuple[str, ...]
    """Names of the critics: the branches, or `value`."""

    copies: int
    """`C`: 2 for twin critics, else 1."""

    low: Tensor
    high: Tensor

    @property
    @abstractmethod
    def modules_of(self) -> Mapping[str, tuple[str, ...]]:
        """For each proposing head and each critic: the parametrised modules that its output depends on."""

    @abstractmethod
    def observe(self, batch: TensorDictBase, *, following: bool = False) -> Mapping[Key, Tensor]:
        """The observation leaves of a batch, masks included, or those of its `next` entry."""

    @abstractmethod
    def stored(self, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The executed action of a batch: continuous `[*, A]`, and the index that each critic took `[*, K]`."""

    @abstractmethod
    def mask(self, observation: Mapping[Key, Tensor]) -> Tensor | None:
        """Which choices the env allows, bool `[*, K, n]`; None where it allows all."""

    @abstractmethod
    def trunk_features(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Run the trunk: `[*, F]`."""

    @abstractmethod
    def propose(self, heads: Sequence[str], features: Rows, observation: Mapping[Key, Tensor]) -> dict[str, Tensor]:
        """The greedy actions of some proposing heads, `{head: [*, D]}`, in env units."""

    @abstractmethod
    def assemble(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Put the proposing heads' actions `{head: [*, D]}` together: `[*, A]`."""

    def act(self, features: Tensor, observation: Mapping[Key, Tensor]) -> Tensor:
        """The greedy actions of all proposing heads together, `[*, A]`; `A` is 0 where there is none."""
        if not self.proposing:
            return features.new_zeros(*features.shape[:-1], 0)
        return self.assemble(self.propose(self.proposing, features, observation))

    @abstractmethod
    def action_values(
        self,
        features: Rows,
        observation: Mapping[Key, Tensor],
        action: Tensor,
        critics: Sequence[str] | None = None,
        copies: int | None = None,
    ) -> Tensor:
        """The values of each critic's choices beside `action` `[*, A]`: `[*, C, K, n]`, -inf where there is no choice.

        Args:
            features: of the trunk.
            observation: for heads that read it.
            action: in env units.
            critics: which; all, if None.
            copies: how many of their copies; all, if None.
        """


@final
class Network(ActorCritic):
    """A trunk, acting heads that together cover every dimension of the action once, and what judges them.

    Heads are registered as `head_<name>`, so that a head may be called `type` or `train`; the second copies of twin
    critics as `twin_<name>`. Heads of one kind are computed together.

    With `dueling`, the value of a choice is that of the state, from the head `value`, plus the branch's advantage less
    its mean, or its maximum, over the branch's own values (Wang et al., 2016, eq. 9 and 8; Tavakoli et al., 2018, eq.
    1), sample by sample.

    Args:
        trunk: observation leaves to features.
        heads: acting heads by name, and `value`, where it is called for.
        specs: where each head sits.
        actions: the env's action leaves.
        masks: the leaves that say which values of discrete action leaves are allowed.
        twins: the second copies of the critics, `value` included.
        dueling: whether and how branches share the state value.
    """

    def __init__(
        self,
        trunk: Trunk,
        heads: Mapping[str, nn.Module],
        specs: Mapping[str, HeadSpec],
        actions: Sequence[Leaf],
        masks: Sequence[Leaf] = (),
        *,
        twins: Mapping[str, nn.Module] | None = None,
        dueling: Dueling = "none",
    ) -> None:
        super().__init__()
        if dueling not in ("none", "mean", "max"):
            raise ValueError(f"objective.dueling is {dueling!r}: none, mean or max is expected")
        self.trunk = trunk
        self.encoder = IdentityTrunk(trunk.spaces)
        self.layout = Layout(actions, specs, masks)
        self.specs = dict(specs)
        self.dueling = dueling
        for prefix, members in (("head", heads), ("twin", twins or {})):
            for name, head in members.items():
                self.add_module(f"{prefix}_{name}", head)
        self.proposing, self.branches = self.layout.proposing, self.layout.branches
        self.critics = self.branches or ((VALUE,) if VALUE in specs else ())
        self.copies = 2 if twins else 1
        self._stacks: dict[Hashable, list[list[int]]] = {}

    @property
    def acting(self) -> tuple[str, ...]:
        """Names of the acting heads, in the order in which they were given."""
        return tuple(name for name in self.specs if name != VALUE)

    @property
    def low(self) -> Tensor:  # type: ignore[override]
        """Lower bounds of the continuous dimensions, `[A]`."""
        return self.layout.low

    @property
    def high(self) -> Tensor:  # type: ignore[override]
        """Upper bounds of the continuous dimensions, `[A]`."""
        return self.layout.high

    @property
    def modules_of(self) -> Mapping[str, tuple[str, ...]]:
        """The head, for a critic its twin and those of a dueling `value`, and `trunk` where it has parameters."""
        trained = any(True for _ in self.trunk.parameters())
        shared = (VALUE,) if self.branches and self.dueling != "none" else ()
        found = {}
        for name in (*self.proposing, *self.critics):
            read = (name, *shared) if name in self.branches else (name,)
            prefixes = ("head", "twin")[: self.copies] if name in self.critics else ("head",)
            modules = tuple(f"{prefix}_{one}" for one in read for prefix in prefixes)
            reads_trunk = trained and any("features" in self.specs[one].in_keys for one in read)
            found[name] = (*modules, "trunk") if reads_trunk else modules
        return found

    def head(self, name: str, copy: int = 0) -> Any:  # noqa: ANN401
        """The head called `name`, or its twin."""
        return self.get_submodule(f"{('head', 'twin')[copy]}_{name}")

    def observe(self, batch: TensorDictBase, *, following: bool = False) -> Mapping[Key, Tensor]:
        """The observation leaves of a batch, masks included, or those of its `next` entry, in the spaces' dtypes."""
        if following:
            batch = batch.get("next")
        return {key: batch.get(key) for key in (*self.trunk.keys, *(leaf.key for leaf in self.layout.masks))}

    def stored(self, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The executed action of a batch: continuous `[*, A]`, and the index that each critic took `[*, K]`."""
        action, index = self.layout.stored(batch)
        return action, index if self.branches else index.new_zeros(()).expand(*index.shape[:-1], 1)

    def mask(self, observation: Mapping[Key, Tensor]) -> Tensor | None:
        """Which choices the env allows, bool `[*, K, n]`; None where it allows all."""
        return self.layout.mask(observation)

    def write(self, action: Tensor, index: Tensor) -> dict[Key, Tensor]:
        """See `Layout.write`."""
        return self.layout.write(action, index)

    def trunk_features(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Run the trunk: `[*, F]`; never in bfloat16, in which gradients of several rows would be added up."""
        features = self.trunk(observation)
        return features.float() if features.dtype == torch.bfloat16 else features

    def propose(self, heads: Sequence[str], features: Rows, observation: Mapping[Key, Tensor]) -> dict[str, Tensor]:
        """The greedy actions of some proposing heads, `{head: [*, D]}`, in env units."""
        actions: dict[str, Tensor] = {}
        modules = [self.head(name) for name in heads]
        for group in self._groups(heads, modules):
            names = [heads[i] for i in group]
            inputs, apart = self._read(names, features, observation)
            if len(group) == 1:  # called as it is: hooks see it, and nothing is joined and split
                actions[names[0]] = modules[group[0]](inputs)
                continue
            joined = type(modules[group[0]]).stacked([modules[i] for i in group], inputs, apart=apart)
            actions |= zip(names, joined.split([len(self.specs[name].dims) for name in names], -1), strict=True)
        return actions

    def assemble(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Put the proposing heads' actions `{head: [*, D]}` in flat order: `[*, A]`."""
        return self.layout.assemble(actions)

    def action_values(
        self,
        features: Rows,
        observation: Mapping[Key, Tensor],
        action: Tensor,
        critics: Sequence[str] | None = None,
        copies: int | None = None,
    ) -> Tensor:
        """The values of each critic's choices beside `action` `[*, A]`: `[*, C, K, n]`, -inf on padding."""
        critics = self.critics if critics is None else tuple(critics)
        copies = self.copies if copies is None else copies
        features = _shared(features, critics)
        values = self._critics(critics, copies, features, observation, action)
        if not self.branches:
            return values
        chosen = slice(None) if critics == self.critics else [self.branches.index(name) for name in critics]
        valid = self.layout.valid[chosen, : values.shape[-1]]
        if self.dueling != "none":
            values = (
                values - self._level(values, valid) + self._state_values(critics, copies, features, observation, action)
            )
        return values.masked_fill(~valid, -torch.inf) if self.layout.padded else values

    def _critics(
        self,
        critics: Sequence[str],
        copies: int,
        features: Rows,
        observation: Mapping[Key, Tensor],
        action: Tensor,
    ) -> Tensor:
        """What the critics' heads say, `[*, C, K, n]`, 0 on padding."""
        names = [name for _ in range(copies) for name in critics]
        modules = [self.head(name, copy) for copy in range(copies) for name in critics]
        parts = []
        groups = self._groups(names, modules)
        for group in groups:
            inputs, apart = self._read([names[i] for i in group], features, observation)
            if len(group) == 1:  # called as it is: hooks see it
                parts.append(modules[group[0]](inputs, action).unsqueeze(-2))
            else:
                members = [modules[i] for i in group]
                parts.append(type(members[0]).stacked(members, inputs, action, apart=apart))
        if len(parts) == 1:
            values = parts[0]
        else:
            most = max(part.shape[-1] for part in parts)
            order = sorted(range(len(names)), key=[i for group in groups for i in group].__getitem__)
            values = torch.cat([F.pad(part, (0, most - part.shape[-1])) for part in parts], -2)[..., order, :]
        # Not `unflatten`, which takes 8 us in Python.
        return values.reshape(*values.shape[:-2], copies, len(critics), values.shape[-1])

    def _level(self, values: Tensor, valid: Tensor) -> Tensor:
        """What is subtracted from advantages `[*, C, K, n]`: `[*, C, K, 1]`."""
        if self.dueling == "mean":  # padding is 0
            return values.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True)
        return values.masked_fill(~valid, -torch.inf).amax(-1, keepdim=True)

    def _state_values(
        self,
        critics: Sequence[str],
        copies: int,
        features: Rows,
        observation: Mapping[Key, Tensor],
        action: Tensor,
    ) -> Tensor:
        """The value of the state that each branch adds, `[*, C, K or 1, 1]`: through the row of its own loss."""
        if isinstance(features, Mapping):  # the rows of all critics at once
            features = stack_rows(features, critics)
            observation = {
                key: observation[key].expand(len(critics), *observation[key].shape) for key in self.trunk.keys
            }
            action = action.expand(len(critics), *action.shape)
            values = self._critics([VALUE], copies, features, observation, action)  # [K, *, C, 1, 1]
            return values[..., 0, 0].movedim(0, -1).unsqueeze(-1)
        return self._critics([VALUE], copies, features, observation, action)

    def _groups(self, names: Sequence[str], modules: Sequence[nn.Module]) -> list[list[int]]:
        """Positions of the heads that are computed together."""
        key = tuple(names)
        if key not in self._stacks:
            groups: dict[Hashable, list[int]] = {}
            for i, (name, module) in enumerate(zip(names, modules, strict=True)):
                assert isinstance(module, ActionHead | CriticHead)
                groups.setdefault((type(module), module.stack_key(), self.specs[name].in_keys), []).append(i)
            self._stacks[key] = list(groups.values())
        return self._stacks[key]

    def _read(self, names: Sequence[str], features: Rows, observation: Mapping[Key, Tensor]) -> tuple[Tensor, bool]:
        """What heads of equal `in_keys` read: `[*, I]`; or `[K, *, I]` and True where their rows differ."""
        if self.specs[names[0]].in_keys == ("observation",):
            return self.encoder(observation), False
        features = _shared(features, names)
        if isinstance(features, Tensor):
            return self._input(names[0], features, observation), False
        return self._input(names[0], stack_rows(features, names), observation), True

    def _input(self, head: str, features: Tensor, observation: Mapping[Key, Tensor]) -> Tensor:
        """What a head that reads `features` reads, by its `in_keys`."""
        if self.specs[head].in_keys == ("features",):
            return features
        return torch.cat([features, self.encoder(observation).expand(*features.shape[:-1], -1)], -1)


def _shared(features: Rows, heads: Sequence[str]) -> Rows:
    """The one tensor that all of `heads` read, where it is one."""
    if isinstance(features, Tensor) or (isinstance(features, Aliases) and len(heads) > 1):
        return features
    first = features[heads[0]]
    return first if all(features[name] is first for name in heads) else features


__all__ = ["ActorCritic", "Dueling", "Network", "Rows"]
