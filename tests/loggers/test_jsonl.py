import json
import os
import resource
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhrl.loggers import JsonlLogger, Outcome, RunInfo, best_evaluation
from mhrl.loggers.jsonl import cut_rows

OUTCOME = Outcome("finished", frames=20, updates=10, seconds=1.0)


@pytest.fixture
def info(tmp_path):
    return RunInfo("0.1.0", "ddpg", "Pendulum-v1", 0, "cpu", 100, "disabled", tmp_path)


def test_a_row_can_be_read_as_soon_as_it_is_logged(info, tmp_path):
    logger = JsonlLogger()
    assert not (tmp_path / "metrics.jsonl").exists()
    logger.start(info)
    logger.log({"frames": 2500, "updates": 2250, "eval/return_mean": -163.2})
    text = '{"frames": 2500, "updates": 2250, "eval/return_mean": -163.2}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == text
    logger.finish(OUTCOME)
    assert (tmp_path / "metrics.jsonl").read_text() == text


def test_what_is_not_finite_becomes_null(info, tmp_path):
    logger = JsonlLogger()
    logger.start(info)
    logger.log({"frames": 1, "updates": 0, "a": float("nan"), "b": float("-inf"), "c": 0.5})
    logger.finish(OUTCOME)
    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda _: pytest.fail("no valid JSON"))
    assert row == {"frames": 1, "updates": 0, "a": None, "b": None, "c": 0.5}


def test_f02_resume_cuts_rows_past_the_checkpoint_and_a_half_line(info, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"frames": 100}\n{"frames": 200}\n{"frames": 212}\n{"frames": 2')
    logger = JsonlLogger(keep_until=200)
    logger.start(info)
    logger.log({"frames": 300, "updates": 1})
    logger.finish(OUTCOME)
    assert [json.loads(line)["frames"] for line in path.read_text().splitlines()] == [100, 200, 300]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_f02_where_frames_went_back_the_newer_rows_stay(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [(100, 1), (200, 1), (212, 1), (205, 2), (210, 2), (300, 2)]
    path.write_text("".join(f'{{"frames": {frames}, "process": {n}}}\n' for frames, n in rows))
    cut_rows(path, 210)
    kept = [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]
    assert kept == [(100, 1), (200, 1), (205, 2), (210, 2)]


@given(frames=st.lists(st.integers(1, 30)), torn=st.binary(max_size=5), until=st.integers(0, 30))
def test_f02_each_frames_is_there_once_and_none_is_past_the_checkpoint(tmp_path_factory, frames, torn, until):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    path.write_bytes(b"".join(b'{"frames": %d}\n' % number for number in frames) + torn)
    cut_rows(path, until)
    kept = [json.loads(line)["frames"] for line in path.read_text().splitlines()]
    newest = [n for i, n in enumerate(frames) if all(later > n for later in frames[i + 1 :])]
    assert kept == [n for n in newest if n <= until]


def test_f02_a_cut_that_fails_leaves_the_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"frames": 100}\n{"frames": 200}\n')
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        cut_rows(path, 100)
    assert path.read_text() == '{"frames": 100}\n{"frames": 200}\n'
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def full_at(size):
    """Files of this process end at `size` bytes, as on a disk that is full: a write stops half-way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_h03_a_full_disk_costs_whole_rows_only(info, tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger()
    logger.start(info)
    logger.log({"frames": 1, "updates": 0})
    before = path.read_bytes()
    for frames in (2, 3):
        with full_at(len(before) + 10), pytest.raises(OSError, match="File too large"):
            logger.log({"frames": frames, "updates": 0})
        assert path.read_bytes() == before
    logger.log({"frames": 4, "updates": 0})
    logger.finish(OUTCOME)
    assert [json.loads(line)["frames"] for line in path.read_text().splitlines()] == [1, 4]


def test_h03_a_file_that_could_not_be_opened_is_tried_again(info, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    logger = JsonlLogger()
    with pytest.raises(IsADirectoryError):
        logger.start(info)
    with pytest.raises(IsADirectoryError):
        logger.log({"frames": 1, "updates": 0})
    path.rmdir()
    logger.log({"frames": 2, "updates": 0})
    logger.finish(OUTCOME)
    assert path.read_text() == '{"frames": 2, "updates": 0}\n'


def test_the_best_evaluation_is_the_first_of_the_highest(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert best_evaluation(path) is None
    path.write_text('{"frames": 50, "loss/value": 3.0}\n')
    assert best_evaluation(path) is None
    returns = [(100, -5.25), (200, -1.1), (300, "null"), (400, -1.1), (500, 7.0)]
    path.write_text("".join(f'{{"frames": {n}, "eval/return_mean": {value}}}\n' for n, value in returns) + '{"fra')
    assert best_evaluation(path) == (7.0, 500)
    assert best_evaluation(path, until=400) == (-1.1, 200)
    assert best_evaluation(path, until=99) is None


def test_finish_without_start_is_harmless():
    JsonlLogger().finish(OUTCOME)
