"""Deep deterministic policy gradient with any number of acting heads (Lillicrap et al., 2016).

For a transition (s, a, r, s', terminated), features f = trunk(s), primes for the target network,
acting heads k = 1..K and the joint action pi(f) = (pi_1(f), ..., pi_K(f)):

    y       = r + gamma^k (1 - terminated) Q'(f'(s'), pi'(f'(s')))
    value   = mean_B distance(Q(f, a), y)
    g_k     = dQ/da_k  at  (sg f, pi(f))
    loss_k  = mean_B -(Q + <g_k, pi_k(f) - sg pi_k(f)>)

k is 1, or with `n_steps` > 1 up to `n_steps`: then r is the discounted sum of k rewards and s' lies k steps ahead.
`sg` stops the gradient. The value of every loss_k is -Q; its gradient is the deterministic policy gradient
(Silver et al., 2014, eq. 9) of head k alone. One critic pass and one vector-Jacobian product serve all heads.

What each loss trains (x), with c = its `trunk_grad`:

    loss      trunk   head_k   other acting heads   head_value
    k         x c     x        0                    0
    value     x c     0        0                    x

The update is joint: the acting losses see the critic as it is before this update's step.

Shapes: `*` is `[B]` or `[B, T]`, `F` features, `D` dimensions of a head.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from mhrl.aggregators import BackwardAggregator
from mhrl.functional import Distance, Reduction, cut_episodes, distance, n_step, reduce, td_target
from mhrl.network import VALUE, ActorCritic
from mhrl.objectives.base import Objective
from mhrl.objectives.target import SoftUpdate, make_target

ACTOR_ROW = "actor"
"""The row that acting losses of one `trunk_grad` share: their sum is the policy gradient."""


@final
class DDPG(Objective):
    """The losses of DDPG: one per acting head, and `value`.

    Args:
        network: trunk, acting heads and critic.
        aggregator: see `Objective`.
        gamma: the discount, in [0, 1].
        tau: step of the target network towards the online network, in [0, 1].
        target_every: updates between two steps of the target network.
        policy_delay: updates between two computations of the acting losses.
        loss_function: the value loss's distance.
        reduction: how per-sample losses become one.
        n_steps: env steps in a row of replay, fewer at an episode's end; see `functional.n_step`. Nothing corrects for
            actions that the policy would no longer take.
    """

    network: ActorCritic
    target: ActorCritic

    def __init__(
        self,
        network: ActorCritic,
        aggregator: BackwardAggregator,
        *,
        gamma: float = 0.99,
        tau: float = 0.005,
        target_every: int = 1,
        policy_delay: int = 1,
        loss_function: Distance = "l2",
        reduction: Reduction = "mean",
        n_steps: int = 1,
    ) -> None:
        super().__init__(aggregator)
        for option, number in (("gamma", gamma), ("tau", tau)):
            if not 0 <= number <= 1:
                raise ValueError(f"objective.{option} is {number}: a number from 0 to 1 is expected")
        for option, count in (("target_every", target_every), ("policy_delay", policy_delay)):
            if count < 1 or count != int(count):
                raise ValueError(f"objective.{option} is {count}: a positive whole number of updates is expected")
        if n_steps < 1 or n_steps != int(n_steps):
            raise ValueError(f"objective.n_steps is {n_steps}: a positive whole number of env steps is expected")
        # An unknown name is refused here, not at the first update.
        reduce(distance(torch.zeros(1), torch.zeros(1), loss_function), reduction=reduction)
        self.network = network
        self.target = make_target(network)
        self._soft_update = SoftUpdate(self.target, network)
        self.row_of = self._rows()
        self.routes = self._routes()
        self.gamma = gamma
        self.tau = tau
        self.target_every = target_every
        self.policy_delay = policy_delay
        self.loss_function = loss_function
        self.reduction = reduction
        self.n_steps = int(n_steps)
        self._carry: TensorDictBase | None = None  # rows [<= n_steps - 1, N] that wait for the steps after them

    def _rows(self) -> dict[str, str]:
        """`{loss: row}`: `value` has a row; the acting losses share `actor` unless their `trunk_grad` differ."""
        acting = self.network.acting
        factors = {self.aggregator.trunk_grad(loss) for loss in acting}
        # A factor that was given per loss and not for the shared row must not be lost.
        shared = len(factors) == 1 and factors <= {1.0, self.aggregator.trunk_grad(ACTOR_ROW)}
        return {loss: ACTOR_ROW if shared else loss for loss in acting} | {VALUE: VALUE}

    def _routes(self) -> dict[str, tuple[str, ...]]:
        """`{loss: modules}`; a loss of `trunk_grad` 0 does not train the trunk."""
        return {
            loss: tuple(m for m in modules if m != "trunk" or self.aggregator.trunk_grad(self.row_of[loss]) != 0)
            for loss, modules in self.network.modules_of.items()
        }

    def train(self, mode: bool = True) -> Self:
        """Set the online network's mode; the target stays in evaluation mode."""
        super().train(mode)
        self.target.eval()
        return self

    def due(self, updates: int) -> tuple[str, ...]:
        """`value` at every update, the acting losses at every `policy_delay`-th."""
        return (*self.network.acting, VALUE) if (updates + 1) % self.policy_delay == 0 else (VALUE,)

    def losses(
        self, batch: TensorDictBase, active: Iterable[str] | None = None, target_value: Tensor | None = None
    ) -> tuple[TensorDict, TensorDict]:
        """See `Objective.losses`.

        Metrics: `pred_value`, `target_value`, `td_error` (squared), `priority` (its absolute value) `[*]` from the
        value loss; from the acting losses `state_action_value` `[*]` and `action_gradient/<head>` `[*, D]`, in value
        per env unit.

        Args:
            batch: `[B]` or `[B, T]`.
            active: names of losses.
            target_value: `[*]`, detached; the one-step target of the target network, if None.
        """
        names = self.due(self.policy_delay - 1) if active is None else tuple(active)
        observation = self.network.observe(batch)
        features = self.network.trunk_features(observation)
        rows = self.aggregator.fan_out(features, self.rows(names))
        weight = batch.get("priority_weight", None)
        losses: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {}

        heads = [name for name in names if name != VALUE]
        if heads:
            per_sample, metrics = self.policy_losses(heads, rows, features.detach(), observation)
            losses = {head: reduce(loss, weight, self.reduction) for head, loss in per_sample.items()}
        if VALUE in names:
            prediction = self.network.value(rows[VALUE], observation, self.network.stored_action(batch))
            target = self.target_value(batch) if target_value is None else target_value
            losses[VALUE] = reduce(distance(prediction, target, self.loss_function), weight, self.reduction)
            prediction = prediction.detach()
            error = prediction - target
            metrics |= {
                "pred_value": prediction,
                "target_value": target,
                "td_error": error.square(),
                "priority": error.abs(),
            }
        return TensorDict(losses), TensorDict(metrics)

    def policy_losses(
        self, heads: Iterable[str], rows: Mapping[str, Tensor], features: Tensor, observation: Mapping
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Per-sample losses `[*]` of `heads`, and their metrics.

        Args:
            heads: the active acting heads; the others take part in the joint action, without a gradient.
            rows: `{row: [*, F]}` with the active heads' rows.
            features: `[*, F]`, detached: the critic's view, and that of heads that are not active.
            observation: the observation leaves.
        """
        actions = {head: self.network.act(head, rows[self.row_of[head]], observation) for head in heads}
        with torch.no_grad():
            idle = (head for head in self.network.acting if head not in actions)
            joint = {head: action.detach() for head, action in actions.items()}
            joint |= {head: self.network.act(head, features, observation) for head in idle}
            value, gradients = value_and_action_gradients(
                lambda parts: self.network.value(features, observation, self.network.assemble(parts)), joint
            )
        losses = {
            head: -(value + (gradients[head] * (action - action.detach())).flatten(value.dim()).sum(-1))
            for head, action in actions.items()
        }
        return losses, {"state_action_value": value} | {f"action_gradient/{head}": gradients[head] for head in losses}

    @torch.no_grad()
    def target_value(self, batch: TensorDictBase) -> Tensor:
        """`y` `[*]`, from the target network."""
        value = next_value(self.target, self.target, batch)
        steps = batch.get("steps_to_next_obs", None)
        return td_target(
            batch.get(("next", "reward")).squeeze(-1),
            batch.get(("next", "terminated")).squeeze(-1),
            value,
            self.gamma if steps is None else self.gamma ** steps.squeeze(-1).to(value.dtype),
        )

    def summary(self, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mean values, and per acting head the mean norm of `dQ/da`."""
        scalars = {
            f"head/{VALUE}/{name}": metrics[name].mean() for name in ("pred_value", "target_value") if name in metrics
        }
        for head in self.network.acting:
            if (name := f"action_gradient/{head}") in metrics:
                scalars[f"head/{head}/action_gradient"] = metrics[name].norm(dim=-1).mean()
        return scalars

    def update_target(self, updates: int) -> None:
        """Move the target by `tau` if `updates` is a multiple of `target_every`."""
        if updates % self.target_every == 0:
            self._soft_update(self.tau)

    def process_rollout(self, rollout: TensorDictBase) -> TensorDictBase:
        """Rows of up to `n_steps` steps, `n_steps` - 1 rows later than they are collected; the rollout itself for 1."""
        if self.n_steps == 1:
            return rollout
        window = rollout if self._carry is None else torch.cat([self._carry, rollout])
        whole = max(0, len(window) - self.n_steps + 1)
        self._carry = window[whole:].clone()
        return n_step(window, self.n_steps, self.gamma) if whole else window[:0]

    def cut(self) -> None:
        """End every env's episode with the newest row kept back."""
        if self._carry is not None and len(self._carry):
            cut_episodes(self._carry[-1])

    def process_state(self) -> dict[str, Any]:
        """The rows kept back, if any."""
        return {} if self._carry is None else {"carry": self._carry.to_dict()}

    def load_process_state(self, state: dict[str, Any]) -> None:
        """Restore the rows kept back."""
        rows = state.get("carry")
        self._carry = None if rows is None else TensorDict(rows, rows["next"]["reward"].shape[:2]).clone()


def next_value(actor: ActorCritic, critic: ActorCritic, batch: TensorDictBase) -> Tensor:
    """`Q(s', pi(s'))` `[*]` of the next observation, with the action of `actor` and the value of `critic`."""
    observation = critic.observe(batch, following=True)
    features = critic.trunk_features(observation)
    acting_features = features if actor is critic else actor.trunk_features(observation)
    actions = {head: actor.act(head, acting_features, observation) for head in actor.acting}
    return critic.value(features, observation, critic.assemble(actions))


def value_and_action_gradients(
    value: Callable[[dict[str, Tensor]], Tensor], actions: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """`Q` `[*]` and `dQ/da_k` `{head: [*, D]}` at `actions`, in one pass and without touching any parameter.

    `torch.func.vjp` rather than `autograd.grad`: it composes with `torch.func.grad` and compiles.
    """
    result, pull = torch.func.vjp(value, actions)[:2]
    (gradients,) = pull(torch.ones_like(result))
    return result, gradients


__all__ = ["ACTOR_ROW", "DDPG", "next_value", "value_and_action_gradients"]
