import json

import pytest

from mhrl.loggers import JsonlLogger, Outcome, RunInfo

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


def test_finish_without_start_is_harmless():
    JsonlLogger().finish(OUTCOME)
