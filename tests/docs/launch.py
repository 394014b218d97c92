"""Starts interpreters that run pages, with this Treadle and none of the user's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import treadle

RUNNER = Path(__file__).with_name("run_page.py")
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("MGE_", "TREADLE_"))},
    "PYTHONPATH": os.pathsep.join([str(Path(treadle.__file__).parents[1]), str(RUNNER.parent)]),
}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments; warnings are errors."""
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


def run_page(page: Path, *words: str) -> None:
    """Run a page; fails with what it printed."""
    done = python(str(RUNNER), str(page), *words)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
