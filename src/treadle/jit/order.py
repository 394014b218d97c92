"""True if all processes captured the same collectives in the same order, before the first step.

Each collective is looked at again when it runs; this finds programs that differ before half of a
step is done, and says in which.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.graph.ir import Graph, Node, regions_of
from treadle.ops.collective import Collective, Recv, Send
from treadle.runtime.comm import groups


def agree_on_order(graph: Graph) -> None:
    """Compare the collectives of a program with those that other members of their groups captured.

    Messages between two ranks are left out: the programs of their ends differ.

    Raises:
        CommunicationError: on all members of a group, if they differ.
    """
    if groups.world() is None:
        return
    found: dict[str, list[str]] = {}
    for node in _nodes(graph):
        if isinstance(node.op, Collective) and not isinstance(node.op, (Send, Recv)):
            types = ", ".join(str(v.type) for v in node.inputs)
            found.setdefault(node.op.group, []).append(f"{node.op} {types}")
    for name in sorted(found):
        group = groups.find(name)
        if group is not None:
            group.agree(f"program of {len(found[name])} collectives: " + "; ".join(found[name]))


def _nodes(graph: Graph) -> Iterator[Node]:
    """All nodes, those of control flow after it."""
    for node in graph.nodes:
        yield node
        for region in regions_of(node.op):
            yield from _nodes(region)
