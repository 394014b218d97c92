"""`tools.called`: which symbols of MegEngine's inventory tests call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import treadle as mge
import treadle.module as M
from tools import called
from tools import megengine_coverage as coverage

TESTS = """
import treadle as mge
import treadle.functional as F

def test_passes():
    F.vision.rot90(mge.tensor([[1, 2], [3, 4]]))

def test_fails():
    F.roll(mge.tensor([1, 2]), 1, 0)
    assert False

def test_calls_nothing():
    getattr(F, "cumsum")
"""


def test_calls_are_counted_by_how_the_test_ended(tmp_path: Path) -> None:
    (tmp_path / "test_calls.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.called", "-p", "no:cacheprovider"]
    command += ["--called", str(tmp_path / "found"), "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path / "test_calls.py")], capture_output=True)
    assert done.returncode == 1, done.stdout
    [file] = (tmp_path / "found").iterdir()
    found = json.loads(file.read_text())
    assert found["functional.vision.rot90"] == {"passed": 1}
    assert found["functional.roll"] == {"failed": 1}
    assert "functional.cumsum" not in found


def test_columns_are_replaced_and_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "calls.json"
    monkeypatch.setattr(called, "CALLS", table)
    table.write_text('{"a": {"own": 7, "megengine": 1}, "b": {"own": 1}}')
    folder = tmp_path / "found"
    folder.mkdir()
    (folder / "1.json").write_text('{"a": {"passed": 2}, "c": {"failed": 3}}')
    (folder / "2.json").write_text('{"a": {"passed": 3, "failed": 1}}')
    called.merge("own", folder)
    assert json.loads(table.read_text()) == {"a": {"megengine": 1, "own": 5}}


def test_code_of_classes_is_that_of_their_methods() -> None:
    assert M.Linear.forward.__code__ in list(called.codes(M.Linear))
    assert M.Module.parameters.__code__ not in list(called.codes(M.Linear))
    assert [c.co_name for c in called.codes(mge.Tensor.shape)] == ["shape"]
    assert not list(called.codes(3))


def test_the_measurement_names_symbols_of_the_inventory() -> None:
    rows = {a for area in coverage.inventory()[0] for row in area.rows for a, _ in row.symbols}
    assert set(coverage.calls()) <= rows
    assert len(coverage.calls()) > 600
