import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_two_processes_agree_and_equal_one_with_the_whole_batch():
    """See `_two_processes.py`; the weights of `upgrad` at both levels, and of `mgda`."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(
        [*run, str(HERE / "_two_processes.py")], capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "the two agree" in result.stdout
