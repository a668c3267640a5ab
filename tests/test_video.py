import ctypes
import logging
import random
import re
import subprocess
import sys
from typing import ClassVar

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from mhrl import video
from mhrl.config import ConfigError
from mhrl.envs import action_leaves, make_factory, observation_leaves
from mhrl.video import VideoRecorder, encode, filmed, prepare_rendering

LENGTH = 4


class Filmable(gymnasium.Env):
    """Episodes of `LENGTH` steps, all in the colour that the seed gives. Its frames have odd sides."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 25}
    observation_space = Dict(a=Dict(b=Box(-1, 1, (2,), np.float32)), c=Box(0, 1, (1,), np.float32))
    action_space = Box(0.1, 0.3, (1,), np.float64)
    made: ClassVar = []

    def __init__(self, render_mode=None, ends=True, fails_at=99):
        self.render_mode, self.ends, self.fails_at = render_mode, ends, fails_at
        self.actions, self.seeds, self.closed, self.frames = [], [], False, 0
        np.random.random()  # as constructors may
        Filmable.made.append(self)

    def observe(self):
        random.random(), np.random.random(), torch.rand(1)
        return {"a": {"b": np.ones(2, np.float32)}, "c": np.zeros(1, np.float32)}

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(float(action[0]))
        self.t += 1
        return self.observe(), 0.0, False, self.ends and self.t == LENGTH, {}

    def render(self):
        self.frames += 1
        if self.frames == self.fails_at:
            raise OSError("the context is lost")
        return np.full((35, 51, 3), 100 + 20 * self.t, np.uint8)

    def close(self):
        self.closed = True


class Constant(torch.nn.Module):
    def act(self, observation, frames=0):
        assert not self.training
        assert {key: value.shape for key, value in observation.items()} == {
            ("observation", "a_b"): (1, 2),
            ("observation", "c"): (1, 1),
        }
        return {"action": torch.full((1, 1), 0.2)}


def recorder(factory=Filmable, seed=7, **kwargs):
    return VideoRecorder(
        make_factory(factory, {"render_mode": "rgb_array", **kwargs}),
        Constant(),
        observation_leaves=observation_leaves(Filmable.observation_space),
        action_leaves=action_leaves(Filmable.action_space),
        seed=seed,
    )


def decode(path):
    """The frames of a film [T, H, W, 3] and what ffmpeg says of it."""
    exe = imageio_ffmpeg.get_ffmpeg_exe()
    said = subprocess.run([exe, "-hide_banner", "-i", str(path)], capture_output=True, text=True).stderr
    (stream,) = [line for line in said.splitlines() if "Video:" in line]
    width, height = map(int, re.search(r" (\d+)x(\d+)[ ,]", stream).groups())
    command = [exe, "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3), stream


def test_a_film_is_what_every_player_knows_with_sides_of_even_length(tmp_path):
    frames = [np.full((35, 51, 3), 40 * i, np.uint8) for i in range(6)]
    encode(frames, tmp_path / "videos" / "eval_100.mp4", 25.0)
    shown, stream = decode(tmp_path / "videos" / "eval_100.mp4")
    assert "h264" in stream and "yuv420p" in stream and "25 fps" in stream
    assert shown.shape == (6, 36, 52, 3)
    assert np.abs(shown[:, :32, :48].astype(int) - np.stack(frames)[:, :32, :48]).max() <= 4  # it is lossy
    assert [path.name for path in (tmp_path / "videos").iterdir()] == ["eval_100.mp4"]


def test_a_film_that_fails_leaves_no_file_and_says_why(tmp_path, monkeypatch):
    good = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(ValueError, match=r"change from \(4, 4, 3\) to \(6, 4, 3\)"):
        encode([good, np.zeros((6, 4, 3), np.uint8)], tmp_path / "a.mp4", 30.0)
    with pytest.raises(ValueError, match="render\\(\\) gave float64 of shape \\(4, 4\\), a uint8 array"):
        encode([good, np.zeros((4, 4))], tmp_path / "a.mp4", 30.0)
    (tmp_path / "a.mp4.tmp").symlink_to("/dev/full")
    with pytest.raises(RuntimeError, match=r"ffmpeg ended with [1-9].*: .*No space left on device"):
        encode([good], tmp_path / "a.mp4", 30.0)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: "false")
    with pytest.raises(RuntimeError, match="ffmpeg ended with 1: it said nothing"):
        encode([good] * 9999, tmp_path / "a.mp4", 30.0)
    assert list(tmp_path.iterdir()) == []


def test_f04_one_greedy_episode_is_filmed_from_its_first_to_its_last_state(tmp_path):
    one = recorder(seed=7)
    env = Filmable.made[-1]
    path = tmp_path / "eval_100.mp4"
    assert one.film(path) == path
    assert env.seeds == [7, 7]  # the probe, and the film
    assert env.actions == [pytest.approx(0.2)] * LENGTH
    shown, _ = decode(path)
    assert np.abs(shown[:, 10, 10, 0].astype(int) - [100, 120, 140, 160, 180]).max() <= 4
    one.close()
    assert env.closed
    assert one.film(path) is None


class Gears(Filmable):
    """Only gear 6 is legal."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Dict(gear=Discrete(3, start=5), arm=Box(-1, 1, (2,)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"action_mask": {"gear": [0, 1, 0]}}

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append((action["gear"], action["arm"].tolist()))
        self.t += 1
        return np.zeros(1, np.float32), 0.0, False, self.t == 2, {"action_mask": {"gear": [0, 1, 0]}}


class Legal(torch.nn.Module):
    def act(self, observation, frames=0):
        mask = observation["action_mask", "gear"]
        assert mask.shape == (1, 3) and observation["observation"].shape == (1, 1)
        return {("action", "gear"): 5 + mask.int().argmax(-1), ("action", "arm"): torch.tensor([[0.5, 9.0]])}


def test_b06_nested_actions_and_masks_are_filmed(tmp_path):
    factory = make_factory(Gears, {"render_mode": "rgb_array"}, "info")
    spaces = factory().spaces
    leaves = {"observation_leaves": spaces.seen, "action_leaves": spaces.actions}
    one = VideoRecorder(factory, Legal(), **leaves, seed=7)
    env = Filmable.made[-1]
    assert one.film(tmp_path / "a.mp4") == tmp_path / "a.mp4"
    assert env.actions == [(6, [0.5, 1.0])] * 2
    one.close()


def test_an_episode_that_never_ends_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MAX_STEPS", 6)
    one = recorder(ends=False)
    one.film(tmp_path / "a.mp4")
    assert len(decode(tmp_path / "a.mp4")[0]) == 7


def test_the_global_generators_stay_as_they_were(tmp_path):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    one = recorder()
    assert states() == before
    one.film(tmp_path / "a.mp4")
    assert states() == before


def without_mode():
    return Filmable()


def deaf(render_mode):
    return Filmable()


def blind(render_mode):
    env = Filmable(render_mode)
    env.render = lambda: None
    return env


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (without_mode, "unexpected keyword argument 'render_mode'"),
        (deaf, "it ignores render_mode='rgb_array' (and has None)"),
        (blind, "render() gave NoneType, a uint8 array [height, width, 3] is expected"),
    ],
)
def test_f04_an_env_that_cannot_be_filmed_is_refused_at_once(factory, reason):
    with pytest.raises(ConfigError) as error:
        recorder(factory)
    text = str(error.value)
    assert text.startswith("eval.video: this env cannot be filmed: ") and reason in text
    assert "pip install 'mhrl[video]'" in text


def test_f04_a_missing_encoder_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"the encoder is missing, imageio-ffmpeg\n.*pip install 'mhrl\[video\]'"):
        recorder()
    assert Filmable.made[-1].closed


def test_f04_a_later_failure_is_warned_about_once_and_ends_the_filming(tmp_path, caplog):
    one = recorder(fails_at=1 + (LENGTH + 1) + 3)  # after the probe and a film, in the second one
    with caplog.at_level(logging.WARNING, "mhrl"):
        assert one.film(tmp_path / "eval_1.mp4") is not None
        assert one.film(tmp_path / "eval_2.mp4") is None
        assert one.film(tmp_path / "eval_3.mp4") is None
    assert [r.getMessage() for r in caplog.records] == [
        "eval.video failed, the run goes on without videos: OSError: the context is lost"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["eval_1.mp4"]
    assert Filmable.made[-1].closed


def test_only_the_films_env_renders():
    env = {"_target_": "gymnasium.make", "id": "Pendulum-v1", "kwargs": {"g": 9.0}}
    assert filmed(env) == {**env, "kwargs": {"g": 9.0, "render_mode": "rgb_array"}}
    assert filmed({**env, "kwargs": None})["kwargs"] == {"render_mode": "rgb_array"}
    assert env["kwargs"] == {"g": 9.0}


@pytest.mark.parametrize(
    ("given", "library", "expected"),
    [
        ({}, True, "egl"),
        ({"DISPLAY": ""}, True, "egl"),
        ({}, False, None),  # mujoco could not even be imported
        ({"DISPLAY": ":0"}, True, None),
        ({"MUJOCO_GL": "osmesa"}, True, "osmesa"),
    ],
)
def test_f04_without_a_display_mujoco_renders_by_egl(monkeypatch, given, library, expected):
    def load(name):
        assert name == "libEGL.so.1"
        if not library:
            raise OSError("cannot open shared object file")

    environment = dict(given)
    monkeypatch.setattr("os.environ", environment)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", load)
    prepare_rendering()
    assert environment.get("MUJOCO_GL") == expected
    assert environment["PYGAME_HIDE_SUPPORT_PROMPT"] == "1"
