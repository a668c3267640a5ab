import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mhrl import __version__
from mhrl.run_folder import RunFolder

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def launch_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_name_says_when_what_and_which_seed(tmp_path):
    folder = RunFolder.create(None, "ddpg shared/trunk", 3)
    assert folder.path.parent == tmp_path / "outputs"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_ddpg-shared-trunk_s3_[0-9a-f]{4}", folder.path.name)
    assert folder.checkpoints.is_dir()
    names = [p.name for p in (folder.config, folder.run_json, folder.metrics, folder.log, folder.videos)]
    assert names == ["config.yaml", "run.json", "metrics.jsonl", "train.log", "videos"]


def test_e04_parallel_starts_get_four_folders(tmp_path):
    script = "from mhrl.run_folder import RunFolder; input(); print(RunFolder.create(None, 'ddpg', 0).path)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([sys.executable, "-c", script], env=environment, text=True, **pipes) for _ in "1234"]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert [errors for _, errors in answers] == [""] * 4
    paths = {Path(out.strip()) for out, _ in answers}
    assert len(paths) == 4
    assert (tmp_path / "outputs" / "last").resolve() in paths
    assert {p for p in (tmp_path / "outputs").iterdir() if p.name != "last"} == paths


def test_a_taken_name_is_drawn_again(monkeypatch):
    draws = iter(["aaaa", "00000000", "aaaa", "bbbb", "11111111"])
    monkeypatch.setattr("mhrl.run_folder.secrets.token_hex", lambda size: next(draws))
    monkeypatch.setattr("mhrl.run_folder.datetime", type("Clock", (), {"now": lambda: Frozen()}))
    assert [RunFolder.create(None, "x", 0).path.name for _ in range(2)] == ["now_x_s0_aaaa", "now_x_s0_bbbb"]


class Frozen:
    def __format__(self, spec):
        return "now"


def test_last_points_to_the_newest_run(tmp_path):
    last = tmp_path / "outputs" / "last"
    first = RunFolder.create(None, "a", 0)
    assert os.readlink(last) == first.path.name
    outside = RunFolder.create("elsewhere/deep/run", "a", 0)
    assert outside.path == tmp_path / "elsewhere" / "deep" / "run"
    assert last.resolve() == outside.path


def test_where_there_can_be_no_link_there_is_none(tmp_path, monkeypatch):
    (tmp_path / "outputs" / "last").mkdir(parents=True)
    folder = RunFolder.create(None, "a", 0)
    assert {p.name for p in (tmp_path / "outputs").iterdir()} == {"last", folder.path.name}


def test_an_empty_run_dir_is_used_and_others_are_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    folder = RunFolder.create("mine", "a", 0)
    assert folder.path == tmp_path / "mine"
    folder.write_run_json()
    with pytest.raises(FileExistsError, match="run_dir=mine already holds a run: choose another run_dir"):
        RunFolder.create("mine", "a", 0)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").touch()
    with pytest.raises(FileExistsError, match=r"run_dir=notes is not empty \(todo.txt\)"):
        RunFolder.create("notes", "a", 0)
    with pytest.raises(FileExistsError, match=r"run_dir=notes/todo\.txt is a file"):
        RunFolder.create("notes/todo.txt", "a", 0)
    assert [p.name for p in (tmp_path / "notes").iterdir()] == ["todo.txt"]


def test_run_json_tells_the_story_of_the_run(tmp_path):
    folder = RunFolder.create(None, "a", 0)
    folder.write_run_json(wandb_id="abcd1234", path=Path("x"))
    run = json.loads(folder.run_json.read_text())
    assert (run["status"], run["ended"], run["wandb_id"], run["path"]) == ("running", None, "abcd1234", "x")
    assert run["argv"] == sys.argv
    assert run["versions"]["mhrl"] == __version__
    assert {"python", "torch", "tensordict", "torchrl", "gymnasium", "hydra-core", "wandb", "numpy"} < set(
        run["versions"]
    )
    assert run["git"] is None  # no repository here
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", run["started"])
    folder.update(status="finished", frames=100)
    done = folder.read()
    assert (done["status"], done["frames"], done["started"]) == ("finished", 100, run["started"])
    assert done["ended"] >= run["started"]
    folder.update(status="running")  # resumed
    assert folder.read()["ended"] is None
    assert {p.name for p in folder.path.iterdir()} == {"run.json", "checkpoints"}


def test_run_json_names_the_commit_and_whether_files_differ(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "code.py").write_text("a")
    git("add", "code.py")
    git("commit", "-m", "first")
    folder = RunFolder.create(None, "a", 0)
    folder.write_run_json()
    assert folder.read()["git"] == {"sha": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "code.py").write_text("b")
    folder.write_run_json()
    assert folder.read()["git"]["dirty"] is True


def test_a_failed_write_leaves_the_old_file(monkeypatch):
    folder = RunFolder.create(None, "a", 0)
    folder.write_config("a: 1\n")

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mhrl.run_folder.os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        folder.write_config("a: 2\n")
    assert folder.config.read_text() == "a: 1\n"


def test_open_takes_a_run_or_a_checkpoint_in_it(tmp_path):
    folder = RunFolder.create("r", "a", 0)
    folder.write_run_json()
    (folder.checkpoints / "last.pt").touch()
    for path in ("r", folder.path, "r/checkpoints/last.pt", "outputs/last", "outputs/last/checkpoints/last.pt"):
        assert RunFolder.open(path).path == folder.path


def test_open_says_what_there_is_instead(tmp_path):
    RunFolder.create("outputs/one", "a", 0).write_run_json()
    with pytest.raises(FileNotFoundError, match=r"outputs/two does not exist; in .*outputs there is: last, one"):
        RunFolder.open("outputs/two")
    (tmp_path / "outputs" / "lone.pt").touch()
    with pytest.raises(FileNotFoundError, match=r"outputs/lone\.pt is neither a run folder nor a checkpoint in one"):
        RunFolder.open("outputs/lone.pt")
    with pytest.raises(FileNotFoundError, match="one/checkpoints there is: nothing"):
        RunFolder.open("outputs/one/checkpoints/last.pt")


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    first = RunFolder.create("mine", "a", 0)
    with pytest.raises(FileExistsError, match="mine is in use by another process"):
        RunFolder(tmp_path / "mine").lock()
    first.unlock()
    second = RunFolder(tmp_path / "mine")
    second.lock()
    second.unlock()


def test_a_kill_lets_the_folder_go(tmp_path):
    script = (
        "from mhrl.run_folder import RunFolder; RunFolder.create('mine', 'a', 0); print('made', flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, **pipes
    )
    assert process.stdout.readline() == "made\n"
    with pytest.raises(FileExistsError, match="in use"):
        RunFolder(tmp_path / "mine").lock()
    process.kill()
    process.communicate(timeout=20)
    RunFolder(tmp_path / "mine").lock()


def test_a_resumption_is_noted_beside_the_first_start(tmp_path):
    folder = RunFolder.create("mine", "a", 0)
    folder.write_run_json()
    started = folder.read()["started"]
    folder.update(status="interrupted")
    folder.write_resumed(300)
    folder.update(status="failed")
    folder.write_resumed(450)
    found = folder.read()
    assert found["status"] == "running" and found["ended"] is None and found["started"] == started
    assert [entry["frames"] for entry in found["resumed"]] == [300, 450]
    assert found["resumed"][0]["argv"] == sys.argv and found["resumed"][0]["versions"]["mhrl"] == __version__


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_run_json_that_somebody_spoilt_is_begun_anew(tmp_path, content):
    folder = RunFolder.create("mine", "a", 0)
    folder.run_json.write_text(content)
    assert folder.read() == {}
    folder.write_resumed(300)
    assert folder.read()["status"] == "running" and folder.read()["resumed"][0]["frames"] == 300


def test_the_checkpoints_folder_stands_for_its_run(tmp_path):
    folder = RunFolder.create("mine", "a", 0)
    folder.write_run_json()
    assert RunFolder.open("mine/checkpoints").path == folder.path
