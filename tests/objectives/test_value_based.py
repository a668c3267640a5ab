"""The corners of the family against values worked out by hand and against torchrl's losses."""

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from mhrl.aggregators import WeightedSum
from mhrl.network import ActorCritic
from mhrl.objectives import ValueBased

INF = math.inf


class Table(ActorCritic):
    """Branches whose values depend on nothing but whether it is this observation, 0, or the next one, 1.

    `values` is `{branch: [values now, values next]}`, the same for both copies unless `second` says otherwise.
    """

    proposing = ()

    def __init__(self, values, second=None):
        super().__init__()
        self.critics = tuple(values)
        self.copies = 1 if second is None else 2
        self.most = max(len(now) for now, _ in values.values())
        tables = [
            torch.tensor([[self.padded(row) for row in one[name]] for name in values])
            for one in (values, second or values)
        ]
        self.table = nn.Parameter(torch.stack(tables[: self.copies]))  # [C, K, 2, n]
        self.allowed = None

    def padded(self, row):
        return [*row, *[-INF] * (self.most - len(row))]

    @property
    def modules_of(self):
        return {name: ("head",) for name in self.critics}

    def observe(self, batch, *, following=False):
        return {"observation": (batch["next"] if following else batch)["observation"]}

    def stored(self, batch):
        return torch.zeros(*batch.shape, 0), batch["index"]

    def mask(self, observation):
        return None if self.allowed is None else self.allowed[observation["observation"].long()]

    def trunk_features(self, observation):
        return observation["observation"]

    def propose(self, heads, features, observation):
        raise AssertionError("there is none")

    def assemble(self, actions):
        raise AssertionError("there is none")

    def act(self, features, observation):
        return torch.zeros(*features.shape, 0)

    def action_values(self, features, observation, action, critics=None, copies=None):
        which = observation["observation"].long()
        chosen = [self.critics.index(name) for name in critics or self.critics]
        return self.table[: copies or self.copies][:, chosen].movedim(2, 0)[which]


def rows(index, reward=1.0, terminated=False, truncated=False):
    index = torch.tensor(index)
    count = len(index)
    flags = {"terminated": terminated, "truncated": truncated}
    flags = {name: torch.as_tensor(flag).expand(count).reshape(count, 1) for name, flag in flags.items()}
    after = {
        "observation": torch.ones(count),
        "reward": torch.as_tensor(reward).expand(count).reshape(count, 1),
        **flags,
    }
    return TensorDict({"observation": torch.zeros(count), "index": index, "next": after}, [count])


# Two branches of two and three values; the taken ones are worth 2 and 0.
B05 = {"first": [[2.0, 7.0], [1.0, 2.0]], "second": [[0.0, -4.0, 6.0], [0.0, 5.0, 3.0]]}


def objective_of(values=B05, second=None, gamma=0.9, **options):
    return ValueBased(Table(values, second), WeightedSum(), gamma=gamma, **options)


def losses_of(objective, batch):
    losses, metrics = objective.losses(batch)
    return {name: loss.item() for name, loss in losses.items()}, metrics


@pytest.mark.parametrize(
    ("reduction", "target"),
    [("mean", [4.15, 4.15]), ("max", [5.5, 5.5]), ("independent", [2.8, 5.5])],
)
def test_b05_targets_of_unequal_branches(reduction, target):
    objective = objective_of(target_reduction=reduction)
    losses, metrics = losses_of(objective, rows([[0, 0]]))
    assert metrics["target_value"].tolist() == [pytest.approx(target)]
    errors = [target[0] - 2.0, target[1] - 0.0]
    # A loss of each branch; their sum is the mean over branches.
    assert losses == pytest.approx({"first": errors[0] ** 2 / 2, "second": errors[1] ** 2 / 2})
    assert metrics["priority"].item() == pytest.approx(sum(map(abs, errors)))


def test_b05_the_mean_over_branches():
    losses, metrics = losses_of(objective_of(), rows([[0, 0]]))
    assert sum(losses.values()) == pytest.approx(10.9225)  # (2.15^2 + 4.15^2) / 2
    assert metrics["td_error"].tolist() == [pytest.approx([4.6225, 17.2225])]


def test_b05_terminated_rows_have_no_future():
    _, metrics = losses_of(objective_of(), rows([[0, 0]], terminated=True))
    assert metrics["target_value"].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("loss_reduction", "prediction", "target"),
    [("mean_q", 1.0, 1 + 0.9 * 3.5), ("summed", 2.0, 1 + 0.9 * 7.0)],
)
def test_joint_values_have_joint_targets_and_one_loss(loss_reduction, prediction, target):
    objective = objective_of(loss_reduction=loss_reduction)
    losses, metrics = losses_of(objective, rows([[0, 0]]))
    assert losses == {"value": pytest.approx((target - prediction) ** 2, rel=1e-6)}
    assert metrics["priority"].item() == pytest.approx(target - prediction)
    assert objective.routes == {"value": ("head",)} and objective.row_of == {"value": "value"}
    assert ValueBased.loss_names(objective.network, loss_reduction=loss_reduction) == ("value",)


def test_gradients_reach_the_taken_values_only():
    objective = objective_of()
    losses, _ = objective.losses(rows([[0, 2]]))
    objective.aggregator.backward(losses)
    found = objective.network.table.grad
    # d/dq (y - q)^2 / 2 = q - y, at the taken values 2 of `first` and 6 of `second`; padding and all else stay 0.
    expected = torch.zeros(1, 2, 2, 3)
    expected[0, 0, 0, 0], expected[0, 1, 0, 2] = 2.0 - 4.15, 6.0 - 4.15
    torch.testing.assert_close(found, expected)


def test_double_lets_the_online_network_choose():
    objective = objective_of(target_reduction="independent", double=True)
    with torch.no_grad():  # the online network prefers value 0 of `first` and value 2 of `second`
        objective.network.table[0, :, 1] = torch.tensor([[9.0, 2.0, -INF], [0.0, 5.0, 8.0]])
    _, metrics = losses_of(objective, rows([[0, 0]]))
    assert metrics["target_value"].tolist() == [pytest.approx([1 + 0.9 * 1.0, 1 + 0.9 * 3.0])]


def test_twins_are_pessimistic_value_by_value_and_share_a_loss():
    second = {"first": [[4.0, 0.0], [3.0, 0.0]], "second": [[1.0, 0.0, 0.0], [0.0, 4.0, 6.0]]}
    objective = objective_of(second=second, target_reduction="independent")
    losses, metrics = losses_of(objective, rows([[0, 0]]))
    # min: first [1, 0], second [0, 4, 3]; so y = 1.9 and 4.6; predictions 2 and 4, 0 and 1.
    assert metrics["target_value"].tolist() == [pytest.approx([1.9, 4.6])]
    assert losses == pytest.approx({"first": (0.1**2 + 2.1**2) / 2, "second": (4.6**2 + 3.6**2) / 2})
    assert metrics["pred_value"].tolist() == [pytest.approx([3.0, 0.5])]
    assert metrics["priority"].item() == pytest.approx((0.1 + 2.1) / 2 + (4.6 + 3.6) / 2)


def test_b06_the_mask_counts_in_the_bootstrap():
    objective = objective_of({"only": [[0.0, 0.0, 0.0], [1.0, 9.0, 3.0]]}, double=False)
    for network in (objective.network, objective.target):
        network.allowed = torch.tensor([[[True] * 3], [[True, False, True]]])
    _, metrics = losses_of(objective, rows([[0]], reward=0.0))
    assert metrics["target_value"].item() == pytest.approx(2.7)  # 8.1 without the mask
    objective.chooses_online = True
    _, metrics = losses_of(objective, rows([[0]], reward=0.0))
    assert metrics["target_value"].item() == pytest.approx(2.7)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "max", "independent"])
def test_b06_nothing_allowed_in_a_terminal_state_is_harmless(double, reduction):
    objective = objective_of(double=double, target_reduction=reduction)
    for network in (objective.network, objective.target):
        network.allowed = torch.stack([torch.ones(2, 3), torch.zeros(2, 3)]).bool()
    losses, metrics = objective.losses(rows([[0, 0]], terminated=True))
    assert metrics["target_value"].tolist() == [[1.0, 1.0]]
    objective.aggregator.backward(losses)
    assert torch.isfinite(objective.network.table.grad).all()


def test_a01_truncation_is_an_end_only_where_it_is_asked_for():
    batch = rows([[0, 0]] * 4, terminated=[False, True, False, True], truncated=[False, False, True, True])
    objective = objective_of()
    assert objective.target_value(batch).squeeze(-1).tolist() == pytest.approx([4.15, 1.0, 4.15, 1.0])
    objective.bootstrap_on_truncation = False
    assert objective.target_value(batch).squeeze(-1).tolist() == pytest.approx([4.15, 1.0, 1.0, 1.0])


def test_steps_are_the_power_of_gamma():
    batch = rows([[0, 0]] * 2)
    batch["steps_to_next_obs"] = torch.tensor([[1], [3]])
    right = [1 + 0.9 * 3.5, 1 + 0.9**3 * 3.5]
    assert objective_of().target_value(batch).squeeze(-1).tolist() == pytest.approx(right)


def test_a_branch_that_is_not_active_is_in_the_target_but_gets_no_gradient():
    objective = objective_of()
    losses, metrics = objective.losses(rows([[0, 0]]), ["second"])
    assert list(losses.keys()) == ["second"] and metrics["target_value"].tolist() == [pytest.approx([4.15])]
    objective.aggregator.backward(losses)
    assert (objective.network.table.grad[0, 0] == 0).all()
    own = objective_of(target_reduction="independent")
    _, metrics = own.losses(rows([[0, 0]]), ["second"])
    assert metrics["target_value"].tolist() == [pytest.approx([5.5])]  # the target of `second`, not of `first`


def test_priority_weights_scale_every_branch():
    objective, batch = objective_of(), rows([[0, 0], [1, 1]])
    single = [losses_of(objective, batch[i : i + 1])[0] for i in range(2)]
    batch["priority_weight"] = torch.tensor([1.0, 3.0])
    losses, _ = losses_of(objective, batch)
    assert losses == pytest.approx({name: (single[0][name] + 3 * single[1][name]) / 4 for name in losses})


def summary_of(objective, batch, active=None):
    _, metrics = objective.losses(batch, active)
    return {name: value.item() for name, value in objective.summary(dict(metrics.items())).items()}


def test_summary_says_of_each_branch_what_it_took_predicts_and_would_choose():
    # Taken: 2 and 7 of `first`, 0 and 6 of `second`; y = 1 + 0.9 * 2 and 1 + 0.9 * 5.
    assert summary_of(objective_of(target_reduction="independent"), rows([[0, 0], [1, 2]])) == pytest.approx(
        {
            "head/first/pred_value": 4.5,
            "head/first/pred_value_max": 7.0,
            "head/first/target_value": 2.8,
            "head/first/target_gap": 2.8 - 4.5,
            "head/first/bin_usage": 1 / 2,
            "head/second/pred_value": 3.0,
            "head/second/pred_value_max": 6.0,
            "head/second/target_value": 5.5,
            "head/second/target_gap": 5.5 - 3.0,
            "head/second/bin_usage": 1 / 3,
        }
    )


def test_summary_names_what_was_computed_whatever_is_active_now():
    objective = objective_of(target_reduction="independent")
    _, metrics = objective.losses(rows([[0, 0]]), ["second"])
    objective.aggregator = WeightedSum({"second": 0.0})
    found = {name: value.item() for name, value in objective.summary(dict(metrics.items())).items()}
    assert found == pytest.approx(
        {
            "head/second/pred_value": 0.0,
            "head/second/pred_value_max": 0.0,
            "head/second/target_value": 5.5,
            "head/second/target_gap": 5.5,
            "head/second/bin_usage": 1 / 3,
        }
    )


@pytest.mark.parametrize(("loss_reduction", "predicted", "target"), [("mean_q", 1.0, 4.15), ("summed", 2.0, 7.3)])
def test_summary_of_a_joint_value_has_its_branches_usage(loss_reduction, predicted, target):
    assert summary_of(objective_of(loss_reduction=loss_reduction), rows([[0, 0]])) == pytest.approx(
        {
            "head/value/pred_value": predicted,
            "head/value/pred_value_max": predicted,
            "head/value/target_value": target,
            "head/value/target_gap": target - predicted,
            "head/first/bin_usage": 1 / 2,
            "head/second/bin_usage": 1 / 3,
        }
    )


@pytest.mark.parametrize("active", [None, ["one"], ["two"]])
@pytest.mark.parametrize(("masked", "one", "two"), [(False, 2 / 3, 1 / 2), (True, 1 / 3, 1.0)])
def test_b06_a_masked_choice_is_not_counted_as_used(masked, one, two, active):
    # Two rows. Best are 0 and 2 of `one`, 1 and 1 of `two`; of what the masks allow 2 and 2, and 0 and 1.
    objective = objective_of({"one": [[9.0, 5.0, 6.0], [0.0, 7.0, 8.0]], "two": [[1.0, 2.0], [3.0, 4.0]]})
    now, later = [[False, True, True], [True, False, False]], [[True, False, True], [True, True, False]]
    objective.network.allowed = torch.tensor([now, later]) if masked else None
    batch = rows([[1, 0], [1, 0]])
    batch["observation"] = torch.tensor([0.0, 1.0])
    found = summary_of(objective, batch, active)
    right = {name: part for name, part in (("one", one), ("two", two)) if active is None or name in active}
    usage = {name: part for name, part in found.items() if name.endswith("bin_usage")}
    assert usage == pytest.approx({f"head/{name}/bin_usage": part for name, part in right.items()})


def test_metrics_are_references_to_what_the_losses_computed():
    objective = objective_of()
    batch = rows([[0, 0]])
    _, metrics = objective.losses(batch)
    assert set(metrics.keys()) == {
        "pred_value",
        "target_value",
        "columns",
        "td_error",
        "priority",
        "values",
        "observation",
    }
    assert metrics["values"].shape == (1, 1, 2, 3) and not metrics["values"].requires_grad
    assert metrics["columns"].tolist() == [0, 1]
    assert metrics["observation", "observation"] is batch["observation"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_reduction": "sum"}, r"objective.target_reduction is 'sum': one of independent, max, mean"),
        ({"loss_reduction": "mean"}, r"objective.loss_reduction is 'mean': one of per_branch, mean_q, summed"),
        ({"smoothing": -0.1}, r"objective.smoothing is -0.1"),
        ({"smoothing_clip": math.inf}, r"objective.smoothing_clip is inf"),
        ({"n_steps": 0}, r"objective.n_steps is 0"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        objective_of(**options)


@pytest.mark.parametrize("shape", [(2,), (1,), (2, 3), (3, 2)])
def test_a_target_that_would_broadcast_is_refused(shape):
    with pytest.raises(ValueError, match=r"target_value .*: \(2, 1\) or \(2, 2\) is expected"):
        objective_of().losses(rows([[0, 0], [1, 1]]), target_value=torch.zeros(shape))


def test_a_given_target_is_taken_as_it_is():
    losses, _ = objective_of().losses(rows([[0, 0], [0, 0]]), target_value=torch.tensor([[1.0], [3.0]]))
    assert losses["first"].item() == pytest.approx((1 + 1) / 2 / 2) and losses["second"].item() == pytest.approx(2.5)
    _, metrics = objective_of().losses(rows([[0, 0]]), ["second"], target_value=torch.tensor([[1.0, 3.0]]))
    assert metrics["target_value"].tolist() == [[3.0]]
