"""Parts of a phase that need different extents, each of which may be a phase of its own.

Programs are compiled for cells of extents, so a phase that three masks lead to has a program for
every combination of theirs. Parts that need one each have a sum in place of a product.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

from treadle.graph.ir import Node

_CELLS, _OVERHEAD = 4, 4
"""Cells of an extent, about (0, 1, few and many), and what a program costs beside its nodes."""


def parts_of(nodes: Sequence[Node], needs: Mapping[Node, frozenset[str]]) -> list[list[Node]]:
    """The parts of a phase, in an order in which they can run.

    Nodes are one part if they need an extent in common. Where that takes fewer programs, they are
    parts by all the extents that they need: what three masks select, and what is made of all three.

    Args:
        nodes: of the phase, in order.
        needs: the extents that each of them needs.
    """
    keys = _keys(nodes, needs)
    stages: dict[Node, int] = {}
    parts: dict[tuple[int, Hashable], list[Node]] = defaultdict(list)
    for node in nodes:
        before = [v.producer for v in node.inputs if v.producer is not None]
        before = [p for p in before if p in stages]
        if not needs[node]:  # Numbers belong to the part that they come from, if it is one.
            given = {keys[p] for p in before}
            keys[node] = given.pop() if len(given) == 1 else None
        behind = [stages[p] + (keys[p] != keys[node]) for p in before]
        stages[node] = max(behind, default=0)
        parts[stages[node], keys[node]].append(node)
    order = sorted(parts, key=lambda part: part[0])
    return [parts[part] for part in order]


def _keys(nodes: Sequence[Node], needs: Mapping[Node, frozenset[str]]) -> dict[Node, Hashable]:
    """Return what is equal for nodes of one part, for nodes that need extents."""
    labels = dict.fromkeys(needs[n] for n in nodes if needs[n])
    joined: list[frozenset[str]] = []
    for label in labels:
        apart = [other for other in joined if other.isdisjoint(label)]
        met = [other for other in joined if not other.isdisjoint(label)]
        joined = [*apart, label.union(*met)]
    keys: dict[Node, Hashable] = {}
    for whole in joined:
        own = [label for label in labels if label <= whole]
        sizes = Counter(needs[n] for n in nodes)
        parts = sum(_price(label, sizes[label]) for label in own)
        by_label = parts < _price(whole, sum(sizes[label] for label in own))
        keys.update({n: needs[n] if by_label else whole for n in nodes if needs[n] in own})
    return keys


def _price(label: frozenset[str], size: int) -> int:
    """Return what all programs of a part of so many nodes cost; many extents have coarser cells."""
    cells: int = (_CELLS if len(label) < 3 else 2) ** len(label)
    return cells * (size + _OVERHEAD)


__all__ = ["parts_of"]
