"""`torch.distributed` over Treadle's groups, in processes of torchrun and of mpiexec."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.base.env import MPIEXEC

CHECKS = Path(__file__).with_name("process_checks.py")
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text(), re.MULTILINE)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def run(command: list[str]) -> list[str]:
    """What the first of some processes printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TREADLE_COMM_TIMEOUT": "120"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return re.findall(r"^(?:passed )?(check_\w+|over)$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("count", [2, 3])
def test_torchrun(count: int) -> None:
    assert run([*TORCHRUN, f"--nproc-per-node={count}", str(CHECKS), ""]) == [*NAMES, "over"]


def test_mpiexec() -> None:
    pytest.importorskip("mpi4py", reason="needs MPI")
    mpiexec = MPIEXEC.get() or shutil.which("mpiexec", path=Path(sys.executable).parent)
    mpiexec = mpiexec or shutil.which("mpiexec")
    if not mpiexec:
        pytest.skip("needs mpiexec")
    options = ["--oversubscribe"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    found = run([mpiexec, *options, "-n", "2", sys.executable, str(CHECKS), "mpi://"])
    assert found == [*NAMES, "over"]
