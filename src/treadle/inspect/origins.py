"""From captured ops to what runs: ops keep their source lines through every rewrite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from treadle.base.loc import Loc
from treadle.graph.ir import Graph, Node, regions_of
from treadle.ops.composite import Composite
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused
from treadle.ops.op import Op


def is_passing(op: Op) -> bool:
    """Return whether an op comes and goes with the layout of its operand."""
    return op.incidental and bool(op.operands)


@dataclass(frozen=True, slots=True)
class Leaf:
    """An op that runs, alone or inside the node number `top` of the compiled graph."""

    node: Node
    top: int


def leaves(graph: Graph) -> list[Leaf]:
    """Every op of a compiled graph, those inside groups and regions in place of their holders."""
    return [Leaf(n, top) for top, node in enumerate(graph.nodes) for n in _inside(node)]


def _inside(node: Node) -> Iterator[Node]:
    if isinstance(node.op, Constant):
        return
    if not isinstance(node.op, Fused):
        yield node
    for region in regions_of(node.op):
        for inner in region.nodes:
            yield from _inside(inner)


def whereabouts(captured: Graph, compiled: Graph) -> dict[Node, tuple[int, ...]]:
    """Return for every captured op the nodes of the compiled graph in which it lives on.

    Ops are told by source line, name and result, and among equals by their order. One that is not
    found like that may hold its result with the axes in another order, be computed on integers, or
    have become another op of its line with the same result; and a composite is what else its line
    has that nobody claims. What leaves no such trace was folded, shared with an equal op, found to
    be dead, or is a view.
    """
    every = leaves(compiled)
    found, left = _matched(captured.nodes, every, lambda n: (n.loc, n.op.name, _results(n)))
    for key in (_in_any_layout, _on_integers, _of_any_op):
        plain = [n for n in captured.nodes if n not in found and not _is_traceless(n.op)]
        more, left = _matched(plain, left, key)
        found |= more
    by_line: dict[Loc, dict[int, None]] = {}
    for leaf in left:
        by_line.setdefault(leaf.node.loc, {})[leaf.top] = None
    for node in captured.nodes:
        if node not in found:
            whole = isinstance(node.op, Composite)
            found[node] = tuple(by_line.get(node.loc, ())) if whole else ()
    return {n: found[n] for n in captured.nodes}


def _is_traceless(op: Op) -> bool:
    return isinstance(op, Constant | Composite) or is_passing(op)


def _matched(
    nodes: Sequence[Node], every: Sequence[Leaf], key: Callable[[Node], object]
) -> tuple[dict[Node, tuple[int, ...]], list[Leaf]]:
    """Return the places of ops with equal keys, and what is left."""
    tops: dict[object, list[int]] = {}
    for leaf in every:
        tops.setdefault(key(leaf.node), []).append(leaf.top)
    wanted: dict[object, list[Node]] = {}
    for node in nodes:
        wanted.setdefault(key(node), []).append(node)
    found: dict[Node, tuple[int, ...]] = {}
    for name, alike in wanted.items():
        there = tops.get(name, [])
        one_each = len(there) == len(alike)
        for i, node in enumerate(alike):
            if there:
                found[node] = (there[i],) if one_each else tuple(dict.fromkeys(there))
    return found, [leaf for leaf in every if key(leaf.node) not in wanted]


def _in_any_layout(node: Node) -> object:
    types = tuple((v.type.dtype, tuple(sorted(map(str, v.type.shape)))) for v in node.outputs)
    return node.loc, node.op.name, types


def _on_integers(node: Node) -> object:
    shapes = tuple(tuple(sorted(map(str, v.type.shape))) for v in node.outputs)
    return node.loc, node.op.name.removeprefix("int_"), shapes


def _of_any_op(node: Node) -> object:
    return node.loc, _results(node)


def _results(node: Node) -> object:
    return tuple((v.type.dtype, v.type.shape) for v in node.outputs)


def place(loc: Loc) -> str:
    """File and line, without folders; the name of a node of another format, which has line 0."""
    if not loc:
        return ""
    return f"{loc.file.rsplit('/', 1)[-1]}:{loc.line}" if loc.line else loc.file


def joined(places: Iterable[str]) -> str:
    """Lines of files in few words: `net.py:3,7,12-14`; nodes of other formats by name alone."""
    by_file: dict[str, set[int]] = {}
    for text in places:
        file, _, line = text.rpartition(":")
        if file and line.isdecimal():
            by_file.setdefault(file, set()).add(int(line))
        else:
            by_file.setdefault(text, set())
    return " ".join(
        f"{f}:{_numbers(sorted(found))}" if found else f for f, found in by_file.items()
    )


def _numbers(found: Sequence[int]) -> str:
    """Numbers in ascending order, runs of them as ranges."""
    runs: list[list[int]] = []
    for n in found:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def places_of(node: Node) -> tuple[str, ...]:
    """The source lines of a node and of what it holds."""
    return tuple(dict.fromkeys(place(n.loc) for n in (node, *_inside(node)) if n.loc))
