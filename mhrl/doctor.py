"""What of mhrl works on this machine, and what to type where something is missing: `python -m mhrl.doctor [--json]`.

Whatever imports a library is probed in a process of its own, all of them at once and none longer than `TIMEOUT`: a
crash or a hang is one line of the report. Beyond the standard library this module imports `packaging` alone. It asks
nobody over the network and prompts for nothing.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

State = Literal["ok", "missing", "broken"]

TIMEOUT = 120.0
"""Seconds that a probe may take."""

_DEVELOPMENT = ("test", "dev")  # extras that no run needs
_GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        part: what was looked at.
        state: `ok`, `missing` or `broken`.
        said: versions, figures, or the error.
        remedy: what to type or to do; empty if nothing is to be done.
        required: whether training needs the part.
    """

    part: str
    state: State
    said: str
    remedy: str = ""
    required: bool = False


@dataclass(frozen=True)
class Probe:
    """A part that only using it can judge.

    Args:
        part: what is looked at.
        code: Python that prints `ok`, `missing` or `broken`, and what it found. A `ModuleNotFoundError` means missing,
            any other end of the process broken.
        missing: the remedy if it is missing; `{torch_line}` stands for the pip line of torch and what must match it.
        broken: the remedy if it is broken.
        required: whether training needs the part.
    """

    part: str
    code: str
    missing: str
    broken: str
    required: bool = False


PROBES = (
    Probe(
        "training",
        "import mhrl.launch, mhrl.loading; print('ok imports without an error')",
        missing="the parts above that are missing",
        broken="the parts above that are broken; else {torch_line}",
        required=True,
    ),
    Probe(
        "prioritised replay",
        """
from torchrl.data.replay_buffers.samplers.prioritized import SumSegmentTreeFp64
print("missing compiled part of torchrl" if SumSegmentTreeFp64 is None else "ok compiled part loads")
""",
        missing="{torch_line}",
        broken="{torch_line}",
    ),
    Probe(
        "engine=compiled",
        """
import os, shutil, subprocess, sysconfig
compiler = shutil.which(os.environ.get("CXX", "g++"))
if compiler is None:
    print("missing no C++ compiler")
else:
    command = [compiler, "-fopenmp", "-I", sysconfig.get_path("include"), "-x", "c++", "-c", "-", "-o", os.devnull]
    done = subprocess.run(command, input="#include <omp.h>\\n#include <Python.h>\\n", capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line] or ["exit code"]
    print("ok " + compiler if done.returncode == 0 else f"broken {compiler}: {errors[0]}")
""",
        missing="apt-get install g++",
        broken="apt-get install g++ python3-dev",
    ),
    Probe(
        "off-screen rendering",
        """
import os, sys
if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 16, 16) as renderer:
    renderer.update_scene(data)
    print("ok mujoco renders with MUJOCO_GL=" + os.environ.get("MUJOCO_GL", ""), renderer.render().shape)
""",
        missing="pip install 'mhrl[mujoco]'",
        broken="apt-get install libegl1, or apt-get install libosmesa6 and MUJOCO_GL=osmesa",
    ),
    Probe(
        "ffmpeg",
        """
import subprocess
import imageio_ffmpeg
command = [imageio_ffmpeg.get_ffmpeg_exe(), "-version"]
print("ok", subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(" Copyright")[0])
""",
        missing="pip install 'mhrl[video]'",
        broken="pip install --force-reinstall imageio-ffmpeg",
    ),
    Probe(
        "W&B",
        """
from mhrl.loggers.wandb import resolve_mode
mode, why = resolve_mode("auto")
print("missing" if "no API key" in why else "ok", f"runs are {mode}: {why}")
""",
        missing="wandb login, or nothing: runs are kept on disk",
        broken="WANDB_MODE=offline, or another key: wandb login --relogin",
    ),
    Probe(
        "GPU",
        """
import shutil
import torch
if torch.cuda.is_available():
    gpu = torch.cuda.get_device_properties(0)
    torch.ones(2, device="cuda").sum().item()
    print(f"ok {torch.cuda.device_count()} x {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}")
elif shutil.which("nvidia-smi"):
    print(f"broken there is a driver, but torch {torch.__version__} cannot use it")
else:
    print("ok none, runs use the CPU")
""",
        missing="{torch_line}",
        broken="a newer driver, or a torch for this one's CUDA version",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report.

    Returns:
        0 if training works, 1 if a part that it needs is missing or broken.
    """
    parser = argparse.ArgumentParser("python -m mhrl.doctor", description="What of mhrl works on this machine.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args(arguments).json
    if not as_json:
        print("this takes some seconds", file=sys.stderr)
    findings = examine()
    works = all(finding.state == "ok" for finding in findings if finding.required)
    if as_json:
        print(json.dumps({"works": works, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        show(findings, works)
    return 0 if works else 1


def examine() -> list[Finding]:
    """Every finding, in the order of the report."""
    try:
        metadata.version("mhrl")
    except metadata.PackageNotFoundError:
        return [Finding("mhrl", "missing", "is not installed", "pip install -e . (in a checkout)", required=True)]
    with ThreadPoolExecutor(len(PROBES)) as pool:
        probed = pool.map(apply, PROBES)
        return [*versions(), *probed, *extras(), *machine()]


def versions() -> list[Finding]:
    """Python, and what `pyproject.toml` requires."""
    version, wanted = platform.python_version(), metadata.metadata("mhrl")["Requires-Python"]
    fits = SpecifierSet(wanted).contains(version, prereleases=True)
    state: State = "ok" if fits else "broken"
    python = Finding("Python", state, f"{version} ({wanted})", "" if fits else f"Python {wanted}", required=True)
    return [python, *(installed(requirement, required=True) for requirement in requirements("mhrl"))]


def extras() -> list[Finding]:
    """The optional parts of mhrl: installed, or the line that installs them."""
    findings = []
    for extra in sorted({*metadata.metadata("mhrl").get_all("Provides-Extra", [])} - {*_DEVELOPMENT}):
        needs = [installed(requirement) for requirement in requirements("mhrl", extra)]
        lacking = [need for need in needs if need.state != "ok"]
        said = ", ".join(f"{need.part} {need.said}" for need in lacking or needs)
        remedy = f"pip install 'mhrl[{extra}]'" if lacking else ""
        findings.append(Finding(f"extra {extra}", lacking[0].state if lacking else "ok", said, remedy))
    return findings


def machine() -> list[Finding]:
    """Cores, memory, and whether a run can be written here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    free = shutil.disk_usage(".").free / _GIB
    writable = os.access(".", os.W_OK)
    return [
        Finding("cores", "ok", f"{cores} for this process, OMP_NUM_THREADS {threads}"),
        Finding("memory", "ok", _free_memory()),
        Finding(
            "current folder",
            "ok" if writable else "broken",
            f"{free:.1f} GiB free" if writable else f"{Path.cwd()} cannot be written to",
            "" if writable else "another folder, or run_dir= and wandb.dir=",
            required=True,
        ),
    ]


def requirements(package: str, extra: str = "") -> Iterator[Requirement]:
    """What a package asks for by itself, or by one of its extras; extras that it asks for are opened up."""
    for requirement in map(Requirement, metadata.requires(package) or ()):
        if _applies(requirement, extra) and not (extra and _applies(requirement, "")):
            yield requirement
            if installed(requirement).state != "missing":
                for inner in sorted(requirement.extras):
                    yield from requirements(requirement.name, inner)


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def installed(requirement: Requirement, required: bool = False) -> Finding:
    """Whether a requirement is met, by the version alone."""
    remedy = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, "missing", f"({requirement.specifier})", remedy, required)
    fits = requirement.specifier.contains(version, prereleases=True)
    said = f"{version} ({requirement.specifier})" if requirement.specifier else version
    return Finding(requirement.name, "ok" if fits else "broken", said, "" if fits else remedy, required)


def apply(probe: Probe) -> Finding:
    """Run a probe."""
    state, said = ask(probe.code)
    remedy = {"ok": "", "missing": probe.missing, "broken": probe.broken}[state]
    return Finding(probe.part, state, said, remedy.format(torch_line=_torch_line()), probe.required)


def ask(code: str) -> tuple[State, str]:
    """Run `code` in a fresh interpreter: its last line is `<state> <what it found>`, or the error that ended it."""
    command = [sys.executable, "-P", "-c", code]  # -P: a file in this folder is no library
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "broken", f"no answer within {TIMEOUT:.0f} s"
    last = [line for line in (done.stderr if done.returncode else done.stdout).splitlines() if line.strip()][-1:]
    said = last[0] if last else f"ended with exit code {done.returncode}"
    if done.returncode:
        return "missing" if said.startswith("ModuleNotFoundError") else "broken", said
    for state in ("ok", "missing"):
        if said.startswith(f"{state} "):
            return state, said.removeprefix(f"{state} ")
    return "broken", said.removeprefix("broken ")


def show(findings: Sequence[Finding], works: bool) -> None:
    """Print the report for people; without colours where rich is one of the parts that are missing."""
    width = max(len(finding.part) for finding in findings)
    lines = [(finding.state, f"  {finding.part:<{width}}  {finding.said}", finding.remedy) for finding in findings]
    end = "training works: mhrl-train +experiment=ddpg" if works else "training does not work yet; see above"
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        for state, text, remedy in lines:
            print(f"{state:<7}{text}", *([f"{'':11}{remedy}"] if remedy else []), sep="\n")
        print(f"\n{end}")
        return
    console = Console(highlight=False, soft_wrap=True)
    styles = {"ok": "green", "missing": "yellow", "broken": "bold red"}
    for state, text, remedy in lines:
        console.print(Text.assemble((f"{state:<7}", styles[state]), text))
        if remedy:
            console.print(Text(f"{'':11}{remedy}", style="bold"))
    console.print(Text(f"\n{end}", style=styles["ok" if works else "broken"]))


def _torch_line() -> str:
    """The pip line of torch and of what is built for one line of it."""
    pins = [f"'{r.name}{r.specifier}'" for r in requirements("mhrl") if r.name in ("torch", "tensordict", "torchrl")]
    return " ".join(["pip install --force-reinstall", *pins])


def _free_memory() -> str:
    """Memory that a new program may take, where the system says so."""
    path = Path("/proc/meminfo")
    if not path.is_file():
        return "unknown"
    fields = dict(line.split(":") for line in path.read_text().splitlines())
    return f"{float(fields['MemAvailable'].split()[0]) * 1024 / _GIB:.1f} GiB free"  # there in kB


if __name__ == "__main__":
    sys.exit(main())
