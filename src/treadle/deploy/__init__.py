"""Models on their way to where they run: libraries, WebAssembly, files that hold native code.

Who only loads a file imports no compiler: names come when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.deploy.library import Library, compiler_command, write_library
    from treadle.deploy.offline import compile_offline
    from treadle.deploy.wasm import WebModule, write_wasm
    from treadle.engine.package.offline import OfflineModel, load_offline

__all__ = [
    "Library",
    "OfflineModel",
    "WebModule",
    "compile_offline",
    "compiler_command",
    "load_offline",
    "write_library",
    "write_wasm",
]
_HOMES = {
    "Library": "treadle.deploy.library",
    "OfflineModel": "treadle.engine.package.offline",
    "WebModule": "treadle.deploy.wasm",
    "compile_offline": "treadle.deploy.offline",
    "compiler_command": "treadle.deploy.library",
    "load_offline": "treadle.engine.package.offline",
    "write_library": "treadle.deploy.library",
    "write_wasm": "treadle.deploy.wasm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
