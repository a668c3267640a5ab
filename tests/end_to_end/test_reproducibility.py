"""Same seed, same run, bit for bit; evaluation and sweeps change nothing."""

import pytest
import torch

SMALL = ("+experiment=ddpg", "total_frames=400", "learning_starts=100", "eval.episodes=2", "batch_size=16")


def comparable(run):
    """Everything of a run that does not tell the time."""
    rows = [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in run.rows]
    return rows, run.leaves()


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(value, right[key]) if isinstance(value, torch.Tensor) else value == right[key]
        for key, value in left.items()
    )


@pytest.mark.parametrize("extra", [(), ("num_envs=3",)])
def test_d01_same_seed_same_bits(train, extra):
    rows, state = comparable(train(*SMALL, "seed=3", *extra))
    again_rows, again = comparable(train(*SMALL, "seed=3", *extra))
    other_rows, other = comparable(train(*SMALL, "seed=4", *extra))
    assert rows == again_rows and same(state, again)
    assert rows != other_rows and not same(state, other)


def test_d01_sync_and_async_envs_give_the_same_run(train):
    rows, state = comparable(train(*SMALL, "num_envs=2"))
    async_rows, async_state = comparable(train(*SMALL, "num_envs=2", "env.vectorization_mode=async"))
    # A worker's process has global generators of its own, which are part of its env's state.
    left, right = ({k: v for k, v in one.items() if "/process" not in k} for one in (state, async_state))
    assert rows == async_rows and same(left, right) and len(left) > 100


def test_evaluation_logging_and_checkpoints_leave_training_bit_identical(train):
    _, quiet = comparable(train(*SMALL, "eval.every=1000", "log.every=1000", "checkpoint.every=1000"))
    _, busy = comparable(train(*SMALL, "eval.every=37", "eval.episodes=3", "log.every=13", "checkpoint.every=11"))
    assert same(quiet, busy)


def test_a06_warm_up_changes_no_parameter(build, tmp_path):
    experiment = build(*SMALL, f"run_dir={tmp_path / 'run'}")
    before = [p.clone() for p in experiment.parts.network.parameters()]
    seen = []
    update = experiment.parts.learner.update

    def spy(batch, frames, **options):
        if not seen:
            assert all(torch.equal(p, q) for p, q in zip(before, experiment.parts.network.parameters(), strict=True))
        seen.append(frames)
        update(batch, frames, **options)

    experiment.parts.learner.update = spy
    experiment.run()
    assert seen[0] == 101
    assert len(seen) == 300


@pytest.mark.parametrize(
    ("overrides", "frames", "updates"),
    [
        (("num_envs=1",), 400, 300),
        (("num_envs=4",), 400, 300),
        (("num_envs=4", "utd_ratio=0.25"), 400, 75),
        (("num_envs=3", "total_frames=400"), 402, 302),
        (("num_envs=1", "utd_ratio=2"), 400, 600),
        (("num_envs=1", "utd_ratio=0.29", "total_frames=200"), 200, 29),
        (("num_envs=2", "collector.frames_per_rollout=64"), 400, 300),
        (("learning_starts=1000",), 400, 0),
    ],
)
def test_a06_updates_are_owed_per_transition(train, overrides, frames, updates):
    last = train(*SMALL, *overrides).rows[-1]
    assert (last["frames"], last["updates"]) == (frames, updates)


def test_metrics_come_at_their_intervals(train):
    run = train(*SMALL, "log.every=150", "eval.every=200", "checkpoint.every=1000")
    assert [row["frames"] for row in run.rows if "perf/frames_per_s" in row] == [150, 300, 400]
    assert [row["frames"] for row in run.rows if "eval/return_mean" in row] == [200, 400]
    assert [row.get("episode/length") for row in run.rows] == [
        None,
        None,
        200.0,
        200.0,
    ]  # rows at 150, 200 (evaluation only), 300, 400
    assert not any("trunk/grad_norm/actor" in row for row in run.rows)  # no trunk, no rows


def test_rows_of_a_shared_trunk_are_measured(train):
    run = train("+experiment=ddpg_shared_trunk", *SMALL[1:])
    last = run.rows[-1]
    assert last["trunk/grad_share/actor"] + last["trunk/grad_share/value"] == pytest.approx(1, abs=1e-6)
    assert -1 <= last["trunk/grad_cos/actor__value"] <= 1
    assert last["trunk/grad_norm/value"] > 0


def test_a_weight_of_zero_drops_a_loss(train):
    run = train(*SMALL, "losses.actor.weight=0")
    state = run.checkpoint()
    fresh = train(*SMALL, "learning_starts=1000").checkpoint()
    heads = [key for key in state["network"] if key.startswith("head_actor")]
    assert heads and all(torch.equal(state["network"][key], fresh["network"][key]) for key in heads)
    assert "loss/actor" not in run.rows[-1] and "loss/value" in run.rows[-1]


def test_measuring_many_rows_leaves_training_bit_identical(train):
    small = ("+experiment=hybrid_q", *SMALL[1:], "trunk.widths=[8]", "replay.capacity=100", "total_frames=200")
    quiet, busy = (comparable(train(*small, f"log.every={every}"))[1] for every in (1000, 1))
    assert same(quiet, busy)


def test_measuring_two_rows_of_several_heads_leaves_training_bit_identical(train):
    def run(*overrides):
        base = (
            "+experiment=ddpg_shared_trunk",
            *SMALL[1:],
            "env=bandit",
            "heads.actor.dims=[0]",
            "heads.other.dims=[1]",
        )
        return comparable(train(*base, *overrides))[1]

    assert same(run("log.every=1000"), run("log.every=1"))


def test_an_env_that_draws_from_the_global_generator_trains_alike_with_and_without_evaluations(train):
    env = ("env._target_=toy_envs.GlobalDraws", "~env.id", "num_envs=2")
    _, quiet = comparable(train(*SMALL, *env, "eval.every=1000"))
    _, busy = comparable(train(*SMALL, *env, "eval.every=30"))
    assert same(quiet, busy)


@pytest.mark.parametrize("extra", ["objective.policy_delay=3", "utd_ratio=0.334"])
def test_row_figures_are_of_one_update_and_reported_once(train, extra):
    run = train("+experiment=ddpg_shared_trunk", *SMALL[1:], "log.every=50", extra)
    rows = [row for row in run.rows if row["frames"] > 150 and row["frames"] % 50 == 0]
    shares = [(row["trunk/grad_share/actor"], row["trunk/grad_share/value"]) for row in rows]
    assert all(sum(pair) == pytest.approx(1, abs=1e-6) and 0 < pair[0] < 1 for pair in shares)
    assert len(set(shares)) == len(shares) == 5
