"""Modules for the web: what is refused before anything is compiled. `tests/cross` runs them."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.networks import image, network, traced

import treadle.functional as F
from treadle.base.errors import CompileError
from treadle.deploy import compile_offline, write_library, write_wasm


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_where_there_is_no_compiler_it_says_from_where(no_compiler: None, tmp_path: Path) -> None:
    model = traced(network(), image(1, 3, 8, 8))
    with pytest.raises(CompileError, match=r"treadle\[aot\]"):
        write_wasm(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def refusing(**settings: Any) -> Any:
    return lambda model, folder: write_wasm(model, folder, **settings)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (refusing(name="../net"), "is not a file name"),
        (lambda model, folder: write_library(model, folder, target="wasm"), "use write_wasm"),
        (lambda model, folder: compile_offline(model, target="wasm"), "use write_wasm"),
    ],
)
def test_what_makes_no_sense_is_refused(write: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=told):
        write(traced(network(), image(1, 3, 8, 8)), tmp_path)


def test_what_needs_python_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "cc")
    with pytest.raises(CompileError, match="need Python: svd"):
        write_wasm(traced(lambda x: F.svd(x)[1], image(4, 4)), tmp_path)
