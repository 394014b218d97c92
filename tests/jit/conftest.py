"""Programs of these tests run with the oracles of the ops, so that what is tested is the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engine.python_compiler import PythonCompiler

from treadle.engine.targets import compiled


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonCompiler]:
    """The compiler all programs of a test are built with."""
    found = PythonCompiler()
    monkeypatch.setattr(compiled, "find_compiler", lambda options, kind: found)
    yield found
