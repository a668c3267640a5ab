import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_imports_run_downwards_only():
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    result = subprocess.run(lint, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_config_imports_no_torch():
    code = "import sys, mhrl.config; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "False"
