"""Programs in processes of their own, with caches of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = """
import numpy as np
import treadle as mge
import treadle.functional as F
mge.set_default_device("cpux")

def step(x):
    for i in range(6):
        x = F.tanh(F.matmul(x, x)) + F.softmax(x, -1) * (i + 1)
    return x.sum()

X = mge.tensor(np.linspace(-1, 1, 64, dtype="float32").reshape(8, 8))
WANT = step(X).item()
"""
CHECK = """
got = mge.jit.compile(step)(X).item()
assert abs(got - WANT) < 1e-4 * abs(WANT), (got, WANT)
print("fine")
"""


def start(code: str, cache: Path, **variables: str) -> subprocess.Popen[str]:
    """A process that runs the prelude and some code."""
    environment = dict(os.environ, TREADLE_CACHE_DIR=str(cache), TREADLE_CHECK="", **variables)
    environment["PYTHONPATH"] = str(ROOT / "src")
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """What a process printed, once it has ended well.

    Raises:
        AssertionError: it failed, or took a minute.
    """
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"does not end\n{out}\n{err}") from None
    assert process.returncode == 0, f"code {process.returncode}\n{out}\n{err}"
    return out


def run(code: str, cache: Path, **variables: str) -> str:
    """What the code prints."""
    return finished(start(code, cache, **variables))
