import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from tensordict import TensorDict

from mhrl.collector import Collector
from mhrl.envs import Leaf, action_leaves, make_factory, make_vector_env, observation_leaves
from mhrl.functional import n_step
from mhrl.replay import PrioritisedReplay, UniformReplay, base, memory, transition_bytes
from mhrl.replay.ring import Ring

PIXELS = (Leaf("observation", "observation", Box(0, 255, (84, 84, 4), np.uint8)),)
ACTION = (Leaf("action", "action", Box(-1, 1, (2,))),)


class Mixed(gym.Env):
    """Leaves of many dtypes; an episode has three steps."""

    observation_space = Dict({"img": Box(0, 255, (3, 2), np.uint8), "level": Discrete(4), "x": Box(-1, 1, (5,), "f8")})
    action_space = Box(-1, 1, (3,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps == 3, {}


def test_c01_bytes_of_a_transition_are_those_that_are_collected():
    env = make_vector_env(make_factory(Mixed, {}), 2)
    leaves = {
        "observation_leaves": observation_leaves(env.single_observation_space),
        "action_leaves": action_leaves(env.single_action_space),
    }
    sizes = {"learning_starts": 8, "total_frames": 8, "frames_per_rollout": 4}
    (rows,) = Collector(env, None, **leaves, seeds=[0, 2], warmup_seed=0, **sizes)
    env.close()
    # Twice 6 + 8 + 40 of observations, 24 of the action, 4 of the reward, 4 flags, 8 of the trajectory's number: 148.
    assert transition_bytes(*leaves.values()) == 152 == held_bytes(rows)
    assert transition_bytes(*leaves.values(), n_steps=2) == 160 == held_bytes(n_step(rows, 2, 0.9))


def held_bytes(rows):
    ring = Ring(len(rows), rows.shape[1])
    ring.write(0, rows)
    return ring.row_bytes


def test_c01_observations_of_a_thousand_frames():
    others = 2 * 4 + 4 + 4 + 8
    assert 1000 * (transition_bytes(PIXELS, ACTION) - others) == 56_448_000


@pytest.mark.parametrize("kind", [UniformReplay, PrioritisedReplay])
@pytest.mark.parametrize("storage", ["memory", "memmap"])
def test_c01_a_capacity_that_does_not_fit_is_refused_before_anything_is_allocated(kind, storage):
    each = transition_bytes(PIXELS, ACTION)
    with pytest.raises(ValueError, match=r"replay.capacity is 100000000: its rows take 5\d{3}.\d\d GiB of .* are free"):
        kind(100_000_000, 256, 1, 0, storage=storage, row_bytes=each)


def test_c01_the_message_has_both_numbers_and_the_largest_capacity_that_fits(monkeypatch):
    monkeypatch.setattr(base, "free_memory", lambda: 3 * 2**30)
    right = r"replay.capacity is 5120: its rows take 5.00 GiB of memory, 3.00 GiB are free; 3070 rows fit$"
    with pytest.raises(ValueError, match=right):
        UniformReplay(5124, 8, 5, 0, row_bytes=2**20)
    assert UniformReplay(3070, 8, 5, 0, row_bytes=2**20).capacity == 3070
    monkeypatch.setattr(base, "free_memory", lambda: 1000 * (100 + 96))  # three trees, of four nodes a row at most
    assert PrioritisedReplay(1000, 8, 1, 0, row_bytes=100).capacity == 1000
    with pytest.raises(ValueError, match=r"; 1000 rows fit"):
        PrioritisedReplay(1001, 8, 1, 0, row_bytes=100)


def test_c01_files_need_disk_and_only_the_trees_need_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(base, "free_memory", lambda: 96_000)
    monkeypatch.setattr(base, "free_disk", lambda folder: 2**30 if folder.parent == tmp_path else 0)
    files = {"storage": "memmap", "scratch_dir": str(tmp_path), "row_bytes": 2**20}
    assert PrioritisedReplay(1000, 8, 1, 0, **files).capacity == 1000
    with pytest.raises(ValueError, match=rf"take 2.00 GiB of disk below {tmp_path}, 1.00 GiB are free; 1024 rows fit"):
        UniformReplay(2048, 8, 1, 0, **files)
    with pytest.raises(ValueError, match=r"GiB of memory, .*; 1000 rows fit"):
        PrioritisedReplay(1001, 8, 1, 0, **files)


@pytest.mark.parametrize("kind", [UniformReplay, PrioritisedReplay])
def test_c01_all_that_is_stored_is_at_most_a_twentieth_more_than_the_rows(kind):
    rows = TensorDict(
        {
            "observation": torch.zeros(1, 1, 84, 84, 4, dtype=torch.uint8),
            "action": torch.zeros(1, 1, 2),
            "next": {"observation": torch.zeros(1, 1, 84, 84, 4, dtype=torch.uint8), "reward": torch.zeros(1, 1, 1)},
        },
        [1, 1],
    )
    replay = kind(1000, 2, 1, seed=0)
    replay.extend(rows)
    allocated = sum(record.nbytes for _, record in replay._ring._records)  # not what is filled
    assert 56_448_000 < allocated + 1000 * kind.INDEX_BYTES <= 1.05 * 1000 * rows.bytes()


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """A machine with plenty of memory, whose process is in the control group `/pod/job`."""
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10_000})())
    (tmp_path / "membership").write_text("4:memory:/old\n0::/pod/job\n")

    def write(group, limit, current, inactive_file=0):
        folder = tmp_path / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\nslab 7\n")

    return write


def test_c01_free_memory_is_the_machines_or_the_control_groups(groups):
    assert memory.free_memory() == 10_000  # no files: not limited
    groups("pod/job", "max", 9_000)
    assert memory.free_memory() == 10_000
    groups("pod/job", 8_000, 3_000)
    assert memory.free_memory() == 5_000
    groups("pod/job", 8_000, 3_000, inactive_file=2_000)  # what the system drops at need
    assert memory.free_memory() == 7_000
    groups("pod", 4_000, 3_500)  # the limit above counts, too
    assert memory.free_memory() == 500
    groups("pod", 4_000, 4_100)
    assert memory.free_memory() == 0
    groups("pod", 40_000, 4_100)
    groups("pod/job", 90_000, 0)
    assert memory.free_memory() == 10_000


def test_c01_a_system_without_control_groups_has_the_machines_memory(groups, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "MEMBERSHIP", tmp_path / "nothing")
    assert memory.free_memory() == 10_000
    (tmp_path / "nothing").write_text("4:memory:/old\n")  # version 1 only
    assert memory.free_memory() == 10_000
