"""The intermediate representation: values, the nodes that define them, and graphs of nodes.

A graph is a pure program in static single assignment form. Nodes are immutable and typed at birth:
the constructor runs the op's type rule, so an untyped node cannot exist. Layout, memory and
streams are not here; later stages add types of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import GraphError
from treadle.base.extent import Symbol
from treadle.base.guards import asking_nothing
from treadle.base.loc import UNKNOWN, Loc
from treadle.base.symbol import DECISIONS, Applied, Dim, Expr, Relation, is_identical
from treadle.base.types import TensorType
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.op import Op, as_tuple


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Value:
    """One tensor of the program, compared by identity.

    `producer` is None for an input of the graph; `index` counts the outputs of the producer (or
    the inputs of the graph); `name` is what people call it, and means nothing to the program.
    """

    type: TensorType
    producer: Node | None = None
    index: int = 0
    name: str = ""

    def __repr__(self) -> str:
        source = f"output {self.index} of {self.producer.op.name}" if self.producer else "input"
        return f"<Value {self.name or source}: {self.type}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """One application of an op, compared by identity: a node is a place, an op is a value.

    Nodes of one `group` (`""`: none) are to run as one kernel, if any kernel can.
    """

    op: Op
    inputs: tuple[Value, ...]
    loc: Loc = UNKNOWN
    names: tuple[str, ...] = ()
    group: str = ""
    outputs: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        types = result_types(self.op, self.inputs)
        names = self.names or ("",) * len(types)
        if len(names) != len(types):
            raise GraphError(self.op.name, f"has {len(types)} results, {len(names)} are named")
        outputs = [Value(t, self, i, names[i]) for i, t in enumerate(types)]
        object.__setattr__(self, "outputs", tuple(outputs))

    @property
    def output(self) -> Value:
        """The first output."""
        return self.outputs[0]

    def __repr__(self) -> str:
        inputs = ", ".join(str(v.type) for v in self.inputs)
        return f"<Node {self.op.name}({inputs})>"


def result_types(op: Op, inputs: tuple[Value, ...]) -> tuple[TensorType, ...]:
    """The op's result types; those it leaves unplaced take the device of the inputs."""
    operands = [v.type for v in inputs]
    if DECISIONS.get() is None:
        types = op.infer(*operands)
    else:
        with asking_nothing():
            types = op.infer(*operands)
    for operand in operands:
        if operand.device:
            return tuple([t if t.device else _placed(t, operand.device) for t in types])
    return types


def _placed(type_: TensorType, device: str) -> TensorType:
    return TensorType(type_.dtype, type_.shape, device)


def remake(node: Node, op: Op, inputs: tuple[Value, ...]) -> Node:
    """A node in the place of another: same line, names, group and, as far as may be, types.

    An op whose result extents depend on data (nonzero) invents a new symbol whenever it is asked;
    its users mention the one it had, so that one is kept.
    """
    if op is node.op and all(
        [a is b or _alike(a, b) for a, b in zip(inputs, node.inputs, strict=True)]
    ):
        return _moved(node, inputs)
    made = Node(op, inputs, node.loc, node.names, node.group)
    return with_types(made, tuple(v.type for v in node.outputs))


def unnamed(node: Node, inputs: tuple[Value, ...]) -> Node:
    """Return the node on other inputs, as `remake` does, without names and groups."""
    if all([a is b or _alike(a, b) for a, b in zip(inputs, node.inputs, strict=True)]):
        return _moved(node, inputs, named=False)
    return Node(node.op, inputs, node.loc)


def _alike(a: Value, b: Value) -> bool:
    return a.type is b.type or a.type == b.type


def _moved(node: Node, inputs: tuple[Value, ...], *, named: bool = True) -> Node:
    """The node on inputs of the same types, which its results therefore keep."""
    return retyped(node, node.op, inputs, tuple([v.type for v in node.outputs]), named=named)


def retyped(
    node: Node,
    op: Op,
    inputs: tuple[Value, ...],
    types: tuple[TensorType, ...],
    *,
    named: bool = True,
) -> Node:
    """A node in the place of another, whose result types are known: its type rule is not asked."""
    made, put = object.__new__(Node), object.__setattr__
    put(made, "op", op)
    put(made, "inputs", inputs)
    put(made, "loc", node.loc)
    put(made, "names", node.names if named else ())
    put(made, "group", node.group if named else "")
    pairs = zip(types, node.outputs, strict=True)
    outputs = [Value(t, made, v.index, v.name if named else "") for t, v in pairs]
    put(made, "outputs", tuple(outputs))
    return made


def with_types(node: Node, types: tuple[TensorType, ...]) -> Node:
    """The node with these result types, where they differ only in newly invented symbols."""
    inferred = tuple(v.type for v in node.outputs)
    if inferred == types or not differ_in_new_symbols(node.op, node.inputs, inferred, types):
        return node
    outputs = tuple(
        Value(t, node, v.index, v.name) for t, v in zip(types, node.outputs, strict=True)
    )
    object.__setattr__(node, "outputs", outputs)
    return node


def differ_in_new_symbols(
    op: Op,
    inputs: tuple[Value, ...],
    inferred: tuple[TensorType, ...],
    given: tuple[TensorType, ...],
) -> bool:
    """Return whether two lists of result types are equal up to symbols that neither inputs nor op
    have.
    """
    old: dict[Symbol, None] = {}
    _collect(tuple(v.type for v in inputs), old)
    _collect(tuple(getattr(op, name) for name in op._fields), old)
    if len(inferred) != len(given):
        return False
    renamed: dict[Dim, Dim] = {}
    for x, y in zip(inferred, given, strict=True):
        if (x.dtype, x.ndim, x.device) != (y.dtype, y.ndim, y.device):
            return False
        for a, b in zip(x.shape, y.shape, strict=True):
            same = is_identical(a, b) or _both_new(a, b, old)
            if not same or not is_identical(renamed.setdefault(a, b), b):
                return False
    return True


def _both_new(x: Dim, y: Dim, old: dict[Symbol, None]) -> bool:
    """Return whether two extents are different symbols of one range, neither of them in `old`."""
    a, b = lone_symbol(x), lone_symbol(y)
    if a is None or b is None or a in old or b in old:
        return False
    return (a.low, a.high, a.multiple) == (b.low, b.high, b.multiple)


def lone_symbol(extent: object) -> Symbol | None:
    """The symbol that an extent is, None where it is anything else."""
    if isinstance(extent, Expr) and len(extent.terms) == 1:
        (monomial, coefficient) = extent.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Graph:
    """A program: inputs, nodes in topological order, outputs.

    Graphs compare by content: names and source lines do not count. That makes a graph an
    attribute of a control-flow op like any other.

    Attributes:
        name: what people call it.
        inputs: values without a producer.
        nodes: every node, each after the producers of its inputs.
        outputs: values of `inputs` or `nodes`; a value may appear more than once.
        guards: relations between symbolic extents under which the program is valid.
    """

    name: str
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    guards: tuple[Relation, ...] = ()
    _digest: list[str] = field(default_factory=list, init=False)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """Types of the inputs, in order."""
        return tuple(v.type for v in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the outputs, in order."""
        return tuple(v.type for v in self.outputs)

    @property
    def digest(self) -> str:
        """256-bit content hash in hexadecimal; equal for equal programs in every process."""
        if not self._digest:
            state = hashlib.sha256()
            for line in _canonical_lines(self):
                state.update(line.encode())
                state.update(b"\n")
            self._digest.append(state.hexdigest())
        return self._digest[0]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return self.digest == other.digest if isinstance(other, Graph) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Graph {self.name} {self.digest[:12]}: {len(self.nodes)} nodes>"

    def evaluate(self, arrays: Sequence[Array], /) -> tuple[Array, ...]:
        """Run with the oracles of the ops (`graph.evaluate` also checks the arguments)."""
        known: dict[Value, Array] = dict(zip(self.inputs, map(np.asarray, arrays), strict=True))
        for node in self.nodes:
            results = as_tuple(node.op.reference(*[known[v] for v in node.inputs]))
            known.update(zip(node.outputs, results, strict=True))
        return tuple(known[v] for v in self.outputs)

    def with_nodes(self, nodes: Iterable[Node], outputs: Iterable[Value]) -> Graph:
        """The same name, inputs and guards around other nodes and outputs."""
        return Graph(self.name, self.inputs, tuple(nodes), tuple(outputs), self.guards)


def _canonical_lines(graph: Graph) -> Iterator[str]:
    """The program as text without names or source lines; what the digest is taken of."""
    number = {v: i for i, v in enumerate(graph.inputs)}
    texts: dict[TensorType, str] = {}
    for symbol in symbols_of(graph):
        yield repr(symbol)
    yield from (str(g) for g in graph.guards)
    yield from (str(v.type) for v in graph.inputs)
    for node in graph.nodes:
        inputs = [number[v] for v in node.inputs]
        types = []
        for value in node.outputs:
            number[value] = len(number)
            text = texts.get(value.type)
            if text is None:
                text = texts[value.type] = str(value.type)
            types.append(text)
        text = f"{op_key(node.op)}{inputs}{types}"
        yield f"{text} in {node.group!r}" if node.group else text
    yield f"return {[number[v] for v in graph.outputs]}"


def op_key(op: Op) -> str:
    """Text that tells ops with different attributes apart, the same in every process."""
    if not op._fields:
        return op.name
    own = op.__dict__
    found: str | None = own.get("_text_key")
    if found is None:
        inside = ",".join([f"{name}={_attribute_key(own[name])}" for name in op._fields])
        found = own["_text_key"] = f"{op.name}{{{inside}}}"
    return found


def _attribute_key(value: object) -> str:
    if isinstance(value, Graph):
        return f"graph {value.digest}"
    if isinstance(value, Op):
        return op_key(value)
    if isinstance(value, tuple):
        return "(" + ",".join(_attribute_key(v) for v in value) + ")"
    return repr(value)


def regions_of(op: Op) -> tuple[Graph, ...]:
    """The graphs a control-flow op holds, in the order of its attributes."""
    if not op._fields:
        return ()
    own = op.__dict__
    found: tuple[Graph, ...] | None = own.get("_regions")
    if found is None:
        found = own["_regions"] = tuple(_graphs_in(own[name] for name in op._fields))
    return found


def _graphs_in(values: Iterable[object]) -> Iterator[Graph]:
    for value in values:
        if isinstance(value, Graph):
            yield value
        elif isinstance(value, tuple):
            yield from _graphs_in(value)


def is_open_op(op: Op) -> bool:
    """Return whether an attribute of an op holds a symbolic extent, or a graph, which may."""
    if not op._fields or type(op) is Constant:
        return False
    own = op.__dict__
    found: bool | None = own.get("_open")
    if found is None:
        values = tuple(own[name] for name in op._fields)
        found = own["_open"] = bool(regions_of(op)) or bool(symbols_in(values))
    return found


def symbols_in(value: object) -> tuple[Symbol, ...]:
    """Every symbol inside an extent, shape, type or attribute."""
    found: dict[Symbol, None] = {}
    _collect(value, found)
    return tuple(found)


def symbols_of(graph: Graph) -> tuple[Symbol, ...]:
    """Every symbolic extent the graph and its regions mention, by name."""
    found: dict[Symbol, None] = {}
    for value in graph.inputs:
        _collect(value.type.shape, found)
    for node in graph.nodes:
        for value in node.outputs:
            _collect(value.type.shape, found)
        if node.op._fields and type(node.op) is not Constant:
            _collect(tuple(node.op.attributes.values()), found)
    _collect(tuple(g.expr for g in graph.guards), found)
    return tuple(sorted(found, key=lambda s: (s.name, s.low, s.multiple)))


def _collect(value: object, found: dict[Symbol, None]) -> None:
    """Add the symbols inside an attribute or shape to `found`."""
    if isinstance(value, tuple):
        for part in value:
            if type(part) is not int:
                _collect(part, found)
    elif isinstance(value, Expr):
        for atom in (a for monomial, _ in value.terms for a in monomial):
            _collect(atom, found)
    elif isinstance(value, Symbol):
        found[value] = None
    elif isinstance(value, Applied):
        _collect((value.x, value.y), found)
    elif isinstance(value, TensorType):
        _collect(value.shape, found)
    elif isinstance(value, Graph):
        found.update(dict.fromkeys(symbols_of(value)))


def constant(array: object, device: str = "", loc: Loc = UNKNOWN) -> Node:
    """A node that yields a copy of the array."""
    return Node(Constant(ArrayData(array), device), (), loc)


def constant_of(value: Value) -> ArrayData | None:
    """The data of a value that a constant node defines, else None."""
    producer = value.producer
    if producer is None or not isinstance(producer.op, Constant):
        return None
    return producer.op.data
