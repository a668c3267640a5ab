"""What a run says and leaves, where W&B, the disk or the renderer do not play along."""

import json
import sys

import imageio_ffmpeg
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from mhrl.config import ConfigError
from mhrl.loggers import JsonlLogger, WandbLogger

SHORT = ("+experiment=ddpg", "total_frames=60", "learning_starts=20", "batch_size=16")
SMALL = (*SHORT, "env.kwargs.max_episode_steps=10")
OFTEN = ("eval.every=20", "eval.episodes=2", "log.every=10")


def same_bits(left, right):
    """Two runs left the same weights, targets, counters and metrics."""
    for entry in ("network", "target"):
        a, b = left.checkpoint()[entry], right.checkpoint()[entry]
        assert all(torch.equal(value, b[key]) for key, value in a.items())
    without_speed = [
        [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in run.rows]
        for run in (left, right)
    ]
    assert without_speed[0] == without_speed[1]


@pytest.fixture
def _nobody_logged_in(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    (tmp_path / "home").mkdir()


@pytest.mark.usefixtures("_nobody_logged_in")
@pytest.mark.parametrize(("mode", "folders"), [("offline", 1), ("disabled", 0), ("online", 1)])
def test_f01_without_key_and_network_a_run_trains_in_every_mode(train, tmp_path, mode, folders):
    run = train(*SMALL, f"wandb.mode={mode}")
    assert (run.info["status"], run.info["logger_errors"]) == ("finished", 0)
    assert run.rows[-1]["frames"] == 60
    assert (run.path / "checkpoints" / "last.pt").is_file()
    assert len(list(tmp_path.glob("outputs/wandb/offline-run-*"))) == folders


def test_f01_without_wandb_a_run_trains_and_says_so(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # any import of it fails
    run = train(*SMALL, "wandb.mode=online")
    assert (run.info["status"], run.info["logger_errors"], run.info["wandb_id"]) == ("finished", 0, None)
    assert "disabled (wandb cannot be imported)" in (run.path / "train.log").read_text()


def test_f01_a_logger_that_raises_is_counted_and_ends_no_run(train, monkeypatch):
    quiet = train(*SMALL, *OFTEN)

    def broken(self, argument):
        raise OSError("quota exceeded")

    for name in ("start", "log", "finish"):
        monkeypatch.setattr(WandbLogger, name, broken)
    run = train(*SMALL, *OFTEN)
    assert run.info["status"] == "finished"
    assert run.info["logger_errors"] == 1 + len(run.rows) + 1 == 8
    same_bits(run, quiet)
    log = (run.path / "train.log").read_text()
    assert log.count("WARNING WandbLogger failed, the run goes on without it: OSError: quota exceeded") == 1
    assert "Traceback" in log


def test_f04_what_is_logged_is_the_plain_resolved_config(train, monkeypatch):
    seen = []
    start = JsonlLogger.start

    def spy(self, info):
        seen.append(info.config)
        start(self, info)

    monkeypatch.setattr(JsonlLogger, "start", spy)
    run = train(*SMALL, "name=${env.id}", "wandb.notes=${.project}")
    (config,) = seen
    assert (config["name"], config["wandb"]["notes"]) == ("Pendulum-v1", "mhrl")
    assert not any(OmegaConf.is_config(value) for value in walk(config))
    assert json.loads(json.dumps(config)) == config == yaml.safe_load((run.path / "config.yaml").read_text())


def walk(node):
    yield node
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(value)


def test_f04_a_missing_value_is_named_before_anything_is_written(train, tmp_path):
    with pytest.raises(Exception, match=r"env\.id"):
        train(*SMALL, "env.id=???")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_leaves_its_traceback(build, tmp_path):
    experiment = build(*SMALL, f"run_dir={tmp_path / 'run'}")

    def burst(*args, **kwargs):
        raise ArithmeticError("the head fell off")

    experiment.parts.learner.update = burst
    with pytest.raises(ArithmeticError):
        experiment.run()
    log = (tmp_path / "run" / "train.log").read_text()
    assert "ERROR the run failed" in log and "Traceback" in log and "ArithmeticError: the head fell off" in log
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_f04_each_evaluation_is_filmed_and_training_does_not_notice(train):
    plain = train(*SMALL, *OFTEN)
    run = train(*SMALL, *OFTEN, "eval.video=true")
    assert {path.name for path in (run.path / "videos").iterdir()} == {f"eval_{n}.mp4" for n in (20, 40, 60)}
    assert not (plain.path / "videos").exists()
    same_bits(run, plain)


def test_f04_an_encoder_that_fails_later_ends_the_filming_only(train, monkeypatch):
    path = imageio_ffmpeg.get_ffmpeg_exe()
    calls = iter([path, path])  # the probe and the first evaluation
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: next(calls, "false"))
    run = train(*SMALL, *OFTEN, "eval.video=true")
    assert run.info["status"] == "finished"
    assert [path.name for path in (run.path / "videos").iterdir()] == ["eval_20.mp4"]
    assert (run.path / "train.log").read_text().count("WARNING eval.video failed") == 1


@pytest.mark.parametrize("obstacle", ["env", "encoder"])
def test_f04_what_cannot_be_filmed_is_refused_before_a_folder_exists(train, tmp_path, monkeypatch, obstacle):
    if obstacle == "encoder":
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    overrides = SMALL if obstacle == "encoder" else (*SHORT, "~env.id", "env._target_=toy_envs.Toy")
    with pytest.raises(ConfigError, match=r"eval\.video: (.|\n)*pip install 'mhrl\[video\]'"):
        train(*overrides, "eval.video=true")
    assert list(tmp_path.iterdir()) == []
