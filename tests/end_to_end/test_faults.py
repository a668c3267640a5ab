"""What interrupts a run: signals, kills, full disks, memory. Nothing is lost, and the run says so."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mhrl.assembly import NonFiniteParameterError
from mhrl.learner import Learner

ROOT = Path(__file__).parents[2]
BASE = ("+experiment=ddpg", "learning_starts=100", "batch_size=16", "eval.episodes=1", "wandb.mode=disabled")
ENDLESS = (*BASE, "total_frames=1_000_000", "eval.every=1_000_000", "replay.capacity=2_000")


@pytest.fixture
def start(tmp_path):
    """Start `train.py` in `tmp_path / "run"` and return its process; whatever is left of it is killed at the end."""
    processes = []

    def start(*words, code=None, **options):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
        program = [str(ROOT / "train.py")] if code is None else ["-c", code]
        process = subprocess.Popen(
            [sys.executable, *program, *words], env=environment, **pipes, **options, start_new_session=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def wait_for(condition, process, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def content(path):
    return torch.load(path, weights_only=True)


def info(folder):
    return json.loads((folder / "run.json").read_text())


def alive(group):
    """Processes of a group that still run."""
    found = subprocess.run(["ps", "-o", "pid=,stat=,args=", "-g", str(group)], capture_output=True, text=True).stdout
    return [line for line in found.splitlines() if " Z" not in line]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_h03_a_signal_saves_a_checkpoint_and_can_be_resumed(start, folder, train, number, code):
    process = start(*ENDLESS, f"run_dir={folder}", "num_envs=2", "env.vectorization_mode=async")
    wait_for((folder / "checkpoints" / "last.pt").exists, process)
    os.killpg(process.pid, number)  # as a terminal does it, and a batch system: the workers get it, too
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err and signal.Signals(number).name in err
    assert info(folder)["status"] == "interrupted"
    frames = info(folder)["frames"]
    last = folder / "checkpoints" / "last.pt"
    assert last.samefile(folder / "checkpoints" / f"frames_{frames}.pt")
    assert content(last)["counters"]["frames"] == frames > 100
    assert f"resume={folder.name}" in out or f"resume={folder}" in out
    wait_for_no_process(process.pid)
    resumed = train(f"resume={folder}", f"total_frames={frames + 50}")
    assert resumed.info["status"] == "finished" and resumed.info["frames"] == frames + 50


def wait_for_no_process(group, seconds=15):
    end = time.monotonic() + seconds
    while alive(group) and time.monotonic() < end:
        time.sleep(0.1)
    assert alive(group) == []


def test_a_second_signal_ends_a_run_at_once(start, folder):
    process = start(*BASE, "env._target_=toy_envs.Sleepy", "~env.id", f"run_dir={folder}")
    wait_for((folder / "asleep").exists, process)
    process.send_signal(signal.SIGINT)
    assert "SIGINT" in process.stderr.readline() + process.stderr.readline()
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (130, -signal.SIGINT) and time.monotonic() - begin < 5


def test_a_signal_ends_a_sweep(start, tmp_path):
    process = start("-m", *ENDLESS, "seed=0,1,2")
    wait_for(lambda: list(tmp_path.glob("outputs/*/checkpoints/last.pt")), process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    started = {path.resolve() for path in tmp_path.glob("outputs/*/run.json")}  # outputs/last is one of them
    assert len(started) == 1


KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
from mhrl import checkpoint
sync, seen = os.fsync, []
def kill(descriptor):
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    if ".frames_" in name:
        seen.append(name)
        if len(seen) == 3:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)
os.fsync = kill
from mhrl.cli import train
train()
"""


def test_h03_a_kill_in_the_middle_of_a_save_leaves_the_older_one(start, folder, train):
    base = (*BASE, "total_frames=400", "checkpoint.every=100", "eval.every=100")
    process = start(*base, f"run_dir={folder}", code=KILLED_WHILE_SAVING)
    process.communicate(timeout=90)
    assert process.returncode == -signal.SIGKILL
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == [".frames_300.pt.tmp", "best.pt", "frames_100.pt", "frames_200.pt", "last.pt"]
    assert info(folder)["status"] == "running"
    resumed = train(f"resume={folder}")
    assert resumed.info["resumed"][0]["frames"] == 200 and resumed.info["status"] == "finished"
    assert not list((folder / "checkpoints").glob(".*"))
    whole = train(*base)
    for row, right in zip(resumed.rows, whole.rows, strict=True):
        assert {k: v for k, v in row.items() if "perf/" not in k} == {
            k: v for k, v in right.items() if "perf/" not in k
        }


def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))


def test_h03_a_full_disk_keeps_the_older_checkpoint_and_the_run_goes_on(start, folder):
    """A checkpoint with few rows fits the file size that is allowed, a later one does not."""
    base = (*BASE, "heads.actor.widths=[16]", "heads.value.widths=[16]", "num_envs=10", "utd_ratio=0.01")
    process = start(
        *base,
        *("total_frames=20_000", "checkpoint.every=5_000", "eval.every=20_000", f"run_dir={folder}"),
        preexec_fn=limit_file_size,
    )
    _, err = process.communicate(timeout=120)
    log = (folder / "train.log").read_text()
    assert log.count("could not be written") >= 2 and "the run goes on" in log
    assert info(folder)["frames"] == 20_000
    # The last one was due: the run was trained to its end, and says that this is not on disk.
    assert process.returncode == 1 and info(folder)["status"] == "failed" and "could not be written" in err
    checkpoints = folder / "checkpoints"
    assert not list(checkpoints.glob(".*"))
    numbered = sorted(int(path.stem[7:]) for path in checkpoints.glob("frames_*.pt"))
    assert numbered and numbered[-1] < 20_000
    assert content(checkpoints / "last.pt")["counters"]["frames"] == numbered[-1]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 2147 bytes"),
    ],
)
def test_h04_out_of_memory_names_the_keys_to_lower(build, folder, monkeypatch, error):
    experiment = build(*BASE, "total_frames=300", f"run_dir={folder}")
    update = Learner.update

    def fail(self, batch, frames=0):
        if frames == 150:
            raise error
        update(self, batch, frames)

    monkeypatch.setattr(Learner, "update", fail)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        experiment.run()
    for said in ("batch_size (16)", "heads.actor.widths ([128, 128])", str(error)):
        assert said in str(raised.value)
    assert info(folder)["status"] == "failed"
    saved = content(folder / "checkpoints" / "last.pt")
    assert saved["counters"]["frames"] == 150 and saved["counters"]["updates"] == 49  # before the update that failed


def test_a_failed_run_keeps_what_it_trained_and_goes_on_with_a_new_episode(train, folder):
    env = ("env._target_=toy_envs.RaisesOnce", "~env.id", f"+env.marker={folder}.raised")
    with pytest.raises(Exception, match="the gripper is stuck"):
        train(*BASE, *env, "total_frames=400", f"run_dir={folder}")
    assert info(folder)["status"] == "failed" and info(folder)["frames"] == 250
    log = (folder / "train.log").read_text()
    assert "the gripper is stuck" in log and "Traceback" in log and "frames_250.pt" in log
    resumed = train(f"resume={folder}", "trust_config=true")
    assert resumed.info["frames"] == 400 and resumed.info["resumed"][0]["frames"] == 250


def test_poisoned_parameters_are_not_saved(build, folder):
    experiment = build(*BASE, "total_frames=300", f"run_dir={folder}")
    update = experiment.parts.learner.update

    def poison(batch, frames):
        update(batch, frames)
        if frames == 150:
            with torch.no_grad():
                next(experiment.parts.network.parameters()).fill_(float("nan"))

    experiment.parts.learner.update = poison
    with pytest.raises(ValueError, match="non-finite action"):
        experiment.run()
    assert content(folder / "checkpoints" / "last.pt")["counters"]["frames"] == 101


def test_h03_an_update_that_breaks_the_parameters_costs_no_good_checkpoint(train, folder):
    run = train(*BASE, "total_frames=300")
    wild = ("total_frames=400", "checkpoint.every=1", "checkpoint.keep_last=1", "optimizer.lr=1e300")
    with pytest.raises(NonFiniteParameterError, match=r"network: head_\w+\.body.* is not finite at 301 frames"):
        train(f"resume={run.path}", *wild)
    assert sorted(path.name for path in (run.path / "checkpoints").glob("[fl]*.pt"))[-2:] == [
        "frames_300.pt",
        "last.pt",
    ]
    assert train(f"resume={run.path}", "total_frames=400", "optimizer.lr=1e-3").info["status"] == "finished"


def test_h03_a_torn_best_does_not_stop_a_resume(train):
    run = train(*BASE, "total_frames=300")
    (run.path / "checkpoints" / "best.pt").write_bytes(b"")
    (run.path / "run.json").write_text("{")
    resumed = train(f"resume={run.path}", "total_frames=350")
    assert resumed.info["status"] == "finished"
    assert "best.pt cannot be read" in (run.path / "train.log").read_text()


def test_whoever_adds_resume_to_the_old_line_need_not_take_out_what_has_not_changed(train):
    words = [word for word in BASE if not word.startswith("+")]
    run = train(*BASE, "total_frames=200", "seed=0")
    assert train(f"resume={run.path}", *words, "seed=0", "total_frames=250").info["frames"] == 250


def test_h02_a_row_that_is_not_finite_is_left_out_and_counted(train, folder):
    run = train(
        *BASE, "env._target_=toy_envs.NanOnce", "~env.id", "num_envs=2", "on_nonfinite=skip", "total_frames=400"
    )
    assert run.rows[-1]["skipped_rows"] == 1 and run.info["frames"] == 400
    log = (run.path / "train.log").read_text()
    assert "env 1" in log and "the row is left out" in log
    state = run.checkpoint()

    def finite(node):
        if isinstance(node, dict):
            return all(map(finite, node.values()))
        return not torch.is_tensor(node) or not node.is_floating_point() or bool(torch.isfinite(node).all())

    assert all(finite(state[key]) for key in ("network", "target", "optimizer", "replay"))


FAULTY = "env._target_=toy_envs.Faulty ~env.id +env.fault="
AS_MET = {
    "an env that raises": (FAULTY + "raise", "env 0: RuntimeError: the camera is gone (toy_envs.py, line "),
    "a worker that raises": (
        FAULTY + "raise num_envs=2 env.vectorization_mode=async",
        "env 0: RuntimeError: the camera is gone (toy_envs.py, line ",
    ),
    "a worker that dies": (
        "env._target_=toy_envs.Dies ~env.id env.vectorization_mode=async",
        "env 0: its process died (exit code -9)",
    ),
    "a worker that hangs": (
        FAULTY + "hang env.vectorization_mode=async env.step_timeout=5",
        "env 0: no answer within 5 s",
    ),
    "an env that cannot be built": (
        "env._target_=toy_envs.Unbuildable ~env.id",
        "env 0: RuntimeError: no licence found",
    ),
    "NaN from an env": ("env._target_=toy_envs.NanReward ~env.id", "non-finite reward from env 0 at frames 0"),
    "NaN from the policy": ("heads.actor._target_=toy_parts.NanHead", "non-finite action for env 0 at frames 20"),
    "out of memory": ("objective._target_=toy_parts.Hungry", "out of memory in an update on cpu: lower batch_size (8)"),
    "a loss of NaN": ("objective._target_=toy_parts.NanLoss", "loss 'value' is nan (update 0, 21 frames"),
}


@pytest.mark.parametrize("fault", AS_MET)
def test_a_fault_as_a_user_meets_it(shell, folder, fault):
    words, message = AS_MET[fault]
    small = "+experiment=ddpg learning_starts=20 total_frames=60 batch_size=8 eval.episodes=1 wandb.mode=disabled"
    result = shell(f"python train.py {small} run_dir={folder} {words}", timeout=60)
    assert result.returncode == 1
    assert message in result.stderr and "Traceback" not in result.stderr
    if fault == "an env that cannot be built":
        assert not folder.exists()
    else:
        assert info(folder)["status"] == "failed"
        log = (folder / "train.log").read_text()
        assert message in log and "Traceback" in log


def test_h03_a_torn_checkpoint_as_a_user_meets_it(shell, train, folder):
    run = train(*BASE, "total_frames=200", "checkpoint.every=150")
    last = run.path / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    named = shell(f"python train.py resume={last} total_frames=250")
    assert named.returncode == 1 and "last.pt cannot be read" in named.stderr and "Traceback" not in named.stderr
    fallen_back = shell(f"python train.py resume={run.path} total_frames=250")
    assert fallen_back.returncode == 0, fallen_back.stderr
    assert "frames_200.pt cannot be read" in fallen_back.stdout
    assert "resumed from frames_150.pt at 150 frames" in fallen_back.stdout
