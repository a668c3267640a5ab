import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from mhrl.loggers import Logger, Loggers, Outcome, RunInfo

OUTCOME = Outcome("finished", frames=20, updates=10, seconds=1.0)


class Recorder(Logger):
    def __init__(self, calls, name, fails=()):
        self.calls, self.name, self.fails = calls, name, fails

    def _note(self, what):
        self.calls.append(f"{self.name}.{what}")
        if what in self.fails:
            raise OSError("disk full")

    def start(self, info):
        self._note("start")

    def log(self, row):
        self._note(f"log{row['frames']}")

    def video(self, path, frames):
        self._note(f"video{frames}")

    def finish(self, outcome):
        self._note("finish")


@pytest.fixture
def info(tmp_path):
    return RunInfo("0.1.0", "ddpg", "Pendulum-v1", 0, "cpu", 100, "disabled", tmp_path)


def test_starts_in_order_and_finishes_in_reverse(info):
    calls = []
    loggers = Loggers(Recorder(calls, "a"), Recorder(calls, "b"))
    loggers.start(info)
    loggers.log({"frames": 10, "updates": 0})
    loggers.finish(OUTCOME)
    assert calls == ["a.start", "b.start", "a.log10", "b.log10", "b.finish", "a.finish"]
    assert loggers.errors == 0


def test_a_failing_logger_is_counted_warned_about_once_and_stops_nobody(info, caplog):
    calls = []
    fails = ("start", "log10", "log20", "finish")
    loggers = Loggers(Recorder(calls, "a"), Recorder(calls, "b", fails), Recorder(calls, "c"))
    with caplog.at_level(logging.WARNING, "mhrl"):
        loggers.start(info)
        loggers.log({"frames": 10, "updates": 0})
        loggers.log({"frames": 20, "updates": 10})
        loggers.finish(OUTCOME)
    assert loggers.errors == 4
    assert calls[-3:] == ["c.finish", "b.finish", "a.finish"]
    assert [r.getMessage() for r in caplog.records] == [
        "Recorder failed, the run goes on without it: OSError: disk full"
    ]


@pytest.mark.parametrize("frames", [5, 3])
def test_f02_frames_only_grow(info, frames):
    calls = []
    loggers = Loggers(Recorder(calls, "a"))
    loggers.log({"frames": 5, "updates": 0})
    with pytest.raises(ValueError, match=f"frames={frames} after one at frames=5"):
        loggers.log({"frames": frames, "updates": 0})
    assert calls == ["a.log5"]


def test_f02_after_a_resume_the_axis_goes_on(info):
    calls = []
    loggers = Loggers(Recorder(calls, "a"), after=200)
    with pytest.raises(ValueError, match="frames=200 after one at frames=200"):
        loggers.log({"frames": 200, "updates": 0})
    loggers.log({"frames": 201, "updates": 0})
    assert calls == ["a.log201"]


class Keeper(Recorder):
    def log(self, row):
        self.calls.append(row)


def test_h04_listeners_get_plain_numbers_without_a_graph():
    rows = []
    weight = torch.tensor([2.0], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loggers(Keeper(rows, "a")).log(
            {"frames": 1, "updates": 0, "a": (3 * weight).sum(), "b": np.float32(0.5), "c": np.int64(7), "d": 2}
        )
    assert rows == [{"frames": 1, "updates": 0, "a": 6.0, "b": 0.5, "c": 7.0, "d": 2}]
    assert {type(value) for value in rows[0].values()} == {int, float}


@pytest.mark.parametrize("value", [torch.zeros(2), "high", None])
def test_a_metric_that_is_no_number_is_named(value):
    with pytest.raises(ValueError, match=r"metric 'loss/arm' is .* one number is expected"):
        Loggers().log({"frames": 1, "updates": 0, "loss/arm": value})


def test_a_film_goes_to_all_and_a_listener_that_fails_is_counted():
    calls = []
    loggers = Loggers(Recorder(calls, "a", ("video5",)), Recorder(calls, "b"), Silent())
    loggers.video(Path("eval_5.mp4"), 5)
    assert calls == ["a.video5", "b.video5"]
    assert loggers.errors == 1


class Silent(Logger):
    """A listener that has no use for films."""

    def start(self, info): ...

    def log(self, row): ...

    def finish(self, outcome): ...


@pytest.mark.parametrize("row", [{"updates": 1}, {"frames": 1}, {"frames": 1.0, "updates": 1}])
def test_a_row_needs_its_counters(row):
    with pytest.raises(ValueError, match="a row needs an int"):
        Loggers().log(row)
