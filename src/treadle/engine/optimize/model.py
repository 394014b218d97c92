"""Expected gain of fusion, counted in bytes moved.

Whole numbers keep decisions the same on every machine. A launch is worth as much as moving some
tens of kilobytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.base.estimates import estimate
from treadle.engine.optimize.groups import Groups, NodeGroup
from treadle.engine.optimize.kinds import is_view
from treadle.graph.ir import Graph, Value
from treadle.ops.constant import Constant

LAUNCH = 32 << 10
"""Starting a kernel and waiting for all threads, in bytes: 2 us at 16 GB/s."""


def cost(groups: Groups, group: NodeGroup, reads: Sequence[Value]) -> int:
    """Modelled time of a memory-bound group that reads these values, in bytes."""
    values = (*reads, *groups.needed(group))
    return LAUNCH + sum([groups.nbytes[v] for v in values])


def modelled_bytes(graph: Graph) -> int:
    """Bytes that the nodes of a graph read and write, launches included; views cost nothing.

    Values of symbolic shape do not count.
    """
    total = 0
    for node in graph.nodes:
        if not is_view(node.op) and not isinstance(node.op, Constant):
            values = (*dict.fromkeys(node.inputs), *node.outputs)
            total += LAUNCH + sum(
                estimate(v.type.open_nbytes) for v in values if v.type.is_resolved
            )
    return total
