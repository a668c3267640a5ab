import re
import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark_heads.py"


@pytest.mark.parametrize("widths", [[], [4]])
def test_both_do_the_same_work(widths):
    script = runpy.run_path(str(SCRIPT))
    options = Namespace(batch=5, outputs=3, widths=widths)
    loop, together = (script["make_update"](script[losses], 4, options) for losses in ("looped", "stacked"))
    for _ in range(3):
        right = loop()
        assert right.shape == (4,)
        torch.testing.assert_close(together(), right)


def test_it_prints_its_settings_and_a_row_for_each_number_of_heads(monkeypatch, capsys):
    small = ["--heads", "2", "3", "--widths", "8", "--batch", "4", "--blocks", "1", "--updates", "1"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *small])
    monkeypatch.setattr(torch, "set_flush_denormal", lambda on: None)  # it would outlive the test
    runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr().out
    assert "hidden layers of a head [8]" in said and "batch 4" in said
    rows = re.findall(r"(\d+)\s+│\s+\d+\.\d+\s+│\s+\d+\.\d+\s+│\s+\d+\.\d+", said)
    assert rows == ["2", "3"]
