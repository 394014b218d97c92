"""All tests of this folder need OpenVINO, an optional package; each module skips itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.backends.openvino import backend
from treadle.backends.segments import Rates


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One way to compute, few threads."""
    monkeypatch.setenv("TREADLE_OPENVINO_PRECISION", "f32")
    monkeypatch.setenv("TREADLE_NUM_THREADS", "2")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine seems so quick that it gets small programs, too."""
    monkeypatch.setattr(backend, "rates", Rates(1e15, 1e15, 0.0, 0.0))
