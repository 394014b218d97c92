"""The script for machines with a GPU, as far as it goes without one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def test_a_dry_run_lists_every_part() -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--dry-run", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line[:18].strip() for line in done.stdout.splitlines()]
    assert names[:4] == ["machine", "tests", "kit", "kernels"]
    assert {"own T1", "own T5", "torch eager T3", "torch compile T5"} <= set(names)


def test_the_report_has_ratios_and_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    gpu = importlib.import_module("gpu")
    step = {"losses": [2.0, 1.5], "first": 3.0, "median": 4.0, "plain": 6.0, "replayed": 9}
    results = {
        "machine": {"status": 0, "data": {"device": "a GPU"}, "tail": ""},
        "tests": {"status": 1, "data": None, "tail": "1 failed"},
        "kernels": {"status": 0, "data": {"sum": [12.0, "GB/s"]}, "tail": ""},
        "own T1": {"status": 0, "data": step, "tail": ""},
        "torch compile T1": {"status": 0, "data": step | {"median": 2.0, "losses": [2.0, 1.75]}},
        "own T2": {"status": 1, "data": None, "tail": ""},
    }
    text = gpu._report(results)
    assert "device: a GPU" in text and "tests: status 1, 1 failed" in text
    assert "| sum | 12 | GB/s |" in text
    row = next(line for line in text.splitlines() if line.startswith("| T1"))
    assert [cell.strip() for cell in row.split("|")[3:9]] == [
        "4.000",
        "-",
        "2.000",
        "0.50",
        "2.5e-01",
        "6.000",
    ]
    assert "| T2 | LeNet-5 step, batch 64, SGD | failed | - | - | - | - |" in text
    assert "| T3" not in text
