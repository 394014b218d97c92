"""Conversions between layouts, taken out of the loops that would repeat them in each turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.engine.optimize.layout import Layout
from treadle.graph.analysis import live_nodes
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.control import Scan, While


@dataclass(frozen=True, slots=True)
class Converted:
    """A region, one of its inputs, and that input in another layout."""

    region: Graph
    number: int
    held: Value


def conversions(
    region: Graph, copied: Iterable[Value], domain: Sequence[Layout]
) -> list[Converted]:
    """Return the inputs of a rebuilt region that are among the values it copies, and
    their layouts.
    """
    numbers = {value: i for i, value in enumerate(region.inputs)}
    moved = {(n.inputs[0], n.op): n.output for n in region.nodes if len(n.inputs) == 1}
    found = []
    for value in dict.fromkeys(v for v in copied if v in numbers):
        for layout in domain[1:]:
            held: Value | None = value
            for move in layout.into(value.type.shape):
                held = None if held is None else moved.get((held, move))
            if held is not None and held is not value:
                found.append(Converted(region, numbers[value], held))
    return found


def hoisted(graph: Graph, converted: Sequence[Converted]) -> Graph:
    """The graph with conversions of state that loops never change before these loops.

    Such state is handed on from turn to turn in both layouts; what nobody reads is dropped later.
    """
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    for node in graph.nodes:
        inputs = tuple([renamed.get(v, v) for v in node.inputs])
        mine = _invariant(node, converted)
        if mine:
            made, results = _with_state(node, inputs, mine, nodes)
            nodes.append(made)
            renamed.update(zip(node.outputs, results, strict=True))
            continue
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = node if same else remake(node, node.op, inputs)
        nodes.append(made)
        if not same:
            renamed.update(zip(node.outputs, made.outputs, strict=True))
    if not renamed:
        return graph
    return graph.with_nodes(nodes, (renamed.get(v, v) for v in graph.outputs))


def _invariant(node: Node, converted: Sequence[Converted]) -> list[Converted]:
    """Conversions in a loop's body of state that each turn hands on as it was."""
    if not isinstance(node.op, (Scan, While)):
        return []
    body, count = node.op.body, _carried(node)
    return [
        c
        for c in converted
        if c.region is body
        and c.number < count
        and c.region.outputs[c.number] is c.region.inputs[c.number]
    ]


def _carried(node: Node) -> int:
    return node.op.n_carried if isinstance(node.op, Scan) else len(node.inputs)


def _with_state(
    node: Node, inputs: tuple[Value, ...], mine: Sequence[Converted], before: list[Node]
) -> tuple[Node, list[Value]]:
    """The loop with further state, which is made `before`, and its results but for that."""
    count, op = _carried(node), node.op
    more = []
    for one in mine:
        value = inputs[one.number]
        for move in _chain(one):
            before.append(Node(move.op, (value,), node.loc))
            value = before[-1].output
        more.append(value)
    body = _with_inputs(mine[0].region, count, {c.held: c.held.type for c in mine}, passed=True)
    changed: Any = op
    if isinstance(op, Scan):
        changed = op.replace(body=body, n_carried=count + len(mine))
    elif isinstance(op, While) and isinstance(op.condition, Graph):
        types = {c.held: c.held.type for c in mine}
        condition = _with_inputs(op.condition, count, types, passed=False)
        changed = op.replace(body=body, condition=condition)
    made = remake(node, changed, (*inputs[:count], *more, *inputs[count:]))
    return made, [*made.outputs[:count], *made.outputs[count + len(mine) :]]


def _chain(converted: Converted) -> list[Node]:
    """The moves from a region's input to how it is held, the first one first."""
    found: list[Node] = []
    value = converted.held
    while value.producer is not None:
        found.append(value.producer)
        (value,) = value.producer.inputs
    return found[::-1]


def _with_inputs(graph: Graph, at: int, more: Mapping[Value, Any], *, passed: bool) -> Graph:
    """A region with further inputs from number `at` on, in place of values; `passed` as results."""
    builder = GraphBuilder(graph.name)
    known: dict[Value, Value] = {}
    for i, value in enumerate((*graph.inputs, None)):
        if i == at:
            known.update({held: builder.input(type_).value for held, type_ in more.items()})
        if value is not None:
            known[value] = builder.input(value.type).value
    for node in graph.nodes:
        copy = builder.copy(node, tuple([known[v] for v in node.inputs]))
        for before, after in zip(node.outputs, copy.outputs, strict=True):
            known.setdefault(before, after)
    results = [*graph.outputs[:at], *(more if passed else ()), *graph.outputs[at:]]
    builder.output(*(builder.operand(known[v]) for v in results))
    made = builder.build()
    live = live_nodes(made)
    return made.with_nodes((n for n in made.nodes if n in live), made.outputs)
