"""DDPG under torchrl's contract: two tensordict modules in, a `LossModule` out.

The mathematics is that of `ValueBased` with one proposing head and one critic; this file only translates. On networks
of their own it gives what `torchrl.objectives.DDPGLoss` gives. A trunk that both networks share is where they differ:
here it runs once per call with a gradient, and its target is a delayed copy, run once. What each loss trains (x):

    loss          trunk                        actor head   value head
    loss_actor    x                            x            0
    loss_value    x (0 if `separate_losses`)   0            x

Shapes: `*` is `[B]` or `[B, T]`, `A` dimensions of the action.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase, TensorDictSequential, dispatch
from tensordict.utils import unravel_key
from torch import Tensor, nn
from torchrl.objectives.common import LossModule
from torchrl.objectives.utils import ValueEstimators, dispatch_value_estimator

from mhrl.aggregators import BackwardAggregator
from mhrl.functional import Distance, Reduction
from mhrl.layout import VALUE
from mhrl.network import ActorCritic, Rows
from mhrl.objectives.value_based import ACTOR_ROW, ValueBased

OUT_KEYS = ("loss_actor", "loss_value", "pred_value", "target_value", "pred_value_max", "target_value_max")


@final
class DDPGLoss(LossModule):
    """The losses of DDPG for an actor and a Q network that are tensordict modules.

    The networks are neither emptied nor copied: they stay usable, and are what an optimizer over `parameters()`
    trains. If both are `TensorDictSequential`s, the modules with which both begin, by identity, are their
    shared trunk. All outputs but the losses are detached: `loss(batch).backward()` trains nothing else.

    Args:
        actor_network: writes the action.
        value_network: reads the action, writes `state_action_value` `[*, 1]`.
        loss_function: the value loss's distance.
        delay_actor: whether a target actor chooses the target's action.
        delay_value: whether a target Q network values it.
        gamma: the value estimator's discount; torchrl's default, 0.99, if None.
        separate_losses: whether the trunk is trained by `loss_actor` only.
        reduction: how per-sample losses become one; `mean` if None.
        use_prioritized_weights: whether the losses are weighted by the entry `priority_weight` where there is
            one (True and `auto` do), see `set_keys`.

    Raises:
        ValueError: if the value network does not read exactly one of the actor's outputs, or if
            `separate_losses` is asked for and parameters are shared otherwise than as a trunk.
    """

    @dataclass
    class _AcceptedKeys:
        """The entries that `set_keys` renames."""

        state_action_value: NestedKey = "state_action_value"
        priority: NestedKey = "td_error"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"
        priority_weight: NestedKey = "priority_weight"

    default_keys = _AcceptedKeys
    default_value_estimator = ValueEstimators.TD0
    functional = False
    out_keys = OUT_KEYS

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        value_network: TensorDictModuleBase,
        *,
        loss_function: Distance = "l2",
        delay_actor: bool = False,
        delay_value: bool = True,
        gamma: float | None = None,
        separate_losses: bool = False,
        reduction: Reduction | None = None,
        use_prioritized_weights: str | bool = "auto",
    ) -> None:
        super().__init__()
        pair = _Pair(actor_network, value_network)
        if separate_losses and pair.tied:
            raise ValueError(
                "separate_losses: the networks share parameters, but not as a trunk: let both be a "
                "TensorDictSequential that begins with the shared modules"
            )
        rows = _Aliases(trunk_grad={VALUE: float(not separate_losses)})
        self.objective = ValueBased(pair, rows, loss_function=loss_function, reduction="none")
        for name, delayed in (("actor", delay_actor), ("critic", delay_value)):
            if not delayed:
                self.objective.target.register_module(name, None)
        # Registered once, in the objective.
        self.__dict__.update(actor_network=actor_network, value_network=value_network)
        self.delay_actor = delay_actor
        self.delay_value = delay_value
        self.reduction = reduction or "mean"
        self.use_prioritized_weights = use_prioritized_weights
        self._has_update_associated = {"actor_network": not delay_actor, "value_network": not delay_value}
        if gamma is not None:
            self.gamma = gamma
        # At once, not at the first call: every state dict then holds the estimator's entries.
        self.make_value_estimator()

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses of a sampled batch, and write `td_error` (key `priority`) into the batch.

        Args:
            tensordict: `[*]` with `in_keys`; an absent `("next", "terminated")` is `("next", "done")`. Or the
                entries as keyword arguments, nested keys joined by `_`.

        Returns:
            `loss_actor`, `loss_value`; detached `td_error` (squared), `pred_value`, `target_value` `[*]`, and
            the maxima of the latter two. To keyword arguments, the tuple of `out_keys`.

        Raises:
            ValueError: if TD1 or TDLambda meets a batch without a time dimension.
        """
        target_value = self._target_value(tensordict)
        # The objective's losses stay per sample: weights, masks and reduction are torchrl's.
        losses, metrics = self.objective.losses(
            tensordict.exclude("priority_weight"), target_value=target_value.unsqueeze(-1)
        )
        weights = self._maybe_get_priority_weight(tensordict)
        td_error, pred_value = metrics["td_error"].squeeze(-1), metrics["pred_value"].squeeze(-1)
        # `set` moves it to the batch's device.
        tensordict.set(self.tensor_keys.priority, td_error, inplace=True)
        outputs = TensorDict(
            {
                "loss_actor": self._reduce_loss(losses[ACTOR_ROW], tensordict, weights=weights),
                "loss_value": self._reduce_loss(losses[VALUE], tensordict, weights=weights),
                "td_error": td_error,
                "pred_value": pred_value,
                "target_value": target_value,
                "target_value_max": target_value.max(),
                "pred_value_max": pred_value.max(),
            }
        )
        return outputs if self.out_keys is self.out_keys_source else outputs.select(*self.out_keys)

    @torch.no_grad()
    def _target_value(self, tensordict: TensorDictBase) -> Tensor:
        """The value estimator's target `[*]`."""
        if self.value_type is not ValueEstimators.TD0 and tensordict.batch_dims < 2:
            raise ValueError(
                f"{self.value_type.name} needs trajectories, a batch [B, T]; in {list(tensordict.batch_size)} "
                "samples do not follow one another"
            )
        online, target = self.objective.network, self.objective.target
        actor, critic = target if self.delay_actor else online, target if self.delay_value else online
        observation = critic.observe(tensordict, following=True)
        features = critic.trunk_features(observation)
        action = actor.act(features if actor is critic else actor.trunk_features(observation), observation)
        value = critic.action_values(features, observation, action).flatten(-3).squeeze(-1)
        return self.value_estimator.value_estimate(tensordict, next_value=value.unsqueeze(-1)).squeeze(-1)

    def make_value_estimator(self, value_type: ValueEstimators | None = None, **hyperparams: object) -> "DDPGLoss":
        """Choose the target: TD0 (if None), TD1 or TDLambda, with its `gamma`, `lmbda`, ...; return the loss.

        Raises:
            NotImplementedError: for any other kind.
        """
        dispatch_value_estimator(
            self,
            value_type or self.default_value_estimator,
            supported=(ValueEstimators.TD0, ValueEstimators.TD1, ValueEstimators.TDLambda),
            value_network=None,
            **{"device": self._default_device} | hyperparams,
        )
        self._forward_value_estimator_keys()
        return self

    def _forward_value_estimator_keys(self, **kwargs: NestedKey) -> None:
        """Tell everyone the keys; `set_keys` calls this."""
        keys = self.tensor_keys
        of_next = {name: getattr(keys, name) for name in ("reward", "done", "terminated")}
        self.value_estimator.set_keys(value=keys.state_action_value, **of_next)
        for pair in (self.objective.network, self.objective.target):
            pair.value_key = keys.state_action_value
        read = {*self.actor_network.in_keys, *self.value_network.in_keys}
        in_keys = read | {("next", key) for key in (*read, *of_next.values())}
        if self.use_prioritized_weights:
            in_keys.add(keys.priority_weight)
        self.in_keys = sorted(map(unravel_key, in_keys), key=str)

    def select_out_keys(self, *out_keys: str) -> "DDPGLoss":
        """Keep only these outputs, in this order, however the loss is called; return the loss.

        Raises:
            ValueError: if one is not in `out_keys`.
        """
        for key in out_keys:
            if key not in self.out_keys_source:
                raise ValueError(f"there is no out_key {key!r}: choose among {', '.join(self.out_keys_source)}")
        self._out_keys_apparent = list(out_keys)
        return self

    def reset_out_keys(self) -> "DDPGLoss":
        """Undo `select_out_keys`."""
        self._out_keys_apparent = self.out_keys_source
        return self

    @property
    def actor_network_params(self) -> TensorDictParams:
        """The actor's parameters and buffers, not copies."""
        return TensorDict.from_module(self.actor_network, as_module=True)

    @property
    def value_network_params(self) -> TensorDictParams:
        """The Q network's parameters and buffers, not copies."""
        return TensorDict.from_module(self.value_network, as_module=True)

    @property
    def target_actor_network_params(self) -> TensorDictBase:
        """The target actor's buffers, not copies; the actor's own, detached, if `delay_actor` is off."""
        target = self.objective.target.actor
        return self.actor_network_params.data if target is None else TensorDict.from_module(target, as_module=True)

    @property
    def target_value_network_params(self) -> TensorDictBase:
        """The target Q network's buffers, not copies; the Q network's own, detached, if `delay_value` is off."""
        target = self.objective.target.critic
        return self.value_network_params.data if target is None else TensorDict.from_module(target, as_module=True)

    @property
    def target_network_params(self) -> TensorDict:
        """All buffers of the target by name, each once, a shared trunk's too: what torchrl's `SoftUpdate` moves."""
        return TensorDict(dict(self.objective.target.named_buffers()))

    @property
    def network_params(self) -> TensorDict:
        """What `target_network_params` moves towards, under the same names."""
        network = self.objective.network
        online = {
            **dict(network.named_parameters(remove_duplicate=False)),
            **dict(network.named_buffers(remove_duplicate=False)),
        }
        return TensorDict({name: online[name] for name, _ in self.objective.target.named_buffers()})

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The children, and an empty one whose name tells `SoftUpdate` that there is a target."""
        yield from super().named_children()
        if self.delay_actor or self.delay_value:
            yield "target_network_params", nn.Module()


@final
class _Pair(ActorCritic):
    """An actor and a Q network as one `ActorCritic`, whose observations and features are TensorDicts.

    In a target, the network that is not delayed is None.
    """

    proposing = (ACTOR_ROW,)
    critics = (VALUE,)
    copies = 1

    def __init__(self, actor: TensorDictModuleBase, critic: TensorDictModuleBase) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic
        self.shared = 0  # length of the trunk
        if isinstance(actor, TensorDictSequential) and isinstance(critic, TensorDictSequential):
            steps = zip(_steps(actor), _steps(critic), strict=False)
            self.shared = sum(1 for _ in takewhile(lambda step: step[0] is step[1], steps))
        actions = [key for key in critic.in_keys if key in actor.out_keys]
        if len(actions) != 1:
            raise ValueError(
                f"the value network must read one output of the actor, its action; of {actor.out_keys} it reads "
                f"{actions}"
            )
        (self.action_key,) = actions
        self.keys = [key for key in dict.fromkeys([*actor.in_keys, *critic.in_keys]) if key != self.action_key]
        self.value_key: NestedKey = "state_action_value"

    def trunk(self) -> list[TensorDictModuleBase]:
        return _steps(self.critic if self.actor is None else self.actor)[: self.shared] if self.shared else []

    def head(self, network: TensorDictModuleBase) -> list[TensorDictModuleBase]:
        return _steps(network)[self.shared :] if self.shared else [network]

    @property
    def tied(self) -> bool:
        """Whether the networks share parameters beyond the trunk."""
        actor, critic = ({p for m in self.head(net) for p in m.parameters()} for net in (self.actor, self.critic))
        return not actor.isdisjoint(critic)

    @property
    def modules_of(self) -> Mapping[str, tuple[str, ...]]:
        trunk = ("trunk",) if any(True for m in self.trunk() for _ in m.parameters()) else ()
        return {ACTOR_ROW: ("actor", *trunk), VALUE: ("critic", *trunk)}

    def observe(self, batch: TensorDictBase, *, following: bool = False) -> TensorDictBase:
        return (batch.get("next") if following else batch).select(*self.keys).detach()

    def stored(self, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        action = batch.get(self.action_key).detach()
        return action, torch.zeros((), dtype=torch.long, device=action.device).expand(*batch.batch_size, 1)

    def mask(self, observation: TensorDictBase) -> None:
        return None

    def trunk_features(self, observation: TensorDictBase) -> TensorDictBase:
        """The observation and what the trunk writes: what either head may read."""
        return _run(self.trunk(), observation)

    def propose(self, heads: Sequence[str], features: Rows, observation: TensorDictBase) -> dict[str, Tensor]:
        return {head: _run(self.head(self.actor), _row(features, head)).get(self.action_key) for head in heads}

    def assemble(self, actions: Mapping[str, Tensor]) -> Tensor:
        return actions[ACTOR_ROW]

    def action_values(
        self,
        features: Rows,
        observation: TensorDictBase,
        action: Tensor,
        critics: Sequence[str] | None = None,
        copies: int | None = None,
    ) -> Tensor:
        entries = _row(features, VALUE).copy().set(self.action_key, action)
        return _run(self.head(self.critic), entries).get(self.value_key).unsqueeze(-2).unsqueeze(-2)


@final
class _Aliases(BackwardAggregator):
    """Rows of features that are a TensorDict: aliases, detached where `trunk_grad` is 0. Autograd adds them up."""

    def fan_out(self, features: TensorDictBase, rows: Iterable[str]) -> dict[str, TensorDictBase]:
        return {row: features if self.trunk_grad(row) else features.detach() for row in rows}

    def combine(self, rows: Tensor) -> Tensor:
        return rows.sum(0)


def _row(features: TensorDictBase | Mapping[str, TensorDictBase], head: str) -> TensorDictBase:
    """What a head reads: its own alias, where each has one."""
    return features if isinstance(features, TensorDictBase) else features[head]


def _steps(network: TensorDictSequential) -> list[TensorDictModuleBase]:
    """The modules of a sequence, in order."""
    return list(network.module.values() if isinstance(network.module, nn.ModuleDict) else network.module)


def _run(modules: Iterable[TensorDictModuleBase], entries: TensorDictBase) -> TensorDictBase:
    """Run modules one after the other; `entries` itself gets no new entry."""
    entries = entries.copy()
    for module in modules:
        entries = module(entries)
    return entries


__all__ = ["DDPGLoss"]
