"""Precision of a whole graph for inference: which ops compute in how many bits.

`with_precision` takes a graph as model files hold it, weights inside, and gives one with the same
inputs and outputs that computes in other element types. Which ops gain from few bits, and which
need many, is what mixed precision says (`amp.precision`): there is one table.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from treadle.amp.precision import Precision, precision
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, promote
from treadle.base.errors import DTypeError, GraphError
from treadle.base.shape import size_of
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.cleanup import DeadCode
from treadle.graph.ir import Graph, Node, Value, constant_of, regions_of, with_types
from treadle.ops.constant import Constant
from treadle.ops.elementwise import Cast
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.op import REGISTRY, Op
from treadle.ops.quant import Dequantize
from treadle.quantization.graph_calibration import PRODUCTS, with_integers

MODES: Mapping[str, str] = {
    "float32": "everything that has 16 bits computes in float32",
    "mixed-bfloat16": "products in bfloat16, what needs more bits in float32",
    "mixed-float16": "products in float16, what needs more bits in float32",
    "bfloat16": "weights are stored in bfloat16 and computed with in float32",
    "float16": "weights are stored in float16 and computed with in float32",
    "int8": "products on 8-bit integers, with ranges found on calibration data",
}
"""Modes of `with_precision`, and what each does."""
_NONE: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})
_NUMBER = re.compile(r"\[\d+\]$")
SMALLEST = 64
"""Elements from which on a constant is a weight that is stored in few bits."""


@dataclass(slots=True)
class PrecisionReport:
    """Record of what was done to a graph.

    Attributes:
        mode: that was asked for.
        ops: how many nodes of an op compute in which element type.
        kept: nodes that were named to stay as they are.
        notes: what could not be done, and why, with how often.
        weight_bytes: of all constants before and after.
    """

    mode: str
    ops: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: list[str] = field(default_factory=list)
    notes: Counter[tuple[str, str]] = field(default_factory=Counter)
    weight_bytes: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        before, after = self.weight_bytes
        lines = [f"precision {self.mode}: weights {before / 1e6:.1f} -> {after / 1e6:.1f} MB"]
        kinds = sorted({kind for _, kind in self.ops})
        for kind in kinds:
            ops = [(n, op) for (op, k), n in self.ops.items() if k == kind]
            listed = ", ".join(f"{op} x{n}" if n > 1 else op for n, op in sorted(ops, reverse=True))
            lines.append(f"  {kind}: {listed}")
        if self.kept:
            lines.append(f"  kept: {', '.join(self.kept)}")
        lines += [f"  {op}: {why} (x{n})" for (op, why), n in self.notes.items()]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        return {
            "mode": self.mode,
            "ops": [{"op": o, "dtype": k, "count": n} for (o, k), n in sorted(self.ops.items())],
            "kept": list(self.kept),
            "notes": [{"op": o, "why": w, "count": n} for (o, w), n in sorted(self.notes.items())],
            "weight_bytes": list(self.weight_bytes),
        }


def with_precision(
    graph: Graph,
    mode: str,
    *,
    keep: Collection[str] = (),
    allow: Collection[str] = (),
    calibration: Sequence[Sequence[Array]] = (),
) -> tuple[Graph, PrecisionReport]:
    """A graph that computes in other element types; inputs and outputs keep theirs.

    Args:
        graph: for inference, with its weights as constants; regions of control flow stay as they
            are. It may have symbols for extents.
        mode: one of `MODES`.
        keep: ops, nodes or values that stay as they are, by name: of an op ("softmax"), of a node
            of the source model, or of a value. `*` and `?` stand for any characters.
        allow: names of ops that run in few bits besides those that mixed precision runs so.
        calibration: for "int8": batches, each one array per input of the graph; where it has
            symbols, of any sizes that it takes.

    Returns:
        The graph, and what became of its ops.

    Raises:
        GraphError: there is no such mode or op; a name of `keep` fits nothing; or "int8" has no
            calibration data.
        ShapeError: calibration data have sizes that the graph does not take.
    """
    if mode not in MODES:
        known = ", ".join(MODES)
        raise GraphError("precision", f"there is no mode {mode!r}", hint=f"there are {known}")
    unknown = sorted(name for name in allow if name not in REGISTRY)
    if unknown:
        raise GraphError(
            "precision", f"there is no op {', '.join(unknown)}", hint="docs/ops.md lists all ops"
        )
    report = PrecisionReport(mode)
    kept = kept_nodes(graph, keep)
    report.kept = sorted({_called(n) for n in kept})
    before = _constant_bytes(graph)
    if mode == "int8":
        made = with_integers(graph, calibration, kept, report.notes)
    elif mode in ("bfloat16", "float16"):
        made = _with_narrow_weights(graph, dt.as_dtype(mode), kept)
    elif mode == "float32":
        made = _Retyped(graph, _wide, kept, report.notes).run()
    else:
        rule = precision(mode.removeprefix("mixed-"), "float32")
        made = _Retyped(graph, _Mixed(rule, frozenset(allow)), kept, report.notes).run()
    made = DeadCode()(made)
    report.weight_bytes = before, _constant_bytes(made)
    report.ops = _tally(made)
    return made, report


def calibration_batches(
    graph: Graph,
    names: Sequence[str],
    arrays: Mapping[str, Array],
    ranges: Mapping[str, Sequence[tuple[int, int]]] = _NONE,
) -> list[list[Array]]:
    """Calibration data as files hold them, one array per input, cut into batches of the graph.

    Args:
        graph: whose inputs have fixed shapes, except where ranges are given.
        names: of its inputs, in order.
        arrays: by name; the first axis counts examples, as many as any number of batches has. An
            array of exactly the input's shape is one batch.
        ranges: least and largest of each extent, by name of the input. An array within them is one
            batch, and of a longer first axis batches are as large as they may be.

    Raises:
        GraphError: an input has no array, or one of another shape, with NaN, or of fewer batches.
    """
    parts: list[list[Array]] = []
    for name, value in zip(names, graph.inputs, strict=True):
        if name not in arrays:
            raise GraphError(
                "calibration", f"there is no array for input {name}", saw=", ".join(arrays)
            )
        spans = ranges.get(name) or [(int(d), int(d)) for d in value.type.shape]
        parts.append(_batches(name, np.asarray(arrays[name]), value, spans))
    count = min(map(len, parts))
    if any(len(p) != count for p in parts):
        seen = ", ".join(f"{n}: {len(p)}" for n, p in zip(names, parts, strict=True))
        raise GraphError("calibration", "inputs have different numbers of batches", saw=seen)
    return [list(batch) for batch in zip(*parts, strict=True)]


def _batches(
    name: str, array: Array, value: Value, spans: Sequence[tuple[int, int]]
) -> list[Array]:
    array = array.astype(value.type.dtype.numpy, copy=False)
    if value.type.dtype.is_float and np.isnan(array).any():
        raise GraphError("calibration", f"the array for input {name} holds NaN")
    if _is_within(array.shape, spans):
        return [array]
    if spans and array.shape[:1] > (spans[0][1],) and _is_within(array.shape[1:], spans[1:]):
        low, high = spans[0]
        parts = [array[i : i + high] for i in range(0, array.shape[0], max(high, 1))]
        return [part for part in parts if part.shape[0] >= low]
    if _is_within(array.shape[1:], spans):
        return list(array)
    wanted = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in spans)
    raise GraphError(
        "calibration",
        f"the array for input {name} does not fit",
        saw=f"{list(array.shape)} for {value.type.dtype.name}[{wanted}]",
        hint="the first axis counts examples",
    )


def _is_within(shape: Sequence[int], spans: Sequence[tuple[int, int]]) -> bool:
    pairs = zip(shape, spans, strict=False)
    return len(shape) == len(spans) and all(low <= d <= high for d, (low, high) in pairs)


# -- which nodes are meant ---------------------------------------------------------------------


def kept_nodes(graph: Graph, patterns: Collection[str]) -> set[Node]:
    """The nodes that names or patterns mean.

    Raises:
        GraphError: a pattern fits nothing.
    """
    found: set[Node] = set()
    for pattern in patterns:
        fits = [n for n in graph.nodes if _is_called(n, pattern)]
        if not fits:
            raise GraphError(
                "precision",
                f"keep names {pattern!r}, which is not an op, node or value of the graph",
                hint="`treadle info` lists the nodes of a model",
            )
        found.update(fits)
    return found


def _is_called(node: Node, pattern: str) -> bool:
    named = [v.name for v in node.outputs]
    # A node of the source may have become several, name[0] and so on: it means all of them.
    names = (node.op.name, node.group, *named, *(_NUMBER.sub("", name) for name in named))
    return any(name and (name == pattern or fnmatch.fnmatchcase(name, pattern)) for name in names)


def _called(node: Node) -> str:
    name = node.group or node.output.name
    return f"{node.op.name} {name}".rstrip()


# -- rules -------------------------------------------------------------------------------------


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize == 2


def _wide(op: Op, index: int, mine: DType) -> DType | None:
    """Float32 in the place of 16 bits, for every op."""
    return dt.float32 if _is_narrow(mine) else mine


@dataclass(frozen=True, slots=True)
class _Mixed:
    """Element type that mixed precision asks of an operand; None where it says nothing about the
    op.
    """

    rule: Precision
    allow: frozenset[str]

    def __call__(self, op: Op, index: int, mine: DType) -> DType | None:
        if op.name in self.allow:
            return self.rule.low
        return self.rule.wanted(op, index)


class _Retyped:
    """Rebuilds a graph with operands cast to what a rule wants."""

    def __init__(self, graph: Graph, rule: Any, kept: set[Node], notes: Counter[Any]) -> None:
        self._graph, self._rule, self._kept, self._notes = graph, rule, kept, notes
        self._builder = GraphBuilder(graph.name)
        self._builder.adopt(graph.inputs, as_inputs=True)
        self._now: dict[Value, Value] = {v: v for v in graph.inputs}
        self._cast: dict[tuple[Value, DType], Value] = {}
        self._fixed: set[Value] = set()

    def run(self) -> Graph:
        """The graph; its outputs have the types they had."""
        for node in self._graph.nodes:
            self._now.update(zip(node.outputs, self._made(node), strict=True))
        outputs = [self._as(self._now[v], v.type.dtype) for v in self._graph.outputs]
        made = self._builder.build()
        guards = dict.fromkeys((*self._graph.guards, *made.guards))
        return Graph(self._graph.name, made.inputs, made.nodes, tuple(outputs), tuple(guards))

    def _made(self, node: Node) -> Sequence[Value]:
        """The results of a node on operands of the wanted types."""
        op = node.op
        if not node.inputs or regions_of(op) or node in self._kept:
            made = self._copied(node)
        else:
            wanted = self._wanted(node)
            op = self._rebuilt(op)
            inputs = tuple(
                self._as(self._now[v], d) for v, d in zip(node.inputs, wanted, strict=True)
            )
            try:
                new = self._builder.add(op, inputs, node.names, node.loc, node.group)
                # Symbols that the node has invented are those of guards and of what comes later.
                pairs = zip(new.outputs, node.outputs, strict=True)
                made = with_types(
                    new, tuple([n.type.with_shape(o.type.shape) for n, o in pairs])
                ).outputs
            except DTypeError as error:
                self._notes[op.name, error.problem] += 1
                made = self._copied(node)
        if all(self._now[v] in self._fixed for v in node.inputs):
            self._fixed.update(made)
        return made

    def _copied(self, node: Node) -> Sequence[Value]:
        """The node on operands of the types that it had."""
        inputs = tuple(self._as(self._now[v], v.type.dtype) for v in node.inputs)
        return self._builder.copy(node, inputs).outputs

    def _rebuilt(self, op: Op) -> Op:
        """An op that makes 16-bit floats, made to yield float32 where everything is to be so."""
        if self._rule is _wide and isinstance(op, Cast) and _is_narrow(op.dtype):
            return Cast(dt.float32)
        return op

    def _wanted(self, node: Node) -> list[DType]:
        """An element type for every operand."""
        now = [self._now[v].type.dtype for v in node.inputs]
        if any(d is dt.float64 for d in now):
            return [v.type.dtype for v in node.inputs]
        asked = [self._rule(node.op, i, d) if d.is_float else d for i, d in enumerate(now)]
        if None not in asked:
            return [d for d in asked if d is not None]
        return self._alike(node, now)

    def _alike(self, node: Node, now: list[DType]) -> list[DType]:
        """The types of an op without a rule: what was alike stays so, and constants follow."""
        floats = [i for i, d in enumerate(now) if d.is_float]
        if len({node.inputs[i].type.dtype for i in floats}) > 1:
            return [v.type.dtype for v in node.inputs]  # They have a meaning each.
        moving = [i for i in floats if self._now[node.inputs[i]] not in self._fixed]
        kinds = [now[i] for i in moving or floats]
        common = functools.reduce(promote, kinds, kinds[0]) if kinds else dt.float32
        return [common if d.is_float else d for d in now]

    def _as(self, value: Value, dtype: DType) -> Value:
        if value.type.dtype is dtype:
            return value
        found = self._cast.get((value, dtype))
        if found is None:
            found = _casted(self._builder, value, dtype)
            self._cast[value, dtype] = found
            if value in self._fixed:
                self._fixed.add(found)
        return found


def _casted(builder: GraphBuilder, value: Value, dtype: DType) -> Value:
    """A value in another type; constants are converted now, moved ones before they are moved."""
    data, node = constant_of(value), value.producer
    if data is not None and data.is_present:
        with np.errstate(over="ignore"):
            narrow = data.array.astype(dtype.numpy)
        made: GraphOperand = builder.constant(narrow, value.type.device)
        return made.value
    if node is not None and isinstance(node.op, (Reshape, Transpose)) and _is_weight(node):
        return builder.add(node.op, (_casted(builder, node.inputs[0], dtype),)).output
    return builder.add(Cast(dtype), (value,)).output


def _with_narrow_weights(graph: Graph, dtype: DType, kept: set[Node]) -> Graph:
    """The graph with float32 weights stored in a narrow type, and cast where they are used."""
    excused = {v for n in kept for v in (*n.inputs, *n.outputs)}
    builder = GraphBuilder(graph.name)
    builder.adopt(graph.inputs, as_inputs=True)
    now: dict[Value, Value] = {v: v for v in graph.inputs}
    for node in graph.nodes:
        value = node.outputs[0] if node.outputs else None
        is_weight = isinstance(node.op, Constant) and _is_weight(node)
        if value is not None and is_weight and value not in excused:
            now[value] = builder.add(
                Cast(value.type.dtype), (_casted(builder, value, dtype),)
            ).output
            continue
        made = builder.copy(node, tuple(now[v] for v in node.inputs))
        now.update(zip(node.outputs, made.outputs, strict=True))
    return graph.with_nodes(builder.build().nodes, (now[v] for v in graph.outputs))


def _is_weight(node: Node | None) -> bool:
    """Return whether a node makes a float32 matrix that is a constant, or a constant moved."""
    if node is None:
        return False
    if isinstance(node.op, (Reshape, Transpose)):
        return _is_weight(node.inputs[0].producer)
    kind = node.output.type
    if not isinstance(node.op, Constant) or not node.op.data.is_present:
        return False
    return kind.dtype is dt.float32 and kind.ndim > 1 and size_of(kind.shape) >= SMALLEST


# -- the report --------------------------------------------------------------------------------


def _constant_bytes(graph: Graph) -> int:
    return sum(n.output.type.nbytes for n in graph.nodes if isinstance(n.op, Constant))


def _tally(graph: Graph) -> Counter[tuple[str, str]]:
    """Nodes by op and the type they compute in; products of rounded numbers run on integers."""
    found: Counter[tuple[str, str]] = Counter()
    for node in graph.nodes:
        if not node.inputs or node.op.converts:
            continue
        makers = [v.producer for v in node.inputs]
        rounded = [m is not None and isinstance(m.op, Dequantize) for m in makers]
        on_integers = isinstance(node.op, PRODUCTS) and all(rounded)
        found[node.op.name, "int8" if on_integers else node.inputs[0].type.dtype.name] += 1
    return found
