"""The graph engine: eager dispatch, and six stages from a graph to a program that runs.

Read `pipeline.py` first. `Session` is the engine's own API; `treadle.jit` uses it for functions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.options import Options
    from treadle.engine.session import Session, finalize, initialize
    from treadle.graph.json_text import graph_json

__all__ = ["Options", "Session", "finalize", "graph_json", "initialize"]


def __getattr__(name: str) -> Any:
    """Import the session when it is first named: eager programs need none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'treadle.engine' has no attribute {name!r}", name=name)
    homes = {"Options": "treadle.engine.options", "graph_json": "treadle.graph.json_text"}
    return getattr(importlib.import_module(homes.get(name, "treadle.engine.session")), name)
