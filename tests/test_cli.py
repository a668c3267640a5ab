"""The two commands, in this process: what answers before a run begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mhrl import cli

ROOT = Path(__file__).parents[1]


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """What `mhrl-train <arguments>` prints, in an empty folder."""

    def type_(*arguments, command=cli.train, **variables):
        monkeypatch.setattr(sys, "argv", ["mhrl-train", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.chdir(tmp_path)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            command()
        except SystemExit as end:
            assert end.code in (0, None), end.code
        return capsys.readouterr().out

    return type_


def complete(typed, line):
    """The choices that the Tab key shows behind `line`."""
    return typed("-sc", "query=bash", COMP_LINE=line).split()


def test_a_checkout_uses_its_own_configs():
    assert cli.CONFIGS == ROOT / "configs"


def test_help_begins_with_commands_to_type_and_lists_every_choice(typed):
    said = typed("--help")
    assert "mhrl-train +experiment=ddpg  " in said.split("== Groups ==")[0]
    assert 'eval "$(mhrl-train -sc install=bash)"' in said
    for group in (path for path in (ROOT / "configs").iterdir() if path.is_dir() and path.name != "hydra"):
        assert f"{group.name}: {', '.join(sorted(choice.stem for choice in group.glob('*.yaml')))}" in said
    assert "\ntotal_frames: 10000\n" in said
    assert "Hydra" not in said


def test_the_examples_of_the_help_compose(typed):
    examples = [
        line.split("  ")[1].split() for line in typed("--help").splitlines() if line.startswith("  mhrl-train +")
    ]
    assert len(examples) >= 3
    for _, *arguments in examples:
        assert "name: ddpg\n" in typed(*arguments, *([] if "--cfg" in arguments else ["--cfg", "job"]))


def test_keys_of_the_command_line_win_and_resume_passes_through(typed):
    said = typed("+experiment=ddpg", "seed=7", "resume=outputs/last", "--cfg", "job")
    assert "\nseed: 7\n" in said and "\nresume: outputs/last\n" in said


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("mhrl-train +experiment=ddpg_m", ["+experiment=ddpg_multi_head"]),
        ("mhrl-train +experiment=ddpg tru", ["trunk.", "trunk="]),
        ("mhrl-train trunk=", ["trunk=cnn", "trunk=identity", "trunk=mlp"]),
        ("mhrl-train head=", ["head=critic", "head=deterministic"]),
        ("mhrl-train +experiment=ddpg heads.actor.kind=", ["heads.actor.kind=deterministic"]),
        ("mhrl-train checkpoint.ev", ["checkpoint.every="]),
    ],
)
def test_completion_gives_the_choices(typed, line, choices):
    assert {*choices} <= {*complete(typed, line)}
    assert all(choice.startswith(line.split()[-1]) for choice in complete(typed, line))


def test_the_help_lists_the_users_own_choices(typed, tmp_path):
    (tmp_path / "my_configs" / "env").mkdir(parents=True)
    (tmp_path / "my_configs" / "env" / "reach.yaml").write_text("_target_: my_envs.Reach\n")
    assert "reach" in typed("--config-dir", "my_configs", "--help").split("env: ")[1].splitlines()[0]


def test_completion_is_installed_for_the_command_that_asks(typed):
    assert typed("-sc", "install=bash").rstrip().endswith("-F hydra_bash_completion mhrl-train")


def test_the_launch_folder_is_on_the_path_behind_the_libraries(typed, tmp_path):
    before = [*sys.path]
    typed("--cfg", "job")
    assert sys.path == [*before, str(tmp_path)]


@pytest.mark.parametrize(("given", "right"), [(None, "1"), ("4", "4")])
def test_numpy_gets_one_thread_unless_the_user_says_otherwise(monkeypatch, typed, given, right):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    typed("--cfg", "job", **({"OPENBLAS_NUM_THREADS": given} if given else {}))
    assert os.environ["OPENBLAS_NUM_THREADS"] == right


def test_importing_the_commands_imports_nothing_heavy():
    code = "import sys, mhrl.cli; print([m for m in ('torch', 'numpy', 'wandb', 'gymnasium') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_evaluate_says_how_it_is_used(typed, flag):
    said = typed(flag, command=cli.evaluate)
    assert said.startswith("Play greedy episodes") and "mhrl-evaluate run=" in said and "episodes=" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "run= is missing"),
        (["run=x", "episode=3"], "unknown option episode"),
        (["run=x", "episodes=0"], "episodes=0"),
        (["run=x", "seed=-1"], "seed=-1"),
    ],
)
def test_evaluate_refuses_by_name(monkeypatch, arguments, said):
    monkeypatch.setattr(sys, "argv", ["mhrl-evaluate", *arguments])
    with pytest.raises(SystemExit, match=said):
        cli.evaluate()


@pytest.mark.parametrize(("script", "said"), [("train.py", "Train an agent"), ("scripts/evaluate.py", "Play greedy")])
def test_the_scripts_of_a_checkout_are_the_commands(tmp_path, script, said):
    command = [sys.executable, str(ROOT / script), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert result.stdout.startswith(said)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("total_frame=3", "unknown key total_frame: did you mean total_frames?"),
        ("optimiser.lr=1", "unknown key optimiser: did you mean optimizer?"),
        ("head.actor.lr=1", "unknown key head: did you mean heads?"),
    ],
)
def test_e01_a_misspelt_root_key_is_refused_before_hydra_advises_to_add_it(monkeypatch, word, message):
    monkeypatch.setattr(sys, "argv", ["mhrl-train", "+experiment=ddpg", word])
    with pytest.raises(SystemExit) as end:
        cli.train()
    assert end.value.code == message


def test_ctrl_c_before_a_run_begins_says_nothing(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["mhrl-train"])
    monkeypatch.setattr(cli, "_task", interrupt)
    with pytest.raises(SystemExit) as end:
        cli.train()
    assert end.value.code == 130
