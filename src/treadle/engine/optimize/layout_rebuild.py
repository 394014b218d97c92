"""Programs with chosen layouts: moves at the borders, ops between them on other axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import GraphError
from treadle.base.loc import UNKNOWN
from treadle.base.shape import Shape
from treadle.engine.optimize.kinds import is_static
from treadle.engine.optimize.layout import (
    ROW_MAJOR,
    Layout,
    Moves,
    Sides,
    across,
    has_layouts,
    is_neutral,
    keeps_place,
)
from treadle.engine.optimize.layout_axes import remapped
from treadle.engine.optimize.layout_costs import conversion
from treadle.engine.optimize.layout_forms import Remapped, form_of
from treadle.engine.optimize.layout_offers import moving_order
from treadle.engine.optimize.layout_problem import Assignment
from treadle.graph.analysis import live_nodes
from treadle.graph.ir import Graph, Node, Value, constant_of, remake
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.creation import Full
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.op import Op, as_tuple
from treadle.ops.orders import placed
from treadle.ops.slicing import Pad


def rebuild(graph: Graph, assignment: Assignment) -> tuple[Graph, list[Value]]:
    """The program in its layouts, and the values that it copies from one to the other.

    Values are what they were: each is either in the program, or a transpose of it is.
    """
    return _Rebuilder(graph, assignment).run()


class _Rebuilder:
    """Makes nodes in program order; copies stand before the first node that needs them."""

    def __init__(self, graph: Graph, assignment: Assignment) -> None:
        self._graph = graph
        self._caring = assignment.caring
        self._others = dict(assignment.others)
        self._nodes: list[Node] = []
        self._home: dict[Value, Layout] = {}
        self._held: dict[tuple[Value, Layout], Value] = {}
        self._padded: dict[tuple[Value, Layout, int], Value] = {}
        self._moved: dict[tuple[Value, Op], Value] = {}
        self._copies: list[Value] = []
        self._loc = UNKNOWN
        self._wanted = _wanted(graph, self._others)

    def run(self) -> tuple[Graph, list[Value]]:
        """The new program, and which values of the old one it has in two layouts."""
        for value in self._graph.inputs:
            self._define(value, value, ROW_MAJOR)
        for node in self._graph.nodes:
            self._loc = node.loc
            layouts, form = self._caring.get(node), self._form(node)
            if layouts is not None:
                self._care(node, layouts)
            elif form is not None:
                self._carry(node, *form)
            else:
                self._keep(node)
        outputs = [self._in(v, ROW_MAJOR) for v in self._graph.outputs]
        made = self._graph.with_nodes(self._nodes, outputs)
        live = live_nodes(made)
        return made.with_nodes((n for n in self._nodes if n in live), outputs), self._copies

    def _form(self, node: Node) -> tuple[Layout, Remapped] | None:
        """Return how an op that does not care works on another layout, None for row-major.

        What is the same memory in all layouts goes along where it comes from another layout and
        goes into one, so that shapes need not change to and fro.
        """
        known = self._others.get(node)
        if known is None and node in self._wanted:
            layout = self._wanted[node]
            if any(self._home[v] is layout for v in node.inputs):
                form = remapped(node, layout)
                known = None if form is None else (layout, form)
        return known

    # -- nodes -----------------------------------------------------------------------------

    def _care(self, node: Node, layouts: Sides) -> None:
        """An op that cares, between views of what it reads and writes."""
        if isinstance(node.op, Transpose):
            self._move(node, node.op, layouts)
            return
        form = form_of(node, layouts)
        if form is None:
            raise GraphError(str(node.op), "has a layout that is not possible")
        inputs = [
            self._through(self._in(value, layout or ROW_MAJOR), moves)
            for value, layout, moves in zip(
                node.inputs, layouts.operands, form.operands, strict=True
            )
        ]
        made = self._add(form.op, tuple(inputs), node)
        each = zip(node.outputs, made.outputs, layouts.results, form.results, strict=True)
        for before, after, layout, moves in each:
            self._define(before, self._through(after, moves), layout or ROW_MAJOR)

    def _move(self, node: Node, op: Transpose, layouts: Sides) -> None:
        """A transpose of the program, together with the layouts around it."""
        (value,), (before,) = node.inputs, layouts.operands
        (after,) = layouts.results
        held = self._in(value, before or ROW_MAJOR)
        order = moving_order(node, layouts)
        moves = order != tuple(range(len(order)))
        self._define(node.output, self._turned(held, order) if moves else held, after or ROW_MAJOR)

    def _carry(self, node: Node, layout: Layout, form: Remapped) -> None:
        """An op that does not care, on another layout."""
        inputs = tuple(
            self._in(v, layout, rank) if rank else self._in(v, ROW_MAJOR)
            for v, rank in zip(node.inputs, form.operands, strict=True)
        )
        made = self._through(self._add(form.op, inputs, node).output, form.after)
        self._define(node.output, made, layout if form.held else ROW_MAJOR)

    def _keep(self, node: Node) -> None:
        inputs = tuple([self._in(v, ROW_MAJOR) for v in node.inputs])
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = node if same else remake(node, node.op, inputs)
        self._nodes.append(made)
        for before, after in zip(node.outputs, made.outputs, strict=True):
            self._define(before, after, ROW_MAJOR)

    def _add(self, op: Op, inputs: tuple[Value, ...], like: Node) -> Node:
        self._nodes.append(Node(op, inputs, like.loc, like.names, like.group))
        return self._nodes[-1]

    def _define(self, before: Value, after: Value, layout: Layout) -> None:
        self._home[before] = layout
        self._held[before, layout] = after

    # -- values ----------------------------------------------------------------------------

    def _in(self, value: Value, layout: Layout, rank: int = 0) -> Value:
        """A value in a layout, with leading axes of extent 1 up to `rank`; a copy if need be."""
        shape = value.type.shape
        if rank > len(shape):
            return self._with_rank(value, layout, rank)
        key = value, layout
        if key not in self._held:
            home = self._home[value]
            if home is ROW_MAJOR:
                self._held[key] = self._converted(value, layout)
            else:
                self._held[key] = self._through(
                    self._held[value, home], across(shape, home, layout)
                )
            if has_layouts(shape) and conversion(value):
                self._copies.append(value)
        return self._held[key]

    def _with_rank(self, value: Value, layout: Layout, rank: int) -> Value:
        key = value, layout, rank
        if key not in self._padded:
            flat = self._in(value, ROW_MAJOR)
            shape = (*(1,) * (rank - value.type.ndim), *value.type.shape)
            moves = layout.into(shape)
            if not is_neutral(shape):
                self._copies.append(value)
            data, node = constant_of(value), value.producer
            if isinstance(moves[0], Pad) and node is not None and data is not None:
                self._padded[key] = self._constant(data.array.reshape(shape), moves, node)
            else:
                self._padded[key] = self._through(self._reshaped(flat, shape), moves)
        return self._padded[key]

    def _converted(self, value: Value, layout: Layout) -> Value:
        """A row-major value in another layout; constants are made in it."""
        held, node = self._held[value, ROW_MAJOR], value.producer
        moves, data = layout.into(value.type.shape), constant_of(value)
        if node is not None and data is not None and data.is_present:
            return self._constant(data.array, moves, node)
        if node is not None and isinstance(node.op, Full):
            op = node.op.replace(shape=layout.held(node.op.shape))
            return self._add(op, (), node).output
        return self._through(held, moves)

    def _constant(self, array: Array, moves: Moves, like: Node) -> Value:
        """A constant that was moved at compile time."""
        for op in moves:
            (array,) = as_tuple(op.reference(array))
        data = ArrayData(np.ascontiguousarray(array))
        return self._add(Constant(data, like.output.type.device), (), like).output

    def _through(self, value: Value, moves: Moves) -> Value:
        """A value that was moved; equal moves of one value are made once."""
        for op in moves:
            key = value, op
            if key not in self._moved:
                made = self._reshaped(value, op.shape) if isinstance(op, Reshape) else None
                self._moved[key] = self._append(op, value) if made is None else made
            value = self._moved[key]
        return value

    def _turned(self, value: Value, order: tuple[int, ...]) -> Value:
        if keeps_place(value.type.shape, order):
            return self._reshaped(value, placed(value.type.shape, order))
        return self._append(Transpose(order), value)

    def _reshaped(self, value: Value, shape: Shape) -> Value:
        while value.producer is not None and isinstance(value.producer.op, Reshape):
            (value,) = value.producer.inputs
        return value if shape == value.type.shape else self._append(Reshape(shape), value)

    def _append(self, op: Op, value: Value) -> Value:
        self._nodes.append(Node(op, (value,), self._loc))
        return self._nodes[-1].output


def _varies(node: Node) -> bool:
    values = (*node.inputs, *node.outputs)
    return not is_static(node) or any(has_layouts(v.type.shape) for v in values)


def _wanted(graph: Graph, others: Mapping[Node, tuple[Layout, Remapped]]) -> dict[Node, Layout]:
    """Ops on values without layouts that lead to an op on another layout."""
    wanted: dict[Node, Layout] = {}
    reading: dict[Value, Layout] = {}
    for node in reversed(graph.nodes):
        layout = others[node][0] if node in others else None
        if layout is None:
            layout = next((reading[v] for v in node.outputs if v in reading), None)
            form = None if layout is None or _varies(node) else remapped(node, layout)
            if layout is None or form is None or not form.held:
                continue
            wanted[node] = layout
        for value in node.inputs:
            if value.type.is_resolved and not has_layouts(value.type.shape):
                reading.setdefault(value, layout)
    return wanted
