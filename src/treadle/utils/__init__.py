"""Tools for users: statistics, networks in files, profiles, and what MegEngine keeps here.

Modules are imported when they are first named, `treadle.utils.network` for instance.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import a module of this package when it is first named."""
    path = f"{__name__}.{name}"
    if name.startswith("_") or importlib.util.find_spec(path) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return importlib.import_module(path)
