"""Memory stays flat while a run goes on."""

import ctypes
import gc
import os
from pathlib import Path

SMALL = (
    *("+experiment=ddpg", "num_envs=4", "total_frames=20_000", "learning_starts=500", "utd_ratio=0.05"),
    "batch_size=32",
    *("replay.capacity=2_000", "trunk=mlp", "trunk.widths=[16]", "heads.actor.widths=[16]", "heads.value.widths=[16]"),
    *("log.every=100", "eval.every=1_000", "eval.episodes=1", "checkpoint.every=1_000", "wandb.mode=offline"),
    "env.kwargs.max_episode_steps=50",
)


def resident():
    """Bytes of this process's memory in RAM, without what other tests in it have freed and the heap still holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_h04_memory_is_flat_once_the_replay_is_full(build, tmp_path):
    experiment = build(*SMALL, f"run_dir={tmp_path / 'run'}")
    extend, marks = experiment.parts.replay.extend, {}

    def spy(rows):
        extend(rows)
        assert not any(tensor.requires_grad for tensor in rows.values(True, True))
        if experiment.parts.collector.frames in (5_000, 20_000):
            marks[experiment.parts.collector.frames] = resident()

    experiment.parts.replay.extend = spy
    experiment.run()
    assert experiment.parts.learner.updates == 975
    assert marks[20_000] - marks[5_000] < 5 * 2**20
