"""The study: what it runs, how it is stopped and goes on, and what its report says. The big one is not run here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import _balancing
import _jobs
import numpy as np
import pytest
import study
from _runs import Run
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mhrl.config import head_kinds, register
from mhrl.experiment import Experiment
from mhrl.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
PAIRS = [*(("hybrid_q", method) for method in study.METHODS), *((name, study.TUNED) for name in study.SETTINGS)]
PAIRS = list(dict.fromkeys(PAIRS))  # every method, and every experiment's losses


class Never:
    """A signal that does not come."""

    received = None


# What is planned


def build(words):
    register()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = OmegaConf.to_container(compose("train", overrides=[*words, "wandb.mode=disabled"]), resolve=True)
        return Experiment(config, head_kinds())


@pytest.mark.parametrize(("experiment", "method"), PAIRS, ids=map("/".join, PAIRS))
def test_each_method_is_what_it_is_called(tmp_path, experiment, method):
    words = study.METHODS[method] if method != study.TUNED else study.weigh(experiment, 4.0)
    job = study.Study(tmp_path).job(experiment, method, 3, words)
    built = build([word for word in job.words if not word.startswith("replay.capacity")] + ["replay.capacity=100"])
    built.close()
    assert built.parts.learner.aggregator.label == (method if "@" in method else "weighted_sum")
    weights = {loss: fields["weight"] for loss, fields in built.config["losses"].items()}
    weighed = study.SETTINGS[experiment].weighed
    assert {loss for loss, weight in weights.items() if weight != 1} == ({*weighed} if method == study.TUNED else set())
    assert 0 < len(weighed) < len(weights)  # a weight on all would be none
    assert built.config["seed"] == 3 and built.config["learning_starts"] == study.SETTINGS[experiment].starts
    assert job.path == tmp_path / experiment / method / "s3"


def test_what_is_run_and_how_often(tmp_path):
    whole = study.Study(tmp_path)
    assert len(study.chosen([])) == 18
    assert study.chosen(["hybrid_q/mgda@features", "weighted_sum"]) == [
        ("hybrid_q", "weighted_sum"),
        ("hybrid_q", "mgda@features"),
        ("pdqn_platform", "weighted_sum"),
        ("bdq_lunarlander", "weighted_sum"),
    ]
    assert [job.path.name for job in whole.jobs("hybrid_q", "weighted_sum", 5).values()] == [f"s{i}" for i in range(5)]
    assert whole.jobs("hybrid_q", study.TUNED, 5) == {}  # before there is a weight
    assert sum(map(len, whole.tuning("hybrid_q").values())) == 6
    assert not {*study.TUNING_SEEDS} & {*range(5)}
    with pytest.raises(SystemExit, match="--only upgrad: one of hybrid_q"):
        study.chosen(["upgrad"])


def test_frames_are_kept_for_life(tmp_path):
    study.Study(tmp_path, 400)
    study.Study(tmp_path, 400)
    with pytest.raises(SystemExit, match="other frames"):
        study.Study(tmp_path)
    with pytest.raises(SystemExit, match="a multiple of 20"):
        study.Study(tmp_path, 410)


def test_two_studies_do_not_share_a_folder(tmp_path):
    one = study.Study(tmp_path)
    folder = RunFolder(tmp_path)
    folder.lock()
    with pytest.raises(SystemExit, match="in use by another study"):
        study.run(one, [], 1, 1)
    folder.unlock()


# Runs, by a stand-in for train.py that does what it is told in no time

STAND_IN = """
import json, os, pathlib, sys
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
path = pathlib.Path(words.get("run_dir") or words["resume"])
with (path.parent / "calls").open("a") as calls:
    print(path.name, "resume" if "resume" in words else "new", file=calls)
(path / "checkpoints").mkdir(parents=True, exist_ok=True)
(path / "config.yaml").write_text("seed: 0")
if (path.parent / "broken").exists():
    raise SystemExit("it is broken")
if (path.parent / "fails_late").exists():
    (path / "checkpoints" / "frames_5.pt").touch()
    raise SystemExit("it failed late")
(path / "metrics.jsonl").write_text(json.dumps({"frames": 10, "eval/return_mean": 1.0}) + "\\n")
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Two jobs of one method, and what became of them: `(jobs, calls, said)`."""
    (tmp_path / "train.py").write_text(STAND_IN)
    monkeypatch.setattr(_jobs, "TRAIN", tmp_path / "train.py")
    folder = tmp_path / "out" / "env" / "method"
    folder.mkdir(parents=True)
    said = []

    def calls():
        return sorted((folder / "calls").read_text().splitlines())

    def run():
        (folder / "calls").write_text("")
        return _jobs.run_all(made, 2, Never(), said.append)

    made = [_jobs.Job(folder / f"s{seed}", 10, (f"seed={seed}",)) for seed in range(2)]
    return made, run, calls, said, folder


def test_finished_runs_are_left_alone(jobs):
    made, run, calls, said, _ = jobs
    assert run() == [] and calls() == ["s0 new", "s1 new"] and all(job.finished() for job in made)
    assert run() == [] and calls() == []
    assert said[-1] == "2 runs, of which 2 are finished"


def test_a_failure_is_reported_and_tried_again(jobs):
    made, run, calls, said, folder = jobs
    (folder / "broken").touch()
    assert {*run()} == {*made}
    assert any("env/method/s0: FAILED" in line and "it is broken" in line for line in said)
    (made[0].path / "left_over").touch()
    (folder / "broken").unlink()
    assert run() == [] and calls() == ["s0 new", "s1 new"]  # no checkpoint: anew, in an empty folder
    assert not (made[0].path / "left_over").exists()


def test_a_run_that_has_a_checkpoint_goes_on(jobs):
    made, run, calls, _, folder = jobs
    (folder / "fails_late").touch()
    assert {*run()} == {*made}
    (folder / "fails_late").unlink()
    assert run() == [] and calls() == ["s0 resume", "s1 resume"]


def test_a_run_that_another_process_has_is_not_touched(jobs):
    made, run, calls, said, _ = jobs
    made[0].path.mkdir()
    folder = RunFolder(made[0].path)
    folder.lock()
    assert run() == [made[0]] and calls() == ["s1 new"] and made[0].path.exists()
    assert any("is in use by another process" in line for line in said)
    folder.unlock()


# The real thing, small


def start(out, *words):
    command = [sys.executable, str(ROOT / "scripts" / "study.py"), "--frames", "400", "--out", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_it_is_interrupted_goes_on_and_reports(tmp_path):
    out, words = tmp_path / "study", ("--only", "hybrid_q/weighted_sum", "hybrid_q/upgrad@params", "--seeds", "1")
    folders = [out / "hybrid_q" / method / "s0" for method in ("weighted_sum", "upgrad@params")]
    process = start(out, *words)
    deadline = time.monotonic() + 120
    while not (begun := [folder for folder in folders if [*folder.glob("checkpoints/frames_*.pt")]]):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert f"{begun[0].parent.name}/s0: stopped, and can go on" in said
    assert Run(begun[0]).fact("status") == "interrupted" and Run(begun[0]).rows[-1]["frames"] < 400

    process = start(out, *words)
    assert "finished after" in process.communicate(timeout=240)[0]
    assert process.returncode == 0
    for folder in folders:
        run = Run(folder)
        assert run.fact("status") == "finished"
        assert run.metric("eval/return_mean")[0].tolist() == list(range(20, 401, 20))
    assert len(Run(begun[0]).fact("resumed")) == 1

    study.main(["--frames", "400", "--out", str(out), "--seeds", "1", "--report", "--to", str(tmp_path / "to")])
    page = (tmp_path / "to" / "balancing.md").read_text()
    content = json.loads((tmp_path / "to" / "balancing.json").read_text())
    assert "2 of 18 runs" in page and "| `mgda@features` | 0 |  |  | not run |" in page
    finals = content["hybrid_q"]["methods"]["upgrad@params"]["final_return"]
    last = np.mean(Run(folders[1]).metric("eval/return_mean")[1][-5:])
    assert finals == {"0": pytest.approx(last, abs=1e-6)}
    assert content["bdq_lunarlander"]["methods"] == {}


# The report, of runs by hand


def found(finals):
    """What there is of a toy experiment, of which these are the final returns by method, from seed 0 on."""
    by_seed = {method: dict(enumerate(values)) for method, values in finals.items()}
    return _balancing.Findings("toy", 600, by_seed, ("arm",), 1.0, {0.25: 1.0, 1.0: 3.5, 4.0: 2.0}, {"torch": {"2"}})


def lines(page):
    return {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}


def test_figures_worked_out_by_hand(tmp_path):
    sums, others = [0.0, 1.0, 2.0, 3.0, 100.0], [10.0, 11.0, 12.0, 13.0, 14.0]
    small = found({"weighted_sum": sums, "upgrad@features": others, "mgda@features": sums, "upgrad@params": []})
    files = _balancing.report([small], "weighted_sum", 5, 6, tmp_path / "new")
    assert [file.name for file in files] == ["balancing.md", "balancing.json"]
    table, page = lines(files[0].read_text()), files[0].read_text()
    # The middle three of five.
    assert "| `weighted_sum` | 5 | 2 [" in table["weighted_sum"] and table["weighted_sum"].endswith("|  |  |")
    assert "| 12 [" in table["upgrad@features"] and "| 10 [" in table["upgrad@features"]
    assert "| 0 [" in table["mgda@features"] and table["mgda@features"].endswith("| no difference found |")
    assert table["upgrad@params"].endswith("| 0 |  |  | not run |")
    assert "15 of 20 runs" in page and "last 5 evaluations of 6" in page
    assert "Tuned weight of `arm`: 1, so that its runs are those of the plain sum." in page
    assert "0.25 (1), 1 (3.5), 4 (2)" in page
    content = json.loads(files[1].read_text())["toy"]
    assert content["methods"]["weighted_sum"]["final_return"] == {"0": 0, "1": 1, "2": 2, "3": 3, "4": 100}
    assert content["tuning"] == {"losses": ["arm"], "weight": 1, "mean_return": {"0.25": 1, "1.0": 3.5, "4.0": 2}}
    assert content["versions"] == {"torch": "2"}


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [([10.0, 11.0, 12.0], "higher"), ([-9.0, -8.0, -9.0], "lower"), ([0.0, 1.5, 2.0], "no difference found")],
)
def test_verdicts(ours, verdict):
    finals = found({"weighted_sum": [0.0, 1.0, 2.0], "mgda@features": ours}).finals
    figures = _balancing.summarise(finals, "weighted_sum")
    assert _balancing.verdict(figures["mgda@features"]) == verdict


def test_of_one_seed_there_is_no_verdict():
    finals = found({"weighted_sum": [0.0, 1.0], "mgda@features": [9.0]}).finals
    figures = _balancing.summarise(finals, "weighted_sum")
    assert figures["mgda@features"]["difference"] == 8.5
    assert _balancing.verdict(figures["mgda@features"]) == ""


def test_the_final_return_is_of_the_last_five_evaluations_of_the_methods_own_run(write_run):
    returns = [99.0, 1.0, 5.0, 3.0, 2.0, 4.0, 77.0]
    rows = [{"frames": 100 * (i + 1), "eval/return_mean": mean} for i, mean in enumerate(returns)]
    run = Run(write_run("run", rows, {"seed": 0}, aggregator="upgrad@params", versions={}))
    assert _balancing.final_of(run, 600, "upgrad@params", "weighted_sum") == 3.0
    with pytest.raises(SystemExit, match="is a run of upgrad@params, not of mgda@features"):
        _balancing.final_of(run, 600, "mgda@features", "weighted_sum")


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no run is finished"):
        _balancing.report([found({"weighted_sum": []})], "weighted_sum", 5, 20, tmp_path / "to")
    assert not (tmp_path / "to").exists()


# A study made in parts


def finish(job, value, **facts):
    job.path.mkdir(parents=True)
    (job.path / "run.json").write_text(json.dumps({"versions": {"torch": "2"}, **facts}))
    (job.path / "metrics.jsonl").write_text(json.dumps({"frames": job.frames, "eval/return_mean": value}) + "\n")


def test_known_runs_are_not_made_again_and_are_reported(tmp_path):
    first = study.Study(tmp_path / "first", 20)
    for seed, job in first.jobs("hybrid_q", "weighted_sum", 2).items():
        finish(job, seed + 0.5, aggregator="weighted_sum")
    for job in first.tuning("hybrid_q")[4.0]:
        finish(job, 3.0)
    words = ["--frames", "20", "--report", "--to"]
    study.main([*words, str(tmp_path / "to"), "--out", str(first.out)])
    report = tmp_path / "to" / "balancing.json"

    second = study.Study(tmp_path / "second", 20, report)
    assert [*second.jobs("hybrid_q", "weighted_sum", 4)] == [2, 3]
    assert [*second.jobs("hybrid_q", "mgda@features", 4)] == [0, 1, 2, 3]
    assert [*second.tuning("hybrid_q")] == [0.25, 1.0] and second.tuned("hybrid_q") == (None, {4.0: 3.0})
    finish(second.jobs("hybrid_q", "weighted_sum", 3)[2], 9.0, aggregator="weighted_sum", versions={"torch": "3"})
    for jobs in second.tuning("hybrid_q").values():
        for job in jobs:
            finish(job, 1.0)
    assert second.tuned("hybrid_q") == (4.0, {0.25: 1.0, 1.0: 1.0, 4.0: 3.0})
    study.main([*words, str(report.parent), "--out", str(second.out), "--known", str(report)])  # over the older one
    part = json.loads(report.read_text())["hybrid_q"]
    assert part["methods"]["weighted_sum"]["final_return"] == {"0": 0.5, "1": 1.5, "2": 9}
    assert part["versions"] == {"torch": "2, 3"} and part["tuning"]["weight"] == 4
    study.main([*words, str(tmp_path / "third"), "--out", str(tmp_path / "empty"), "--known", str(report)])
    assert (tmp_path / "third" / "balancing.json").read_text() == report.read_text()
    assert (tmp_path / "third" / "balancing.md").read_text() == report.with_suffix(".md").read_text()


@pytest.mark.parametrize("content", [None, "{", "[1]", '{"hybrid_q": {}}', '{"hybrid_q": {"frames": 20}}'])
def test_what_is_no_report_is_refused(tmp_path, content):
    file = tmp_path / "balancing.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit, match=r"--known .*balancing\.json: a balancing\.json is expected"):
        study.main(["--frames", "20", "--out", str(tmp_path / "out"), "--known", str(file)])
    assert not (tmp_path / "out").exists()


def test_known_runs_of_other_frames_are_refused(tmp_path):
    _, file = _balancing.report([found({"weighted_sum": [1.0]})], "weighted_sum", 5, 20, tmp_path)
    with pytest.raises(SystemExit, match=r"its runs have other frames, \{'toy': 600\} instead of \{'hybrid_q': 20, "):
        study.Study(tmp_path / "out", 20, file)


# Weights


def test_the_weight_is_the_best_of_the_grid_and_waits_for_all_of_it(tmp_path):
    small = study.Study(tmp_path, 20)
    returns = {0.25: (1.0, 2.0), 1.0: (4.0, 0.0), 4.0: (3.0, 3.0)}  # means 1.5, 2, 3
    for weight, jobs in small.tuning("pdqn_platform").items():
        assert small.tuned("pdqn_platform")[0] is None
        for job, value in zip(jobs, returns[weight], strict=True):
            finish(job, value)
    assert small.tuned("pdqn_platform") == (4.0, {0.25: 1.5, 1.0: 2.0, 4.0: 3.0})
    words = small.jobs("pdqn_platform", study.TUNED, 1)[0].words
    assert {"losses.run.weight=4", "losses.hop.weight=4", "losses.leap.weight=4"} <= {*words}
