"""The text form of graphs. `parser.parse` reads it back exactly.

    graph g[n: 1..64](%x: float32[n,3], %0: float32[]) {
      %1 = cast{dtype=float32}(%x) : float32[n,3]
      %y = mul(%1, %0) : float32[n,3]
      return %y
    }

A node that is to run as one with others has the name of their group behind its types, `in "head"`.
Symbolic extents stand behind the name with their range (`n: 8..64 step 8`), relations they must
meet behind `where`. Constants are printed whole when small and by digest otherwise; the data of
the others is collected into a table that the parser takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.base.dtype import DType
from treadle.base.errors import GraphError
from treadle.base.extent import Symbol
from treadle.base.shape import format_shape
from treadle.base.symbol import Expr
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value, symbols_of
from treadle.graph.literals import RESERVED
from treadle.ops.constant import ArrayData
from treadle.ops.op import Op

INLINE = 16
"""Constants of at most this many elements are printed whole."""
WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z_][\w.]*")
_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_INDENT = "  "


def to_text(
    graph: Graph,
    *,
    locs: bool = False,
    inline: int = INLINE,
    constants: dict[str, ArrayData] | None = None,
) -> str:
    """The graph as text that ends in a newline.

    Args:
        graph: what to print.
        locs: add the user's line to every node, as a comment that the parser reads too.
        inline: print constants of at most this many elements whole.
        constants: receives the data of the constants printed by digest, by digest.
    """
    return _Printer(locs, inline, constants).graph(graph, None)


def value_names(graph: Graph) -> dict[Value, str]:
    """Return the name of each value in the text: its own name made unique, or a number."""
    names: dict[Value, str] = {}
    taken: set[str] = set()
    number = 0
    for value in _values(graph):
        if value in names:
            continue
        if value.name:
            names[value] = _unique(value.name, taken)
        else:
            names[value] = f"%{number}"
            number += 1
    return names


def node_lines(graph: Graph) -> dict[Node, int]:
    """The 1-based line of each node in `to_text(graph)`."""
    printer = _Printer(False, INLINE, None)
    printer.graph(graph, None)
    return printer.lines


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.outputs


def _unique(name: str, taken: set[str]) -> str:
    candidate, n = name, 1
    while candidate in taken:
        n += 1
        candidate = f"{name}_{n}"
    taken.add(candidate)
    return "%" + quoted(candidate)


def quoted(name: str) -> str:
    """A name as it is where it is plain, else in double quotes."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


@dataclass(slots=True)
class _Printer:
    """The options of one printing."""

    locs: bool
    inline: int
    constants: dict[str, ArrayData] | None
    lines: dict[Node, int] = field(default_factory=dict)

    def graph(self, graph: Graph, inside: set[Symbol] | None, indent: str = "") -> str:
        """A graph; `inside` holds the symbols an enclosing graph has declared."""
        symbols = [s for s in symbols_of(graph) if s not in (inside or ())]
        known = {*(inside or ()), *symbols}
        names = value_names(graph)
        head = f"graph {quoted(graph.name)}" if graph.name else "graph"
        if symbols:
            head += "[" + ", ".join(_symbol(s) for s in symbols) + "]"
        head += self._inputs(graph, names, len(head) + len(indent), indent)
        if graph.guards:
            head += " where " + ", ".join(str(g) for g in graph.guards)
        inner = indent + _INDENT
        parts = [head + " {"]
        line = 2 + head.count("\n")
        for node in graph.nodes:
            if inside is None:
                self.lines[node] = line
            parts.append(inner + self._node(node, names, known, inner))
            line += 1 + parts[-1].count("\n")
        returned = ", ".join(names.get(v, "%?") for v in graph.outputs)
        parts += [f"{inner}return {returned}".rstrip(), indent + "}"]
        return "\n".join(parts) + ("\n" if inside is None else "")

    def _inputs(self, graph: Graph, names: dict[Value, str], column: int, indent: str) -> str:
        inputs = [f"{names[v]}: {v.type}" for v in graph.inputs]
        flat = "(" + ", ".join(inputs) + ")"
        if column + len(flat) <= WIDTH - 2:
            return flat
        inner = "\n" + indent + _INDENT * 2
        return "(" + inner + ("," + inner).join(inputs) + "\n" + indent + ")"

    def _node(self, node: Node, names: dict[Value, str], known: set[Symbol], indent: str) -> str:
        results = ", ".join(names.get(v, "%?") for v in node.outputs)
        inputs = ", ".join(names.get(v, "%?") for v in node.inputs)
        types = ", ".join(str(v.type) for v in node.outputs)
        text = f"{results} = {self.op(node.op, known, indent)}({inputs}) : {types}"
        text += f" in {json.dumps(node.group)}" if node.group else ""
        return f"{text}  # at {node.loc}" if self.locs and node.loc else text

    def op(self, op: Op, known: set[Symbol], indent: str) -> str:
        """An op with its attributes, one to a line where one of them is a graph."""
        if not op._fields:
            return quoted(op.name)
        inner = indent + _INDENT
        parts = [
            f"{name}={self.value(op, value, known, inner)}" for name, value in op.attributes.items()
        ]
        if any("\n" in p for p in parts):
            lines = ",\n".join(inner + p for p in parts)
            return f"{quoted(op.name)}{{\n{lines}\n{indent}}}"
        return f"{quoted(op.name)}{{{', '.join(parts)}}}"

    def value(self, op: Op, value: Any, known: set[Symbol], indent: str) -> str:
        """An attribute."""
        if isinstance(value, Graph):
            return self.graph(value, known, indent)
        if isinstance(value, Op):
            text = self.op(value, known, indent)
            return text if value._fields else text + "{}"
        if isinstance(value, tuple):
            parts = [self.value(op, v, known, indent) for v in value]
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        if type(value) is ArrayData:
            return self._array(value)
        if type(value) is complex:
            return f"complex({value.real!r}, {value.imag!r})"
        if type(value) in _REPR:
            return repr(value)
        if type(value) is TensorType:
            return str(value)
        raise GraphError(
            op.name,
            f"an attribute of type {type(value).__name__} has no text form",
            hint="use ints, floats, bools, strings, bytes, None, DType, tuples or graphs",
        )

    def _array(self, data: ArrayData) -> str:
        head = f"{data.dtype.name}{format_shape(data.shape)}"
        inside = elements(data, self.inline) if data.is_present else None
        if inside is None:
            if self.constants is not None and data.is_present:
                self.constants[data.digest] = data
            inside = f"digest {data.digest!r}"
        return f"{head}({inside})"


_REPR = (bool, int, float, str, bytes, type(None), DType, Expr)


def _symbol(symbol: Symbol) -> str:
    if not _SYMBOL.fullmatch(symbol.name) or symbol.name in RESERVED:
        raise GraphError(
            "graph",
            f"{symbol.name!r} cannot be written as the name of an extent",
            hint="use letters, digits and underscores, and no element type",
        )
    high = "" if symbol.high is None else symbol.high
    step = f" step {symbol.multiple}" if symbol.multiple != 1 else ""
    edges = "".join(f" {e}" for e in symbol.edges)
    told = (f" edges{edges}" if edges else "") + (f" hint {symbol.hint}" if symbol.hint else "")
    return f"{symbol.name}: {symbol.low}..{high}{step}{told}"


def elements(data: ArrayData, limit: int) -> str | None:
    """The elements as text; None where there are too many or text would lose a NaN's payload."""
    flat = data.array.reshape(-1)
    if flat.size > 1:
        rows = flat.view(np.uint8).reshape(flat.size, -1)
        # A few tell of nearly all weights that they are not all equal.
        if bool((rows[:16] == rows[0]).all()) and bool((rows == rows[0]).all()):
            one = elements(ArrayData(flat[:1]), 1)
            return None if one is None else f"all {one}"
    if flat.size > limit:
        return None
    parts = [_element(data.dtype, x) for x in flat]
    if any(p is None for p in parts):
        return None
    return ", ".join(p for p in parts if p is not None)


def _element(dtype: DType, x: Any) -> str | None:
    if dtype.kind == "complex":
        text = f"complex({float(x.real)!r}, {float(x.imag)!r})"
        again = np.asarray(complex(float(x.real), float(x.imag)), dtype.numpy)
    elif dtype.kind == "float":
        text = str(x) if dtype.name == "float32" else repr(float(x))
        if float(text) != float(x) and np.asarray(float(text), dtype.numpy) != x:
            text = repr(float(x))
        again = np.asarray(float(text), dtype.numpy)
    else:
        text = repr(x.item())
        again = np.asarray(x)
    return text if again.tobytes() == np.asarray(x).tobytes() else None
