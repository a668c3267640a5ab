import pytest
import torch
from torch import nn

from mhrl.aggregators import WeightedSum
from mhrl.engine import EagerEngine
from mhrl.health import INTERVALS, Health
from mhrl.learner import Learner
from mhrl.objectives import ValueBased


def dead(module="head_gear", gradient=1e-9, size=1.0):
    return {f"module/{module}/grad_norm": gradient, f"module/{module}/param_norm": size}


def said(health, count, row, start=1):
    """What `count` log rows with these metrics lead to, by frames: 100 an interval."""
    messages = {}
    for i in range(start, start + count):
        if found := health.observe({"frames": 100 * i, "updates": i, **row}):
            messages[100 * i] = found
    return messages


def test_ten_intervals_in_a_row_are_one_warning():
    assert INTERVALS == 10
    messages = said(Health(), 25, {**dead(gradient=2.5e-9, size=3.0), "loss/gear": 1.0})
    ((frames, (message,)),) = messages.items()
    assert frames == 1000
    assert message == (
        "dead head gear (no gradient): the gradient of head_gear has norm 2.5e-09, its parameters 3 (at each of 10 log "
        "intervals, from 100 to 1,000 frames). Lower heads.gear.lr, or give it another heads.gear.activation or "
        "heads.gear.layer_norm=true; a head whose loss has nothing left to teach, or that has one action only, may "
        "stay so."
    )


def test_it_is_said_again_after_it_has_gone_only():
    health = Health()
    assert said(health, 9, dead()) == {}
    assert said(health, 1, dead(gradient=1.0), start=10) == {}
    assert list(said(health, 15, dead(), start=11)) == [2000]  # the series is counted afresh
    assert said(health, 1, dead(gradient=1.0), start=26) == {}
    assert list(said(health, 15, dead(), start=27)) == [3600]


def test_rows_without_the_figure_do_not_count_and_end_nothing():
    health = Health()
    assert said(health, 9, dead()) == {}
    assert said(health, 20, {"loss/value": 1.0}, start=10) == {}
    assert list(said(health, 1, dead(), start=30)) == [3000]


def test_rows_without_an_update_do_not_count():
    health, row = Health(), {"head/arm/saturation": 1.0}
    assert said(health, 9, row) == {}
    for frames in range(901, 950):
        assert health.observe({"frames": frames, "updates": 9, **row}) == []
    assert list(said(health, 1, row, start=10)) == [1000]
    # Warm-up, before the first update.
    assert all(Health().observe({"frames": frames, "updates": 0, **row}) == [] for frames in range(20))


@pytest.mark.parametrize(
    ("row", "beginning"),
    [
        (dead("trunk"), "dead trunk (no gradient): the gradient of trunk has norm 1.0e-09"),
        (dead("twin_value"), "dead twin value (no gradient): "),
        (dead("head_a/b", 0.0), "dead head a/b (no gradient): the gradient of head_a/b has norm 0.0e+00"),
        (dead(gradient=0.99e-6, size=100.0), "dead head gear (no gradient): "),
        ({"head/arm/saturation": 0.99}, "dead head arm (saturated): 99.0% of its action lies at a bound"),
        (
            {"trunk/grad_norm/actor": 0.01, "trunk/grad_norm/gear": 0.99},
            "dominating row gear: its gradient is 99.0% of what all 2 rows bring",
        ),
        # Whatever the rule made of them: 1 * 8 against 7 * 0.01.
        (
            {
                "trunk/grad_norm/actor": 8.0,
                "trunk/grad_norm/gear": 7.0,
                "trunk/grad_weight/actor": 1.0,
                "trunk/grad_weight/gear": 0.01,
            },
            "dominating row actor: its gradient is 99.1% of what all 2 rows bring",
        ),
        # At the level at which the aggregator works.
        (
            {
                "trunk/grad_norm/actor": 1.0,
                "trunk/grad_norm/gear": 1.0,
                "trunk/params/grad_norm/actor": 199.0,
                "trunk/params/grad_norm/gear": 1.0,
            },
            "dominating row actor: its gradient is 99.5% of what all 2 rows bring",
        ),
    ],
)
def test_what_is_a_fault(row, beginning):
    ((message,),) = said(Health(), 10, row).values()
    assert message.startswith(beginning)


@pytest.mark.parametrize(
    "row",
    [
        dead(gradient=1.01e-8),
        dead(gradient=0.0, size=0.0),  # nothing to compare with
        dead(gradient=float("nan")),
        {"head/arm/saturation": 0.9899},
        {"head/gear/bin_usage": 0.1},  # one choice may be the best one everywhere
        {"trunk/grad_norm/actor": 1.0},  # a lone row
        {"trunk/grad_norm/actor": 0.011, "trunk/grad_norm/gear": 0.989},
        {"trunk/grad_norm/actor": 0.0, "trunk/grad_norm/gear": 0.0},
        {
            "trunk/grad_norm/actor": 99.0,
            "trunk/grad_norm/gear": 1.0,
            "trunk/grad_weight/actor": 0.01,
            "trunk/grad_weight/gear": 0.99,
        },
        {"frames": 5, "updates": 5},
    ],
)
def test_what_is_none(row):
    assert said(Health(), 30, {name: value for name, value in row.items() if "/" in name}) == {}


def test_faults_are_counted_apart():
    health = Health()
    said(health, 5, dead())
    both = said(health, 10, {**dead(), **dead("trunk"), "head/gear/saturation": 1.0}, start=6)
    assert list(both) == [1000, 1500]
    assert [message.partition(":")[0] for message in both[1000]] == ["dead head gear (no gradient)"]
    assert {message.partition(":")[0] for message in both[1500]} == {
        "dead trunk (no gradient)",
        "dead head gear (saturated)",
    }


def test_the_advice_names_keys_that_there_are():
    rows = {"trunk/grad_norm/actor": 0.0, "trunk/grad_norm/gear": 1.0, "loss/arm": 0.0, "loss/gear": 0.0}
    ((own,),) = said(Health(), 10, rows).values()
    assert "losses.gear.trunk_grad" in own and "losses.gear.weight" in own and "aggregator=upgrad" in own
    # A row that several losses share is none of them.
    ((shared,),) = said(Health(), 10, rows | {"trunk/grad_norm/actor": 1.0, "trunk/grad_norm/gear": 0.0}).values()
    assert "lower losses.<head>.trunk_grad (its part" in shared and "losses.<head>.weight of the heads that" in shared
    ((trunk,),) = said(Health(), 10, dead("trunk")).values()
    assert "Lower trunk.lr, or give it another trunk.activation or trunk.layer_norm=true" in trunk


def test_real_figures_of_a_head_in_its_corner(make_network, make_batch):
    network = make_network()
    nn.init.constant_(network.head("arm").body[-1].bias, 50.0)
    nn.init.zeros_(network.head("gripper").body[-1].weight)
    objective = ValueBased(network, WeightedSum({"gripper": 0.0}))  # weight 0: it learns nothing, and is not dead
    engine = EagerEngine(objective, objective.aggregator, torch.optim.SGD(network.parameters(), 1e-3))
    learner, health, found = Learner(objective, engine, objective.aggregator), Health(), []
    for i in range(1, 11):
        learner.measure()
        learner.update(make_batch(network, seed=i))
        found += health.observe({"frames": i, "updates": learner.updates, **learner.report()})
    assert {message.partition(":")[0] for message in found} == {
        "dead head arm (no gradient)",
        "dead head arm (saturated)",
        "dominating row value",
    }
