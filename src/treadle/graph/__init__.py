"""Graphs: pure, typed, immutable programs, their text form, and the passes that rewrite them.

Importing this package registers the passes, so that `passes.parse_passes` knows their names.
"""

from treadle.graph import cleanup, simplify
from treadle.graph.ir import Graph, Node, Value

__all__ = ["Graph", "Node", "Value", "cleanup", "simplify"]
