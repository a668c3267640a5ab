"""One family of value-based agents: DDPG, TD3, DQN, branching DQN and P-DQN, by what the heads cover.

There is one Bellman target. Continuous dimensions of the action improve by the critics' action gradient, branches by
argmax. For a transition (s, a, g, r, s', terminated) with continuous action a and branch choices g = (g_1, ..., g_K);
features f = trunk(s), primes for the target network, proposing heads pi = (pi_1, ...) and copies c of the critics:

    x'      = pi'(f'(s')) + smoothing noise
    g*_d    = argmax_g Q'_d(f'(s'), x', g), or with `double` the argmax of the online Q_d(f(s'), x', g)
    y       = r + gamma^k (1 - terminated) reduce_d min_c Q'_{c,d}(f'(s'), x', g*_d)
    loss_d  = mean_B 1/K sum_c distance(Q_{c,d}(f, a, g_d), y_d)          with `loss_reduction: per_branch`
    value   = mean_B sum_c distance(joint_d Q_{c,d}(f, a, g_d), y)        with `mean_q` (joint: mean) or `summed` (sum)
    V       = reduce_d max_g Q_{1,d}(sg f, x, g)                                (of the online network)
    h_j     = dV/dx_j  at  x = pi(f)
    loss_j  = mean_B -(V + <h_j, pi_j(f) - sg pi_j(f)>)

k is 1, or with `n_steps` > 1 up to `n_steps`: then r is the discounted sum of k rewards and s' lies k steps ahead. `sg`
stops the gradient. Twin critics (c = 1, 2) and dueling are properties of the network. Only choices that the env's mask
allows take part in max and argmax. Without branches there is one critic of one choice, Q(s, a), and one loss `value`.

    proposing heads   branches   what it is
    some              none       DDPG (Lillicrap et al., 2016); with `twin`, `smoothing`, `policy_delay` TD3
                                 (Fujimoto et al., 2018, algorithm 1)
    none              one        DQN (Mnih et al., 2015), `double` (van Hasselt et al., 2016), `dueling` (Wang et al.,
                                 2016)
    none              several    BDQ (Tavakoli et al., 2018); `mean_q` DecQN (Seyde et al., 2023); `summed` VDN
                                 (Sunehag et al., 2018)
    some              some       P-DQN (Xiong et al., 2018), with max_g where it has a sum over g

The value of every loss_j is -V; its gradient is the deterministic policy gradient (Silver et al., 2014, eq. 9) of head
j alone. One pass of the critics and one vector-Jacobian product serve all heads. What each loss trains (x), with c =
its `trunk_grad`; a branch's module is its head, its twin and those of a dueling `value`:

    loss      trunk   head_j   other proposing heads   critic d   other critics
    j         x c     x        0                       0          0
    d         x c     0        0                       x          0
    value     x c     0        0                       x          x

The update is joint: the losses of proposing heads see the critics as they are before this update's step.

Shapes: `*` is `[B]` or `[B, T]`, `F` features, `D` dimensions of a head, `A` continuous dimensions, `C` copies of the
critics, `K` critics, `L` TD losses, `n` most values of a branch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from mhrl.aggregators import BackwardAggregator
from mhrl.functional import (
    BranchReduction,
    Distance,
    Reduction,
    best_index,
    best_value,
    center_and_half_range,
    chosen_value,
    distance,
    joint_best_value,
    reduce,
    reduce_branches,
    td_target,
)
from mhrl.layout import VALUE
from mhrl.network import ActorCritic
from mhrl.objectives.base import Objective
from mhrl.objectives.figures import bin_usage, saturation
from mhrl.objectives.n_step_rows import NStepRows
from mhrl.objectives.target import SoftUpdate, make_target

ACTOR_ROW = "actor"
"""The row that losses of proposing heads of one `trunk_grad` share: their sum is the policy gradient."""

LossReduction = Literal["per_branch", "mean_q", "summed"]
TargetReduction = Literal["independent", "max", "mean"]

_JOINT: dict[str, BranchReduction] = {"mean_q": "mean", "summed": "sum"}


@final
class ValueBased(Objective):
    """The losses of the family: one per proposing head, and one per branch or `value`.

    Args:
        network: trunk, heads and critics.
        aggregator: see `Objective`.
        gamma: the discount, in [0, 1].
        tau: step of the target network towards the online network, in [0, 1]; 1 copies.
        target_every: updates between two steps of the target network.
        policy_delay: updates between two computations of the proposing heads' losses.
        loss_function: the TD losses' distance.
        reduction: how per-sample losses become one.
        n_steps: env steps in a row of replay, fewer at an episode's end; see `functional.n_step`. Nothing corrects for
            actions that the policy would no longer take.
        double: whether the online network chooses the branches' values in the target.
        target_reduction: what the target makes of the branches with `per_branch`: each its own, or their maximum or
            mean. A joint value has a joint target.
        loss_reduction: one loss per branch, whose sum is the mean over branches; or one loss of the branches' mean or
            sum.
        smoothing: standard deviation of the noise on the target's continuous action, in half-ranges (there, eq. 14).
        smoothing_clip: its bound, in half-ranges.
        bootstrap_on_truncation: whether a truncated episode has a future; False repeats what much published code does.
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
        double: bool = False,
        target_reduction: TargetReduction = "mean",
        loss_reduction: LossReduction = "per_branch",
        smoothing: float = 0.0,
        smoothing_clip: float = 0.5,
        bootstrap_on_truncation: bool = True,
    ) -> None:
        super().__init__(aggregator)
        for option, number in (("gamma", gamma), ("tau", tau)):
            if not 0 <= number <= 1:
                raise ValueError(f"objective.{option} is {number}: a number from 0 to 1 is expected")
        counts = {"target_every": target_every, "policy_delay": policy_delay, "n_steps": n_steps}
        for option, count in counts.items():
            if count < 1 or count != int(count):
                raise ValueError(f"objective.{option} is {count}: a positive whole number is expected")
        for option, number in (("smoothing", smoothing), ("smoothing_clip", smoothing_clip)):
            if not 0 <= number < float("inf"):
                raise ValueError(f"objective.{option} is {number}: a number >= 0 is expected")
        for option, choice, choices in (
            ("target_reduction", target_reduction, ("independent", "max", "mean")),
            ("loss_reduction", loss_reduction, ("per_branch", *_JOINT)),
        ):
            if choice not in choices:
                raise ValueError(f"objective.{option} is {choice!r}: one of {', '.join(choices)} is expected")
        # An unknown name is refused here, not at the first update.
        reduce(distance(torch.zeros(1), torch.zeros(1), loss_function), reduction=reduction)
        self.network = network
        self.target = make_target(network)
        self._soft_update = SoftUpdate(self.target, network)
        self.loss_reduction = loss_reduction
        self.joint: BranchReduction = _JOINT.get(loss_reduction, "independent")
        self.target_reduction: BranchReduction = target_reduction if self.joint == "independent" else self.joint
        self.td_losses = td_losses(network, loss_reduction)
        self._branches = () if network.critics == (VALUE,) else network.critics
        self.row_of = self._rows()
        self.routes = self._routes()
        self.signed = tuple(network.proposing)  # -V
        self.gamma = gamma
        self.tau = tau
        self.target_every = target_every
        self.policy_delay = policy_delay
        self.loss_function = loss_function
        self.reduction = reduction
        self.n_steps = int(n_steps)
        self.chooses_online = double
        self.smoothing, self.smoothing_clip = smoothing, smoothing_clip
        self.bootstrap_on_truncation = bootstrap_on_truncation
        self._n_step_rows = NStepRows(self.n_steps, gamma)

    @classmethod
    def loss_names(cls, network: Any, **options: Any) -> tuple[str, ...]:  # noqa: ANN401
        """The proposing heads' losses, then the TD losses."""
        return (*network.proposing, *td_losses(network, options.get("loss_reduction", "per_branch")))

    def _rows(self) -> dict[str, str]:
        """`{loss: row}`: one for each TD loss; proposing heads share `actor` unless their `trunk_grad` differ."""
        proposing = self.network.proposing
        factors = {self.aggregator.trunk_grad(loss) for loss in proposing}
        # A factor that was given per loss and not for the shared row must not be lost.
        shared = self.aggregator.rows == "objectives"
        shared = shared and len(factors) == 1 and factors <= {1.0, self.aggregator.trunk_grad(ACTOR_ROW)}
        rows = {loss: ACTOR_ROW if shared else loss for loss in proposing} | {loss: loss for loss in self.td_losses}
        if len(proposing) and ACTOR_ROW in self.td_losses:
            raise ValueError(
                f"heads.{ACTOR_ROW}: a branch cannot have this name beside heads that propose; list its head under "
                f"another name, with leaf: {ACTOR_ROW}"
            )
        return rows

    def _routes(self) -> dict[str, tuple[str, ...]]:
        """`{loss: modules}`; a loss of `trunk_grad` 0 does not train the trunk."""
        modules_of = dict(self.network.modules_of)
        if self.joint != "independent":
            joint = dict.fromkeys(module for name in self.network.critics for module in modules_of[name])
            modules_of[VALUE] = (*(m for m in joint if m != "trunk"), *(m for m in joint if m == "trunk"))
        return {
            loss: tuple(m for m in modules_of[loss] if m != "trunk" or self.aggregator.trunk_grad(row) != 0)
            for loss, row in self.row_of.items()
        }

    def train(self, mode: bool = True) -> Self:
        """Set the online network's mode; the target stays in evaluation mode."""
        super().train(mode)
        self.target.eval()
        return self

    def due(self, updates: int) -> tuple[str, ...]:
        """The TD losses at every update, those of proposing heads at every `policy_delay`-th."""
        due = (updates + 1) % self.policy_delay == 0
        return (*self.network.proposing, *self.td_losses) if due else self.td_losses

    def losses(
        self, batch: TensorDictBase, active: Iterable[str] | None = None, target_value: Tensor | None = None
    ) -> tuple[TensorDict, TensorDict]:
        """See `Objective.losses`.

        Metrics, for the log no more than references to what the losses need anyway: from the TD losses `pred_value`,
        `target_value` and `td_error` (squared) `[*, L]`, means over copies of the critics, a column for each active
        loss, of which `columns`, int64 `[L]`, are the positions in `td_losses`; `priority` `[*]`, the sum over losses
        of the absolute TD errors; where there are branches `values` `[*, C, K, n]` of those that are computed, all
        choices, and `observation`, the leaves that they were computed from. From proposing heads `state_action_value`
        `[*]` (V of the equations), of the active ones `action_gradient/<head>` `[*, D]`, in value per env unit, and of
        all `action/<head>` `[*, D]`, greedy, in env units.

        Args:
            batch: `[B]` or `[B, T]`.
            active: names of losses.
            target_value: `[*, L]`, or `[*, 1]` for all losses, detached; that of the target network, if None.
        """
        names = self.due(self.policy_delay - 1) if active is None else tuple(active)
        observation = self.network.observe(batch)
        features = self.network.trunk_features(observation)
        rows = self.aggregator.fan_out(features, self.rows(names))
        weight = batch.get("priority_weight", None)
        losses: dict[str, Tensor] = {}
        metrics: dict[str, Any] = {}

        heads = [name for name in self.network.proposing if name in names]
        if heads:
            per_sample, metrics = self.policy_losses(heads, rows, features.detach(), observation)
            losses = {head: reduce(loss, weight, self.reduction) for head, loss in per_sample.items()}
        critics = [name for name in self.td_losses if name in names]
        if critics:
            prediction, values = self._predictions(critics, rows, observation, batch)
            target = self.target_value(batch) if target_value is None else target_value
            shape, columns = prediction.shape[:-2], len(self.td_losses)
            if target.shape not in ((*shape, 1), (*shape, columns)):  # broadcasting would silently pair other rows
                raise ValueError(
                    f"target_value {tuple(target.shape)}: {(*shape, 1)} or {(*shape, columns)} is expected"
                )
            if len(critics) < target.shape[-1]:  # each loss has its own
                target = target[..., [self.td_losses.index(name) for name in critics]]
            target = target.expand(*shape, len(critics))
            expected = target.unsqueeze(-2).expand_as(prediction)
            error = _over_copies(distance(prediction, expected, self.loss_function), torch.sum)
            if len(self.td_losses) > 1:
                error = error / len(self.td_losses)
            losses |= {
                name: reduce(loss, weight, self.reduction) for name, loss in zip(critics, error.unbind(-1), strict=True)
            }
            prediction = prediction.detach()
            error = prediction - expected
            metrics |= {
                "pred_value": _over_copies(prediction, torch.mean),
                "target_value": target,
                "columns": torch.tensor([self.td_losses.index(name) for name in critics]),
                "td_error": _over_copies(error.square(), torch.mean),
                "priority": _over_copies(error.abs(), torch.mean).sum(-1),
            }
            if self._branches:
                metrics |= {"values": values.detach(), "observation": observation}
        return TensorDict(losses), TensorDict(metrics)

    def _predictions(
        self, losses: Sequence[str], rows: Mapping[str, Tensor], observation: Mapping, batch: TensorDictBase
    ) -> tuple[Tensor, Tensor]:
        """What the TD losses compare with their targets, `[*, C, L]`, and the values of all choices, `[*, C, K, n]`."""
        network = self.network
        action, index = network.stored(batch)
        if self.joint != "independent":
            values = network.action_values(rows[VALUE], observation, action)
            return reduce_branches(chosen_value(values, _for_copies(index, network.copies)), self.joint), values
        values = network.action_values(rows, observation, action, losses)
        if len(losses) < len(network.critics):
            index = index[..., [network.critics.index(name) for name in losses]]
        return chosen_value(values, _for_copies(index, network.copies)), values

    def policy_losses(
        self, heads: Sequence[str], rows: Mapping[str, Tensor], features: Tensor, observation: Mapping
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Per-sample losses `[*]` of proposing `heads`, and their metrics.

        Args:
            heads: the active ones; the others take part in the joint action, without a gradient.
            rows: `{row: [*, F]}` with the active heads' rows.
            features: `[*, F]`, detached: the critics' view, and that of heads that are not active.
            observation: the observation leaves.
        """
        network = self.network
        actions = network.propose(heads, {head: rows[self.row_of[head]] for head in heads}, observation)
        with torch.no_grad():
            idle = [head for head in network.proposing if head not in actions]
            joint = {head: action.detach() for head, action in actions.items()}
            joint |= network.propose(idle, features, observation) if idle else {}
            mask = network.mask(observation)
            value, gradients = value_and_action_gradients(
                lambda parts: self._best(features, observation, network.assemble(parts), mask), joint
            )
        losses = {
            head: -(value + (gradients[head] * (action - action.detach())).flatten(value.dim()).sum(-1))
            for head, action in actions.items()
        }
        metrics = {"state_action_value": value, **{f"action_gradient/{head}": gradients[head] for head in losses}}
        return losses, metrics | {f"action/{head}": action for head, action in joint.items()}

    def _best(self, features: Tensor, observation: Mapping, action: Tensor, mask: Tensor | None) -> Tensor:
        """`V` `[*]`: the value of `action` with the best choice of every branch, by the first copy of the critics."""
        values = self.network.action_values(features, observation, action, copies=1)
        return joint_best_value(values, None if mask is None else mask.unsqueeze(-3), self.target_reduction).squeeze(-1)

    @torch.no_grad()
    def target_value(self, batch: TensorDictBase) -> Tensor:
        """`y`, from the target network: `[*, K]` if each branch has its own, else `[*, 1]`."""
        value = reduce_branches(self._next_values(batch), self.target_reduction)
        following = batch.get("next")
        terminated = following.get("terminated")
        if not self.bootstrap_on_truncation:
            terminated = terminated | following.get("truncated")
        steps = batch.get("steps_to_next_obs", None)
        gamma = self.gamma if steps is None else (self.gamma ** steps.to(value.dtype)).expand_as(value)
        return td_target(following.get("reward").expand_as(value), terminated.expand_as(value), value, gamma)

    def _next_values(self, batch: TensorDictBase) -> Tensor:
        """`min_c Q'_{c,d}(f'(s'), x', g*_d)`, `[*, K]`."""
        observation = self.target.observe(batch, following=True)
        features = self.target.trunk_features(observation)
        action = self.target.act(features, observation)
        if self.smoothing and self.target.proposing:
            action = self._smooth(action)
        mask = self.target.mask(observation)
        values = self.target.action_values(features, observation, action)
        values = values.squeeze(-3) if self.target.copies == 1 else values.amin(-3)
        if not self.chooses_online or values.shape[-1] == 1:  # nothing to choose
            return best_value(values, mask)
        online = self.network.trunk_features(observation)
        online = self.network.action_values(online, observation, action, copies=1).squeeze(-3)
        return chosen_value(values, best_index(online, mask))

    def _smooth(self, action: Tensor) -> Tensor:
        """Clipped noise on the target's action `[*, A]`, inside the box."""
        noise = (torch.randn_like(action) * self.smoothing).clamp(-self.smoothing_clip, self.smoothing_clip)
        low, high = self.target.low, self.target.high
        _, half_range = center_and_half_range(low, high)
        return torch.clamp(action + noise * half_range, low, high)

    def summary(self, metrics: Mapping[str, Any]) -> dict[str, Tensor]:
        """What critics and proposing heads say about the batch.

        Of each TD loss's values of the taken actions (means over copies) the mean, `pred_value`, and the largest,
        `pred_value_max`; the mean `target_value`; and `target_gap`, the mean of target less prediction. Of each branch
        that was computed `bin_usage`, the fraction of its values that some row would choose (by the first copy, beside
        the stored action, among what is allowed). Of each active proposing head `action_gradient`, the mean norm of
        `dV/dx`, and `saturation`, the fraction of its action's components at a bound (see `figures`).
        """
        scalars: dict[str, Tensor] = {}
        if "columns" in metrics:
            losses = tuple(self.td_losses[i] for i in metrics["columns"].tolist())
            predicted, target = (metrics[name].reshape(-1, len(losses)) for name in ("pred_value", "target_value"))
            figures = {
                "pred_value": predicted.mean(0),
                "pred_value_max": predicted.amax(0),
                "target_value": target.mean(0),
                "target_gap": (target - predicted).mean(0),
            }
            for name, columns in figures.items():
                scalars |= {f"head/{loss}/{name}": x for loss, x in zip(losses, columns.unbind(), strict=True)}
            if self._branches:
                scalars |= self._bin_usage(metrics, losses if self.joint == "independent" else self._branches)
        heads = [head for head in self.network.proposing if f"action_gradient/{head}" in metrics]
        if heads:
            at_bounds = saturation(self.network, {head: metrics[f"action/{head}"] for head in self.network.proposing})
        for head in heads:
            scalars[f"head/{head}/action_gradient"] = metrics[f"action_gradient/{head}"].norm(dim=-1).mean()
            scalars[f"head/{head}/saturation"] = at_bounds[head]
        return scalars

    def _bin_usage(self, metrics: Mapping[str, Any], branches: Sequence[str]) -> dict[str, Tensor]:
        """`bin_usage` of the branches whose `values` there are."""
        values, mask = metrics["values"][..., 0, :, :], self.network.mask(metrics["observation"])
        if mask is not None:
            mask = mask[..., [self._branches.index(name) for name in branches], : values.shape[-1]]
        usage = bin_usage(values, mask).unbind()
        return {f"head/{branch}/bin_usage": used for branch, used in zip(branches, usage, strict=True)}

    def update_target(self, updates: int) -> None:
        """Move the target by `tau` if `updates` is a multiple of `target_every`."""
        if updates % self.target_every == 0:
            self._soft_update(self.tau)

    def process_rollout(self, rollout: TensorDictBase) -> TensorDictBase:
        """Rows of up to `n_steps` steps, `n_steps` - 1 rows later than they are collected; the rollout itself for 1."""
        return self._n_step_rows.take(rollout)

    def cut(self) -> None:
        """End every env's episode with the newest row kept back."""
        self._n_step_rows.cut()

    def process_state(self) -> dict[str, Any]:
        """The rows kept back, if any."""
        return self._n_step_rows.state_dict()

    def load_process_state(self, state: dict[str, Any]) -> None:
        """Restore the rows kept back."""
        self._n_step_rows.load_state_dict(state)


def td_losses(network: ActorCritic, loss_reduction: LossReduction) -> tuple[str, ...]:
    """The names of the TD losses: one for each critic, or `value` for all of them."""
    return network.critics if loss_reduction == "per_branch" else (VALUE,)


def value_and_action_gradients(
    value: Callable[[dict[str, Tensor]], Tensor], actions: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """`V` `[*]` and `dV/dx_j` `{head: [*, D]}` at `actions`, detached; no parameter gets a gradient."""
    if torch.compiler.is_compiling():  # `torch.compile` cannot read the other way, which takes half as long
        result, pull = torch.func.vjp(value, actions)[:2]
        return result, pull(torch.ones_like(result))[0]
    with torch.enable_grad():
        leaves = {head: action.detach().requires_grad_() for head, action in actions.items()}
        result = value(leaves)
        gradients = torch.autograd.grad(result, [*leaves.values()], torch.ones_like(result))
    return result.detach(), dict(zip(leaves, gradients, strict=True))


def _over_copies(values: Tensor, how: Callable[..., Tensor]) -> Tensor:
    """`values` `[*, C, L]` reduced over the copies of the critics: `[*, L]`."""
    return values.squeeze(-2) if values.shape[-2] == 1 else how(values, -2)


def _for_copies(index: Tensor, copies: int) -> Tensor:
    """`index` `[*, K]` for every copy of the critics, `[*, C, K]`."""
    return index.unsqueeze(-2).expand(*index.shape[:-1], copies, index.shape[-1])


__all__ = ["ACTOR_ROW", "LossReduction", "TargetReduction", "ValueBased", "td_losses", "value_and_action_gradients"]
