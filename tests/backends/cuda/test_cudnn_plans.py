"""The real cuDNN has plans for what lowering asks it for; no GPU is needed, nothing is run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.backends.cuda.cudnn_plans import ATTENTIONS, CONVOLUTIONS, MISSING

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.nvrtc,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        importlib.util.find_spec("cudnn") is None or shutil.which("cc") is None,
        reason="needs nvidia-cudnn-frontend, nvidia-cudnn-cu13 and a C compiler",
    ),
]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What became of every call; found by another process, which has a stand-in for the driver."""
    command = [sys.executable, "-m", "tests.backends.cuda.cudnn_plans"]
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    if done.returncode == MISSING:
        pytest.skip("the frontend finds no libcudnn")
    assert not done.returncode, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_call_has_a_plan_that_is_built(report: dict[str, Any]) -> None:
    assert not report["refused"]
    names = {name.partition(":")[0] for name, *_ in report["plans"]}
    assert names == {*CONVOLUTIONS, *ATTENTIONS}
    assert len(report["plans"]) == 2 * (4 * 3 * len(CONVOLUTIONS) + 2 * 3 * len(ATTENTIONS))


def test_tensor_cores_are_left_out_for_float32(report: dict[str, Any]) -> None:
    pairs = [plans for name, _, _, plans in report["plans"] if name.endswith("float32")]
    assert all(len(p) == 2 for p in pairs) and any(strict != fast for strict, fast in pairs)


def test_arrays_are_passed_as_addresses(report: dict[str, Any]) -> None:
    all_of_them, one_too_few = report["bound"]
    assert "handle is NULL" in all_of_them  # so nothing else is wrong with them
    assert "missing a buffer" in one_too_few
