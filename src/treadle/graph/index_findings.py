"""Findings about indices: the operands that are some, and the error where one is out of range.

Needed while programs run, so it imports no pass; `index_ranges` writes the checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import IndexRangeError, out_of_range
from treadle.graph.ir import Graph, Node, regions_of
from treadle.ops.bounds import Range
from treadle.ops.check import CheckIndices
from treadle.ops.index_numpy import asking
from treadle.ops.movement import Concat
from treadle.ops.op import IndexRange, Op


class Indexed(NamedTuple):
    """An operand that is an index; `number` counts them through the program, regions included."""

    number: int
    node: Node
    operand: int
    range: Range


def reporting(graph: Graph) -> Graph:
    """The graph with what its checks find as one more output, int64 [2 per check], if it has any.

    For programs that nobody waits for. Checks in regions, whose course the host decides, stay.
    """
    found = [n.output for n in graph.nodes if isinstance(n.op, CheckIndices)]
    if not found:
        return graph
    joined = Node(Concat(0), tuple(found)) if len(found) > 1 else None
    nodes = graph.nodes if joined is None else (*graph.nodes, joined)
    return graph.with_nodes(nodes, (*graph.outputs, joined.output if joined else found[0]))


def finding(statuses: Array) -> tuple[int, int] | None:
    """The number of a check and the index that it found, out of such an output."""
    flags = statuses.reshape(-1, 2)
    (failed,) = np.nonzero(flags[:, 0])
    return (int(flags[failed[0], 0]) >> 1, int(flags[failed[0], 1])) if len(failed) else None


def index_error(graph: Graph, number: int, index: int) -> IndexRangeError:
    """Return the error for check number `number` of a captured program, which has found
    this index.
    """
    for found in _every(graph, 0):
        if found.number == number:
            return error_of(found, index)
    return out_of_range("index", index, 0, 0)


def error_of(found: Indexed, index: int) -> IndexRangeError:
    """The error about one index, at the line that asked for the op."""
    op, types = found.node.op, tuple(v.type for v in found.node.inputs)
    low, high = map(int, found.range)
    made = out_of_range(asking(op), index, low, high, op.saw(types))
    made.locate(found.node.loc)
    return made


def _every(graph: Graph, first: int) -> Iterator[Indexed]:
    """All indices of a program, in the order in which the writer counts them."""
    for node in graph.nodes:
        for region in regions_of(node.op):
            for found in _every(region, first):
                first = found.number + 1
                yield found
        for operand, low, high in ranges_of(node):
            yield Indexed(first, node, operand, (low, high))
            first += 1


def ranges_of(node: Node) -> tuple[IndexRange, ...]:
    """Operands that are indices, each with its range."""
    if type(node.op).index_ranges is Op.index_ranges:
        return ()
    return node.op.index_ranges(tuple([v.type for v in node.inputs]))
