"""Plug-ins installed for one test: real distributions on the path, found by entry point."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.backends.toy_backend import Toy

import treadle as mge
from treadle.backends import registry
from treadle.base.log import get_logger
from treadle.base.process import RUNTIME
from treadle.engine.devices import names as devices
from treadle.engine.eager import fallback

OFFERED: dict[str, Any] = {}
"""Objects that plug-in modules hand over as their `backend`, by plug-in."""


class Plugins:
    """Installs plug-ins into a folder that is on the path for the time of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.modules: list[str] = []

    def write(self, name: str, source: str, distribution: str = "", attribute: str = "") -> None:
        """A distribution whose entry point `name` is `backend` in a module with this source."""
        distribution = distribution or f"treadle-{name}"
        module = f"plugin_{distribution.replace('-', '_')}"
        self.modules.append(module)
        (self._folder / f"{module}.py").write_text(source)
        info = self._folder / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        )
        target = f"{module}:{attribute or 'backend'}"
        (info / "entry_points.txt").write_text(f"[treadle.backends]\n{name} = {target}\n")
        registry.rescan()

    def offer(self, name: str, backend: Any) -> Any:
        """A plug-in whose backend is this very object."""
        OFFERED[name] = backend
        source = f"from tests.backends.plugins import OFFERED\nbackend = OFFERED[{name!r}]\n"
        self.write(name, source)
        return backend

    def toy(self, name: str = "toy", **options: Any) -> Toy:
        """A toy backend, installed."""
        made: Toy = self.offer(name, Toy(name, **options))
        return made

    def row(self, name: str) -> dict[str, str]:
        """A plug-in's row of `treadle.backends()`."""
        (found,) = [row for row in mge.backends() if row["name"] == name]
        return found


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[Plugins]:
    """Install plug-ins; afterwards nothing of them is left."""
    folder = tmp_path / "site"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    default = mge.get_default_device()
    made = Plugins(folder)
    fresh_report()
    yield made
    sys.path.remove(str(folder))
    for module in made.modules:
        sys.modules.pop(module, None)
    OFFERED.clear()
    registry.rescan()
    devices.set_default_name(default)
    fresh_report()


def fresh_report() -> None:
    """No op has fallen back yet, and none was warned about."""
    fallback.fallback_report(clear=True)
    RUNTIME.invalidate("messages")


@contextmanager
def logged() -> Iterator[list[str]]:
    """Messages that the package's logger writes inside the block."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines()
    logger = get_logger()
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
