import os

import pytest

from mhrl import checkpoint, checkpoint_folder
from mhrl.checkpoint import CheckpointError
from mhrl.checkpoint_folder import CheckpointFolder


def state(frames):
    return {key: {} for key in checkpoint.ENTRIES} | {"counters": {"frames": frames}}


def names(path):
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize(
    ("keep_last", "left"), [(1, [300]), (2, [200, 300]), (9, [50, 100, 200, 300]), (None, [50, 100, 200, 300])]
)
def test_h03_the_newest_stay(tmp_path, keep_last, left):
    folder = CheckpointFolder(tmp_path, keep_last)
    for frames in (50, 100, 200, 300):
        folder.save(frames, state(frames))
        assert folder.newest()[1]["counters"]["frames"] == frames
    assert list(folder.numbered()) == left[::-1]
    assert names(tmp_path) == sorted([*(f"frames_{n}.pt" for n in left), "last.pt"])
    assert folder.last.samefile(tmp_path / "frames_300.pt")


def test_numbers_count_as_numbers(tmp_path):
    folder = CheckpointFolder(tmp_path, 2)
    for frames in (9, 100, 20):
        folder.save(frames, state(frames))
    assert list(folder.numbered()) == [100, 20]
    (tmp_path / "frames_old.pt").touch()
    assert list(folder.numbered()) == [100, 20]


def test_h03_nothing_is_removed_before_the_new_one_is_whole(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, 1)
    folder.save(100, state(100))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"frames_200\.pt could not be written: .*No space left.*MiB free there"):
        folder.save(200, state(200))
    assert names(tmp_path) == ["frames_100.pt", "last.pt"]
    assert folder.newest()[1]["counters"]["frames"] == 100


def test_without_hard_links_last_is_a_copy(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(checkpoint_folder.os, "link", refuse)
    folder = CheckpointFolder(tmp_path)
    folder.save(7, state(7))
    assert folder.last.read_bytes() == (tmp_path / "frames_7.pt").read_bytes()
    assert not folder.last.samefile(tmp_path / "frames_7.pt")


def test_h03_the_newest_that_can_be_read(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for frames in (100, 200):
        folder.save(frames, state(frames))
    folder.last.write_bytes(b"")  # frames_200.pt is the same file
    path, found, torn = folder.newest()
    assert path.name == "frames_100.pt" and found["counters"]["frames"] == 100
    assert len(torn) == 1 and "frames_200.pt cannot be read" in torn[0]
    folder.go_on_from(path, 100)
    assert names(tmp_path) == ["frames_100.pt", "last.pt", "later_200.pt"]
    assert folder.last.samefile(path)


def test_one_that_is_not_trusted_is_refused_rather_than_skipped(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(100, state(100))
    folder.save(200, state(200) | {"config": {"trunk": {"_target_": "os.system"}}})
    with pytest.raises(CheckpointError, match=r"trunk\._target_=os\.system"):
        folder.newest()


def test_nothing_there(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint that can be read"):
        CheckpointFolder(tmp_path).newest()


def test_what_a_kill_left_is_removed_when_a_run_goes_on(tmp_path):
    folder = CheckpointFolder(tmp_path)
    path = folder.save(100, state(100))
    (tmp_path / ".frames_200.pt.tmp").write_bytes(b"half")
    folder.go_on_from(path, 100)
    assert names(tmp_path) == ["frames_100.pt", "last.pt"]


def test_h03_a_kill_between_the_file_and_its_link_loses_nothing(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(100, state(100))
    checkpoint.save_checkpoint(tmp_path / "frames_200.pt", state(200))  # and no more
    path, found, torn = folder.newest()
    assert path.name == "frames_200.pt" and found["counters"]["frames"] == 200 and torn == ()
    folder.go_on_from(path, 200)
    assert folder.last.samefile(path)


def test_a_future_that_is_left_is_kept_over_no_other(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for best in (250, 150, 150):
        for frames in (100, 200):
            folder.save(frames, state(frames))
        folder.save_best(state(best))
        folder.go_on_from(tmp_path / "frames_100.pt", 100)
    assert names(tmp_path) == [
        *("frames_100.pt", "last.pt", "later_200.pt", "later_200_2.pt", "later_200_3.pt"),
        *("later_best_150.pt", "later_best_150_2.pt", "later_best_250.pt"),
    ]
    folder.save_best(state(90))
    folder.go_on_from(tmp_path / "frames_100.pt", 100)
    assert folder.best.is_file()


def test_h03_a_link_that_cannot_be_made_is_a_failed_save(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_folder.os, "link", refuse)
    monkeypatch.setattr(checkpoint_folder.shutil, "copyfile", refuse)
    with pytest.raises(CheckpointError, match=r"last\.pt could not be written: .*No space left"):
        CheckpointFolder(tmp_path).save(100, state(100))
    assert names(tmp_path) == ["frames_100.pt"]


def test_h03_a_best_that_cannot_be_read_is_left_alone(tmp_path, caplog):
    folder = CheckpointFolder(tmp_path)
    path = folder.save(100, state(100))
    folder.best.touch()
    folder.go_on_from(path, 100)
    assert "best.pt cannot be read" in caplog.text and names(tmp_path) == ["best.pt", "frames_100.pt", "last.pt"]
