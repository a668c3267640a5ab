"""The report on an installation: its lines from made-up installations and probes, and one real run."""

import ast
import json
import os
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from mhrl import doctor
from mhrl.doctor import Finding, Probe


class Installation:
    """Stands for `importlib.metadata`: `{package: (version, requirements)}`."""

    PackageNotFoundError = doctor.metadata.PackageNotFoundError

    def __init__(self, packages):
        self.packages = packages

    def version(self, name):
        if name not in self.packages:
            raise self.PackageNotFoundError(name)
        return self.packages[name][0]

    def requires(self, name):
        return self.packages[name][1]


MHRL = [
    "torch<2.15,>=2.14.1",
    "numpy>=2.0",
    'gymnasium[box2d]>=1.4; extra == "box2d"',
    'imageio-ffmpeg>=0.6; extra == "video"',
]
GYMNASIUM = [
    "numpy>=1.22",
    'box2d==2.3.10; python_version >= "3.11" and extra == "box2d"',
    'swig==4.*; python_version < "3.11" and extra == "box2d"',
    'mujoco>=2.1.5; extra == "mujoco"',
]


@pytest.fixture
def install(monkeypatch):
    """Put another installation in the place of this one."""

    def put(packages):
        monkeypatch.setattr(doctor, "metadata", Installation({"mhrl": ("0.1.0", MHRL), **packages}))

    return put


def names(requirements):
    return [requirement.name for requirement in requirements]


def test_an_extra_is_what_it_adds_with_the_extras_that_it_asks_for_opened_up(install):
    install({"gymnasium": ("1.4.0", GYMNASIUM), "imageio-ffmpeg": ("0.6.0", None)})
    assert names(doctor.requirements("mhrl")) == ["torch", "numpy"]
    assert names(doctor.requirements("mhrl", "box2d")) == ["gymnasium", "box2d"]
    assert names(doctor.requirements("mhrl", "video")) == ["imageio-ffmpeg"]


def test_what_is_not_installed_is_not_opened_up(install):
    install({})
    assert names(doctor.requirements("mhrl", "box2d")) == ["gymnasium"]


@pytest.mark.parametrize(
    ("packages", "right"),
    [
        ({"torch": ("2.14.1", None)}, Finding("torch", "ok", "2.14.1 (<2.15,>=2.14.1)", "", True)),
        ({"torch": ("2.14.1+cpu", None)}, Finding("torch", "ok", "2.14.1+cpu (<2.15,>=2.14.1)", "", True)),
        (
            {"torch": ("2.13.0", None)},
            Finding("torch", "broken", "2.13.0 (<2.15,>=2.14.1)", "pip install 'torch<2.15,>=2.14.1'", True),
        ),
        ({}, Finding("torch", "missing", "(<2.15,>=2.14.1)", "pip install 'torch<2.15,>=2.14.1'", True)),
    ],
    ids=["fits", "fits-local", "too-old", "absent"],
)
def test_a_version_is_held_against_what_is_required(install, packages, right):
    install(packages)
    assert doctor.installed(Requirement("torch<2.15,>=2.14.1"), required=True) == right


def test_a_missing_extra_names_what_it_lacks_and_the_line_that_installs_it(install, monkeypatch):
    install({"gymnasium": ("1.4.0", GYMNASIUM), "imageio-ffmpeg": ("0.6.0", None)})

    class About:
        def get_all(self, name, default):
            return ["box2d", "dev", "test", "video"]

    monkeypatch.setattr(doctor.metadata, "metadata", lambda name: About(), raising=False)
    assert doctor.extras() == [
        Finding("extra box2d", "missing", "box2d (==2.3.10)", "pip install 'mhrl[box2d]'"),
        Finding("extra video", "ok", "imageio-ffmpeg 0.6.0 (>=0.6)"),
    ]


def test_without_an_installation_there_is_one_finding_and_no_probe(monkeypatch):
    monkeypatch.setattr(doctor, "metadata", Installation({}))
    monkeypatch.setattr(doctor, "ask", lambda code: pytest.fail("a probe ran"))
    (finding,) = doctor.examine()
    assert (finding.part, finding.state, finding.required) == ("mhrl", "missing", True)


@pytest.mark.parametrize(
    ("code", "right"),
    [
        ("print('noise'); print('ok 3 things')", ("ok", "3 things")),
        ("print('missing no compiler')", ("missing", "no compiler")),
        ("print('broken the driver')", ("broken", "the driver")),
        ("import no_such_module", ("missing", "ModuleNotFoundError: No module named 'no_such_module'")),
        ("print('ok'); raise OSError('libEGL.so')", ("broken", "OSError: libEGL.so")),
        ("import os; os.abort()", ("broken", "ended with exit code -6")),
        ("pass", ("broken", "ended with exit code 0")),
        ("import sys; print('ok', sys.stdin.read() == '')", ("ok", "True")),
    ],
)
def test_a_probe_says_its_state_and_a_crash_is_a_finding(code, right):
    assert doctor.ask(code) == right


def test_a_probe_that_hangs_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, "TIMEOUT", 0.3)
    assert doctor.ask("import time; time.sleep(60)") == ("broken", "no answer within 0 s")


def test_a_file_in_the_current_folder_is_not_taken_for_a_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_torch.py").write_text("")
    assert doctor.ask("import my_torch")[0] == "missing"


@pytest.mark.parametrize(
    ("state", "remedy"),
    [("ok", ""), ("missing", "install it"), ("broken", "pip install --force-reinstall 'torch<2.15'")],
)
def test_each_state_has_its_remedy(monkeypatch, state, remedy):
    monkeypatch.setattr(doctor, "metadata", Installation({"mhrl": ("0.1.0", ["torch<2.15", "numpy>=2"])}))
    probe = Probe("part", f"print('{state} said')", missing="install it", broken="{torch_line}", required=True)
    assert doctor.apply(probe) == Finding("part", state, "said", remedy, True)


@pytest.mark.parametrize("probe", doctor.PROBES, ids=lambda probe: probe.part)
def test_every_probe_is_a_program_with_remedies(probe):
    assert ast.parse(probe.code).body and probe.missing and probe.broken


def code_of(part):
    (probe,) = [probe for probe in doctor.PROBES if probe.part == part]
    return probe.code


def test_a_compiler_that_is_absent_or_fails_is_told_apart(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.ask(code_of("engine=compiled")) == ("missing", "no C++ compiler")
    monkeypatch.setenv("CXX", "false")
    state, said = doctor.ask(code_of("engine=compiled"))
    assert state == "broken" and "false" in said


FINE = Finding("torch", "ok", "2.14.1", "", True)
OPTIONAL = Finding("extra box2d", "missing", "box2d (==2.3.10)", "pip install 'mhrl[box2d]'")
FATAL = Finding("numpy", "broken", "1.26 (>=2.0)", "pip install 'numpy>=2.0'", True)


@pytest.mark.parametrize(
    ("findings", "code"),
    [([FINE], 0), ([FINE, OPTIONAL], 0), ([FINE, OPTIONAL, FATAL], 1)],
    ids=["ok", "extra", "fatal"],
)
def test_the_exit_code_is_about_what_training_needs(monkeypatch, capsys, findings, code):
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert doctor.main([]) == code
    assert ("training works" in capsys.readouterr().out) == (code == 0)
    assert doctor.main(["--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["works"] == (code == 0)
    assert [Finding(**finding) for finding in answer["findings"]] == findings


@pytest.mark.parametrize("with_rich", [True, False])
def test_the_report_can_be_copied_from_at_any_width(monkeypatch, capsys, with_rich):
    monkeypatch.setenv("COLUMNS", "20")
    if not with_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    doctor.show([FINE, OPTIONAL, FATAL], works=False)
    assert capsys.readouterr().out.splitlines() == [
        "ok       torch        2.14.1",
        "missing  extra box2d  box2d (==2.3.10)",
        "           pip install 'mhrl[box2d]'",
        "broken   numpy        1.26 (>=2.0)",
        "           pip install 'numpy>=2.0'",
        "",
        "training does not work yet; see above",
    ]


def test_a_folder_that_cannot_be_written_to_is_fatal(monkeypatch):
    assert [finding.state for finding in doctor.machine()] == ["ok", "ok", "ok"]
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    last = doctor.machine()[-1]
    assert (last.state, last.required) == ("broken", True) and os.getcwd() in last.said


def test_importing_the_doctor_imports_nothing_that_may_be_missing():
    code = (
        "import sys, mhrl.doctor; print([m for m in ('torch', 'rich', 'hydra', 'wandb', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_here_training_works(tmp_path):
    command = [sys.executable, "-m", "mhrl.doctor", "--json"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    found = {finding["part"]: finding for finding in json.loads(result.stdout)["findings"]}
    for part in (
        "Python",
        "torch",
        "torchrl",
        "training",
        "prioritised replay",
        "extra mujoco",
        "extra box2d",
        "memory",
    ):
        assert found[part]["state"] == "ok", found[part]
        assert found[part]["remedy"] == ""
    assert found["W&B"]["state"] == "missing" and "runs are offline" in found["W&B"]["said"]
    assert {finding["state"] for finding in found.values()} <= {"ok", "missing", "broken"}
    assert [*tmp_path.iterdir()] == []
