"""Rows that were found apart and are joined: their number gets a name.

What three masks select, joined, has `a + b + c` rows, so that all that follows depends on three
extents, and has a program for every combination of theirs. How many rows there are together is one
extent. It is found as others are, so what follows is a phase of its own.
"""

from __future__ import annotations

from typing import Any

from treadle.base import dtype as dt
from treadle.base.errors import GraphError, TreadleError
from treadle.base.symbol import (
    Applied,
    Dim,
    Expr,
    Relation,
    applied,
    extent_of,
    symbol,
    symbols_of,
)
from treadle.base.types import TensorType
from treadle.graph.analysis import found_by
from treadle.graph.evaluate import substitute_attributes
from treadle.graph.ir import Graph, Node, Value, regions_of, symbols_in, with_types
from treadle.ops.creation import Full
from treadle.ops.gather import Nonzero
from treadle.ops.movement import Concat

_MOST_PIECES = 4


def with_joins(graph: Graph) -> tuple[Graph, frozenset[str]]:
    """A graph with a symbol for each sum of found extents that pieces were joined to.

    Returns:
        The graph, and the names of these symbols. The results of some nodes have them where types
        would say the sum.
    """
    if any(regions_of(node.op) for node in graph.nodes):
        return graph, frozenset()
    found = {s.name for node in graph.nodes for s in found_by(node)}
    graph, named, passed = _in_pieces(graph, found), set[str](), set[Expr]()
    while (extent := _next(graph, found, passed)) is not None:
        name = _unused(graph, len(named))
        try:
            graph = _Naming(extent, name).graph(graph)
            found.add(name)
            named.add(name)
        except TreadleError:
            pass  # Types ask how it and its parts belong together.
        passed.add(extent)
    return graph, frozenset(named)


def _in_pieces(graph: Graph, found: set[str]) -> Graph:
    """The graph with no more than a few found extents in one sum."""
    nodes: list[Node] = []
    renamed = {v: v for v in graph.inputs}
    for node in graph.nodes:
        given = tuple([renamed[v] for v in node.inputs])
        is_long = isinstance(node.op, Concat) and len(given) > _MOST_PIECES
        if is_long and len(symbols_of(_along(node)) & found) > 1:
            while len(given) > _MOST_PIECES:
                cut = range(0, len(given), _MOST_PIECES)
                each = [given[at : at + _MOST_PIECES] for at in cut]
                made = [Node(node.op, pieces, node.loc) for pieces in each if len(pieces) > 1]
                nodes += made
                given = (*(m.output for m in made), *(p[0] for p in each if len(p) == 1))
        if given == node.inputs:
            last = node
        else:
            last = Node(node.op, given, node.loc, node.names, node.group)
            with_types(last, tuple([v.type for v in node.outputs]))
        nodes.append(last)
        renamed.update(zip(node.outputs, last.outputs, strict=True))
    outputs = tuple([renamed[v] for v in graph.outputs])
    return Graph(graph.name, graph.inputs, tuple(nodes), outputs, graph.guards)


def _along(node: Node) -> Dim:
    """The extent of the axis along which pieces are joined."""
    return node.output.type.shape[node.op.axis]  # type: ignore[attr-defined]


def _next(graph: Graph, found: set[str], passed: set[Expr]) -> Expr | None:
    """The first sum of several found extents that has no name yet."""
    for node in graph.nodes:
        extent = _along(node) if isinstance(node.op, Concat) else 0
        if (
            isinstance(extent, Expr)
            and extent not in passed
            and len(symbols_of(extent) & found) > 1
        ):
            return extent
    return None


def _unused(graph: Graph, number: int) -> str:
    used = {s.name for v in graph.inputs for s in symbols_in(v.type)}
    name = f"joined_{number}"
    return name if name not in used else f"{name}_"


class _Naming:
    """Puts a symbol in the place of an extent."""

    def __init__(self, extent: Expr, name: str) -> None:
        self._extent, self._named = extent, symbol(name, 0)
        self._parts = symbols_of(extent)

    def graph(self, graph: Graph) -> Graph:
        """The graph, with a node that finds the extent.

        Raises:
            TreadleError: types ask how the symbol and those of the extent belong together.
        """
        nodes: list[Node] = []
        renamed = {v: v for v in graph.inputs}
        is_found = False
        for node in graph.nodes:
            before = tuple([v.type for v in node.outputs])
            op, types = substitute_attributes(node.op, self), tuple(map(self, before))
            given = tuple([renamed[v] for v in node.inputs])
            made = node
            if op is not node.op or given != node.inputs or types != before:
                if not is_found and (op is not node.op or types != before):
                    nodes += self._finding()
                    is_found = True
                made = with_types(Node(op, given, node.loc, node.names, node.group), types)
                self._retype(made, types)
            nodes.append(made)
            renamed.update(zip(node.outputs, made.outputs, strict=True))
        guards = tuple([Relation(g.kind, self(g.expr)) for g in graph.guards])
        outputs = tuple([renamed[v] for v in graph.outputs])
        return Graph(graph.name, graph.inputs, tuple(nodes), outputs, guards)

    def _finding(self) -> list[Node]:
        """All of so many elements are not zero."""
        every = Node(Full((self._extent,), 1, dt.bool_), ())
        found = Node(Nonzero(), (every.output,))
        of = found.output.type
        return [every, with_types(found, (of.with_shape((self._named, *of.shape[1:])),))]

    def _retype(self, made: Node, types: tuple[TensorType, ...]) -> None:
        """Give results the symbol where the op's rule says the sum."""
        inferred = tuple([v.type for v in made.outputs])
        if inferred == types:
            return
        if tuple(map(self, inferred)) != types:
            raise GraphError(made.op.name, "has other results where an extent has a name")
        outputs = [
            Value(t, made, v.index, v.name) for t, v in zip(types, made.outputs, strict=True)
        ]
        object.__setattr__(made, "outputs", tuple(outputs))

    def __call__(self, value: Any) -> Any:
        """A type, an extent or an attribute with the symbol."""
        if isinstance(value, TensorType):
            return value if value.is_static else value.with_shape(self(value.shape))
        if isinstance(value, tuple):
            made = tuple([self(v) for v in value])
            return value if all(a is b for a, b in zip(made, value, strict=True)) else made
        return self._named_in(value) if isinstance(value, Expr) else value

    def _named_in(self, x: Dim) -> Dim:
        if isinstance(x, int) or not symbols_of(x) & self._parts:
            return x
        x = self._rebuilt(x)
        first, times = self._extent.terms[0]
        count = dict(x.terms).get(first, 0) if isinstance(x, Expr) else 0
        made = x + count // times * (self._named - self._extent)
        is_all = not count % times and not symbols_of(made) & self._parts
        return made if is_all else x

    def _rebuilt(self, x: Expr) -> Dim:
        """The same with the symbol within functions."""
        total: Dim = 0
        for monomial, count in x.terms:
            part: Dim = count
            for atom in monomial:
                part *= self._atom(atom) if isinstance(atom, Applied) else extent_of(atom)
            total += part
        return total

    def _atom(self, atom: Applied) -> Dim:
        return applied(atom.function, self._named_in(atom.x), self._named_in(atom.y))


__all__ = ["with_joins"]
