"""What all kinds of replay share: storage, resume, cuts. Each kind is tested here in memory and in files."""

import gc
import io
import signal

import pytest
import torch
from tensordict import TensorDict

from mhrl.replay import PrioritisedReplay, UniformReplay, saved_rows

KINDS = [UniformReplay, PrioritisedReplay]
FLAGS = ("terminated", "truncated", "done")

every_kind = pytest.mark.parametrize("kind", KINDS)
every_storage = pytest.mark.parametrize("storage", ["memory", "memmap"])


def rollout(start, steps, num_envs):
    """Row (t, n) holds the number `100 * (start + t) + n`; no episode ends."""
    number = 100 * (start + torch.arange(steps))[:, None] + torch.arange(num_envs)
    flags = {name: torch.zeros(steps, num_envs, 1, dtype=torch.bool) for name in FLAGS}
    return TensorDict(
        {
            "observation": {"pixels": (number % 256).to(torch.uint8)[..., None], "level": number.double()},
            "next": {"reward": number[..., None].float(), **flags},
            "collector": {"traj_ids": number.long()},
        },
        [steps, num_envs],
    )


def numbers(batch):
    return batch["collector", "traj_ids"]


def update(replay, batch):
    """Priorities that differ from row to row and from draw to draw."""
    batch["priority"] = (numbers(batch) % 97).double() / 7 + len(replay) % 3
    replay.update_priority(batch)


def train(replay, start, steps, num_envs):
    """Alternate writing and drawing; return all that was drawn."""
    drawn = []
    for step in range(start, start + steps):
        replay.extend(rollout(step, 1, num_envs))
        for batch in replay.batches(3):
            drawn.append(batch.clone())
            update(replay, batch)
    return drawn


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_equal(one, two):
    assert set(one.keys(True, True)) == set(two.keys(True, True))
    assert all(torch.equal(one[key], two[key]) for key in one.keys(True, True))


def same(one, two):
    """Two states, to the bit."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key, value in one.items():
            same(value, two[key])
    elif isinstance(one, list):
        for left, right in zip(one, two, strict=True):
            same(left, right)
    else:
        assert torch.equal(one, two) if torch.is_tensor(one) else one == two


@every_kind
@every_storage
@pytest.mark.parametrize("steps", [2, 4, 7, 13], ids=["filling", "just full", "wrapped", "wrapped thrice"])
def test_d02_a_resumed_replay_goes_on_bit_for_bit(kind, storage, steps):
    replay = kind(8, 4, 2, seed=0, storage=storage)
    train(replay, 0, steps, 2)
    state = through_a_file(replay.state_dict())
    restored = kind(8, 4, 2, seed=9, storage=storage)
    restored.load_state_dict(state)
    assert len(restored) == len(replay) == 2 * min(steps, 4)
    for one, two in zip(replay.batches(3), restored.batches(3), strict=True):  # before anything is added
        assert_equal(one, two)
        update(replay, one)
        update(restored, two)
    for one, two in zip(train(replay, steps, 9, 2), train(restored, steps, 9, 2), strict=True):
        assert_equal(one, two)
    same(replay.state_dict(), restored.state_dict())


@every_kind
def test_d02_saving_changes_nothing(kind):
    draws = []
    for save in (False, True):
        replay = kind(8, 4, 2, seed=0)
        train(replay, 0, 3, 2)
        if save:
            same(through_a_file(replay.state_dict()), replay.state_dict())
        draws.append([numbers(batch) for batch in train(replay, 3, 5, 2)])
    assert all(torch.equal(one, two) for one, two in zip(*draws, strict=True))


@every_kind
@every_storage
def test_c01_a_file_holds_the_rows_and_not_the_capacity(kind, storage):
    replay = kind(200_000, 4, 2, seed=0, storage=storage)
    replay.extend(rollout(0, 500, 2))
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    assert len(file.getvalue()) < 1.05 * 1000 * (1 + 8 + 4 + 3 + 8 + 8) + 15_000


@every_kind
@every_storage
def test_c01_rows_are_saved_without_a_copy(kind, storage):
    replay, rows = kind(400, 4, 2, seed=0, storage=storage), rollout(0, 3, 2)
    rows["observation", "pixels"] = torch.arange(3 * 2 * 2000).reshape(3, 2, 2000).to(torch.uint8)
    replay.extend(rows)
    one, two = (replay.state_dict()["rows"] for _ in range(2))
    assert len(one) == 2  # images, and all else
    assert [record["bytes"].data_ptr() for record in one] == [record["bytes"].data_ptr() for record in two]
    assert_equal(saved_rows(one), rows)
    file = io.BytesIO()
    torch.save(one, file)
    assert len(file.getvalue()) < 6 * 2024 + 15_000


@every_kind
def test_d02_an_empty_replay_can_be_saved(kind):
    restored = kind(8, 4, 2, seed=1)
    restored.load_state_dict(through_a_file(kind(8, 4, 2, seed=0).state_dict()))
    assert len(restored) == 0
    restored.extend(rollout(0, 3, 2))
    assert len(restored) == 6


@every_kind
@pytest.mark.parametrize(
    ("sizes", "message"),
    [((10, 4, 2), r"the saved replay has capacity 8, this one has 10"), ((8, 4, 1), r"num_envs 2, this one has 1")],
)
def test_g01_a_state_of_other_sizes_is_refused_by_name(kind, sizes, message):
    replay = kind(8, 4, 2, seed=0)
    replay.extend(rollout(0, 2, 2))
    with pytest.raises(ValueError, match=message):
        kind(*sizes, seed=0).load_state_dict(replay.state_dict())


@every_kind
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.set("steps_to_next_obs", torch.ones(1, 2, 1)), r"holds steps_to_next_obs as None.*float32"),
        (lambda rows: rows.exclude("collector"), r"holds collector.traj_ids as int64 .*, .* have it as None"),
        (lambda rows: rows.set(("observation", "pixels"), torch.ones(1, 2, 1)), r"observation.pixels as uint8"),
        (lambda rows: rows.set(("next", "reward"), torch.ones(1, 2, 3)), r"next.reward as float32 \[2, 1\]"),
    ],
)
def test_g01_rows_that_do_not_fit_the_restored_ones_are_refused_by_name(kind, change, message):
    replay, restored = kind(8, 4, 2, seed=0), kind(8, 4, 2, seed=0)
    replay.extend(rollout(0, 2, 2))
    restored.load_state_dict(through_a_file(replay.state_dict()))
    with pytest.raises(ValueError, match=message):
        restored.extend(change(rollout(2, 1, 2)))
    assert len(restored) == 4


@every_kind
def test_rollouts_of_another_number_of_envs_are_refused(kind):
    with pytest.raises(ValueError, match=r"rows of 2 envs are expected, got 3"):
        kind(8, 4, 2, seed=0).extend(rollout(0, 1, 3))


@every_kind
def test_c03_a_rollout_without_rows_changes_nothing(kind):
    replay = kind(8, 4, 2, seed=0)
    replay.extend(rollout(0, 1, 2)[:0])
    assert len(replay) == 0
    replay.extend(rollout(0, 3, 2))
    before = replay.state_dict()
    replay.extend(rollout(0, 1, 2)[:0])
    same(replay.state_dict(), before)


@every_kind
@every_storage
@pytest.mark.parametrize("steps", [1, 3, 4, 6])
def test_d02_a_cut_ends_the_newest_row_of_every_env(kind, storage, steps):
    replay = kind(8, 4, 2, seed=0, storage=storage)
    replay.cut()  # nothing is held
    replay.extend(rollout(0, steps, 2))
    replay.cut()
    rows = saved_rows(replay.state_dict()["rows"])
    newest = rows["collector"]["traj_ids"] // 100 == steps - 1
    assert newest.sum() == 2
    for name, right in {"terminated": torch.zeros_like(newest), "truncated": newest, "done": newest}.items():
        assert torch.equal(rows["next"][name].squeeze(-1), right)


@every_kind
def test_c01_files_hold_what_memory_would(kind, tmp_path):
    in_memory, on_disk = kind(8, 4, 2, 0), kind(8, 4, 2, 0, "memmap", str(tmp_path / "new" / "folder"))
    for one, two in zip(train(in_memory, 0, 7, 2), train(on_disk, 0, 7, 2), strict=True):
        assert all(torch.equal(one[key], two[key]) and type(two[key]) is torch.Tensor for key in one.keys(True, True))
    (folder,) = (tmp_path / "new" / "folder").iterdir()
    assert [path.stat().st_size for path in folder.iterdir()] == [8 * (1 + 8 + 4 + 3 + 8)]


def test_c01_two_runs_may_share_a_folder_and_leave_nothing_there(tmp_path):
    replays = [UniformReplay(8, 4, 2, 0, "memmap", str(tmp_path)) for _ in range(2)]
    for i, replay in enumerate(replays):
        replay.extend(rollout(i, 4, 2))
    for i, replay in enumerate(replays):
        assert {int(n) // 100 for batch in replay.batches(20) for n in numbers(batch)} == {i, i + 1, i + 2, i + 3}
    assert len(list(tmp_path.iterdir())) == 2
    del replays, replay
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_h03_files_leave_the_processs_signals_alone():
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    UniformReplay(8, 4, 2, 0, "memmap").extend(rollout(0, 1, 2))
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_storage_that_cannot_be_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"replay.storage is 'disk': memory or memmap is expected"):
        UniformReplay(8, 4, 2, 0, "disk")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"replay.scratch_dir is '.*file': a folder to write to is expected"):
        UniformReplay(8, 4, 2, 0, "memmap", str(tmp_path / "file"))
