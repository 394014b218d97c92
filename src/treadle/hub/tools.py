"""Small tools of the hub that MegEngine makes public."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from treadle.hub.exceptions import HubError


def load_module(name: str, path: str | os.PathLike[str]) -> ModuleType:
    """Run a Python file and return it as a module, without listing it among the imported ones.

    Args:
        name: what the module is called.
        path: the file.

    Raises:
        HubError: there is no such file, or it is not a Python file.
        Exception: whatever the file raises.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise HubError(f"hub.load_module({name!r})", f"{os.fspath(path)} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_module_exists(module: str) -> bool:
    """Return whether a module could be imported; one with dots has its parents imported."""
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def cd(target: str | os.PathLike[str]) -> Iterator[None]:
    """Work in another directory for the duration of a `with` block.

    Args:
        target: the directory; `~` is expanded.
    """
    before = Path.cwd()
    os.chdir(os.path.expanduser(target))
    try:
        yield
    finally:
        os.chdir(before)
