"""A model's graph with symbols for the extents of its inputs, and the graph at numbers for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import get_annotations
from typing import Any

from treadle.base.errors import ShapeError
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, is_identical
from treadle.graph.analysis import nodes_in
from treadle.graph.evaluate import bound_extents, broken_guard, specialize
from treadle.graph.ir import Graph, Node, Value, lone_symbol, result_types
from treadle.ops.op import Op
from treadle.ops.slicing import Box


class OpenGraph:
    """The graph of a model for other extents than those it was written for.

    Args:
        closed: the graph that it is at the extents of the file. Whoever changes a model's graph has
            another one, which this says nothing about.
        made: gives the graph with a symbol for each extent that may change, when that is first
            needed; its guards say which may not be what.
    """

    def __init__(self, closed: Graph, made: Callable[[], Graph]) -> None:
        self.closed = closed
        self._made = made

    @classmethod
    def fixed(cls, closed: Graph) -> OpenGraph:
        """Return the one of a graph that is for its own extents only."""
        return cls(closed, lambda: closed)

    @property
    def is_fixed(self) -> bool:
        """True if there are no other extents."""
        return self.graph is self.closed

    @cached_property
    def graph(self) -> Graph:
        """The graph with symbols.

        Raises:
            GraphError: a file has a text for it that is none.
        """
        return self._made()

    def of(self, closed: Graph, change: Callable[[Graph], Graph]) -> OpenGraph:
        """Return the one of a graph that was changed, whose graph with symbols is changed, too."""
        return OpenGraph(closed, lambda: closed if self.is_fixed else change(self.graph))

    def at(self, shapes: Sequence[Shape]) -> Graph:
        """The graph for inputs of these shapes.

        Raises:
            ShapeError: there is none: a guard fails, or a number is another one.
        """
        return fixed_graph(self.graph, shapes)

    def extents(self, shapes: Sequence[Shape]) -> dict[str, int] | None:
        """Extents by symbol, for inputs of these shapes; None where the graph with symbols is not
        for them, which `at` may be: an extent of 1 may broadcast.
        """
        if self.is_fixed:
            return None
        found = bound_extents(zip([v.type.shape for v in self.graph.inputs], shapes, strict=True))
        if found is None or _is_below(self.graph, found):
            return None
        numbers = {name: int(extent) for name, extent in found.items()}
        return numbers if broken_guard(self.graph.guards, numbers) is None else None


def fixed_graph(graph: Graph, shapes: Sequence[Shape]) -> Graph:
    """A graph with symbols, for inputs of these shapes.

    Raises:
        ShapeError: a guard fails, or a number is another one.
    """
    own = [v.type.shape for v in graph.inputs]
    extents = bound_extents(zip(own, shapes, strict=True))
    if extents is None:
        why = "an extent is a number in what was traced, and another one"
        raise _refused(graph, shapes, why)
    guard = broken_guard(graph.guards, extents)
    if guard is not None:
        raise _refused(graph, shapes, f"its course needs {guard}")
    found = specialize(graph, extents)
    why = fault_of_ones(found, graph) if _is_below(graph, extents) else ""
    if why:
        raise _refused(graph, shapes, why)
    return found


def _is_below(graph: Graph, extents: Mapping[str, Any]) -> bool:
    symbols = [lone_symbol(d) for v in graph.inputs for d in v.type.shape]
    return any(s is not None and extents[s.name] < s.low for s in symbols)


def _refused(graph: Graph, shapes: Sequence[Shape], why: str) -> ShapeError:
    types = ", ".join(str(v.type) for v in graph.inputs)
    saw = f"{', '.join(str(list(s)) for s in shapes)} for {types}"
    return ShapeError("model", f"it takes no inputs of these shapes: {why}", saw=saw)


def fault_of_ones(graph: Graph, opened: Graph) -> str:
    """Return why a graph is not to be trusted at an extent of 1; "" where nothing is against it.

    Symbols begin at 2. What a program decides by that is in the guards. An extent of 1 may
    broadcast: then types would be others. And of files that were written before all such decisions
    were guards, the bounds of a slice may be those of an axis of at least 2: `x[-1:1]`, which is
    all of one row, is nothing of two and more.

    Args:
        graph: the graph at numbers.
        opened: the one with symbols, node by node the same.

    Raises:
        ShapeError: a slice does not lie within its axis.
    """
    for node, before in zip(nodes_in(graph), nodes_in(opened), strict=True):
        for value, type_ in zip(node.outputs, result_types(node.op, node.inputs), strict=True):
            if value.type.is_static and type_ != value.type:
                return f"{node.op.name} broadcasts an extent of 1"
        if isinstance(node.op, Box) and isinstance(before.op, Box):
            types = tuple(v.type for v in node.inputs)
            box = node.op.box_shape(types[0], types)
            from_front = map(_is_from_the_front, before.op.starts, before.op.steps)
            pairs = zip(box, types[0].shape, from_front, strict=True)
            if any(is_identical(d, 0) and not is_identical(n, 0) and not f for d, n, f in pairs):
                return f"{node.op.name} has another range for an extent of 1"
    return ""


def _is_from_the_front(start: Dim, step: int) -> bool:
    """Return whether a slice begins at a number: `x[1:]` of one row is nothing, and right."""
    return isinstance(start, int) and step > 0


def at_shapes(graph: Graph, opened: OpenGraph | None, shapes: Sequence[Shape]) -> Graph:
    """A model's graph for inputs of these shapes: itself, what is open, or the same ops again.

    Raises:
        TreadleError: it does not take them.
    """
    pairs = zip([v.type.shape for v in graph.inputs], shapes, strict=True)
    if all(len(x) == len(y) and all(map(is_identical, x, y)) for x, y in pairs):
        return graph
    if opened is not None and opened.closed is graph:
        return opened.at(shapes)
    known: dict[Value, Value] = {}
    for value, shape in zip(graph.inputs, shapes, strict=True):
        known[value] = Value(value.type.with_shape(tuple(shape)), None, value.index, value.name)
    nodes = []
    for node in graph.nodes:
        operands = tuple(known[v] for v in node.inputs)
        if not operands or any(known[v].type != v.type for v in node.inputs):
            refuse_extents(node.op)
        nodes.append(Node(node.op, operands, node.loc, node.names, node.group))
        known.update(zip(node.outputs, nodes[-1].outputs, strict=True))
    inputs, outputs = (tuple(known[v] for v in ends) for ends in (graph.inputs, graph.outputs))
    return Graph(graph.name, inputs, tuple(nodes), outputs, graph.guards)


def refuse_extents(op: Op) -> None:
    """Raise ShapeError if attributes of an op are extents, for a graph of other extents that does
    not say what they were computed from.
    """
    kinds = {n: k for c in reversed(type(op).__mro__) for n, k in get_annotations(c).items()}
    named = [
        n for n in op._fields if re.search(r"\b(Dim|Shape)\b", str(kinds[n])) and getattr(op, n)
    ]
    if named:
        raise ShapeError(
            op.name,
            f"{' and '.join(named)} may follow from an extent that is another one now",
            saw=", ".join(f"{name}={getattr(op, name)}" for name in named),
            hint="write the model again with dump, whose files say what other sizes are",
        )


__all__ = ["OpenGraph", "at_shapes", "fault_of_ones", "fixed_graph", "refuse_extents"]
