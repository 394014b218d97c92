"""Building graphs: operands that append a node for every op applied to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from treadle.base.dtype import DType
from treadle.base.errors import GraphError, ShapeError
from treadle.base.guards import is_one_now, recording_guards
from treadle.base.loc import UNKNOWN, Loc, user_location
from treadle.base.symbol import Dim, Relation, is_identical
from treadle.base.types import TensorType
from treadle.graph.analysis import known_guards
from treadle.graph.ir import (
    Graph,
    Node,
    Value,
    op_key,
    regions_of,
    remake,
    unnamed,
    with_types,
)
from treadle.ops.abstract import constant_array
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.control import Cond, Scan, While
from treadle.ops.movement import Reshape
from treadle.ops.op import Op
from treadle.ops.operators import Operators


class GraphOperand(Operators):
    """A value of a graph under construction; applying an op appends a node."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: GraphBuilder, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> TensorType:
        """Element type, shape and device."""
        return self.value.type

    def apply(self, op: Op, inputs: tuple[GraphOperand, ...], /) -> tuple[GraphOperand, ...]:
        """Append a node."""
        return self.builder.apply(op, inputs)

    def constant(self, value: Any, dtype: DType | None = None) -> GraphOperand:
        """A constant node on this operand's device; a scalar takes this element type."""
        array = constant_array(value, dtype, self.value.type.dtype)
        return self.builder.constant(array, self.value.type.device)

    def __repr__(self) -> str:
        return repr(self.value)


class GraphBuilder:
    """Collects inputs, nodes and outputs, then makes a `Graph`.

    Args:
        name: the graph's name.
        locate: record the user's line with every node.
        share: give equal nodes (op with attributes, inputs) one place (hash-consing).
    """

    def __init__(self, name: str = "g", *, locate: bool = False, share: bool = False) -> None:
        self.name = name
        self.loc = UNKNOWN
        self.group = ""
        self.called = ""
        self._locate = locate
        self._known: dict[tuple[str, tuple[Value, ...]], Node] | None = {} if share else None
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._outputs: list[Value] = []
        self._guards: dict[Relation, None] = {}
        self._symbolic = False
        self._values: set[Value] = set()

    # -- values in and out -----------------------------------------------------------------

    def input(self, type_: TensorType, name: str = "") -> GraphOperand:
        """A new input of the graph."""
        self._symbolic |= not type_.is_static
        value = Value(type_, None, len(self._inputs), name)
        self._inputs.append(value)
        self._values.add(value)
        return GraphOperand(self, value)

    def adopt(self, values: Iterable[Value], *, as_inputs: bool = False) -> None:
        """Register values of another graph with the builder; `as_inputs`: as inputs of this one."""
        for value in values:
            self._symbolic |= not value.type.is_static
            self._values.add(value)
            if as_inputs:
                self._inputs.append(value)

    def operand(self, value: Value) -> GraphOperand:
        """A value of the builder as an operand."""
        return GraphOperand(self, value)

    def constant(self, array: Any, device: str = "") -> GraphOperand:
        """A node that yields a copy of the array (or `ArrayData`, which is not copied)."""
        data = array if isinstance(array, ArrayData) else ArrayData(array)
        return self.apply(Constant(data, device), ())[0]

    def guard(self, relations: Iterable[Relation]) -> None:
        """Limit the graph to extents of which these relations are true."""
        self._guards.update(dict.fromkeys(relations))

    def expects(self, op: Op, inputs: Sequence[GraphOperand]) -> bool:
        """Return whether it is known that this application comes next."""
        return False

    def output(self, *operands: GraphOperand) -> None:
        """Add outputs to the graph."""
        self._outputs += self._unwrap(operands, "output")

    # -- nodes -----------------------------------------------------------------------------

    def apply(
        self, op: Op, inputs: Sequence[GraphOperand], names: tuple[str, ...] = ()
    ) -> tuple[GraphOperand, ...]:
        """Append an application of `op` (or find the equal one, where nodes are shared)."""
        node = self.add(op, self._unwrap(inputs, op.name), names)
        return tuple([GraphOperand(self, v) for v in node.outputs])

    def add(
        self,
        op: Op,
        inputs: tuple[Value, ...],
        names: tuple[str, ...] = (),
        loc: Loc | None = None,
        group: str | None = None,
    ) -> Node:
        """`apply` on bare values, which must be the builder's own.

        `loc` and `group` None: the current ones. Ops without operands belong to no group.
        """
        key = op_key(op) if self._known is not None else "", inputs
        if self._known is not None and key in self._known:
            return self._known[key]
        node = self._append(op, inputs, names, loc, self.group if group is None else group)
        if self._known is not None:
            self._known[key] = node
        return node

    def copy(self, node: Node, inputs: tuple[Value, ...], *, named: bool = True) -> Node:
        """Append a node of another graph, applied to the builder's own values."""
        if self._known is None and not self._symbolic:
            made = remake(node, node.op, inputs) if named else unnamed(node, inputs)
            self._nodes.append(made)
            self._values.update(made.outputs)
            return made
        count = len(self._nodes)
        names, group = (node.names, node.group) if named else ((), "")
        made = self.add(node.op, inputs, names, node.loc, group)
        if len(self._nodes) > count:
            with_types(made, tuple(v.type for v in node.outputs))
            self._values.update(made.outputs)
        return made

    def _append(
        self,
        op: Op,
        inputs: tuple[Value, ...],
        names: tuple[str, ...],
        loc: Loc | None,
        group: str,
    ) -> Node:
        group = group if inputs else ""
        if self.called and inputs and not names:
            names = (self.called,) * op.n_outputs
        place = loc or self.loc or (user_location() if self._locate else UNKNOWN)
        if self._symbolic:
            try:
                node = self._guarded(op, inputs, place, names, group)
            except ShapeError:
                broadcast = self._with_ones(inputs, place, group)
                if broadcast == inputs:
                    raise
                node = self._guarded(op, broadcast, place, names, group)
        else:
            node = Node(op, inputs, place, names, group)
        self._nodes.append(node)
        self._values.update(node.outputs)
        return node

    def _guarded(
        self, op: Op, inputs: tuple[Value, ...], place: Loc, names: tuple[str, ...], group: str
    ) -> Node:
        """A node, and what its type rule needs of extents."""
        with recording_guards() as guards:
            node = Node(op, inputs, place, names, group)
        self._guards.update(guards)
        for region in regions_of(op):
            self.guard(known_guards(region, node))
        return node

    def _with_ones(self, inputs: tuple[Value, ...], place: Loc, group: str) -> tuple[Value, ...]:
        """The inputs with 1 for extents that are 1 in the call that is captured, as guards say.

        Type rules ask nothing, and the call may broadcast what others may not.
        """
        made = []
        for value in inputs:
            shape = tuple([1 if is_one_now(d) else d for d in value.type.shape])
            if not all(map(is_identical, shape, value.type.shape)):
                node = self._guarded(Reshape(shape), (value,), place, (), group)
                self._nodes.append(node)
                self._values.update(node.outputs)
                value = node.output
            made.append(value)
        return tuple(made)

    def _unwrap(self, operands: Sequence[GraphOperand], where: str) -> tuple[Value, ...]:
        values = tuple([x.value for x in operands])
        for value in values:
            if value not in self._values:
                raise GraphError(
                    where,
                    f"the operand {value!r} belongs to another graph",
                    hint="pass it to the region as an argument",
                )
        return values

    # -- control flow ----------------------------------------------------------------------

    def cond(
        self,
        predicate: GraphOperand,
        then: Callable[..., Any],
        otherwise: Callable[..., Any],
        xs: Sequence[GraphOperand] = (),
    ) -> tuple[GraphOperand, ...]:
        """`then(*xs)` where the predicate (bool, 0-d) is true, else `otherwise(*xs)`."""
        types = [x.type for x in xs]
        op = Cond(trace_body(then, types, "then"), trace_body(otherwise, types, "otherwise"))
        return self.apply(op, (predicate, *xs))

    def while_loop(
        self,
        condition: Callable[..., Any],
        body: Callable[..., Any],
        state: Sequence[GraphOperand],
    ) -> tuple[GraphOperand, ...]:
        """`state = body(*state)` as long as `condition(*state)` holds."""
        types = [x.type for x in state]
        op = While(trace_body(condition, types, "condition"), trace_body(body, types, "body"))
        return self.apply(op, state)

    def scan(
        self,
        body: Callable[..., Any],
        state: Sequence[GraphOperand],
        stacked: Sequence[GraphOperand],
        length: Dim,
    ) -> tuple[GraphOperand, ...]:
        """`length` turns of `body(*state, *entries)` over axis 0 of the stacked operands."""
        entries = [x.type.with_shape(x.type.shape[1:]) for x in stacked]
        region = trace_body(body, [*(x.type for x in state), *entries], "body")
        return self.apply(Scan(region, len(state), length), (*state, *stacked))

    # -- the result ------------------------------------------------------------------------

    @contextmanager
    def at(self, loc: Loc, group: str = "", called: str = "") -> Iterator[None]:
        """Give the nodes appended inside the block this source line, group and name."""
        before = self.loc, self.group, self.called
        self.loc, self.group, self.called = loc, group, called
        try:
            yield
        finally:
            self.loc, self.group, self.called = before

    def arrange_inputs(self, order: Sequence[int]) -> None:
        """Put the inputs into another order: number `order[i]` becomes number i."""
        self._inputs = [self._inputs[i] for i in order]
        for i, value in enumerate(self._inputs):
            # Nobody but this builder has seen the number yet, and values compare by identity.
            object.__setattr__(value, "index", i)

    @property
    def appended(self) -> Sequence[Node]:
        """The nodes so far."""
        return self._nodes

    def build(self) -> Graph:
        """The graph of everything appended so far; the builder may go on."""
        parts = tuple(self._inputs), tuple(self._nodes), tuple(self._outputs)
        return Graph(self.name, *parts, tuple(self._guards))


def trace_body(
    function: Callable[..., Any],
    types: Iterable[TensorType],
    name: str = "body",
    names: Sequence[str] = (),
) -> Graph:
    """The graph of a function over operands.

    Args:
        function: takes one operand per type; returns one operand or a tuple of operands.
        types: types of the arguments.
        name: name of the graph.
        names: names of the arguments, as far as they have any.
    """
    builder = GraphBuilder(name)
    called = [*names]
    operands = [builder.input(t, called[i] if i < len(called) else "") for i, t in enumerate(types)]
    results = function(*operands)
    builder.output(*(results if isinstance(results, tuple) else (results,)))
    return builder.build()


def reordered(graph: Graph, front: Sequence[int]) -> Graph:
    """The graph with the inputs listed in `front`, in that order, before the others."""
    rest = [i for i in range(len(graph.inputs)) if i not in front]
    order = [*front, *rest]
    builder = GraphBuilder(graph.name)
    made = {i: builder.input(graph.inputs[i].type, graph.inputs[i].name) for i in order}
    instead = {graph.inputs[i]: made[i].value for i in order}
    for node in graph.nodes:
        inputs = tuple(instead[v] for v in node.inputs)
        outputs = builder.copy(node, inputs).outputs
        instead.update(zip(node.outputs, outputs, strict=True))
    builder.output(*(builder.operand(instead[v]) for v in graph.outputs))
    return builder.build()
