"""`scripts/dashboard.py`: the view that a real run's heads get, its parts by hand, and what happens without a login.

After a change that is meant, with `run` trained as `python train.py <SMALL>`:
`python scripts/dashboard.py --dry-run run=run > tests/scripts/data/hybrid.json`.
"""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir

from mhrl.config import register
from mhrl.launch import run

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "dashboard.py"
SNAPSHOT = Path(__file__).parent / "data" / "hybrid.json"
SMALL = (
    *("env=hybrid", "trunk=mlp", "aggregator=upgrad", "aggregator.level=params", "name=hybrid", "wandb.mode=offline"),
    *("total_frames=60", "learning_starts=20", "batch_size=8", "log.every=20", "eval.episodes=1", "run_dir=run"),
)

spec = importlib.util.spec_from_file_location("dashboard", SCRIPT)
dashboard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dashboard)


@pytest.fixture(autouse=True)
def _nobody_logged_in(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_run(tmp_path):
    """A run folder of some heads, losses and metrics."""

    def make(heads, metrics, losses=None, updates=5, **config):
        losses = heads if losses is None else losses
        config = {"name": "mine", "eval": {"video": False}, "wandb": {"entity": None, "project": "arms"}} | config
        config |= {"heads": {name: {} for name in heads}, "losses": {name: {} for name in losses}}
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        rows = [{"frames": 10, "updates": 0}, {"frames": 20, "updates": updates, **dict.fromkeys(metrics, 0.5)}]
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return "run=run"

    return make


def printed(capsys, *words):
    dashboard.main(["--dry-run", *words])
    return json.loads(capsys.readouterr().out)


def sections(view):
    """`{section: {title: metrics}}` of a view."""
    found = {}
    for section in view["spec"]["section"]["panelBankConfig"]["sections"]:
        configs = [panel["config"] for panel in section["panels"]]
        found[section["name"]] = {c["chartTitle"]: c.get("metrics") or c["mediaKeys"] for c in configs}
        assert len(found[section["name"]]) == len(configs)  # titles are unique
    return found


def test_the_view_of_a_real_run_is_the_snapshot(capsys):
    register()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        run(compose("train", overrides=[*SMALL]), SMALL)
    capsys.readouterr()
    view = printed(capsys, "run=run")
    assert view == json.loads(SNAPSHOT.read_text())

    logged = {key for line in Path("run/metrics.jsonl").read_text().splitlines() for key in json.loads(line)}
    drawn = {metric for panels in sections(view).values() for metrics in panels.values() for metric in metrics}
    assert drawn <= logged
    # all that is logged has its place, but the axis, its twin, and a spread
    assert logged - drawn == {"frames", "updates", "eval/return_std"}


def test_each_panel_has_the_axis_frames_and_an_id_of_its_own_that_stays(make_run, capsys):
    given = make_run(["a", "b"], ["loss/a", "loss/b", "grad/norm"])
    first, second = printed(capsys, given), printed(capsys, given)
    assert first == second
    panels = [panel for s in first["spec"]["section"]["panelBankConfig"]["sections"] for panel in s["panels"]]
    assert {panel["config"]["xAxis"] for panel in panels} == {"frames"}
    assert len({panel["__id__"] for panel in panels}) == len(panels)
    assert first["spec"]["section"]["settings"]["xAxis"] == "frames"


def test_a_head_that_proposes_has_the_row_that_it_shares_and_a_branch_its_own(make_run, capsys):
    metrics = [
        *("loss/arm", "loss/gear", "loss_weight/arm", "loss_weight/gear", "head/arm/action_gradient"),
        *("head/arm/saturation", "head/gear/bin_usage", "head/gear/pred_value", "head/gear/pred_value_max"),
        *("head/gear/target_value", "head/gear/target_gap", "module/head_arm/update_ratio"),
        *("module/head_gear/update_ratio", "module/twin_gear/update_ratio", "module/trunk/update_ratio"),
        *("trunk/grad_norm/actor", "trunk/grad_norm/gear", "trunk/grad_share/actor", "trunk/grad_share/gear"),
    ]
    found = sections(printed(capsys, make_run(["arm", "gear"], metrics)))
    assert found["Head arm"] == {
        "loss": ["loss/arm"],
        "weight of the loss": ["loss_weight/arm"],
        "gradient norm of the row actor": ["trunk/grad_norm/actor"],
        "gradient share of the row actor": ["trunk/grad_share/actor"],
        "saturation": ["head/arm/saturation"],
        "gradient of the value by the action": ["head/arm/action_gradient"],
        "update ratio": ["module/head_arm/update_ratio"],
    }
    assert found["Head gear"] == {
        "loss": ["loss/gear"],
        "weight of the loss": ["loss_weight/gear"],
        "gradient norm": ["trunk/grad_norm/gear"],
        "gradient share": ["trunk/grad_share/gear"],
        "value": ["head/gear/pred_value", "head/gear/pred_value_max", "head/gear/target_value"],
        "distance to the target": ["head/gear/target_gap"],
        "bin usage": ["head/gear/bin_usage"],
        "update ratio": ["module/head_gear/update_ratio", "module/twin_gear/update_ratio"],
    }
    ratios = ["module/head_arm/update_ratio", "module/head_gear/update_ratio", "module/twin_gear/update_ratio"]
    assert found["Health"]["update ratios of the modules"] == [*ratios, "module/trunk/update_ratio"]


def test_conflict_has_every_pair_of_each_row_at_both_levels(make_run, capsys):
    rows, pairs = ("a", "b", "c"), ("a__b", "a__c", "b__c")
    metrics = [f"{level}/grad_norm/{row}" for level in ("trunk", "trunk/params") for row in rows]
    metrics += [f"{level}/grad_cos/{pair}" for level in ("trunk", "trunk/params") for pair in pairs]
    metrics += [f"trunk/grad_dot/{row}" for row in rows] + [f"trunk/params/grad_weight/{row}" for row in rows]
    metrics += ["trunk/conflict_fraction", "trunk/combined_norm", "trunk/sign_agreement"]
    conflict = sections(printed(capsys, make_run(rows, metrics)))["Conflict"]
    assert conflict["cosines of a"] == ["trunk/grad_cos/a__b", "trunk/grad_cos/a__c"]
    assert conflict["cosines of b"] == ["trunk/grad_cos/a__b", "trunk/grad_cos/b__c"]
    assert conflict["cosines of c, at the parameters"] == [f"trunk/params/grad_cos/{pair}" for pair in pairs[1:]]
    assert conflict["gradient norms"] == [f"trunk/grad_norm/{row}" for row in rows]
    assert conflict["gradient norms, at the parameters"] == [f"trunk/params/grad_norm/{row}" for row in rows]
    assert conflict["weights of the rows, at the parameters"] == [f"trunk/params/grad_weight/{row}" for row in rows]
    assert conflict["inner products with the combined gradient"] == [f"trunk/grad_dot/{row}" for row in rows]
    assert conflict["fraction of pairs in conflict"] == ["trunk/conflict_fraction"]
    assert conflict["norm of the combined gradient"] == ["trunk/combined_norm"]
    assert conflict["agreement of the levels on the cosines' signs"] == ["trunk/sign_agreement"]
    assert len(conflict) == 13


def test_two_rows_have_one_panel_of_their_one_cosine(make_run, capsys):
    metrics = ["trunk/grad_norm/a", "trunk/grad_norm/b", "trunk/grad_cos/a__b"]
    conflict = sections(printed(capsys, make_run(["a", "b"], metrics)))["Conflict"]
    assert [title for title in conflict if title.startswith("cosines")] == ["cosines of a"]


def test_a_run_without_a_shared_trunk_has_no_conflict_and_a_joint_loss_a_section_of_its_own(make_run, capsys):
    metrics = ["loss/value", "head/value/pred_value", "head/x/bin_usage"]
    found = sections(printed(capsys, make_run(["x", "y"], metrics, ["value"])))
    assert list(found) == ["Overview", "Head x", "Loss value", "Health"]
    assert found["Loss value"] == {"loss": ["loss/value"], "value": ["head/value/pred_value"]}


def test_seventeen_heads_have_a_section_and_a_panel_of_sixteen_cosines_each(make_run, capsys):
    heads = [f"joint_{i}" for i in range(17)]
    metrics = [f"loss/{head}" for head in heads] + [f"trunk/grad_norm/{head}" for head in heads]
    metrics += [f"trunk/grad_cos/{a}__{b}" for i, a in enumerate(heads) for b in heads[i + 1 :]]
    found = sections(printed(capsys, make_run(heads, metrics)))
    assert [section for section in found if section.startswith("Head ")] == [f"Head {head}" for head in heads]
    assert [len(found["Conflict"][f"cosines of {head}"]) for head in heads] == [16] * 17


def test_the_overview_averages_over_seeds_by_group_and_shows_films(make_run, capsys):
    given = make_run(["a"], ["loss/a"], eval={"video": True}, name="gear=3 ± x")
    view = printed(capsys, given, "entity=me", "project=legs")
    assert (view["entity"], view["project"], view["displayName"]) == ("me", "legs", "Heads of gear-3 - x")
    first = view["spec"]["section"]["panelBankConfig"]["sections"][0]
    seeds, grouped, *_, film = [panel["config"] for panel in first["panels"]]
    assert seeds["metrics"] == grouped["metrics"] == ["eval/return_mean"]
    assert "groupBy" not in seeds
    assert (grouped["groupBy"], grouped["groupAgg"], grouped["groupArea"]) == ("group", "mean", "minmax")
    assert film["mediaKeys"] == ["eval/video"]
    assert (first["name"], first["isOpen"]) == ("Overview", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run=nowhere"], "nowhere is no run folder"),
        ([], "outputs/last is no run folder"),
        (["run=run"], "metrics.jsonl: no update is logged yet"),
    ],
)
def test_a_run_that_cannot_be_drawn_is_refused(make_run, words, message):
    make_run(["a"], [], updates=0)
    with pytest.raises(SystemExit, match=message):
        dashboard.main(["--dry-run", *words])


def test_an_option_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        dashboard.main(["--dry-run", "runs=x"])
    assert error.value.code == 2 and "unknown option runs" in capsys.readouterr().err


def test_without_a_key_it_says_so_and_asks_nobody(make_run, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a prompt"))
    monkeypatch.setattr(dashboard.ws.Workspace, "save", lambda view: pytest.fail("W&B was called"))
    with pytest.raises(SystemExit, match=r"no API key found; `wandb login` adds one, --dry-run needs none"):
        dashboard.main([make_run(["a"], ["loss/a"])])


def test_with_a_key_the_view_is_saved_once(make_run, monkeypatch):
    saved = []
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setattr(dashboard.ws.Workspace, "save", lambda view: saved.append(view))
    dashboard.main([make_run(["a"], ["loss/a"]), "entity=me"])
    (view,) = saved
    assert (view.entity, view.project, view.name) == ("me", "arms", "Heads of mine")
    assert [section.name for section in view.sections] == ["Overview", "Head a", "Health"]


def test_the_entity_is_the_accounts_own_if_nobody_names_one(make_run, monkeypatch):
    saved = []
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setattr(dashboard.wandb, "Api", lambda timeout: type("Api", (), {"default_entity": "somebody"}))
    monkeypatch.setattr(dashboard.ws.Workspace, "save", lambda view: saved.append(view))
    dashboard.main([make_run(["a"], ["loss/a"])])
    assert [view.entity for view in saved] == ["somebody"]


def test_what_wb_refuses_is_an_error_of_one_line(make_run, monkeypatch):
    def refuse(view):
        raise ValueError("permission denied\nand a long story")

    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setattr(dashboard.ws.Workspace, "save", refuse)
    with pytest.raises(SystemExit, match=r"^W&B did not take the view: permission denied$"):
        dashboard.main([make_run(["a"], ["loss/a"]), "entity=me"])


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)  # any import of it fails
    with pytest.raises(SystemExit, match=r"pip install 'mhrl\[dashboard\]'"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
