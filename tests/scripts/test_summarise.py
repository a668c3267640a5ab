import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "summarise.py"
spec = importlib.util.spec_from_file_location("summarise", SCRIPT)
summarise = importlib.util.module_from_spec(spec)
spec.loader.exec_module(summarise)


@pytest.fixture
def make_run(tmp_path):
    def make(name, seed, returns, double=False):
        run = tmp_path / f"{name}_{seed}_{double}"
        run.mkdir()
        (run / "config.yaml").write_text(f"name: {name}\nseed: {seed}\nobjective:\n  double: {str(double).lower()}\n")
        rows = [{"frames": 50, "loss/value": 1.0}]
        rows += [{"frames": 100 * (i + 1), "eval/return_mean": value} for i, value in enumerate(returns)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(run)

    return make


def printed(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_final_evaluations_by_seed_and_over_seeds(make_run, capsys):
    summarise.main([make_run("bdq", 1, [-9, -2.0]), make_run("bdq", 0, [-9, -4.0]), make_run("dqn", 0, [5.0])])
    assert printed(capsys) == [
        ["name", "frames", "mean", "std", "by", "seed"],
        ["bdq", "200", "-3", "1", "0:", "-4", "1:", "-2"],
        ["dqn", "100", "5", "0", "0:", "5"],
    ]


def test_windows_end_where_they_are_asked_for(make_run, capsys):
    summarise.main([make_run("a", 0, [1, 2, 3, 4, 9]), "--at", "200", "400", "1000", "--window", "2"])
    assert [row[1:3] for row in printed(capsys)[1:]] == [["200", "1.5"], ["400", "3.5"], ["1,000", "nan"]]


def test_runs_are_told_apart_by_keys_of_their_configs(make_run, capsys):
    runs = [make_run("a", 0, [1]), make_run("a", 0, [2], double=True)]
    with pytest.raises(SystemExit):
        summarise.main(runs)
    assert "another run of 'a' with seed 0; tell them apart with --by" in capsys.readouterr().err
    summarise.main([*runs, "--by", "objective.double"])
    assert [row[1] for row in printed(capsys)[1:]] == ["objective.double=False", "objective.double=True"]
    with pytest.raises(SystemExit, match=r"config\.yaml has no objective\.dubble"):
        summarise.main([*runs, "--by", "objective.dubble"])


def test_everything_can_be_saved(make_run, tmp_path):
    summarise.main([make_run("a", 3, [1.23456, 2]), "--save", str(tmp_path / "new" / "a.json")])
    saved = json.loads((tmp_path / "new" / "a.json").read_text())
    assert saved == {"a": {"3": {"frames": [100, 200], "eval/return_mean": [1.2346, 2]}}}


def test_what_is_no_run_is_refused(tmp_path, make_run):
    with pytest.raises(SystemExit, match="is no run folder"):
        summarise.main([str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no evaluation in metrics\.jsonl"):
        summarise.main([make_run("a", 0, [])])
