"""Counts of the parts that a program was cut into, and their sizes, for reports and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LISTED = 4


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that one engine runs without a break.

    Attributes:
        engine: its name.
        nodes: how many there are, before any of them are fused.
        reads, writes: bytes that come from outside, and that others need; a guess where extents
            are symbolic.
    """

    engine: str
    nodes: int
    reads: int
    writes: int


def told(parts: Sequence[Partition]) -> str:
    """Partitions in a few words: how many, whose, and of what size."""
    if not parts:
        return "-"
    if len(parts) <= _LISTED:
        sizes = [f"{p.engine} {_nodes(p.nodes)}" for p in parts]
        return f"{len(parts)}: {', '.join(sizes)}"
    engines = dict.fromkeys(p.engine for p in parts)
    mine = {e: [p.nodes for p in parts if p.engine == e] for e in engines}
    sizes = [f"{len(nodes)} of {e} with {_nodes(sum(nodes))}" for e, nodes in mine.items()]
    return f"{len(parts)}: {', '.join(sizes)}"


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
