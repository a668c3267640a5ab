import re
import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark_aggregators.py"
SMALL = Namespace(batch=16, outputs=3, widths=[])


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def moved(script, make):
    """The parameters after three steps of plain gradient descent."""
    work = script["Work"](4, SMALL)
    work.optimizer = torch.optim.SGD(work.parameters, 0.1)
    update = make(work)
    for _ in range(3):
        update()
    return torch.nn.utils.parameters_to_vector(work.parameters).detach()


def test_the_plain_step_and_the_weighted_sum_do_the_same_work(script):
    found = moved(script, lambda work: script["aggregated"](work, script["WeightedSum"]()))
    torch.testing.assert_close(found, moved(script, script["plain"]))


def test_upgrad_at_the_parameters_does_what_torchjd_does(script):
    def ours(work):
        return script["aggregated"](work, script["UPGrad"](level="params", shared=work.trunk.parameters()))

    theirs = moved(script, lambda work: script["torchjd"](work, script["TorchJDUPGrad"]()))
    torch.testing.assert_close(moved(script, ours), theirs, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(theirs, moved(script, script["plain"]), rtol=1e-4, atol=1e-5)


def test_it_prints_its_settings_and_a_row_for_each_step(script, monkeypatch, capsys):
    small = ["--heads", "2", "3", "--widths", "8", "--batch", "4", "--blocks", "1", "--updates", "1"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *small])
    monkeypatch.setattr(torch, "set_flush_denormal", lambda on: None)  # it would outlive the test
    runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr().out
    assert "hidden layers of a head [8]" in said and "batch 4" in said
    rows = re.findall(r"│ (\S.*?)\s+│\s+\d+\.\d+\s+│\s+\d+\.\d+\s+│\s+\d+\.\d+\s+│\s+\d+\.\d+", said)
    assert rows == list(script["candidates"](2, SMALL))
    assert {"plain, looped", "upgrad@features", "upgrad@params", "torchjd UPGrad"} <= set(rows)
    assert len(re.findall(r"heads: conflict signs of the two levels agree in \d+% of pairs", said)) == 2
