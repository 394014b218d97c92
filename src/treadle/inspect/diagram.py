"""Graphs as pictures: SVG, or text for Graphviz."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from treadle.base.errors import EngineError
from treadle.engine.plan import MemoryPlan
from treadle.graph.ir import Graph, Node, Value, regions_of
from treadle.graph.layered import Point, arrange
from treadle.graph.printer import value_names
from treadle.inspect.origins import places_of
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused

FORMS = (".svg", ".dot")
FONT, CHARACTER, LINE, EDGE = 12, 7.25, 16.0, 8.0
"""Size of letters, width of one, height of a line, and the margin in boxes."""
WIDTH = 34
"""Letters to a line."""
MARGIN = 24.0
COLORS = {
    "input": "#eef1f4",
    "output": "#eef1f4",
    "op": "#ffffff",
    "loop": "#dcefe0",
    "contraction": "#dbe7f8",
    "attention": "#ece0f5",
    "host": "#fbe3d6",
    "control": "#fbf1cf",
}
"""Of boxes, by what they stand for."""
MEMORY_COLORS = ("#9bb8dd", "#a9d3b4", "#e6c08f", "#cbb1da", "#d9a79a", "#b9c3cc")


@dataclass(frozen=True, slots=True)
class _Box:
    """Content of a box, the first line in bold; `about` is shown when somebody points at it."""

    kind: str
    lines: tuple[str, ...]
    about: str = ""

    @property
    def size(self) -> Point:
        """Width and height."""
        return max(map(len, self.lines)) * CHARACTER + 2 * EDGE, len(self.lines) * LINE + 2 * EDGE


@dataclass(frozen=True, slots=True)
class _Picture:
    """A graph as boxes and arrows between their numbers, each with the type of what it carries."""

    title: str
    boxes: tuple[_Box, ...]
    edges: Mapping[tuple[int, int], str]


def save_diagram(
    path: str | os.PathLike[str], graphs: Mapping[str, Graph], memory: MemoryPlan | None = None
) -> None:
    """Draw graphs side by side, and the plan of memory.

    Args:
        path: of the file; its ending says what it becomes: .svg or .dot.
        graphs: by title.
        memory: of the program; it is not drawn for Graphviz.

    Raises:
        EngineError: the ending is another one.
        OSError: the file cannot be written.
    """
    target = Path(path)
    pictures = [_picture(f"{name}: {_counted(g)}", g) for name, g in graphs.items()]
    if target.suffix == ".dot":
        text = _dot(pictures)
    elif target.suffix in FORMS:
        plan = [] if memory is None or not memory.spans else [_planned(memory)]
        text = _svg(pictures, plan)
    else:
        raise EngineError(
            "diagram",
            f"there is no picture of the form {target.suffix!r}",
            hint=f"end the path in {', '.join((*FORMS, '.html'))}",
        )
    target.write_text(text, encoding="utf-8")


def _counted(graph: Graph) -> str:
    count = sum(not isinstance(n.op, Constant) for n in graph.nodes)
    return f"{count} node{'s' * (count != 1)}"


# -- from graphs to boxes ----------------------------------------------------------------------


def _picture(title: str, graph: Graph) -> _Picture:
    names = value_names(graph)
    boxes = [_Box("input", (names[v], str(v.type))) for v in graph.inputs]
    maker = {v: i for i, v in enumerate(graph.inputs)}
    edges: dict[tuple[int, int], str] = {}
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            continue  # Those that matter are small, and part of what reads them.
        edges |= _arrows(node.inputs, maker, len(boxes))
        maker.update(dict.fromkeys(node.outputs, len(boxes)))
        boxes.append(_box(node, [names[v] for v in node.outputs]))
    for number, value in enumerate(graph.outputs):
        edges |= _arrows((value,), maker, len(boxes))
        boxes.append(_Box("output", (f"output {number}", names[value])))
    return _Picture(title, tuple(boxes), edges)


def _arrows(
    values: Iterable[Value], maker: Mapping[Value, int], target: int
) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], list[str]] = {}
    for value in dict.fromkeys(values):
        if value in maker:
            found.setdefault((maker[value], target), []).append(str(value.type))
    return {pair: ", ".join(types) for pair, types in found.items()}


def _box(node: Node, names: Sequence[str]) -> _Box:
    kind, head = _kind(node)
    inside = [n.op.name for body in regions_of(node.op) for n in body.nodes]
    inside = [name for name in inside if name != "constant"] if kind != "host" else []
    results = [f"{n} {v.type}" for n, v in zip(names, node.outputs, strict=True)]
    group = f' "{node.group}"' if node.group else ""
    lines = [head + group, *textwrap.wrap(" ".join(inside), WIDTH)[:8]]
    lines += [_short(r) for r in results[:4]] + ["..."] * (len(results) > 4)
    return _Box(kind, tuple(lines), "\n".join((*places_of(node), *results)))


def _kind(node: Node) -> tuple[str, str]:
    """Return a node's kind and name."""
    if isinstance(node.op, Fused):
        (body,) = regions_of(node.op)
        if node.op.is_segment:
            return "host", f"segment on {node.op.engine}, {len(body.nodes)} ops"
        if node.op.engine:
            return "host", f"{body.nodes[0].op.name} on {node.op.engine}"
        return (node.op.kind if node.op.kind in COLORS else "loop"), node.op.kind
    return ("control" if regions_of(node.op) else "op"), node.op.name


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


# -- from boxes to text ------------------------------------------------------------------------


Drawing = tuple[list[str], Point]
"""Lines of SVG, and their size."""


def _planned(memory: MemoryPlan) -> Drawing:
    """The arena: a rectangle per buffer, steps to the right, offsets downwards."""
    steps = max(end for *_, end in memory.spans) + 1
    width, height = min(900.0, max(320.0, 12.0 * steps)), 320.0
    title = f"memory: {memory.peak} bytes, at least {memory.bound}; {len(memory.spans)} buffers"
    lines = [f'<text x="0" y="{LINE:.0f}" font-weight="bold">{escape(title)}</text>']
    lines.append(f'<g transform="translate(0 {2 * LINE:.0f})">')
    lines.append(f'<rect width="{width:.1f}" height="{height:.1f}" fill="#eef1f4"/>')
    for number, (offset, size, start, end) in enumerate(memory.spans):
        x, y = width * start / steps, height * offset / max(memory.peak, 1)
        wide, high = width * (end - start + 1) / steps, height * size / max(memory.peak, 1)
        color = MEMORY_COLORS[number % len(MEMORY_COLORS)]
        about = f"{size} bytes at {offset}, steps {start} to {end}"
        lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{max(high, 0.6):.2f}" '
            f'fill="{color}" stroke="#ffffff" stroke-width="0.4"><title>{about}</title></rect>'
        )
    foot = f"step 0 to {steps - 1}, offset 0 at the top"
    lines += [f'<text x="0" y="{height + LINE:.0f}">{foot}</text>', "</g>"]
    return lines, (max(width, len(title) * CHARACTER), height + 4 * LINE)


def _svg(pictures: Sequence[_Picture], more: Sequence[Drawing] = ()) -> str:
    drawn, x, height = [], MARGIN, 0.0
    for lines, size in (*map(_drawn, pictures), *more):
        drawn += [f'<g transform="translate({x:.0f} {MARGIN:.0f})">', *lines, "</g>"]
        x, height = x + size[0] + 2 * MARGIN, max(height, size[1])
    width, height = x - MARGIN, height + 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="{FONT}">'
    )
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#5b6570"/></marker></defs>'
    )
    back = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join((head, arrow, back, *drawn, "</svg>\n"))


def _drawn(picture: _Picture) -> tuple[list[str], Point]:
    """One picture under its title, and its size."""
    found = arrange([b.size for b in picture.boxes], list(picture.edges))
    top = 2 * LINE
    lines = [f'<text x="0" y="{LINE:.0f}" font-weight="bold">{escape(picture.title)}</text>']
    lines.append(f'<g transform="translate(0 {top:.0f})">')
    for route, carried in zip(found.routes, picture.edges.values(), strict=True):
        lines.append(
            f'<path d="{_curve(route)}" fill="none" stroke="#5b6570" marker-end="url(#arrow)">'
            f"<title>{escape(carried)}</title></path>"
        )
    for box, center in zip(picture.boxes, found.centers, strict=True):
        lines += _box_lines(box, center)
    lines.append("</g>")
    return lines, (max(found.width, len(picture.title) * CHARACTER), found.height + top)


def _curve(route: Sequence[Point]) -> str:
    """A path through points that leaves and reaches each of them straight down."""
    (x, y), *rest = route
    parts = [f"M{x:.1f} {y:.1f}"]
    for u, v in rest:
        middle = (y + v) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {v:.1f}")
        x, y = u, v
    return "".join(parts)


def _box_lines(box: _Box, center: Point) -> Iterator[str]:
    (x, y), (width, height) = center, box.size
    left, top = x - width / 2, y - height / 2
    round_ = height / 2 if box.kind in ("input", "output") else 4
    yield f"<g><title>{escape(box.about)}</title>" if box.about else "<g>"
    yield (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{round_:.0f}" fill="{COLORS[box.kind]}" stroke="#5b6570"/>'
    )
    for i, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if i == 0 else ""
        at = top + EDGE + (i + 0.75) * LINE
        yield f'<text x="{x:.1f}" y="{at:.1f}" text-anchor="middle"{weight}>{escape(line)}</text>'
    yield "</g>"


def _dot(pictures: Sequence[_Picture]) -> str:
    lines = ["digraph {", '  node [shape=box, style="rounded,filled", fontname=monospace]']
    for p, picture in enumerate(pictures):
        lines += [f"  subgraph cluster_{p} {{", f"    label={_quoted(picture.title)}"]
        for i, box in enumerate(picture.boxes):
            label = _quoted("\n".join(box.lines))
            lines.append(f'    n{p}_{i} [label={label}, fillcolor="{COLORS[box.kind]}"]')
        lines += [f"    n{p}_{a} -> n{p}_{b}" for a, b in picture.edges]
        lines.append("  }")
    return "\n".join((*lines, "}\n"))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
