"""Graphs as boxes with their places, and everything a picture says about each of them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from treadle.graph.flop_count import elements, flops
from treadle.graph.ir import Graph, Node, Value, regions_of
from treadle.graph.layered import Drawing, Point, arrange
from treadle.graph.printer import quoted, value_names
from treadle.inspect.columns import in_columns
from treadle.inspect.families import family_of
from treadle.inspect.origins import is_passing, joined, places_of
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused
from treadle.ops.op import Op

CHARACTER, LINE, EDGE = 6.7, 15.0, 8.0
"""Width of a letter, height of a line, and the margin in boxes."""
WIDTH, MOST_LINES = 34, 4
"""Letters to a line, and lines of what a group holds."""
NARROW = "\u00a0"
"""A space at which no line ends."""
MANY = 4
"""Readers from which on a number that the program is given has no box."""
MOST_PLACES, MOST_ATTRIBUTES = 6, 240
"""Lines of the user's, and characters of attributes, that details list."""


@dataclass(frozen=True, slots=True)
class Box:
    """Content of one box, and its description.

    Attributes:
        number: of the node in its graph, or of the step in the plan; -1 for inputs and outputs.
        role: "node", "input" or "output".
        family: of `families.FAMILIES`; "end" for inputs and outputs.
        lines: in the box, the first one as its head.
        small: whether it is a view, which is drawn small.
        engine: who runs it; "" for the program's own.
        groups: nodes of the compiled graph in which it lives on.
        place: the user's line.
        names: of results, as the user or the model's file has them.
        results, operands: with their types.
        attributes: of the op.
        inside: ops of a group.
        nbytes: of its results.
        flops: arithmetic operations.
        seconds: predicted or measured, where it is known.
        fate: what became of it, in a few words.
        folded: ops that it reads and that need constants and weights alone.
    """

    number: int
    role: str
    family: str
    lines: tuple[str, ...]
    small: bool = False
    engine: str = ""
    groups: tuple[int, ...] = ()
    place: str = ""
    names: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    attributes: str = ""
    inside: tuple[str, ...] = ()
    nbytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    fate: str = ""
    folded: tuple[str, ...] = ()

    @property
    def size(self) -> Point:
        """Width and height."""
        wide = max(map(len, self.lines)) * CHARACTER + 2 * EDGE
        return (wide, LINE + 5) if self.small else (wide, len(self.lines) * LINE + 1.2 * EDGE)


@dataclass(frozen=True, slots=True)
class Edge:
    """From one box to another, by their numbers in the list, and the types it carries."""

    source: int
    target: int
    carries: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A graph as it is drawn.

    Attributes:
        name: of the stage.
        nodes: how many there are, constants left out.
        folded: those of them that need constants and weights alone. They have no boxes: captured
            networks have hundreds that turn weights into shape.
        unboxed: inputs that keep their contents, or are a number that many read; they are named
            where they are read.
        boxes, edges: what is drawn.
        drawing: where.
    """

    name: str
    nodes: int
    folded: int
    unboxed: int
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    drawing: Drawing


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """Facts about a graph's ends and nodes besides the graph.

    Attributes:
        held: numbers of inputs that keep their contents or are replaced by the program; they are
            named where they are read, and have no boxes.
        kept: numbers of outputs that replace such inputs.
        groups: nodes of the compiled graph in which each node lives on.
        seconds: of nodes, by number.
        fates: what became of nodes.
        inputs, outputs: names of the ends, if they are known.
    """

    held: Collection[int] = ()
    kept: Collection[int] = ()
    groups: Mapping[Node, Sequence[int]] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    fates: Mapping[Node, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()


@dataclass(slots=True)
class _Draft:
    """Boxes and edges so far, and which box makes each value."""

    boxes: list[Box] = field(default_factory=list)
    edges: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    maker: dict[Value, int] = field(default_factory=dict)

    def add(self, box: Box, reads: Iterable[Value], makes: Iterable[Value]) -> None:
        target = len(self.boxes)
        for value in dict.fromkeys(reads):
            if value in self.maker:
                pair = self.maker[value], target
                self.edges.setdefault(pair, []).append(str(value.type))
        self.boxes.append(box)
        self.maker.update(dict.fromkeys(makes, target))


def sheet(name: str, graph: Graph, known: KnownFacts) -> Sheet:
    """A graph as boxes, arrows and places; constants are a part of what reads them."""
    draft = _Draft()
    names = value_names(graph) | {
        v: f"%{quoted(name)}" for v, name in zip(graph.inputs, known.inputs, strict=False)
    }
    unboxed = {*known.held, *_everywhere(graph)}
    for number, value in enumerate(graph.inputs):
        if number not in unboxed:
            draft.add(_end("input", names[value], value), (), (value,))
    fixed = _fixed(graph, known.held)
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, Constant) or node in fixed:
            continue
        box = replace(
            _box(number, node, names),
            groups=tuple(known.groups.get(node, ())),
            seconds=known.seconds.get(number, 0.0),
            fate=known.fates.get(node, ""),
            folded=_counted(sorted(n.op.name for n in _above(node, fixed))),
        )
        draft.add(box, node.inputs, node.outputs)
    for number, value in enumerate(graph.outputs):
        if number not in known.kept:
            head = next(iter(known.outputs[number : number + 1]), f"output {number}")
            draft.add(_end("output", head, value), (value,), ())
    edges = tuple(Edge(a, b, ", ".join(types)) for (a, b), types in draft.edges.items())
    boxes, drawing = tuple(draft.boxes), placed(draft.boxes, edges)
    nodes = sum(box.role == "node" for box in boxes) + len(fixed)
    return Sheet(name, nodes, len(fixed), len(unboxed), boxes, edges, drawing)


def _end(role: str, head: str, value: Value) -> Box:
    return Box(-1, role, "end", (_short(head), str(value.type)))


def placed(boxes: Sequence[Box], edges: Sequence[Edge]) -> Drawing:
    """Place boxes and edges: in layers, and the layers in columns."""
    sizes = [box.size for box in boxes]
    return in_columns(arrange(sizes, [(e.source, e.target) for e in edges]), sizes)


def _everywhere(graph: Graph) -> list[int]:
    """Numbers of inputs such as learning rates: one element, and many readers."""
    readers = Counter(v for node in graph.nodes for v in dict.fromkeys(node.inputs))
    return [i for i, v in enumerate(graph.inputs) if readers[v] > MANY and elements(v) == 1]


def _fixed(graph: Graph, held: Collection[int]) -> set[Node]:
    """Nodes that follow from constants and weights alone, results of the program left out."""
    known = {v for i, v in enumerate(graph.inputs) if i in held}
    results, found = set(graph.outputs), set()
    for node in graph.nodes:
        if all(v in known for v in node.inputs):
            known.update(node.outputs)
            if not isinstance(node.op, Constant) and results.isdisjoint(node.outputs):
                found.add(node)
    return found


def _above(node: Node, fixed: Collection[Node]) -> set[Node]:
    """Fixed nodes that lead to a node."""
    found: set[Node] = set()
    queue = [node]
    while queue:
        makers = [v.producer for v in queue.pop().inputs]
        new = [m for m in makers if m is not None and m in fixed and m not in found]
        found.update(new)
        queue += new
    return found


def _box(number: int, node: Node, names: Mapping[Value, str]) -> Box:
    inside = _inside(node)
    results = tuple(f"{names[v]} {v.type}" for v in node.outputs)
    head, small = _head(node), is_passing(node.op)
    lines = [head] if small else [head, *_body(node, head, inside)]
    return Box(
        number,
        "node",
        family_of(node),
        tuple(lines),
        small,
        node.op.engine if isinstance(node.op, Fused) else "",
        place=_place(node),
        names=tuple(name for name in node.names if name),
        results=results,
        operands=tuple(f"{names[v]} {v.type}" for v in node.inputs),
        attributes="" if isinstance(node.op, Fused) else _attributes(node),
        inside=inside,
        nbytes=sum(v.type.nbytes for v in node.outputs if v.type.is_static),
        flops=flops(node),
    )


def _head(node: Node) -> str:
    op = node.op
    if not isinstance(op, Fused):
        return op.name
    if op.is_segment:
        return f"segment on {op.engine}"
    if op.engine:
        inner = [n.op.name for body in regions_of(op) for n in body.nodes]
        return f"{inner[0]} on {op.engine}"
    short = " + ".join(_computing(op) or _inside(node))
    named = f" “{_short(node.group)}”" if node.group else ""
    return (short if 0 < len(short) <= WIDTH else op.kind) + named


def _inside(node: Node) -> tuple[str, ...]:
    """The ops of a group or of regions, a run of equal ones as one."""
    return _counted(name for name in _names(node.op) if name != "constant")


def _names(op: Op) -> Iterator[str]:
    """Ops of regions; those of groups in them one by one."""
    for node in (n for body in regions_of(op) for n in body.nodes):
        if isinstance(node.op, Fused):
            yield from _names(node.op)
        else:
            yield node.op.name


def _computing(op: Op) -> tuple[str, ...]:
    """The ops of a group that compute something."""
    nodes = [n for body in regions_of(op) for n in body.nodes]
    return _counted(n.op.name for n in nodes if family_of(n) != "data")


def _counted(names: Iterable[str]) -> tuple[str, ...]:
    runs = [(name, len(list(same))) for name, same in groupby(names)]
    return tuple(name if n == 1 else f"{name} ×{n}" for name, n in runs)


def _body(node: Node, head: str, inside: Sequence[str]) -> list[str]:
    """The lines below the head: what a group holds, and the types of results."""
    lines: list[str] = []
    if isinstance(node.op, Fused) and head.split(" “")[0] == node.op.kind:
        names = _computing(node.op) or inside
        lines = [] if names == (node.op.kind,) else _listed(names)
    elif inside and not (isinstance(node.op, Fused) and not node.op.is_segment):
        lines = _listed(inside)
    types = Counter(str(v.type) for v in node.outputs)
    shown = [t if n == 1 else f"{n} × {t}" for t, n in types.items()]
    return [*lines, *(_short(t) for t in shown[:2]), *(["…"] if len(shown) > 2 else [])]


def _listed(names: Sequence[str]) -> list[str]:
    """Names on a few lines."""
    lines = textwrap.wrap(f"{NARROW}· ".join(names), WIDTH)
    if len(lines) <= MOST_LINES:
        return lines
    kinds = Counter(name.split(" ")[0] for name in names)
    return [*lines[: MOST_LINES - 1], f"… {len(names)} in all, of {len(kinds)} kinds"]


def _place(node: Node) -> str:
    """The user's lines, and the layer that ran them where somebody watched."""
    places = places_of(node)
    text = joined(places[:MOST_PLACES])
    text += f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
    return f"{text} ({node.loc.layer})" if node.loc.layer else text


def _attributes(node: Node) -> str:
    text = str(node.op).removeprefix(node.op.name).strip("{}")
    return text if len(text) <= MOST_ATTRIBUTES else text[:MOST_ATTRIBUTES] + "…"


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
