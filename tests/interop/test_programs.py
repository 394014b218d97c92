"""Programs as MegEngine's users write them, run unchanged under its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
LONG = ("gan", "qat", "text")
"""What these train is trained shorter by others."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, marks=pytest.mark.long) if p.stem in LONG else p for p in PROGRAMS],
    ids=lambda path: path.stem,
)
def test_programs_run(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treadle.interop.megengine", str(program)]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TREADLE_CHECK": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(program.stem)
