import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mhrl.loggers import JsonlLogger, Loggers, Outcome, RunInfo, WandbLogger, resolve_mode

ROOT = Path(__file__).parents[2]
FINISHED = Outcome("finished", frames=200, updates=100, seconds=1.0)
FAKE_KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def nobody_logged_in(monkeypatch, tmp_path):
    """No W&B variables and an empty home: what the machine has must not decide a test."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)


def make_info(run_dir, seed=0, **fields):
    run_dir.mkdir(exist_ok=True)
    config = {"seed": seed, "a": {"b": 1}}
    return RunInfo("0.1.0", "ddpg", "Pendulum-v1", seed, "cpu", 200, "", run_dir, config, **fields)


def inspect(path):
    """The records of an offline run, as the program `wandb leet` reads them."""
    command = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL)
    return [json.loads(line) for line in done.stdout.splitlines()]


CHILDREN = """
def children():
    import os, pathlib
    stats = [path.read_text() for path in pathlib.Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [stat for stat in stats if stat.rpartition(")")[2].split()[1] == str(os.getpid())]
"""


def children():
    """The children of this process, a line each."""
    scope = {}
    exec(CHILDREN, scope)
    return [line.split()[0] for line in scope["children"]()]


def test_the_explicit_mode_wins(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    assert resolve_mode("offline") == ("offline", "set by wandb.mode")
    assert resolve_mode("disabled") == ("disabled", "set by wandb.mode")


@pytest.mark.parametrize(
    ("value", "mode"), [("disabled", "disabled"), ("offline", "offline"), ("online", "online"), ("dryrun", "offline")]
)
def test_then_the_variable(monkeypatch, value, mode):
    monkeypatch.setenv("WANDB_MODE", value)
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    assert resolve_mode("auto") == (mode, "set by WANDB_MODE")


def test_then_a_key_in_the_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    assert resolve_mode("auto") == ("online", "API key found")
    monkeypatch.delenv("WANDB_API_KEY")
    assert resolve_mode("auto")[0] == "offline"  # nothing of the first look-up is remembered


def test_or_in_netrc(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.test")
    (tmp_path / "home" / "netrc").write_text(f"machine wandb.test\n login user\n password {FAKE_KEY}\n")
    assert resolve_mode("auto") == ("online", "API key found")


def test_else_offline_and_a_bad_key_is_named(monkeypatch):
    assert resolve_mode("auto") == ("offline", "no API key found; `wandb login` adds one")
    monkeypatch.setenv("WANDB_API_KEY", "short")
    mode, reason = resolve_mode("auto")
    assert mode == "offline"
    assert "WANDB_API_KEY invalid" in reason


def test_other_values_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"wandb\.mode='of' is not one of auto, online, offline, disabled"):
        resolve_mode("of")
    monkeypatch.setenv("WANDB_MODE", "maybe")
    with pytest.raises(ValueError, match="WANDB_MODE='maybe' is not one of online, offline, disabled"):
        resolve_mode("auto")


def test_f01_offline_leaves_one_run_and_no_child(tmp_path, capfd):
    environment, before = dict(os.environ), children()
    wandb, run_dir = WandbLogger("offline", tags=["t"]), tmp_path / "run"
    loggers = Loggers(JsonlLogger(), wandb)
    loggers.start(make_info(run_dir))
    for i in range(1, 6):
        loggers.log({"frames": 40 * i, "updates": 20 * i, "loss/value": 0.125 * i, "eval/return_mean": -100.5 * i})
    loggers.finish(FINISHED)

    assert loggers.errors == 0
    assert dict(os.environ) == environment
    assert children() == before
    assert capfd.readouterr() == ("", "")
    (run,) = (tmp_path / "outputs" / "wandb").glob("*run-*-*")
    assert run.name.startswith("offline-run-") and run.name.endswith(wandb.run_id)
    records = inspect(run)
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    assert rows == [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows[2] == {"frames": 120, "updates": 60, "loss/value": 0.375, "eval/return_mean": -301.5}
    described = next(record["run"] for record in records if record["type"] == "run")
    config = {key: value for key, value in described["config"]["update"].items() if key != "_wandb"}
    assert config == {"seed": 0, "a": {"b": 1}}
    assert described["display_name"] == "run"
    axis = [record["metric"].get("step_metric") for record in records if record["type"] == "metric"]
    assert axis == [None, "frames"]
    assert records[-1]["exit"]["exit_code"] == 0


def test_e04_runs_in_one_process_have_their_own_id_config_and_exit_code(tmp_path):
    ids = []
    for seed, status in ((0, "failed"), (1, "finished"), (2, "interrupted")):
        wandb = WandbLogger("offline")
        wandb.start(make_info(tmp_path / f"run{seed}", seed))
        wandb.log({"frames": 10, "updates": 0})
        wandb.finish(Outcome(status, 10, 0, 1.0))
        ids.append(wandb.run_id)
    assert len(set(ids)) == 3
    for seed, exit_code in ((0, 1), (1, 0), (2, 1)):
        (run,) = (tmp_path / "outputs" / "wandb").glob(f"offline-run-*-{ids[seed]}")
        records = inspect(run)
        described = next(record["run"] for record in records if record["type"] == "run")
        assert described["config"]["update"]["seed"] == seed
        assert records[-1]["exit"].get("exit_code", 0) == exit_code


def test_f02_a_resumed_run_keeps_its_id_and_every_row(tmp_path, capfd):
    for rows in ((100, 200, 212), (210, 300)):  # a crash at 212, a checkpoint at 200
        wandb = WandbLogger("offline", run_id="abcd1234")
        wandb.start(make_info(tmp_path / "run"))
        for frames in rows:
            wandb.log({"frames": frames, "updates": 0})
        wandb.finish(FINISHED)
        assert wandb.run_id == "abcd1234"
    assert capfd.readouterr() == ("", "")
    folders = sorted((tmp_path / "outputs" / "wandb").glob("offline-run-*-abcd1234*"), key=os.path.getctime)
    history = [[r["history"]["item"]["frames"] for r in inspect(path) if r["type"] == "history"] for path in folders]
    assert sorted(history) == [[100, 200, 212], [210, 300]]


def test_what_a_run_is_called_and_a_film_reach_wandb(tmp_path, capfd):
    film = tmp_path / "eval_40.mp4"
    film.write_bytes(b"film")
    wandb = WandbLogger("offline", project="arms", name="ddpg_s0", group="ddpg", tags=["a", "b"], notes="why")
    wandb.start(make_info(tmp_path / "run"))
    wandb.video(film, 40)
    wandb.finish(FINISHED)
    assert capfd.readouterr() == ("", "")
    (run,) = (tmp_path / "outputs" / "wandb").glob("offline-run-*")
    (copy,) = (run / "files" / "media" / "videos" / "eval").iterdir()
    assert copy.read_bytes() == b"film"
    records = inspect(run)
    described = next(record["run"] for record in records if record["type"] == "run")
    expected = {"project": "arms", "display_name": "ddpg_s0", "run_group": "ddpg", "tags": ["a", "b"], "notes": "why"}
    assert {key: described[key] for key in expected} == expected
    (item,) = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert (item["frames"], item["eval/video._type"]) == (40, "video-file")


def test_tags_of_the_run_come_before_the_users_each_once_and_none_is_longer_than_wb_allows(tmp_path):
    wandb = WandbLogger("offline", tags=["mine", "seed:0"])
    wandb.start(make_info(tmp_path / "run", tags=("seed:0", "env:" + 80 * "x")))
    wandb.finish(FINISHED)
    (run,) = (tmp_path / "outputs" / "wandb").glob("offline-run-*")
    described = next(record["run"] for record in inspect(run) if record["type"] == "run")
    assert described["tags"] == ["seed:0", "env:" + 60 * "x", "mine"]


def test_histograms_are_on_the_axis_of_the_rows_and_leave_out_what_is_not_finite(tmp_path):
    values = np.array([[0.0, 1.0], [64.0, np.nan]], np.float32)
    tiny = np.array([0.0, 1e-45], np.float32)  # whose range has no 64 parts in float32
    given = {"a": values, "index": np.arange(3), "tiny": tiny, "none": np.full(2, np.inf), "empty": np.zeros((2, 0))}
    loggers = Loggers(JsonlLogger(), WandbLogger("offline"))
    loggers.start(make_info(tmp_path / "run"))
    loggers.log({"frames": 40, "updates": 20, "loss/value": 0.5})
    loggers.histograms(given, 40)
    loggers.finish(FINISHED)
    assert loggers.errors == 0
    (run,) = (tmp_path / "outputs" / "wandb").glob("offline-run-*")
    row, drawn = [record["history"]["item"] for record in inspect(run) if record["type"] == "history"]
    assert row["frames"] == drawn["frames"] == 40
    assert {key.partition(".")[0] for key in drawn if not key.startswith("_")} == {"frames", "a", "index", "tiny"}
    assert drawn["a._type"] == "histogram"
    assert drawn["a.bins"] == list(range(65))
    assert [i for i, count in enumerate(drawn["a.values"]) if count] == [0, 1, 63]
    assert (sum(drawn["a.values"]), sum(drawn["index.values"]), sum(drawn["tiny.values"])) == (3, 3, 2)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("asked", [True, False])
def test_checkpoints_are_an_artifact_that_is_called_as_the_run_and_are_not_copied(tmp_path, asked):
    files = [tmp_path / "best.pt", tmp_path / "frames_200.pt"]
    for file in files:
        file.write_bytes(file.name.encode())
    wandb = WandbLogger("offline", artifacts=asked)
    wandb.start(make_info(tmp_path / "run of +1"))
    wandb.finish(Outcome("interrupted", 200, 100, 1.0, checkpoints=tuple(files)))
    (run,) = (tmp_path / "outputs" / "wandb").glob("offline-run-*")
    records = inspect(run)
    artifacts = [record["artifact"] for record in records if record["type"] == "artifact"]
    assert len(artifacts) == asked
    for artifact in artifacts:
        assert (artifact["name"], artifact["type"]) == ("run_of__1", "model")
        contents = {entry["path"]: entry for entry in artifact["manifest"]["contents"]}
        assert {path: entry["local_path"] for path, entry in contents.items()} == {f.name: str(f) for f in files}
        # `printf best.pt | md5sum`, in base64
        assert contents["best.pt"]["digest"] == "xWy5ExaE7W39Ycpy87n2sw=="
    assert not (tmp_path / "home" / ".local").exists()  # where W&B would keep copies
    assert records[-1]["exit"]["exit_code"] == 1


def test_f01_an_artifact_that_fails_is_counted_and_the_run_is_closed(tmp_path, caplog):
    loggers = Loggers(WandbLogger("offline", artifacts=True))
    loggers.start(make_info(tmp_path / "run"))
    with caplog.at_level(logging.WARNING, "mhrl"):
        loggers.finish(Outcome("finished", 200, 100, 1.0, checkpoints=(tmp_path / "gone.pt",)))
    assert loggers.errors == 1 and "gone.pt" in caplog.text
    (run,) = (tmp_path / "outputs" / "wandb").glob("offline-run-*")
    assert inspect(run)[-1]["exit"].get("exit_code", 0) == 0


def test_a_run_of_wbs_sweep_agent_has_the_agents_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "given123")
    alone = WandbLogger("offline")
    alone.start(make_info(tmp_path / "alone"))
    alone.finish(FINISHED)
    assert alone.run_id != "given123"  # which would merge all runs of this shell
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep123")
    wandb = WandbLogger("offline")
    wandb.start(make_info(tmp_path / "run"))
    wandb.finish(FINISHED)
    assert wandb.run_id == "given123"
    assert len(list((tmp_path / "outputs" / "wandb").glob("offline-run-*-given123"))) == 1


def test_f01_a_start_that_fails_leaves_no_child_and_the_next_run_works(tmp_path, capfd):
    before = children()
    wandb = WandbLogger("offline", project="a/b", run_id="abcd1234")  # a name that wandb refuses
    loggers = Loggers(wandb)
    loggers.start(make_info(tmp_path / "run"))
    loggers.log({"frames": 10, "updates": 0})
    loggers.finish(FINISHED)
    assert (loggers.errors, wandb.mode, wandb.run_id) == (1, "disabled", "abcd1234")
    again = Loggers(WandbLogger("offline"))
    again.start(make_info(tmp_path / "run"))
    again.finish(FINISHED)
    assert again.errors == 0
    assert children() == before
    assert capfd.readouterr() == ("", "")


def test_f01_a_service_that_dies_is_counted_and_holds_nobody_up(tmp_path):
    before = set(children())
    loggers = Loggers(WandbLogger("offline"))
    loggers.start(make_info(tmp_path / "run"))
    (service,) = set(children()) - before
    os.kill(int(service), signal.SIGKILL)
    time.sleep(0.2)
    began = time.monotonic()
    loggers.log({"frames": 10, "updates": 0})
    loggers.finish(FINISHED)
    assert time.monotonic() - began < 5
    assert loggers.errors == 2


@pytest.mark.parametrize("mode", ["online", "offline", "auto"])
def test_f01_without_wandb_every_mode_is_disabled_and_says_so(monkeypatch, mode):
    monkeypatch.setitem(sys.modules, "wandb", None)  # any import of it fails
    wandb = WandbLogger(mode)
    assert (wandb.mode, wandb.reason) == ("disabled", "wandb cannot be imported")


def test_f01_disabled_never_imports_wandb(tmp_path):
    script = """
import sys
sys.modules["wandb"] = None  # any import of it fails
from pathlib import Path
from mhrl.loggers import Loggers, Outcome, RunInfo, WandbLogger, resolve_mode
assert resolve_mode("auto") == ("disabled", "wandb cannot be imported")
wandb = WandbLogger("disabled")
loggers = Loggers(wandb)
loggers.start(RunInfo("0", "ddpg", "e", 0, "cpu", 1, "", Path(".")))
loggers.log({"frames": 1, "updates": 0})
loggers.finish(Outcome("finished", 1, 0, 1.0))
assert (loggers.errors, wandb.run_id) == (0, None)
assert "torch" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("key", [FAKE_KEY, None], ids=["no network", "no key"])
def test_f01_online_without_network_falls_back(tmp_path, key):
    script = """
import logging, sys
from pathlib import Path
from mhrl.loggers import Loggers, Outcome, RunInfo, WandbLogger
logging.basicConfig(stream=sys.stdout, format="%(message)s")
wandb = WandbLogger("online", init_timeout=4)
loggers = Loggers(wandb)
loggers.start(RunInfo("0", "ddpg", "e", 0, "cpu", 1, "", Path(".")))
loggers.log({"frames": 1, "updates": 0})
loggers.finish(Outcome("finished", 1, 0, 1.0))
print(wandb.mode, loggers.errors, children())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_BASE_URL": "http://127.0.0.1:9"}
    if key:
        environment["WANDB_API_KEY"] = key
    began = time.monotonic()
    command = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, CHILDREN + script]  # stdin closed
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    # 10 s for what is not init_timeout, whose default, 20 s, so leads to 30 s at the most.
    assert time.monotonic() - began < 4 + 10
    assert WandbLogger("disabled")._init_timeout == 20
    assert done.stderr == ""
    warning, last = done.stdout.splitlines()
    assert warning.startswith("W&B did not start online, the run is logged offline: ")
    assert ("no API key found" in warning) is (key is None)
    assert last == "offline 0 []"
    (run,) = (tmp_path / "outputs" / "wandb").glob("*run-*-*")  # nothing is left of the attempt
    assert run.name.startswith("offline-run-")


def test_another_run_of_the_user_is_left_alone(tmp_path):
    import wandb

    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    (tmp_path / "mine").mkdir()
    with wandb.init(mode="offline", dir="mine", settings=settings) as mine:
        logger = WandbLogger("offline")
        logger.start(make_info(tmp_path / "run"))
        logger.log({"frames": 10, "updates": 0})
        logger.finish(FINISHED)
        assert logger.run_id != mine.id
        mine.log({"x": 1})
    wandb.teardown()
    (theirs,) = (tmp_path / "mine" / "wandb").glob("offline-run-*")
    assert [r["history"]["item"]["x"] for r in inspect(theirs) if r["type"] == "history"] == [1]


def test_an_upload_that_does_not_end_is_left_for_later(tmp_path, caplog):
    class Run:
        dir = "outputs/wandb/run-1-abc/files"

        def finish(self, exit_code):
            raise TimeoutError

    logger = WandbLogger("offline")
    logger.start(make_info(tmp_path / "run"))
    logger._run.finish()
    logger._run = Run()
    with caplog.at_level(logging.WARNING, "mhrl"):
        logger.finish(FINISHED)
    assert "`wandb sync outputs/wandb/run-1-abc` sends the rest" in caplog.text
