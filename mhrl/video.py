"""Films the greedy policy: one episode of each evaluation, in an env of its own.

Shapes: `H` height and `W` width of a frame.
"""

import ctypes
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np

from mhrl.config import ConfigError
from mhrl.envs import CanonicalEnv, Leaf
from mhrl.generators import isolated_generators
from mhrl.policy import GreedyPolicy, act_once

MAX_STEPS = 2_000
"""A film ends here, for an episode may never do."""

_FINISH_TIMEOUT = 60.0  # seconds that ffmpeg has, once it has all frames
_log = logging.getLogger("mhrl")


def prepare_rendering() -> None:
    """Let envs render where there is no display, and pygame load without a greeting; call it before they are imported.

    Without a display MuJoCo needs EGL. Told to use it where it is not installed, it could not even be imported.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and "MUJOCO_GL" not in os.environ:
        with suppress(OSError):
            ctypes.CDLL("libEGL.so.1")
            os.environ["MUJOCO_GL"] = "egl"


def filmed(env: Mapping[str, Any]) -> dict[str, Any]:
    """The `env` of a config, rendering arrays. Training keeps its own: rendering costs time, and may change an env."""
    return {**env, "kwargs": {**(env.get("kwargs") or {}), "render_mode": "rgb_array"}}


@final
class VideoRecorder:
    """Films the episode with which an evaluation begins, in an env of its own.

    The first frame is rendered and encoded here and now, so that what cannot work is known before a run begins. A later
    failure is warned about once and ends the filming only. Nothing that training uses is touched.

    Args:
        build: builds one canonical env with `render_mode="rgb_array"`; see `filmed`.
        policy: acts; not trained here.
        observation_leaves: what an observation of the env consists of, masks too: its `spaces.seen`.
        action_leaves: the env's `spaces.actions`.
        seed: that of the evaluation's first env.

    Raises:
        ConfigError: if the env cannot be built, rendered or encoded.
    """

    def __init__(
        self,
        build: Callable[[], CanonicalEnv],
        policy: GreedyPolicy,
        *,
        observation_leaves: Sequence[Leaf],
        action_leaves: Sequence[Leaf],
        seed: int,
    ) -> None:
        self.policy = policy
        self.observation_leaves = tuple(observation_leaves)
        self.action_leaves = tuple(action_leaves)
        self.seed = seed
        self._env: CanonicalEnv | None = None
        try:
            with isolated_generators(seed), tempfile.TemporaryDirectory() as folder:
                self._env = build()
                if self._env.render_mode != "rgb_array":
                    raise ValueError(f"it ignores render_mode='rgb_array' (and has {self._env.render_mode!r})")
                self._env.reset(seed=seed)
                encode([self._env.render()], Path(folder) / "probe.mp4", _fps(self._env))
        except Exception as error:  # whatever a renderer raises
            self.close()
            raise ConfigError(
                f"eval.video: this env cannot be filmed: {str(error) or type(error).__name__}\n"
                "Videos need an env with render_mode='rgb_array', and pip install 'mhrl[video]'"
            ) from error

    def film(self, path: Path) -> Path | None:
        """Film an episode, or its first `MAX_STEPS` steps, as `path`; None if that failed, now or before."""
        env = self._env
        if env is None:
            return None
        self.policy.eval()
        try:
            with isolated_generators(self.seed):
                encode(self._episode(env), path, _fps(env))
        except Exception as error:  # whatever a renderer raises
            text = "eval.video failed, the run goes on without videos: %s: %s"
            _log.warning(text, type(error).__name__, error, exc_info=True)
            self.close()
            return None
        return path

    def close(self) -> None:
        """Close the env; whoever films afterwards gets nothing."""
        env, self._env = self._env, None
        if env is not None:
            with suppress(Exception):  # a renderer may be the reason why it is closed
                env.close()

    def _episode(self, env: CanonicalEnv) -> Iterator[Any]:
        """Play greedily and yield what the env renders, before the first step and after each."""
        observation, _ = env.reset(seed=self.seed)
        yield env.render()
        for _ in range(MAX_STEPS):
            action = act_once(self.policy, observation, self.observation_leaves, self.action_leaves)
            observation, _, terminated, truncated, _ = env.step(action)
            yield env.render()
            if terminated or truncated:
                return


def encode(frames: Iterable[Any], path: Path, fps: float) -> None:
    """Write frames [H, W, 3] as an MP4 that every player knows: H.264, yuv420p, sides of even length.

    The file is complete before it takes its name.

    Raises:
        ImportError: if imageio-ffmpeg is missing.
        ValueError: if a frame is no such array, or of another size than the first.
        RuntimeError: if ffmpeg fails, with what it said.
    """
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError as error:
        raise ImportError("the encoder is missing, imageio-ffmpeg") from error
    frames = iter(frames)
    first = _checked(next(frames))
    height, width, _ = first.shape
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".tmp")
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
    target = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-threads", "1"]
    command = [get_ffmpeg_exe(), "-v", "error", "-y", *source, *target, "-f", "mp4", str(partial)]
    try:
        with tempfile.TemporaryFile() as said:
            # A session of its own: Ctrl-C is the run's business.
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": said}
            with subprocess.Popen(command, **pipes, start_new_session=True) as process:
                assert process.stdin is not None
                with suppress(BrokenPipeError):  # ffmpeg has gone; its exit status tells
                    for frame in chain([first], map(_checked, frames)):
                        if frame.shape != first.shape:
                            raise ValueError(f"the frames change from {first.shape} to {frame.shape}")
                        process.stdin.write(frame.tobytes())
                with suppress(BrokenPipeError):
                    process.stdin.close()
                try:
                    status = process.wait(_FINISH_TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
            if status != 0:
                said.seek(0)
                words = " / ".join(said.read().decode(errors="replace").split("\n")[:3])
                raise RuntimeError(f"ffmpeg ended with {status}: {words or 'it said nothing'}")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _checked(frame: Any) -> np.ndarray:  # noqa: ANN401
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        return frame
    got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
    raise ValueError(f"render() gave {got}, a uint8 array [height, width, 3] is expected")


def _fps(env: CanonicalEnv) -> float:
    return float(env.metadata.get("render_fps") or 30)
