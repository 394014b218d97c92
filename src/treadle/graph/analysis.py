"""Questions about a graph: who uses what, what reaches what, how long values live.

Every answer is computed from the graph when asked; nothing is kept in step with rewrites.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.extent import Symbol
from treadle.base.symbol import Relation
from treadle.base.symbol import symbols_of as symbols_of_extent
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value, regions_of, symbols_in
from treadle.ops.check import CheckIndices
from treadle.ops.collective import Collective
from treadle.ops.constant import Constant
from treadle.ops.control import FindingWhile
from treadle.ops.custom import Custom, RuntimeBlob
from treadle.ops.elementwise import Cast
from treadle.ops.op import Op
from treadle.ops.printing import PrintingOp


@dataclass(frozen=True, slots=True)
class Use:
    """One place a value is read: an input of a node, or (node None) an output of the graph."""

    node: Node | None
    index: int


def users(graph: Graph) -> dict[Value, list[Use]]:
    """Every use of every value, in program order; an unused value has an empty list."""
    found: dict[Value, list[Use]] = {v: [] for v in graph.inputs}
    for node in graph.nodes:
        for i, value in enumerate(node.inputs):
            found[value].append(Use(node, i))
        found.update((v, []) for v in node.outputs)
    for i, value in enumerate(graph.outputs):
        found[value].append(Use(None, i))
    return found


def producers(node: Node) -> tuple[Node, ...]:
    """The nodes that define the inputs of `node`, each once, in order."""
    return tuple(dict.fromkeys(v.producer for v in node.inputs if v.producer is not None))


def consumers(graph: Graph, of: Node | Value) -> tuple[Node, ...]:
    """The nodes that read a value, or any output of a node, each once, in program order."""
    values = {of} if isinstance(of, Value) else set(of.outputs)
    return tuple(n for n in graph.nodes if any(v in values for v in n.inputs))


def topological_order(nodes: Iterable[Node], name: str = "graph") -> tuple[Node, ...]:
    """The nodes reordered so that each follows the producers of its inputs.

    Nodes keep their given order where they are independent. Raises `GraphError` naming the nodes
    of a cycle (which only a damaged graph can have).
    """
    given = tuple(nodes)
    inside = set(given)
    done: set[Node] = set()
    order: list[Node] = []
    for root in given:
        path: dict[Node, None] = {}
        stack = [root]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            path[node] = None
            waiting = [p for p in producers(node) if p in inside and p not in done]
            if not waiting:
                done.add(stack.pop())
                del path[node]
                order.append(node)
                continue
            _refuse_cycle(path, waiting, name)
            stack.extend(reversed(waiting))
    return tuple(order)


def _refuse_cycle(path: Mapping[Node, None], following: Iterable[Node], name: str) -> None:
    for node in following:
        if node in path:
            nodes = list(path)
            # Edges were followed backwards, from user to producer.
            cycle = [*reversed(nodes[nodes.index(node) :])]
            arrows = " -> ".join(n.op.name for n in (*cycle, cycle[0]))
            raise GraphError(
                f"graph {name}",
                f"the nodes form a cycle: {arrows}",
                hint="a loop is written as an op with a region: while_loop or scan",
                at=node.loc,
            )


def has_effect(op: Op) -> bool:
    """Return whether running the op matters even if nobody reads its results.

    So it is with collectives, which the other processes of the group wait for, with checks, and
    with prints.
    """
    if isinstance(op, Collective | CheckIndices | PrintingOp):
        return True
    regions = regions_of(op)
    return bool(regions) and any(has_effect(n.op) for region in regions for n in region.nodes)


def is_widening(node: Node) -> bool:
    """Return whether a node brings floats of 16 bits or bytes to float32, which loses nothing."""
    if not isinstance(node.op, Cast) or node.output.type.dtype is not dt.float32:
        return False
    source = node.inputs[0].type.dtype
    return source in (dt.int8, dt.uint8) or (source.is_float and source.itemsize == 2)


def is_opaque(op: Op) -> bool:
    """Return whether two applications to equal inputs may differ: effects and foreign code."""
    return isinstance(op, (Custom, RuntimeBlob)) or has_effect(op)


def live_nodes(graph: Graph, *, deciding: bool = False) -> set[Node]:
    """The nodes with effects, and those that they or some output depend on.

    Args:
        graph: whose nodes are looked at.
        deciding: whether nodes count on which only extents depend, where data may decide some.
    """
    found = reversed(graph.nodes) if deciding else ()
    deciders = {s.name: n for n in found for s in found_by(n)}
    live: set[Node] = set()
    waiting = [v.producer for v in graph.outputs]
    waiting += [n for n in graph.nodes if has_effect(n.op)]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in live:
            live.add(node)
            waiting += [v.producer for v in node.inputs]
            waiting += [deciders.get(s.name) for s in mentioned_by(node)] if deciders else []
    return live


# -- extents that data decide ------------------------------------------------------------------


def found_by(node: Node) -> tuple[Symbol, ...]:
    """Extents of a node's results that neither its operands nor its attributes have."""
    if all(v.type.is_static for v in node.outputs):
        return ()
    given = {s.name for v in node.inputs for s in symbols_in(v.type)}
    given |= {s.name for s in symbols_in(tuple(node.op.attributes.values()))}
    made = (s for v in node.outputs for s in symbols_in(v.type) if s.name not in given)
    return tuple(dict.fromkeys(made))


def mentioned_by(node: Node) -> tuple[Symbol, ...]:
    """Extents in the types and attributes of a node, but for those that are found inside of it."""
    types = tuple([v.type for v in (*node.inputs, *node.outputs)])
    attributes = () if type(node.op) is Constant else tuple(node.op.attributes.values())
    found = symbols_in((*types, *attributes))
    inside = {name for region in regions_of(node.op) for name in found_in(region)}
    inside.update(s.name for s in changing_in(node))
    return tuple([s for s in found if s.name not in inside]) if inside else found


def changing_in(node: Node) -> tuple[Symbol, ...]:
    """Extents of a loop's state that are another in every turn, as its regions have them."""
    return symbols_in(node.op.changing) if isinstance(node.op, FindingWhile) else ()


def found_in(graph: Graph) -> set[str]:
    """Names of the extents of a graph that data decide, of those in branches and loops, too."""
    nodes = tuple(nodes_in(graph))
    return {s.name for node in nodes for s in (*found_by(node), *changing_in(node))}


def nodes_in(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, and of what it holds."""
    for node in graph.nodes:
        yield node
        for region in regions_of(node.op):
            yield from nodes_in(region)


def known_guards(region: Graph, node: Node) -> Iterator[Relation]:
    """The guards of a branch or body that are the program's, too: those on extents of the call."""
    own = found_in(region) | {s.name for s in changing_in(node)} if region.guards else ()
    return (g for g in region.guards if symbols_of_extent(g.expr).isdisjoint(own))


@dataclass(frozen=True, slots=True)
class Interval:
    """Life of a value: from the step that defines it to the last that reads it, inclusive.

    Step i is node i; inputs are defined at step -1, outputs are read at step `len(nodes)`.
    """

    start: int
    end: int

    def overlaps(self, other: Interval) -> bool:
        """Return whether both live at some step."""
        return self.start <= other.end and other.start <= self.end


def liveness(graph: Graph) -> dict[Value, Interval]:
    """The interval of every value; one that is never read ends where it starts."""
    start = dict.fromkeys(graph.inputs, -1)
    end = dict(start)
    for step, node in enumerate(graph.nodes):
        for value in node.inputs:
            end[value] = step
        for value in node.outputs:
            start[value] = end[value] = step
    end.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    return {v: Interval(start[v], end[v]) for v in start}


class Reachability:
    """Dependencies between nodes, as one integer bitset per node.

    Building takes O(nodes × edges / 64) word operations, a question is one AND.
    """

    __slots__ = ("_above", "_position")

    def __init__(self, graph: Graph) -> None:
        self._position = {n: i for i, n in enumerate(graph.nodes)}
        self._above: list[int] = []
        for node in graph.nodes:
            bits = 0
            for producer in producers(node):
                i = self._position[producer]
                bits |= self._above[i] | 1 << i
            self._above.append(bits)

    def reaches(self, source: Node, target: Node) -> bool:
        """Return whether `target` depends on `source`; a node does not depend on itself."""
        return bool(self._above[self._position[target]] >> self._position[source] & 1)

    def ancestors(self, node: Node) -> int:
        """The nodes that `node` depends on, as a bitset over positions."""
        return self._above[self._position[node]]

    def closes_cycle(self, group: Iterable[Node]) -> bool:
        """Return whether merging the nodes into one would make a cycle through a node outside."""
        members = list(group)
        inside = above = 0
        for node in members:
            inside |= 1 << self._position[node]
            above |= self.ancestors(node)
        outside = above & ~inside
        while outside:
            # A node that the group needs and that itself needs the group lies on the cycle.
            lowest = outside & -outside
            if self._above[lowest.bit_length() - 1] & inside:
                return True
            outside ^= lowest
        return False


# -- the graph as data and compute nodes, for people and tools ---------------------------------


@dataclass(frozen=True, slots=True)
class DataNode:
    """A tensor of the program: what it is called, its type, who makes and who reads it."""

    name: str
    role: str
    type: TensorType
    producer: Node | None
    consumers: tuple[Node, ...]

    @property
    def shape(self) -> Any:
        """The extents of the axes."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return self.type.dtype.name

    @property
    def device(self) -> str:
        """Logical device, `""` where the program has not been placed."""
        return self.type.device


@dataclass(frozen=True, slots=True)
class ComputeNode:
    """An operator of the program with its attributes and what it reads and makes."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node: Node


def data_nodes(graph: Graph, names: Mapping[Value, str]) -> tuple[DataNode, ...]:
    """Every tensor, inputs first; `names` is `printer.value_names(graph)`."""
    outputs = set(graph.outputs)
    listed = []
    for value, uses in users(graph).items():
        role = "output" if value in outputs else "intermediate"
        readers = tuple(dict.fromkeys(u.node for u in uses if u.node is not None))
        role = "input" if value.producer is None else role
        listed.append(DataNode(names[value], role, value.type, value.producer, readers))
    return tuple(listed)


def compute_nodes(graph: Graph, names: Mapping[Value, str]) -> tuple[ComputeNode, ...]:
    """Every operator, in program order; `names` is `printer.value_names(graph)`."""
    return tuple(
        ComputeNode(
            node.op.name,
            node.op.attributes,
            tuple(names[v] for v in node.inputs),
            tuple(names[v] for v in node.outputs),
            node,
        )
        for node in graph.nodes
    )


def remove(graph: Graph, node: Node) -> Graph:
    """The graph without a node; raises `GraphError` naming the users where it is still used."""
    if node not in graph.nodes:
        raise GraphError(f"graph {graph.name}", f"{node!r} is not one of its nodes")
    readers = [n.op.name for n in consumers(graph, node)]
    readers += ["return" for v in graph.outputs if v in node.outputs]
    if readers:
        raise GraphError(
            f"graph {graph.name}",
            f"cannot remove {node.op.name}: its result is used by {', '.join(readers)}",
            hint="remove or redirect the users first",
            at=node.loc,
        )
    return graph.with_nodes((n for n in graph.nodes if n is not node), graph.outputs)
