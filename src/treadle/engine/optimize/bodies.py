"""Groups as ops: bodies, what the compiler says to them, and the graph they make up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from treadle.backends.api import Support, yes
from treadle.backends.program import (
    Compiler,
    LayoutCompiler,
    MapLayout,
    MeasuringCompiler,
    Way,
)
from treadle.base.errors import GraphError
from treadle.base.types import TensorType
from treadle.engine.optimize.groups import Groups, NodeGroup
from treadle.engine.optimize.kinds import is_view
from treadle.graph.analysis import has_effect
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.fused import Fused
from treadle.ops.op import Op

Note = Callable[[Node, str, str], None]
"""Takes a node, what became of it, and why."""


class Trial:
    """Asks the compiler whether it takes an op; every question once."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._known: dict[tuple[Op, tuple[TensorType, ...]], Support] = {}

    def __call__(self, op: Op, types: Sequence[TensorType]) -> Support:
        """Return whether the compiler lowers the op, or why not."""
        key = op, tuple(types)
        if key not in self._known:
            found = self._compiler.lower(op, key[1])
            self._known[key] = found if isinstance(found, Support) else yes()
        return self._known[key]

    @property
    def layouts(self) -> tuple[MapLayout, ...]:
        """Orders of axes that the compiler's kernels take; channels-last if it says nothing."""
        if isinstance(self._compiler, LayoutCompiler):
            return self._compiler.layouts
        return (MapLayout("channels-last"),)

    def recorded(
        self,
        question: str,
        types: tuple[TensorType, ...],
        frozen: tuple[bool, ...],
        ways: Callable[[], Sequence[Way]],
    ) -> int | None:
        """Return which of several ops was measured to be the fastest; see `MeasuringCompiler`."""
        if not isinstance(self._compiler, MeasuringCompiler):
            return None
        return self._compiler.recorded(question, types, frozen, ways)


def body_of(
    groups: Groups, kind: str, order: Iterable[int], read: Sequence[Value], made: Sequence[Value]
) -> Fused:
    """Nodes as the body of an op that reads and makes the given values."""
    builder = GraphBuilder(kind)
    known = {v: builder.input(_unplaced(v.type)).value for v in read}
    for i in order:
        node = groups.nodes[i]
        copy = builder.copy(node, tuple([known[v] for v in node.inputs]), named=False)
        known.update(zip(node.outputs, copy.outputs, strict=True))
    builder.output(*(builder.operand(known[v]) for v in made))
    return Fused(kind, builder.build())


def _unplaced(type_: TensorType) -> TensorType:
    return TensorType(type_.dtype, type_.shape) if type_.device else type_


def _alive(groups: Groups, order: Iterable[int], made: Sequence[Value]) -> set[int]:
    """The nodes among `order` that some result depends on."""
    inside, wanted = set(order), set[int]()
    waiting = [v.producer for v in made]
    while waiting:
        node = waiting.pop()
        i = -1 if node is None else groups.position[node]
        if node is not None and i in inside and i not in wanted:
            wanted.add(i)
            waiting += [v.producer for v in node.inputs]
    return wanted


def proposed(groups: Groups, group: NodeGroup, made: Sequence[Value]) -> tuple[Fused, list[Value]]:
    """A group as an op with the given results, and what it reads."""
    order, read = _outline(groups, group, made)
    key = group.kind, tuple(order), tuple(made)
    op = groups.bodies.get(key)
    if op is None:
        op = groups.bodies[key] = body_of(groups, group.kind, order, read, made)
    return op, read


def _outline(
    groups: Groups, group: NodeGroup, made: Sequence[Value]
) -> tuple[list[int], list[Value]]:
    """The nodes that a group with the given results has to run, and what they read."""
    order, _ = groups.operands(group)
    wanted = _alive(groups, order, made)
    order = sorted(wanted)
    read = dict.fromkeys(
        v
        for i in order
        for v in groups.nodes[i].inputs
        if v.producer is None or groups.position[v.producer] not in wanted
    )
    return order, list(read)


def accepted(groups: Groups, group: NodeGroup, trial: Trial) -> Support:
    """Return whether the compiler takes a group as one op."""
    op, read = proposed(groups, group, groups.needed(group))
    return trial(op, [v.type for v in read])


# -- the graph of groups -----------------------------------------------------------------------


def assemble(groups: Groups) -> Graph:
    """The graph with a fused op for every group that has more than one node."""
    graph = groups.graph
    known: dict[Value, Value] = {v: v for v in graph.inputs}
    nodes: list[Node] = []
    for group, made in _in_order(groups):
        if group.kind and not stands_alone(groups, group):
            op, read = proposed(groups, group, made)
            loc = groups.nodes[group.members[0]].loc
            node = Node(op, tuple(known[v] for v in read), loc, (), group.name)
            known.update(zip(made, node.outputs, strict=True))
        else:
            (i,) = group.members
            before = groups.nodes[i]
            node = remake(before, before.op, tuple(known[v] for v in before.inputs))
            known.update(zip(before.outputs, node.outputs, strict=True))
        nodes.append(node)
    return graph.with_nodes(nodes, (known[v] for v in graph.outputs))


def stands_alone(groups: Groups, group: NodeGroup) -> bool:
    """Return whether a group is one node that reads nothing through others, and so stays
    as it is.
    """
    order, _ = groups.operands(group)
    return len(group.members) == 1 and (len(order) == 1 or is_view(groups.nodes[order[-1]].op))


def _in_order(groups: Groups) -> list[tuple[NodeGroup, list[Value]]]:
    """The groups that run, with the values each has to make, in an order in which they can."""
    needed = set(groups.graph.outputs)
    running: list[tuple[NodeGroup, list[Value]]] = []
    for group in reversed(_sorted(groups)):
        made = [v for i in group.members for v in groups.nodes[i].outputs if v in needed]
        if not made and not _matters(groups, group):
            continue
        running.append((group, made))
        needed.update(_reads(groups, group, made))
    return running[::-1]


def _matters(groups: Groups, group: NodeGroup) -> bool:
    return any(has_effect(groups.nodes[i].op) for i in group.members)


def _reads(groups: Groups, group: NodeGroup, made: Sequence[Value]) -> Sequence[Value]:
    if not group.kind or stands_alone(groups, group):
        return groups.nodes[group.members[0]].inputs
    return _outline(groups, group, made)[1]


def _sorted(groups: Groups) -> list[NodeGroup]:
    """Each group after those it reads from; by position where that leaves a choice."""
    every = groups.all()
    number = {g: i for i, g in enumerate(every)}
    readers: dict[NodeGroup, list[NodeGroup]] = {g: [] for g in every}
    waiting = dict.fromkeys(every, 0)
    for group in every:
        sources = {groups.owner[i] for i in _dependences(groups, group)} - {group}
        for source in sources:
            readers[source].append(group)
        waiting[group] = len(sources)
    ready = [number[g] for g in every if not waiting[g]]
    heapify(ready)
    order: list[NodeGroup] = []
    while ready:
        group = every[heappop(ready)]
        order.append(group)
        for reader in readers[group]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, number[reader])
    if len(order) < len(every):
        raise GraphError(f"graph {groups.graph.name}", "the groups depend on one another")
    return order


def _dependences(groups: Groups, group: NodeGroup) -> Iterable[int]:
    """The nodes that make what a group reads."""
    alone = not group.kind or stands_alone(groups, group)
    read = groups.nodes[group.members[0]].inputs if alone else groups.operands(group)[1]
    for value in read:
        if value.producer is not None:
            yield groups.position[value.producer]
