import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete
from tensordict import TensorDict
from torch import nn

from mhrl.aggregators import WeightedSum
from mhrl.collector import Collector
from mhrl.engine import EagerEngine, NonFiniteLossError
from mhrl.envs import action_leaves, make_factory, make_vector_env, observation_leaves
from mhrl.envs.probe import ConstObs
from mhrl.heads import CriticHead, DeterministicHead
from mhrl.layout import HeadSpec
from mhrl.learner import Learner, first_nonfinite
from mhrl.network import Network
from mhrl.normaliser import Normaliser
from mhrl.objectives import ValueBased
from mhrl.policy import GreedyPolicy
from mhrl.replay import UniformReplay
from mhrl.trunks import IdentityTrunk


def rows():
    torch.manual_seed(1)
    return TensorDict({"x": torch.randn(8, 3)}, [8])


def learner_of(objective, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(objective.parameters(), 0.1)
    engine = EagerEngine(objective, objective.aggregator, optimizer)
    return Learner(objective, engine, objective.aggregator, **options)


def parameters(objective):
    return [p.detach().clone() for p in objective.parameters()]


class ConstantCritic(CriticHead):
    """One weight: the same value everywhere."""

    def __init__(self, space):
        super().__init__(1, space)
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, features, action):
        return self.weight + 0 * (features.sum(-1, keepdim=True) + action.sum(-1, keepdim=True))


# 3.571 = 1 / (1 - 0.9 * 4 / 5): one row in five has no future. Truncation taken for an end would give it too.
@pytest.mark.parametrize(("end", "right"), [("truncated", 10.0), ("terminated", 1 / 0.28)])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a01_a_constant_critic_converges_to_the_fixed_point(end, right, num_envs):
    env = make_vector_env(make_factory(ConstObs, {"length": 5, "end": end}), num_envs)
    leaves = {
        "observation_leaves": observation_leaves(env.single_observation_space),
        "action_leaves": action_leaves(env.single_action_space),
    }
    trunk = IdentityTrunk({leaf.key: leaf.space for leaf in leaves["observation_leaves"]})
    box = Box(-1, 1, (1,))
    critic = ConstantCritic(box)
    heads = {"actor": DeterministicHead(1, box, [2]), "value": critic}
    specs = {"actor": HeadSpec("action", (0,)), "value": HeadSpec("", ())}
    network = Network(trunk, heads, specs, leaves["action_leaves"])
    objective = ValueBased(network, WeightedSum(), gamma=0.9, tau=1.0)
    learner = learner_of(objective, torch.optim.SGD(network.parameters(), 0.25))
    replay = UniformReplay(1000, 256, num_envs, seed=0)
    options = {"seeds": list(range(num_envs)), "warmup_seed": 0, "learning_starts": 200, "total_frames": 400}
    collector = Collector(env, GreedyPolicy(network), **leaves, **options)
    for rollout in collector:
        replay.extend(objective.process_rollout(rollout))
    collector.close()
    assert len(replay) == 400
    for batch in replay.batches(400):
        learner.update(batch)
    assert learner.updates == 400
    assert critic.weight.item() == pytest.approx(right, abs=0.3)


def test_updates_follow_policy_delay_and_move_the_target_once_each(make_network, make_batch):
    network = make_network()
    objective = ValueBased(network, WeightedSum(), policy_delay=2, tau=0.5)
    learner, batch = learner_of(objective), make_batch(network)
    actor, critic = network.head("arm").body[0], network.head("value").body[0]
    for update in range(4):
        target = objective.target.head("value").body[0].weight.clone()
        before = actor.weight.detach().clone(), critic.weight.detach().clone()
        learner.update(batch)
        assert torch.equal(before[0], actor.weight) == (update % 2 == 0)
        assert not torch.equal(before[1], critic.weight)
        expected = target + 0.5 * (critic.weight.detach() - target)
        torch.testing.assert_close(objective.target.head("value").body[0].weight, expected)
    assert learner.updates == 4


def test_a07_one_target_update_for_each_optimizer_step(make_toy):
    objective = make_toy()
    learner = learner_of(objective)
    for _ in range(3):
        learner.update(rows())
    assert objective.target_updates == [1, 2, 3]


def test_b03_error_names_loss_update_frames_and_the_first_bad_entry(make_network, make_batch):
    network = make_network()
    objective = ValueBased(network, WeightedSum(), tau=0.5)
    learner, batch = learner_of(objective, torch.optim.Adam(network.parameters(), 0.1)), make_batch(network)
    learner.update(batch, frames=99)
    before, target = parameters(objective), [t.clone() for t in objective.target.state_dict().values()]
    batch["next", "reward"][3] = float("nan")
    batch["next", "reward"][5] = float("nan")
    with pytest.raises(NonFiniteLossError) as error:
        learner.update(batch, frames=100)
    message = str(error.value)
    for part in ("loss 'value' is nan", "update 1", "100 frames", "next/reward in row 3"):
        assert part in message
    assert "loss 'arm'" not in message
    assert all(torch.equal(*pair) for pair in zip(before, parameters(objective), strict=True))
    assert all(torch.equal(*pair) for pair in zip(target, objective.target.state_dict().values(), strict=True))
    assert learner.updates == 1


def test_b03_when_the_batch_is_finite_the_message_says_so(make_toy):
    objective = make_toy(b=float("nan"))
    with pytest.raises(NonFiniteLossError, match=r"loss 'b' is nan .*first non-finite entry of the batch: none"):
        learner_of(objective).update(rows())


def test_b03_skip_leaves_the_update_out_and_counts_it(make_toy):
    objective = make_toy()
    learner = learner_of(objective, torch.optim.Adam(objective.parameters(), 0.1), on_nonfinite="skip")
    learner.update(rows())
    before = parameters(objective)
    objective.poison["b"] = float("inf")
    learner.update(rows())
    learner.update(rows())
    assert all(torch.equal(*pair) for pair in zip(before, parameters(objective), strict=True))
    assert (learner.updates, learner.skipped_updates, objective.target_updates) == (3, 2, [1])
    assert learner.report()["skipped_updates"] == 2
    objective.poison.clear()
    learner.update(rows())
    assert not torch.equal(before[0], parameters(objective)[0])
    assert (learner.updates, learner.skipped_updates, objective.target_updates) == (4, 2, [1, 4])


def test_b03_weight_zero_is_a_run_without_the_loss(make_network, make_batch):
    # An arm of weight 0 whose output is NaN would poison the joint action, so the bad value is in its loss only.
    results = []
    for poison in (1.0, float("nan")):
        network = make_network()
        objective = ValueBased(network, WeightedSum({"arm": 0.0}))
        network.head("arm").body[0].bias.register_hook(lambda gradient, factor=poison: gradient * factor)
        learner, batch = learner_of(objective, torch.optim.Adam(network.parameters(), 0.1)), make_batch(network)
        for _ in range(5):
            learner.update(batch)
        results.append(parameters(objective))
        assert set(learner.report()) >= {"loss/gripper", "loss/value"} and "loss/arm" not in learner.report()
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_every_loss_dropped_still_counts_and_trains_nothing(make_toy):
    objective = make_toy(WeightedSum(0.0))
    learner, before = learner_of(objective), parameters(objective)
    learner.update(rows())
    assert all(torch.equal(*pair) for pair in zip(before, parameters(objective), strict=True))
    assert learner.updates == 1 and learner.report() == {}


@pytest.mark.parametrize("mode", ["ignore", None, ""])
def test_unknown_mode_is_refused(make_toy, mode):
    with pytest.raises(ValueError, match=r"on_nonfinite is"):
        learner_of(make_toy(), on_nonfinite=mode)


def test_report_names_losses_weights_and_the_norm(make_toy):
    objective = make_toy(WeightedSum({"a": 0.3, "b": 2.0}))
    learner, batch = learner_of(objective), rows()
    assert learner.report() == {}
    network = objective.network
    right = network["b"](network["trunk"](batch["x"])).square().mean().item()
    learner.measure()
    learner.update(batch)
    report = learner.report()
    assert {name for name in report if not name.startswith(("trunk/", "module/"))} == {
        "loss/a",
        "loss/b",
        "loss_weight/a",
        "loss_weight/b",
        "grad/norm",
    }
    assert report["loss/b"] == pytest.approx(right) and report["loss_weight/b"] == 2.0
    assert {"trunk/grad_norm/a", "trunk/grad_cos/a__b", "module/a/update_ratio"} < report.keys()
    assert all(type(value) is float for value in report.values())


def test_a_loss_keeps_its_last_value_while_it_is_delayed(make_network, make_batch):
    network = make_network()
    learner, batch = learner_of(ValueBased(network, WeightedSum(), policy_delay=2)), make_batch(network)
    learner.update(batch)
    assert "loss/arm" not in learner.report()
    learner.update(batch)
    kept = learner.report()["loss/arm"]
    learner.update(batch)
    assert learner.report()["loss/arm"] == kept


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_batches_with_and_without_time(make_network, make_batch, shape):
    network = make_network()
    learner = learner_of(ValueBased(network, WeightedSum()))
    learner.measure()
    learner.update(make_batch(network, *shape))
    assert all(torch.isfinite(torch.tensor(value)) for value in learner.report().values())


def test_rows_are_measured_in_the_first_whole_update_and_reported_once(make_network, make_batch):
    network = make_network()
    learner, batch = learner_of(ValueBased(network, WeightedSum(), policy_delay=2)), make_batch(network)
    learner.measure()
    learner.update(batch)  # the value loss alone
    assert not any(name.startswith(("trunk/", "module/")) for name in learner.report())
    learner.update(batch)
    report = learner.report()
    assert {"trunk/grad_share/actor", "trunk/grad_share/value", "trunk/grad_cos/actor__value"} < report.keys()
    modules = ("trunk", "head_arm", "head_gripper", "head_value")
    assert {name for name in report if name.endswith("update_ratio")} == {f"module/{m}/update_ratio" for m in modules}
    assert not any(name.startswith(("trunk/", "module/")) for name in learner.report())
    learner.update(batch)
    learner.update(batch)
    assert {"trunk/grad_share/actor", "module/trunk/grad_norm"} < learner.report().keys()  # a report asks for the next


def test_first_nonfinite_finds_key_and_row():
    batch = TensorDict(
        {
            "index": torch.arange(4),
            "flag": torch.zeros(4, 1, dtype=torch.bool),
            "weight": torch.ones(4),
            "next": {"obs": torch.zeros(4, 2, 3)},
        },
        [4],
    )
    assert first_nonfinite(batch) is None
    batch["next", "obs"][3, 0, 1] = float("-inf")
    assert first_nonfinite(batch) == "next/obs in row 3"
    batch["weight"][2] = float("nan")  # of the batch's own shape
    assert first_nonfinite(batch) == "weight in row 2"


def test_the_state_brings_counters_and_the_next_report_back(make_network, make_batch):
    network = make_network()
    objective = ValueBased(network, WeightedSum(), policy_delay=2)
    learner, batch = learner_of(objective), make_batch(network)
    for _ in range(3):
        learner.update(batch)
    learner.measure()
    learner.update(batch)
    other = learner_of(objective)
    other.load_state_dict(learner.state_dict())
    assert (other.updates, other.skipped_updates) == (4, 0)
    said = learner.report()
    assert other.report() == said and "loss/arm" in said and "trunk/grad_norm/value" in said
    assert other.state_dict()["report"]["measure"] is True


def test_a_report_after_a_resume_needs_no_update(make_network, make_batch):
    class Fading(WeightedSum):
        def factors(self, losses, frames=0):
            return dict.fromkeys(losses, float(frames))

    network = make_network()
    objective = ValueBased(network, Fading())
    learner, other = learner_of(objective), learner_of(objective)
    learner.update(make_batch(network), frames=70)
    state = learner.state_dict()
    # Scalars: a checkpoint holds no batch.
    assert all(
        value.dim() == 0 for value in (*state["report"]["summary"].values(), *state["report"]["losses"].values())
    )
    other.load_state_dict(state)
    said = other.report()
    assert said == learner.report() and said["loss_weight/value"] == 70.0 and "head/arm/saturation" in said
    other.update(make_batch(network, seed=2), frames=71)
    assert other.report()["head/arm/action_gradient"] != said["head/arm/action_gradient"]


def dropping(objective, *losses):
    objective.aggregator = WeightedSum(dict.fromkeys(losses, 0.0))
    return learner_of(objective)


@pytest.mark.parametrize("dropped", ["arm", "value"])
def test_of_a_loss_that_a_resumed_run_drops_nothing_is_said(make_network, make_batch, dropped):
    network = make_network()
    learner, batch = learner_of(ValueBased(network, WeightedSum())), make_batch(network)
    learner.measure()
    learner.update(batch)
    state = learner.state_dict()  # with figures of rows and modules that no report has had yet
    said = {name for name in learner.report() if not name.startswith(("trunk/", "module/"))}
    assert {f"loss/{dropped}", f"loss_weight/{dropped}"} < said
    resumed = dropping(learner.objective, dropped)
    resumed.load_state_dict(state)
    assert not any(dropped in name for name in resumed.report())
    resumed.update(batch)
    found = resumed.report()
    assert not any(dropped in name for name in found if not name.startswith("module/"))
    kept = {name for name in said if dropped not in name}
    assert kept <= found.keys() and "loss/gripper" in kept


@pytest.mark.parametrize("loss_reduction", ["per_branch", "mean_q"])
def test_a_schedule_that_drops_a_loss_takes_its_figures_along(make_agent, make_batch, loss_reduction):
    class Until(WeightedSum):
        """Weight 0 for the first branch from 10 frames on."""

        def weight(self, loss, frames=0):
            return 0.0 if loss == "action_0" and frames >= 10 else 1.0

    network = make_agent(MultiDiscrete([3, 2, 4]))
    learner = learner_of(ValueBased(network, Until(), loss_reduction=loss_reduction))
    branches = ["action_0", "action_1", "action_2"]
    td = branches if loss_reduction == "per_branch" else ["value"]
    for frames in (9, 10, 11):
        learner.update(make_batch(network, seed=frames), frames)
        found = learner.report()
        left = td[1:] if frames >= 10 and len(td) > 1 else td
        assert [name for name in found if name.endswith("/target_gap")] == [f"head/{loss}/target_gap" for loss in left]
        assert [name for name in found if name.startswith("loss")] == [
            *(f"loss/{loss}" for loss in left),
            *(f"loss_weight/{loss}" for loss in left),
        ]
        used = left if len(td) > 1 else branches
        assert [name for name in found if name.endswith("/bin_usage")] == [f"head/{name}/bin_usage" for name in used]


def test_the_normaliser_comes_before_the_objective_and_replay_stays_raw(make_network, make_batch):
    network = make_network()
    objective = ValueBased(network, WeightedSum())
    seen = []

    class Halve(Normaliser):
        def update(self, rollout): ...

        def observation(self, leaves): ...

        def batch(self, batch):
            halved = batch.copy()
            halved["observation"] = batch["observation"] / 2
            seen.append(halved)
            return halved

    batch = make_batch(network)
    raw = batch.clone()
    losses, _ = objective.losses(Halve((), 1).batch(batch))
    learner = learner_of(objective, normaliser=Halve((), 1))
    learner.update(batch)
    assert len(seen) == 2
    assert learner.report()["loss/value"] == losses["value"].item()
    assert all(batch[key].equal(raw[key]) for key in raw.keys(True, True))


def test_c04_the_priority_is_the_absolute_error_of_the_value(make_network, make_batch):
    network = make_network()
    objective = ValueBased(network, WeightedSum())
    batch = make_batch(network)
    with torch.no_grad():
        features = network.trunk_features(network.observe(batch))
        value = network.action_values(features, network.observe(batch), batch["action"]).flatten()
        right = (value - objective.target_value(batch).flatten()).abs()
    learner_of(objective).update(batch)
    torch.testing.assert_close(batch["priority"], right, rtol=0, atol=1e-6)
