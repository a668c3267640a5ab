"""N frames and N more, resumed, equal 2N frames at once, bit for bit; and what a resume refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from mhrl.config import ConfigError
from mhrl.replay import saved_rows

SMALL = ("learning_starts=100", "batch_size=16", "eval.episodes=2", "eval.every=150", "log.every=50", "seed=1")
LEG = ("heads.back_leg.widths=[16]", "heads.front_leg.widths=[16]", "heads.value.widths=[16]", "trunk.widths=[16]")


def rows(run):
    """Every metric of the run by (key, frames), clock times excepted; each once."""
    cells = [(key, row["frames"], value) for row in run.rows for key, value in row.items() if "perf/" not in key]
    found = {(key, frames): value for key, frames, value in cells}
    assert len(found) == len(cells)
    return found


MASKED = ("env._target_=toy_envs.Masked", "~env.length", "+env.parts=true", "heads=null")
CASES = {
    "pendulum": ("+experiment=ddpg", *SMALL),
    "shared trunk": ("+experiment=ddpg_shared_trunk", *SMALL),
    "halfcheetah": ("+experiment=ddpg_halfcheetah", *SMALL, *LEG, "replay.capacity=1000"),
    "three envs": ("+experiment=ddpg", *SMALL, "num_envs=3"),
    "async": ("+experiment=ddpg", *SMALL, "env.vectorization_mode=async"),
    "three async cheetahs": (
        *("+experiment=ddpg_halfcheetah", *SMALL, *LEG, "replay.capacity=1000"),
        *("num_envs=3", "env.vectorization_mode=async"),
    ),
    "a wrapped ring": ("+experiment=ddpg", *SMALL, "replay.capacity=120", "num_envs=2"),
    "prioritised": ("+experiment=ddpg", *SMALL, "replay=prioritised", "replay.capacity=200", "num_envs=2"),
    "memmap": ("+experiment=ddpg", *SMALL, "replay.storage=memmap"),
    "n-step": ("+experiment=ddpg", *SMALL, "objective.n_steps=3", "num_envs=2"),
    "noise with a memory": ("+experiment=ddpg", *SMALL, "exploration=ornstein_uhlenbeck", "num_envs=2"),
    "normaliser": ("+experiment=ddpg_shared_trunk", *SMALL, "normaliser=running", "normaliser.reward=return_std"),
    "half an update a frame": ("+experiment=ddpg_shared_trunk", *SMALL, "utd_ratio=0.34", "objective.policy_delay=3"),
    "long rollouts": ("+experiment=ddpg", *SMALL, "collector.frames_per_rollout=25", "num_envs=2"),
    "lunar lander": ("+experiment=ddpg_multi_head", *SMALL, "replay.capacity=1000", "heads.value.widths=[16]"),
    "td3": ("+experiment=td3", *SMALL, "heads.actor.widths=[16]", "heads.value.widths=[16]"),
    "dqn": ("+experiment=dqn", *SMALL, "trunk.widths=[16]", "num_envs=2"),
    "bdq": ("+experiment=bdq", *SMALL, "trunk.widths=[16]", "replay=prioritised", "replay.capacity=200"),
    "hybrid": ("+experiment=hybrid_q", *SMALL, "trunk.widths=[16]", "num_envs=2", "objective.twin=true"),
    "masks": ("+experiment=hybrid_q", *SMALL, *MASKED, "num_envs=3", "trunk.widths=[16]", "objective.n_steps=3"),
}


@pytest.mark.parametrize("case", CASES)
def test_d02_resumed_equals_uninterrupted(train, case):
    whole = train(*CASES[case], "total_frames=300")
    part = train(*CASES[case], "total_frames=150")
    trust = ("trust_config=true",) if "toy_envs" in str(CASES[case]) else ()
    resumed = train(f"resume={part.path}", "total_frames=300", *trust)
    assert resumed.path == part.path
    assert resumed.differences(whole) == []
    assert rows(resumed).items() >= rows(whole).items()
    assert resumed.info["status"] == "finished" and resumed.info["resumed"][0]["frames"] == 150


def test_d02_many_rows_may_be_cut_between_two_logs(train):
    base = (*CASES["hybrid"], "log.every=50")
    whole, part = train(*base, "total_frames=240"), train(*base, "total_frames=130")
    assert train(f"resume={part.path}", "total_frames=240").differences(whole) == []


@pytest.mark.parametrize(
    ("at", "extra"),
    [
        ((50,), ()),
        ((100,), ()),  # the last rollout end before updates begin
        ((101,), ()),
        ((250,), ()),  # in the middle of an episode of 200 steps
        ((400,), ()),  # an episode's end
        ((250, 450), ()),  # twice in a row
        ((99, 102, 303), ("num_envs=3", "replay.capacity=200")),
    ],
)
def test_d02_wherever_it_is_cut(train, at, extra):
    base = ("+experiment=ddpg_shared_trunk", *SMALL, *extra)
    whole = train(*base, "total_frames=600")
    part = train(*base, f"total_frames={at[0]}")
    for frames in (*at[1:], 600):
        part = train(f"resume={part.path}", f"total_frames={frames}")
    assert part.differences(whole) == []
    assert rows(part).items() >= rows(whole).items()
    assert [entry["frames"] for entry in part.info["resumed"]] == list(at)


def test_d02_from_an_older_checkpoint_the_later_rows_are_cut(train):
    base = ("+experiment=ddpg", *SMALL, "total_frames=600")
    whole = train(*base)
    again = train(*base, "checkpoint.every=200", "checkpoint.keep_last=null")
    assert sorted(path.name for path in (again.path / "checkpoints").glob("frames_*")) == [
        *("frames_101.pt", "frames_200.pt", "frames_400.pt", "frames_600.pt"),
    ]
    resumed = train(f"resume={again.path / 'checkpoints' / 'frames_200.pt'}")
    assert resumed.differences(whole) == []
    assert rows(resumed) == rows(whole)
    names = sorted(path.name for path in (again.path / "checkpoints").iterdir())
    assert {"later_400.pt", "later_600.pt", "frames_400.pt", "frames_600.pt", "last.pt", "best.pt"} <= set(names)


def test_d02_saving_does_not_change_the_run(train):
    base = ("+experiment=ddpg_shared_trunk", *SMALL, "total_frames=400", "num_envs=2")
    often = train(*base, "checkpoint.every=10", "checkpoint.keep_last=3")
    assert often.differences(train(*base)) == []
    numbers = sorted(int(path.stem[7:]) for path in (often.path / "checkpoints").glob("frames_*.pt"))
    assert numbers == [380, 390, 400]
    last = often.path / "checkpoints" / "last.pt"
    assert last.samefile(often.path / "checkpoints" / "frames_400.pt")


def test_d02_an_env_without_a_state_begins_a_new_episode_and_says_so(train):
    base = ("+experiment=ddpg", *SMALL, "env._target_=toy_envs.Opaque", "~env.id", "num_envs=2")
    part = train(*base, "total_frames=304")  # episodes of ten steps: cut after two of the sixteenth
    resumed = train(f"resume={part.path}", "total_frames=500", "trust_config=true")
    assert "resume is not exact" in (part.path / "train.log").read_text()
    rows = saved_rows(resumed.checkpoint()["replay"]["rows"]["rows"])  # [T, N] of 250 vector steps, all held
    assert rows["next"]["truncated"][150:153, :, 0].tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert rows["next"]["done"][151].all() and not rows["next"]["terminated"][151].any()
    assert rows["is_init"][150:153, :, 0].tolist() == [[True] * 2, [False] * 2, [True] * 2]
    before, after = rows["collector"]["traj_ids"][151], rows["collector"]["traj_ids"][152]
    assert not set(before.tolist()) & set(after.tolist())
    assert resumed.info["status"] == "finished"


def test_d02_a_simulator_without_a_state_trains_on_in_a_new_episode(train):
    pytest.importorskip("pybullet")
    base = ("+experiment=bdq_reacher_bullet", *SMALL, "trunk.widths=[16]", "heads.action.widths=[]", "num_envs=2")
    part = train(*base, "total_frames=250", "learning_starts=100", "replay.capacity=1000")
    resumed = train(f"resume={part.path}", "total_frames=350")
    log = (part.path / "train.log").read_text()
    assert "resume is not exact, new episodes begin: env 0: " in log
    rows = saved_rows(resumed.checkpoint()["replay"]["rows"]["rows"])  # [T, N] of 175 vector steps
    assert rows["is_init"][..., 0].nonzero()[:, 0].tolist() == [0, 0, 125, 125]  # 150 steps would be an episode
    assert rows["next"]["truncated"][124].all() and not rows["next"]["terminated"].any()
    assert resumed.info["status"] == "finished" and resumed.info["updates"] == 250


def test_the_command_line_wins_and_conflicts_are_listed(train):
    part = train("+experiment=ddpg_shared_trunk", *SMALL, "total_frames=200")
    overrides = ("heads.actor.lr=1e-4", "trunk.lr=0.002", "optimizer.clip_norm=1", "total_frames=300")
    resumed = train(f"resume={part.path}", *overrides)
    log = (part.path / "train.log").read_text()
    for said in (
        "heads.actor.lr is None in the checkpoint, 0.0001 on the command line, which wins",
        "trunk.lr is None in the checkpoint, 0.002 on the command line, which wins",
        "total_frames is 200 in the checkpoint, 300 on the command line, which wins",
    ):
        assert said in log
    groups = resumed.checkpoint()["optimizer"]["param_groups"]
    rates = {name.split(".")[0]: group["lr"] for group in groups for name in group["param_names"]}
    assert rates == {"head_actor": 1e-4, "trunk": 0.002, "head_value": 1e-3}
    assert resumed.checkpoint()["config"]["heads"]["actor"]["lr"] == 1e-4
    steps = {float(state["step"]) for state in resumed.checkpoint()["optimizer"]["state"].values()}
    assert steps == {200.0}  # Adam's state goes on: one step a frame since learning_starts=100


@pytest.fixture
def stopped(train):
    return train("+experiment=ddpg_shared_trunk", *SMALL, "total_frames=200")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("trunk=identity",), "trunk=identity: a resumed run keeps its trunk"),
        (("+experiment=ddpg",), "+experiment=ddpg: a resumed run keeps its experiment"),
        (("seed=3",), "seed=3: a resumed run keeps seed, which is 1"),
        (("num_envs=3",), "num_envs=3: a resumed run keeps num_envs, which is 1"),
        (("objective.n_steps=3",), "a resumed run keeps objective.n_steps, which is 1"),
        (("utd_ratio=2",), "a resumed run keeps utd_ratio, which is 1"),
        (("env.id=CartPole-v1",), "a resumed run keeps env.id, which is Pendulum-v1"),
        (("replay.capacity=5",), "a resumed run keeps replay.capacity, which is 100000"),
        (("run_dir=elsewhere",), "run_dir=elsewhere: a resumed run keeps run_dir"),
        (("~optimizer.lr",), "~optimizer.lr: nothing can be deleted"),
        (("total_frames=many",), "total_frames is 'many': a whole number >= 1 is expected"),
        (("heads.actor.widths=[7]",), "head_actor.body"),
        (("heads.other.lr=1",), "the run has no heads.other, but actor, value"),
        (("objective.gama=0.9",), "unknown key objective.gama: did you mean gamma?"),
        (("total_frames=200",), "total_frames is 200 and the checkpoint frames_200.pt is at 200 frames"),
        (("total_frames=100",), "nothing left to do"),
    ],
)
def test_what_a_resume_refuses_by_name(train, stopped, overrides, message):
    before = {path: path.read_bytes() for path in stopped.path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as error:
        more = () if any("total_frames" in override for override in overrides) else ("total_frames=300",)
        train(f"resume={stopped.path}", *more, *overrides)
    assert message in str(error.value)
    assert {path: path.read_bytes() for path in stopped.path.rglob("*") if path.is_file()} == before


def change(path, entry):
    state = torch.load(path, weights_only=True)
    entry(state)
    torch.save(state, path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (lambda state: state.pop("optimizer"), "has no entry 'optimizer'"),
        (lambda state: state.pop("rng"), "has no entry 'rng'"),
        (lambda state: state.pop("replay"), "has no entry 'replay'"),
        (lambda state: state["network"].pop("head_actor.body.0.weight"), "head_actor.body.0.weight"),
        (lambda state: state["config"].pop("batch_size"), "batch_size is missing"),
        (lambda state: state["config"]["trunk"].update(_target_="os.system"), "trunk._target_=os.system"),
        (lambda state: state.update(format=99), "has format 99"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(train, stopped, entry, message):
    file = stopped.path / "checkpoints" / "last.pt"
    change(file, entry)
    with pytest.raises(ConfigError) as error:
        train(f"resume={file}", "total_frames=300")
    assert message in str(error.value)


def test_best_is_refused(train, stopped):
    with pytest.raises(ConfigError, match=r"best\.pt has no entry 'replay': it cannot be resumed; .*last\.pt"):
        train(f"resume={stopped.path / 'checkpoints' / 'best.pt'}", "total_frames=300")


def test_what_is_no_run_is_refused(train, tmp_path):
    with pytest.raises(ConfigError, match=r"resume=nowhere: nowhere does not exist"):
        train("resume=nowhere")


@pytest.mark.parametrize("keep", [lambda n: 0, lambda n: n // 2, lambda n: n - 10])
def test_h03_a_torn_checkpoint_falls_back_with_a_warning(train, keep):
    run = train("+experiment=ddpg", *SMALL, "total_frames=300", "checkpoint.every=200")
    last = run.path / "checkpoints" / "last.pt"
    content = last.read_bytes()
    last.write_bytes(content[: keep(len(content))])  # in place: frames_300.pt is the same file
    with pytest.raises(ConfigError, match=r"last\.pt cannot be read"):
        train(f"resume={last}", "total_frames=400")
    resumed = train(f"resume={run.path}", "total_frames=400")
    log = (run.path / "train.log").read_text()
    assert "frames_300.pt cannot be read" in log
    assert resumed.info["resumed"][0]["frames"] == 200
    whole = train("+experiment=ddpg", *SMALL, "total_frames=400")
    assert resumed.differences(whole) == []
    assert rows(resumed) == rows(whole)


def test_h03_nothing_readable_is_refused(train):
    run = train("+experiment=ddpg", *SMALL, "total_frames=200")
    for path in (run.path / "checkpoints").glob("[lf]*.pt"):
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no checkpoint that can be read"):
        train(f"resume={run.path}", "total_frames=300")


def test_two_processes_cannot_have_one_run(train, stopped):
    from mhrl.run_folder import RunFolder

    other = RunFolder.open(stopped.path)
    other.lock()
    with pytest.raises(ConfigError, match="in use by another process"):
        train(f"resume={stopped.path}", "total_frames=300")
    other.unlock()
    assert train(f"resume={stopped.path}", "total_frames=300").info["status"] == "finished"


def test_a_run_that_was_moved_can_be_resumed(train, stopped, tmp_path):
    moved = Path(shutil.move(stopped.path, tmp_path / "elsewhere"))
    resumed = train(f"resume={moved}", "total_frames=300")
    assert json.loads((moved / "run.json").read_text())["frames"] == 300 and resumed.path == moved
