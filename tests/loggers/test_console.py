import gc
import io
import logging
import os
import pty
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from mhrl.loggers import ConsoleLogger, HeadRow, LossRow, Outcome, RunInfo

NEXT = "python scripts/evaluate.py run=outputs/last episodes=100"
OUTCOME = Outcome("finished", 10_000, 9_000, 187.0, best_return=-143.2, best_frames=7_500, next_commands=(NEXT,))
LOG = logging.getLogger("mhrl")


def make_info(run_dir, names=("arm", "gripper")):
    heads = tuple(HeadRow(name, "deterministic", f"{name} (1)", "features", 1e-4) for name in names)
    losses = tuple(LossRow(name, ("trunk", name), 2.0, 0.5, "actor") for name in names)
    value = LossRow("value", tuple(f"m{i}" for i in range(18)), 1.0, None, "value")
    wandb = "offline: no API key found"
    return RunInfo(
        "0.1.0", "ddpg", "Pendulum-v1", 3, "cpu", 10_000, wandb, run_dir, {}, heads, (*losses, value), ("a note",)
    )


def make_row(frames, **more):
    return {"frames": frames, "updates": frames - 1000, "perf/frames_per_s": 250.0, "loss/arm": -0.0912345, **more}


@pytest.fixture
def out(monkeypatch):
    """What the terminal shows, and its width."""

    def set_width(width):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("COLUMNS", str(width))
        return stream

    return set_width


def test_the_first_block_says_what_runs(out, tmp_path):
    stream = out(120)
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    text = stream.getvalue()
    for words in ("mhrl 0.1.0", "Pendulum-v1", "10,000", "seed    3", "cpu", "offline: no API key found", "a note"):
        assert words in text
    assert str(tmp_path) in text
    lines = [line.split() for line in text.splitlines()]
    assert ["arm", "deterministic", "arm", "(1)", "features", "0.0001"] in lines
    assert ["arm", "trunk,", "arm", "2", "0.5", "actor"] in lines
    assert ["value", "m0,", "m1,", "m2,", "m3,", "+14", "more", "1", "-", "value"] in lines
    logger.finish(OUTCOME)


def test_a_row_is_a_line_and_what_it_lacks_is_a_dash(out, tmp_path):
    stream = out(80)
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    logger.log(make_row(2500, **{"eval/return_mean": -163.21, "eval/return_std": 12.44}))
    logger.log(make_row(5000, **{"episode/return": -1200.5, "loss/value": -8.1e-8, "loss/gripper": float("nan")}))
    header, first, second = [line.split() for line in stream.getvalue().splitlines()[-3:]]
    assert header == ["frames", "eval", "return", "episode", "arm", "gripper", "value", "frames/s", "ETA"]
    assert first == ["2,500", "-163.2", "±", "12.4", "-", "-0.0912", "-", "-", "250", "-"]
    assert second == ["5,000", "-", "-1200.5", "-0.0912", "nan", "-8e-08", "250", "20s"]
    logger.finish(OUTCOME)
    assert stream.getvalue().splitlines()[-4:] == [
        "finished in 3m07s: 10,000 frames, 9,000 updates",
        "best eval return -143.2 at 7,500 frames",
        "next",
        f"  {NEXT}",
    ]


@pytest.mark.parametrize(
    ("mean", "std", "shown"),
    [
        (-163.21, 12.44, "-163.2 ± 12.4"),
        (0.6096221, 0.0804228, "0.61 ± 0.08"),  # neither 1 ± 0, nor cut
        (0.8597, 0.166841, "0.86 ± 0.17"),
        (-0.00123456, 0.000045678, "-1.2e-03"),
        (4.0, 0.0, "4 ± 0.0"),
        (-12345.6, 2345.67, "-12346 ± 2346"),
        (1234567.8, 234567.8, "1.2e+06"),
    ],
)
def test_returns_of_any_size_fit_their_column(out, tmp_path, mean, std, shown):
    stream = out(80)
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    logger.log(make_row(2500, **{"eval/return_mean": mean, "eval/return_std": std}))
    cells = stream.getvalue().splitlines()[-1]
    assert f"  {shown}  " in cells and cells.split()[1] == shown.split()[0]
    logger.finish(OUTCOME)


def test_the_eta_waits_for_a_speed_that_is_not_the_warm_ups(out, tmp_path):
    stream = out(80)
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    rows = [
        {"frames": 500, "updates": 0, "perf/frames_per_s": 5000.0},
        {"frames": 1000, "updates": 0, "perf/frames_per_s": 5000.0},
        {"frames": 1500, "updates": 500, "perf/frames_per_s": 400.0},  # may have begun in the warm-up
        {"frames": 1800, "updates": 800, "eval/return_mean": -3.0},
        {"frames": 2000, "updates": 1000, "perf/frames_per_s": 200.0},
        {"frames": 2200, "updates": 1200, "eval/return_mean": -3.0},
        {"frames": 10_000, "updates": 9000, "perf/frames_per_s": 100.0},
    ]
    for row in rows:
        logger.log(row)
    shown = [line.split()[-1] for line in stream.getvalue().splitlines()[-7:]]
    assert shown == ["-", "-", "-", "-", "40s", "39s", "0s"]
    logger.finish(OUTCOME)


def test_a_resumed_run_says_from_where(out, tmp_path):
    stream = out(80)
    logger = ConsoleLogger()
    logger.start(replace(make_info(tmp_path), resumed="outputs/last/checkpoints/last.pt", frames=5000))
    logger.finish(replace(OUTCOME, status="interrupted", next_commands=("python train.py resume=outputs/last",)))
    lines = stream.getvalue().splitlines()
    assert lines[1] == "resumed from outputs/last/checkpoints/last.pt at 5,000 frames"
    assert lines[-4:] == [
        "interrupted in 3m07s: 10,000 frames, 9,000 updates",
        "best eval return -143.2 at 7,500 frames",
        "next",
        "  python train.py resume=outputs/last",
    ]


@pytest.mark.parametrize(("width", "more"), [(60, 17), (80, 15), (120, 11), (200, 2)])
def test_seventeen_losses_keep_to_the_width(out, tmp_path, width, more):
    stream = out(width)
    logger = ConsoleLogger()
    info = make_info(tmp_path, [f"joint_{i}" for i in range(17)])
    logger.start(info)
    logger.log(make_row(2500, **{f"loss/{loss.name}": -1.2345e-5 for loss in info.losses}))
    table = stream.getvalue().split("a note\n")[1].splitlines()
    assert table[1] == f" +{more} more losses in metrics.jsonl"
    assert max(map(len, stream.getvalue().splitlines())) <= width or len(str(tmp_path)) > width - 12
    assert len(table[2]) == len(table[3]) <= width
    # the value loss, alone on its row, is not the one that gives way
    assert ("value" in table[2]) is (width > 60)
    logger.finish(OUTCOME)


def test_the_header_comes_back_every_thirty_rows_and_when_the_width_changes(out, tmp_path, monkeypatch):
    stream = out(100)
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    for i in range(31):
        logger.log(make_row(100 * (i + 1)))
    assert stream.getvalue().count("eval return") == 2
    monkeypatch.setattr(logger._screen, "_width", 60)
    logger.log(make_row(4000))
    assert stream.getvalue().count("eval return") == 3
    logger.finish(OUTCOME)


def test_the_log_file_has_it_all_and_lets_go_at_the_end(out, tmp_path):
    stream = out(60)
    before = (list(LOG.handlers), LOG.level, LOG.propagate, warnings.showwarning)
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    logger.log(make_row(2500))
    LOG.warning("a logger failed [bold]")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old name", DeprecationWarning, stacklevel=1)
    try:
        raise RuntimeError("loss/arm is NaN")
    except RuntimeError:
        LOG.exception("the run failed")
    logger.finish(OUTCOME)
    LOG.info("after the run")
    text = (tmp_path / "train.log").read_text()
    for words in ("mhrl 0.1.0", "  2,500", "WARNING a logger failed [bold]", "old name", "Traceback", "best eval"):
        assert words in text
    assert "after the run" not in text
    assert "\x1b" not in text
    assert (list(LOG.handlers), LOG.level, LOG.propagate, warnings.showwarning) == before
    screen = stream.getvalue()
    assert "warning: a logger failed [bold]" in screen and "error: the run failed" in screen
    assert "Traceback" not in screen


def test_a_handler_of_the_root_on_the_same_terminal_does_not_repeat_it(out, tmp_path, monkeypatch):
    stream = out(80)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers, logging.StreamHandler(sys.stdout)])
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    LOG.warning("said once")
    logger.finish(OUTCOME)
    assert stream.getvalue().count("said once") == 1
    assert LOG.propagate


class Gone(io.StringIO):
    def write(self, text):
        raise OSError(5, "Input/output error")


def test_a_closed_terminal_leaves_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", Gone())
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    logger.log(make_row(2500))
    LOG.warning("still heard")
    logger.finish(OUTCOME)
    text = (tmp_path / "train.log").read_text()
    assert "  2,500" in text and "still heard" in text and NEXT in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_costs_lines_of_the_file_and_one_warning(out, tmp_path, capfd):
    stream = out(80)
    (tmp_path / "train.log").symlink_to("/dev/full")
    logger = ConsoleLogger()
    logger.start(make_info(tmp_path))
    logger.log(make_row(2500))
    LOG.warning("still heard")
    logger.finish(OUTCOME)
    text = stream.getvalue()
    assert text.count("warning: train.log lacks lines from here on: [Errno 28] No space left on device") == 1
    assert "  2,500" in text and "warning: still heard" in text and NEXT in text
    gc.collect()
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import sys
from pathlib import Path
from mhrl.loggers import ConsoleLogger, Outcome, RunInfo
logger = ConsoleLogger()
logger.start(RunInfo("0.1.0", "ddpg", "Pendulum-v1", 0, "cpu", 40_000, "disabled", Path(sys.argv[1])))
for i in range(1, 2001):
    logger.log({"frames": 20 * i, "updates": i})
logger.finish(Outcome("finished", 40_000, 2000, 1.0))
Path(sys.argv[1], "done").touch()
"""


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""
    assert first == b"mhrl 0.1.0  ddpg\n"
    assert (tmp_path / "done").exists()
    assert "  40,000" in (tmp_path / "train.log").read_text()


RESUMED = """
import sys, time
from pathlib import Path
from mhrl.loggers import ConsoleLogger, Outcome, RunInfo
logger = ConsoleLogger()
info = RunInfo("0.1.0", "ddpg", "Pendulum-v1", 0, "cpu", 40_000, "disabled", Path(sys.argv[1]))
logger.start(RunInfo(**{**vars(info), "resumed": "last.pt", "frames": 10_000}))
logger.finish(Outcome("finished", 40_000, 2000, 1.0))
"""


def on_a_terminal(script, run_dir):
    """What a terminal of 80 columns shows."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    command = [sys.executable, "-c", script, str(run_dir)]
    with subprocess.Popen(command, stdout=follower, stdin=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:  # how a terminal says that its last program has gone
            pass
        assert process.wait(timeout=60) == 0
    os.close(leader)
    return shown.decode()


def test_on_a_terminal_the_bar_of_a_resumed_run_goes_on_where_it_was(tmp_path):
    bar = on_a_terminal(RESUMED, tmp_path).split("10,000 / 40,000 frames")[1].split("%")[0]
    assert bar.endswith(" 25 ")


def test_on_a_terminal_a_bar_stays_below_and_leaves_at_the_end(tmp_path):
    text = on_a_terminal(SCRIPT.replace("2001", "20"), tmp_path)
    assert "/ 40,000 frames" in text  # the bar
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # cursor hidden, and shown again
    assert text.rstrip().endswith("finished\x1b[0m in 1s: 40,000 frames, 2,000 updates")
