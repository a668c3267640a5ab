import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from io import StringIO
from itertools import combinations
from pathlib import Path

import diagnose
import numpy as np
import pytest
from _drawing import averaged, look, percent, save, spread
from _figures import draw_losses, draw_shares
from _heat_map import draw_conflicts
from _rows import Rows
from _runs import Run
from hydra import compose, initialize_config_dir
from rich.console import Console

from mhrl.config import register
from mhrl.launch import run as launch

ROOT = Path(__file__).parents[2]


def measured(frames, share=0.6, cosine=-0.5, level="trunk", **more):
    """A log row: gradients of norm 3 and 4 at a right angle, so that they sum to one of norm 5."""
    return {
        "frames": frames,
        "updates": frames,
        "loss/arm": -1.0,
        "loss/gripper": 2.0,
        "loss_weight/arm": 1.0,
        "loss_weight/gripper": 0.5,
        f"{level}/grad_norm/arm": 3.0,
        f"{level}/grad_norm/gripper": 4.0,
        f"{level}/grad_share/arm": share,
        f"{level}/grad_share/gripper": 1 - share,
        f"{level}/grad_dot/arm": 9.0,
        f"{level}/grad_dot/gripper": 16.0,
        f"{level}/combined_norm": 5.0,
        f"{level}/conflict_fraction": float(cosine < 0),
        f"{level}/grad_cos/arm__gripper": cosine,
        **more,
    }


def reported(path):
    console = Console(width=250, file=StringIO())
    diagnose.report(Run(path), console)
    return console.file.getvalue()


def lines_of(out, *starts):
    return [line.split() for line in out.splitlines() if line.split()[:1] in [[start] for start in starts]]


def test_each_loss_with_its_last_value_and_the_mean_of_the_last_tenth(write_run):
    rows = [measured(frames) for frames in range(1, 21)]
    rows[-2] |= {"loss/arm": -10.0, "trunk/grad_share/arm": 0.2, "trunk/grad_share/gripper": 0.8}
    rows[-1] |= {"loss/arm": -20.0, "loss_weight/arm": 0.25, "trunk/grad_weight/gripper": 0.125}
    out = reported(write_run("a", rows))
    assert "at the features" in out
    loss, last, mean, weight, gradient, share, cosine = range(7)
    arm, gripper = lines_of(out.split("Each head")[0], "arm", "gripper")
    assert arm[last] == "-20" and arm[mean] == "-15" and arm[weight] == "0.25"
    assert arm[gradient] == "3" and arm[share] == "40%" and arm[cosine] == "0.6"  # 9 / (3 * 5)
    assert gripper[loss:] == ["gripper", "2", "2", "0.5", "4", "60%", "0.125", "0.8"]  # 16 / (4 * 5)


def test_each_head_and_module_with_what_it_logs(write_run):
    heads = {
        "head/arm/saturation": 0.25,
        "head/arm/action_gradient": 0.125,
        "head/gripper/bin_usage": 0.5,
        "head/gripper/pred_value": -12.5,
        "head/gripper/target_gap": 0.75,
        "module/trunk/update_ratio": 0.001,
        "module/head_arm/update_ratio": 0.002,
    }
    out = reported(write_run("a", [measured(1, **heads)])).split("Each head")[1]
    arm, gripper, trunk = lines_of(out, "arm", "gripper", "trunk")[:3]
    assert arm == ["arm", "deterministic", "sat.", "0.25", "0.125", "0.002"]
    assert gripper == ["gripper", "branch", "bins", "0.5", "-12.5", "0.75"]
    assert trunk == ["trunk", "0.001"]


def test_losses_that_share_the_row_actor_show_it_once(write_run):
    row = {key.replace("gripper", "actor"): value for key, value in measured(1).items() if "grad_" in key}
    row = {key: value for key, value in row.items() if "/arm" not in key}
    losses = {"loss/arm": 1.0, "loss/leg": 1.0, "head/arm/action_gradient": 1.0, "head/leg/action_gradient": 1.0}
    heads = {"heads": {name: {"kind": "deterministic"} for name in ("arm", "leg")}, "losses": {"arm": {}, "leg": {}}}
    path = write_run("a", [row | losses | {"frames": 1, "updates": 1, "trunk/combined_norm": 5.0}], heads)
    arm, leg = lines_of(reported(path).split("Each head")[0], "arm", "leg")
    assert arm == ["arm", "1", "1", "actor", "4", "40%", "0.8"] and leg == ["leg", "1", "1", "actor"]


def test_which_row_has_most_and_which_pairs_conflict_how_often(write_run):
    rows = [measured(i, share=0.75, cosine=cosine) for i, cosine in enumerate([-0.5, -0.5, 0.5, -0.5], 1)]
    out = reported(write_run("a", rows))
    assert "Aggregator weighted_sum; gradients, shares and conflicts are those at the features." in out
    assert "arm has most, 75%, and gripper least, 25%." in out
    assert "arm and gripper conflict in 75% of the intervals (mean cosine -0.25)." in out
    near = reported(write_run("b", [measured(i, cosine=c) for i, c in enumerate([-0.03, 0.01], 1)]))
    assert "conflict in 50% of the intervals (mean cosine -0.01, nearly orthogonal)." in near
    assert "No pair of rows ever conflicts" in reported(write_run("c", [measured(1, cosine=0.0)]))


def test_a_row_that_is_logged_late_has_its_pairs_wherever_it_stands_in_their_names(write_run):
    late = {"trunk/grad_norm/a": 1.0, "trunk/grad_cos/a__arm": -0.25, "trunk/grad_cos/a__gripper": 0.75}
    rows = Rows(Run(write_run("a", [measured(1), measured(2, **late)])), "features")
    assert rows.names == ["arm", "gripper", "a"]
    assert {pair: values.tolist() for pair, values in rows.cosines.items()} == {
        ("arm", "gripper"): [-0.5, -0.5],
        ("a", "arm"): [-0.25],
        ("a", "gripper"): [0.75],
    }


def test_rows_of_a_level_of_a_rule_before_are_left_out(write_run):
    rows = [measured(1, share=0.3, level="trunk/params"), measured(2, share=0.9)]
    out = reported(write_run("a", rows, aggregator="gradnorm@features"))
    assert "Aggregator gradnorm@features; gradients, shares and conflicts are those at the features." in out
    assert "arm has most, 90%" in out


def test_the_level_is_the_one_where_the_aggregator_works(write_run, monkeypatch):
    rows = [
        measured(i, share=0.9, cosine=0.5) | measured(i, share=0.3, level="trunk/params", **{"trunk/sign_agreement": x})
        for i, x in ((1, 1.0), (2, 0.5))
    ]
    path = write_run("a", rows, aggregator="upgrad@params")
    out = reported(path)
    assert "Aggregator upgrad@params; gradients, shares and conflicts are those at the trunk's parameters." in out
    assert "gripper has most, 70%" in out and "arm and gripper conflict in 100%" in out
    assert "At both levels, features and parameters, 75% of the pairs have the same sign." in out
    levels = ["shares_features", "conflicts_features", "shares_params", "conflicts_params"]
    monkeypatch.setattr(diagnose, "save", lambda figure, file: None)
    assert diagnose.draw(Run(path), path) == ["losses", *levels]


def test_a_head_that_is_dead_in_each_of_the_last_intervals_is_named(write_run):
    def row(frames, saturation):
        return measured(frames, **{"head/arm/saturation": saturation, "head/gripper/bin_usage": 1.0})

    dead = [row(frames, 0.2 if frames == 1 else 1.0) for frames in range(1, 12)]
    assert "dead head arm (saturated)" in reported(write_run("a", dead))
    alive = [*dead, row(12, 0.9)]
    assert "No head is dead, and no row dominates." in reported(write_run("b", alive))


def test_figures_are_png_and_svg_in_the_run_folder_and_the_same_each_time(write_run, tmp_path, capsys):
    path = write_run("a", [measured(1, **{"eval/return_mean": 1.0, "eval/return_std": 2.0}), measured(2)])
    diagnose.main([f"run={path}"])
    names = ["return", "losses", "shares_features", "conflicts_features"]
    assert f"in {path / 'plots'}: {', '.join(names)}" in capsys.readouterr().out
    assert {file.name for file in (path / "plots").iterdir()} == {
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    }
    for file in (path / "plots").iterdir():
        if file.suffix == ".png":
            assert file.read_bytes().startswith(b"\x89PNG")
        else:
            assert ET.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    run = Run(path)
    _, again = save(draw_losses(run, diagnose.describe(run)), tmp_path / "again")
    assert again.read_bytes() == (path / "plots" / "losses.svg").read_bytes()


@pytest.mark.parametrize(
    ("trunk", "row", "said"),
    [
        ("IdentityTrunk", {}, "No gradient was measured at a trunk (IdentityTrunk)"),
        ("MLPTrunk", {"trunk/grad_norm/arm": 1.0, "trunk/grad_share/arm": 1.0}, "One row, arm, trains the trunk"),
    ],
)
def test_without_rows_to_compare_it_says_so_and_draws_none(write_run, trunk, row, said):
    rows = [{"frames": i, "updates": i, "loss/arm": 1.0, **row} for i in (1, 2)]
    path = write_run("a", rows, {"trunk": {"_target_": f"mhrl.trunks.{trunk}"}})
    assert said in reported(path)
    assert diagnose.draw(Run(path), path / "plots") == ["losses"]


def test_a_run_without_an_update_has_nothing_to_draw(write_run, capsys):
    path = write_run("a", [{"frames": 5, "updates": 0}], status="running")
    diagnose.main([f"run={path}"])
    out = capsys.readouterr().out
    assert "5 frames (running)" in out and "No update has been logged yet." in out and "Nothing to draw yet." in out
    assert not (path / "plots").exists()


def test_half_a_line_at_the_end_is_one_that_is_being_written(write_run):
    path = write_run("a", [measured(1)])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 2, "loss/arm": -')
    assert " 1 frames" in reported(path)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("metrics.jsonl", '{"frames": 1}\n{"frames\n{"frames": 3}\n', r"metrics\.jsonl: line 2 is no JSON"),
        ("metrics.jsonl", '{"frames": 1}\n{"updates": 3}\n', r"metrics\.jsonl: line 2 has no frames"),
        ("metrics.jsonl", '{"frames": 7, "loss/arm": "much"}\n', r"metrics\.jsonl: loss/arm is 'much' at 7 frames"),
        ("run.json", '{"status": ', r"run\.json cannot be read"),
        ("run.json", "[]", r"run\.json holds no mapping"),
        ("run.json", '{"status": "finished"}', r"run\.json has no aggregator"),
        ("config.yaml", "name: [", r"config\.yaml cannot be read"),
        ("config.yaml", "name: a\nseed: 0\nenv: {id: b}\n", r"config\.yaml has no losses"),
        ("metrics.jsonl", None, r"metrics\.jsonl cannot be read"),
    ],
)
def test_what_is_broken_or_missing_is_named(write_run, file, content, said):
    path = write_run("a", [measured(1)])
    (path / file).unlink() if content is None else (path / file).write_text(content)
    with pytest.raises(SystemExit, match=said):
        diagnose.main([f"run={path}"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "run= is missing"), (["run="], "run= is missing"), (["run=a", "outt=b"], "unknown option outt")],
)
def test_options_are_checked(arguments, said):
    with pytest.raises(SystemExit, match=said):
        diagnose.main(arguments)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="is no run folder"):
        diagnose.main([f"run={tmp_path}"])


def test_without_matplotlib_the_tables_are_there_and_the_extra_is_named(write_run, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"pip install 'mhrl\[plot\]'"):
        diagnose.main([f"run={write_run('a', [measured(1)])}"])
    assert "arm has most" in capsys.readouterr().out


def test_the_command_line_of_the_script_and_what_its_import_needs(write_run, tmp_path):
    path = write_run("a", [measured(1)])
    script = ROOT / "scripts" / "diagnose.py"
    code = "import sys, diagnose, plot; print(*sys.modules)"
    beside = {"capture_output": True, "text": True, "cwd": script.parent}
    imported = subprocess.run([sys.executable, "-c", code], check=True, **beside)
    assert "diagnose" in imported.stdout.split() and not {"matplotlib", "scipy", "torch"} & {*imported.stdout.split()}
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    command = [sys.executable, str(script), f"run={path}", "out=here"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0 and (tmp_path / "here" / "losses.png").is_file(), done.stderr


def test_a_real_run_logs_what_the_tables_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["env=hybrid", "trunk=mlp", "total_frames=40", "learning_starts=20", "batch_size=8", "log.every=10"]
    words += ["eval.episodes=1", "wandb.mode=disabled", "run_dir=run"]
    register()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        launch(compose("train", overrides=words), words)
    loss, head = reported("run").split("Each head")
    assert "last mean weight row gradient share (g, d)" in " ".join(loss.split())
    assert "head kind used |dQ/da| Q gap update" in " ".join(head.split())
    assert [line[0] for line in lines_of(head, "gear", "lights_0", "lights_1", "throttle", "trunk")] == [
        *("gear", "lights_0", "lights_1", "throttle", "trunk")
    ]


def texts(figure):
    """The boxes of all texts of a figure, once drawn, with what they say."""
    figure.draw_without_rendering()
    found = [text for axes in figure.axes for text in axes.texts if text.get_text()]
    return [(text.get_text(), text.get_window_extent()) for text in found]


@pytest.mark.parametrize("count", [2, 6, 17])
def test_names_beside_lines_and_areas_are_all_there_and_cover_neither_each_other_nor_the_edge(write_big_run, count):
    path = write_big_run(count)
    names = {f"joint_{i}" for i in range(count)}
    for figure in (draw_losses(Run(path), "about"), draw_shares(Rows(Run(path), "features"), "about")):
        boxes = [(said, box) for said, box in texts(figure) if said.startswith("joint")]
        assert {said.split()[0] for said, _ in boxes} == names
        assert not [pair for (pair, a), (_, b) in combinations(boxes, 2) if a.overlaps(b)]
        assert all(figure.bbox.containsx(box.x1) and figure.bbox.containsy(box.y0) for _, box in boxes)


@pytest.mark.parametrize("count", [2, 6, 17])
def test_the_heat_map_names_both_axes_and_is_centred_at_0(write_big_run, count):
    rows = Rows(Run(write_big_run(count)), "features")
    figure = draw_conflicts(rows, "about")
    cells, axes = figure.axes[0].images[0], figure.axes[0]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == rows.names
    means, (low, high) = np.asarray(cells.get_array().filled(np.nan)), cells.get_clim()
    assert low == -high and np.isnan(np.diagonal(means)).all()
    logged = [json.loads(line) for line in (rows.run.path / "metrics.jsonl").read_text().splitlines()]
    mean = sum(row["trunk/grad_cos/joint_0__joint_1"] for row in logged) / len(logged)
    assert means[0, 1] == means[1, 0] == pytest.approx(mean)
    said = [text for text in axes.texts if text.get_position() in [(0, 1), (1, 0)] and text.get_text() != "about"]
    assert [float(text.get_text()) for text in said] == [pytest.approx(mean, abs=0.005)] * 2
    figure.draw_without_rendering()
    inside = [axes.get_window_extent().height / count > text.get_window_extent().height for text in axes.texts]
    assert len(inside) == 1 + count * (count - 1) and all(inside)


def test_24_lines_differ_in_colour_or_dash():
    assert len({look(index) for index in range(24)}) == 24
    for a, b in combinations([look(index) for index in range(18)], 2):
        assert a.dash != b.dash or np.linalg.norm(np.subtract(a.color, b.color)) > 0.15


@pytest.mark.parametrize(
    ("wanted", "gap", "found"),
    [
        ([], 0.1, []),
        ([0.2, 0.7], 0.1, [0.2, 0.7]),
        ([0.5, 0.5], 0.2, [0.4, 0.6]),
        ([0.0, 0.0, 0.9], 0.1, [0.0, 0.1, 0.9]),
        ([1.0, 1.0, 1.0], 0.25, [0.5, 0.75, 1.0]),
        ([0.5, 0.5, 0.56], 0.2, [0.32, 0.52, 0.72]),  # shifted back by 0, 0.2, 0.4: their mean is 0.32
        ([0.1, 0.2, 0.3], 0.9, [0.0, 0.5, 1.0]),
    ],
)
def test_names_are_spread_as_little_as_they_need(wanted, gap, found):
    np.testing.assert_allclose(spread(wanted, gap), found, atol=1e-12)


def test_a_long_series_is_averaged_over_equal_parts():
    frames, values = averaged(np.arange(6.0), np.array([1, 3, np.nan, 5, np.nan, np.nan]), points=3)
    np.testing.assert_array_equal(frames, [0.5, 2.5, 4.5])
    np.testing.assert_array_equal(values, [2, 5, np.nan])


def test_a_share_is_never_rounded_to_all_or_none():
    shares = {0.0: "0%", 1e-9: "<1%", 0.004: "<1%", 0.436: "44%", 0.996: ">99%", 1.0: "100%", float("nan"): ""}
    assert {share: percent(share) for share in shares} == shares
