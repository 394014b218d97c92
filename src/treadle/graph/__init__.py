"""Graphs: pure, typed, immutable programs, their text form, and the passes that rewrite them.

The passes are imported when first named: a program that comes from the cache takes none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle.graph.ir import Graph, Node, Value

if TYPE_CHECKING:
    from treadle.graph import cleanup, simplify

__all__ = ["Graph", "Node", "Value", "cleanup", "simplify"]


def __getattr__(name: str) -> Any:
    """Import a module of passes when it is first named."""
    if name not in __all__:
        raise AttributeError(f"module 'treadle.graph' has no attribute {name!r}", name=name)
    return importlib.import_module(f"treadle.graph.{name}")
