import logging

import pytest

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


@pytest.mark.parametrize("row", [{"updates": 1}, {"frames": 1}, {"frames": 1.0, "updates": 1}])
def test_a_row_needs_its_counters(row):
    with pytest.raises(ValueError, match="a row needs an int"):
        Loggers().log(row)
