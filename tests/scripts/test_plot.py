import sys

import numpy as np
import plot
import pytest
from _differences import group
from _runs import Run


@pytest.fixture
def write_curve(write_run):
    """`write_curve("a", [1, 2], {"seed": 1})`: a run whose evaluations at 100, 200, ... frames were these."""

    def write_curve(name, returns, config=None, **info):
        rows = [{"frames": 50, "loss/arm": 1.0}]
        rows += [{"frames": 100 * (i + 1), "eval/return_mean": value} for i, value in enumerate(returns)]
        return write_run(name, rows, config, **info)

    return write_curve


@pytest.fixture
def labels(write_curve):
    """`labels({"seed": 1}, ({}, {"aggregator": "upgrad@features"}))`: `{label: numbers of the runs}`.

    A run is the difference of its config, or that and the difference of its `run.json`.
    """

    def labels(*differences, by=()):
        pairs = [item if isinstance(item, tuple) else (item, {}) for item in differences]
        runs = [Run(write_curve(f"run_{i}", [1.0], config, **info)) for i, (config, info) in enumerate(pairs)]
        return {label: [runs.index(run) for run in found] for label, found in group(runs, by).items()}

    return labels


def printed(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_last_point_of_each_group_and_both_files(write_curve, capsys, tmp_path):
    runs = [write_curve(f"a{seed}", [0, value], {"seed": seed}) for seed, value in enumerate([3.0, 100.0, 1.0, 0.0])]
    runs.append(write_curve("b", [5.0, 6.0, 7.5], {"objective": {"loss_reduction": "summed"}}))
    plot.main([*map(str, runs), "--out", str(tmp_path / "new" / "curves")])
    lines = printed(capsys)
    assert lines[0] == ["group", "seeds", "frames", "IQM", "low", "high"]
    # Of 0, 1, 3, 100 the middle two; of four draws three or more are the least with probability 13/256 = 5.1%.
    assert lines[2] == ["objective.loss_reduction=per_branch", "4", "200", "2", "0", "100"]
    assert lines[3] == ["objective.loss_reduction=summed", "1", "300", "7.5"]
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "new" / "curves.svg").read_text()


def test_a_suffix_of_out_is_not_doubled(write_curve, tmp_path):
    plot.main([str(write_curve("a", [1.0, 2.0])), "--out", str(tmp_path / "v1.2.png")])
    assert {file.name for file in tmp_path.glob("v1*")} == {"v1.2.png", "v1.2.svg"}


def test_the_interquartile_mean_and_its_interval():
    values = np.array([[0.0, 5.0], [10.0, 5.0]])  # two seeds, two points
    mean, low, high = plot.interquartile(values)
    # Of two draws both are the same seed with probability 1/4 each.
    np.testing.assert_array_equal([mean, low, high], [[5, 5], [0, 5], [10, 5]])
    five = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]])
    assert plot.interquartile(five)[0] == 2.0  # a quarter of five, rounded down, is left out at each end
    assert plot.interquartile(five[2:])[0] == 35.0  # of three nothing
    mean, low, high = plot.interquartile(five[:1])
    assert mean == 0 and np.isnan([low, high]).all()
    for first, second in zip(plot.interquartile(five), plot.interquartile(five), strict=True):
        np.testing.assert_array_equal(first, second)


def test_only_points_that_all_seeds_have_are_used(write_curve, capsys, tmp_path):
    runs = [write_curve("a", [1.0, 2.0, 3.0, 9.0]), write_curve("b", [1.0, None, 5.0], {"seed": 1})]
    plot.main([*map(str, runs), "--out", str(tmp_path / "curves")])
    out = capsys.readouterr().out
    assert "toy: 2 of 4 points are left out, which not every seed has" in out
    found, _ = plot.curve("toy", [Run(run) for run in runs], plot.METRIC)
    np.testing.assert_array_equal([found.frames, found.mean], [[100, 300], [1, 4]])


def test_another_metric(write_curve):
    found, note = plot.curve("toy", [Run(write_curve("a", [1.0]))], "loss/arm")
    assert found.frames == [50] and found.mean == [1.0] and note == ""


def test_two_runs_of_one_seed_in_a_group_are_an_error_that_names_both(write_curve):
    runs = [str(write_curve("a", [1.0])), str(write_curve("b", [1.0]))]
    with pytest.raises(SystemExit, match=r"/a and .*/b are both 'toy' with seed 0: .*--by"):
        plot.main(runs)


@pytest.mark.parametrize(
    ("returns", "said"),
    [([[1.0], []], "metrics.jsonl has no eval/return_mean"), ([[1.0, None], [None, 1.0]], "no point of .* in common")],
)
def test_what_cannot_be_drawn_is_refused(write_curve, returns, said):
    runs = [str(write_curve(f"run_{seed}", values, {"seed": seed})) for seed, values in enumerate(returns)]
    with pytest.raises(SystemExit, match=said):
        plot.main(runs)


def test_without_an_extra_the_error_names_it(write_curve, monkeypatch, tmp_path):
    run = str(write_curve("a", [1.0]))
    for package, module in (("matplotlib", "matplotlib.figure"), ("scipy", "scipy.stats")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(SystemExit, match=rf"need {package}: pip install 'mhrl\[plot\]'"):
                plot.main([run, "--out", str(tmp_path / "curves")])


def test_seed_folder_and_wandb_make_no_difference(labels):
    same = [{"seed": 0, "run_dir": "a", "wandb": {"mode": "online"}, "log": {"every": 5}}, {"seed": 1, "run_dir": "b"}]
    assert labels(*same) == {"toy": [0, 1]}


def test_what_differs_is_the_label(labels):
    upgrad = {"aggregator": "upgrad@features", "choices": {"aggregator": "upgrad"}}
    config = {"aggregator": {"_target_": "mhrl.aggregators.UPGrad", "level": "features"}}
    summed = {"objective": {"loss_reduction": "summed", "bins": 5}}
    assert labels({}, summed, (config, upgrad), (config | summed | {"seed": 3}, upgrad)) == {
        "aggregator=weighted_sum objective.bins=null objective.loss_reduction=per_branch": [0],
        "aggregator=weighted_sum objective.bins=5 objective.loss_reduction=summed": [1],
        "aggregator=upgrad@features objective.bins=null objective.loss_reduction=per_branch": [2],
        "aggregator=upgrad@features objective.bins=5 objective.loss_reduction=summed": [3],
    }


def test_an_option_of_a_rule_stands_beside_its_label(labels):
    runs = [({"aggregator": {"c": c}}, {"aggregator": "cagrad@features"}) for c in (0.2, 0.4)]
    assert labels(*runs, {}) == {
        "aggregator=cagrad@features aggregator.c=0.2": [0],
        "aggregator=cagrad@features aggregator.c=0.4": [1],
        "aggregator=weighted_sum": [2],
    }


def test_a_choice_explains_what_its_file_says_and_the_heads_that_follow(labels):
    branches = {f"action_{i}": {"kind": "branch", "bins": 11} for i in range(6)}
    losses = {name: {"weight": 1.0, "trunk_grad": 1.0} for name in branches}
    bdq = {"objective": {"loss_reduction": "summed", "bins": 11}, "heads": branches, "losses": losses}
    chosen = {"choices": {"objective": "bdq"}}
    assert labels({}, (bdq, chosen)) == {"objective=ddpg": [0], "objective=bdq": [1]}


def test_bins_of_all_heads_follow_from_those_of_the_objective(labels):
    def bdq(bins):
        return {"objective": {"bins": bins}, "heads": {f"action_{i}": {"bins": bins} for i in range(6)}}

    assert labels(bdq(5), bdq(11)) == {"objective.bins=5": [0], "objective.bins=11": [1]}


def test_an_experiment_explains_all_but_the_aggregator(labels):
    other = {"name": "other", "env": {"id": "Other-v1"}, "trunk": {"widths": [64, 64]}}
    upgrad = {"aggregator": "upgrad@params", "choices": {"aggregator": "upgrad", "objective": "bdq"}}
    assert labels({}, (other, upgrad)) == {
        "name=toy aggregator=weighted_sum": [0],
        "name=other aggregator=upgrad@params": [1],
    }


def test_several_heads_or_losses_make_one_word(labels):
    def heads(**rates):
        return {"heads": {name: {"kind": "branch", "lr": rate} for name, rate in rates.items()}}

    names = [f"action_{i}" for i in range(17)]
    assert labels(heads(**dict.fromkeys(names, 0.001)), heads(**dict.fromkeys(names, 0.01))) == {
        "heads.*.lr=0.001": [0],
        "heads.*.lr=0.01": [1],
    }


def test_one_head_is_named_and_so_are_two_that_differ(labels):
    def losses(arm, gripper):
        return {"losses": {"arm": {"weight": arm}, "gripper": {"weight": gripper}}}

    assert labels(losses(1, 1), losses(1, 2)) == {"losses.gripper.weight=1": [0], "losses.gripper.weight=2": [1]}


def test_two_losses_that_differ_are_both_named(labels):
    def losses(arm, gripper):
        return {"losses": {"arm": {"weight": arm}, "gripper": {"weight": gripper}}}

    assert labels(losses(1, 1), losses(2, 3)) == {
        "losses.arm.weight=1 losses.gripper.weight=1": [0],
        "losses.arm.weight=2 losses.gripper.weight=3": [1],
    }


def test_a_short_label_that_would_hide_a_difference_is_spelt_out(labels):
    runs = [{"losses": {name: {"weight": 1} for name in names}, "heads": {}} for names in (("a", "b"), ("c", "d"))]
    assert labels(*runs) == {
        "losses.a.weight=1 losses.b.weight=1": [0],
        "losses.c.weight=1 losses.d.weight=1": [1],
    }


def test_groups_by_keys_alone(labels):
    runs = [({"seed": i, "batch_size": 2**i, "trunk": {"widths": [8, i % 2]}}, {}) for i in range(4)]
    assert labels(*runs, by=["trunk.widths", "objective"]) == {
        "trunk.widths=[8,0] objective=ddpg": [0, 2],
        "trunk.widths=[8,1] objective=ddpg": [1, 3],
    }


def test_a_key_that_a_run_lacks_is_an_error(labels):
    with pytest.raises(SystemExit, match=r"run_0/config\.yaml has no trunk\.width, "):
        labels({}, by=["trunk.width"])


def test_a_run_json_without_the_choices_is_an_error(write_curve):
    path = write_curve("a", [1.0])
    (path / "run.json").write_text('{"aggregator": "weighted_sum"}')
    with pytest.raises(SystemExit, match=r"run\.json has no choices"):
        plot.main([str(path)])


def test_long_labels_stand_below_the_axes_and_inside_the_figure():
    frames = np.array([0.0, 1.0])
    names = [f"aggregator=upgrad@features objective.loss_reduction=summed objective.bins={i}" for i in range(9)]
    figure = plot.draw({name: plot.Curve(5, frames, frames, frames, frames) for name in names}, "eval/return_mean")
    figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes
    assert [text.get_text() for text in legend.get_texts()] == [f"{name} (5 seeds)" for name in names]
    box = legend.get_window_extent()
    assert not box.overlaps(axes.get_tightbbox()) and axes.get_window_extent().height > 300
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and figure.bbox.y0 <= box.y0
