"""`treadle info`: versions, the machine, devices, the cache."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np

from treadle.backends import registry
from treadle.backends.program import MeasuringCompiler
from treadle.base.env import cache_directory
from treadle.base.version import VERSION
from treadle.engine.homes import find_compiler
from treadle.engine.options import Options
from treadle.engine.table import lines, size


def command() -> None:
    """Show versions, the processor, devices, and what is kept on disk."""
    rows = [("treadle", VERSION), ("Python", platform.python_version())]
    rows += [("NumPy", np.__version__), ("system", platform.platform())]
    compiler = find_compiler(Options())
    if isinstance(compiler, MeasuringCompiler):
        rows += list(compiler.about().items())
    files = [p.stat().st_size for p in _files(cache_directory())]
    rows.append(("cache", f"{cache_directory()}: {len(files)} files, {size(sum(files))}"))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {text}" for name, text in rows))
    header = ("name", "state", "devices", "kinds", "detail")
    backends = [tuple(row[key] for key in header) for row in registry.table()]
    print("\n".join(("backends", *lines(header, backends))))


def _files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
