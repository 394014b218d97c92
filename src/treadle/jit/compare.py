"""`jit.compare`: every op and kernel of a compiled function beside the reference.

An op's NumPy reference is given the operands that the program computed, so a difference belongs to
the op itself and rounding does not add up from op to op. Ops compared so are compiled with all
results as outputs, which keeps few groups together; so every group of the program as it is then
runs by itself, on operands that the reference gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.table import lines
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node, Value
from treadle.jit.binding import Binding
from treadle.jit.compiled import Compiled, signature, under_casting
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused
from treadle.ops.op import Op, as_tuple

Array = npt.NDArray[Any]

_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
"""By element type: relative to the largest magnitude of a result; other types must be equal."""


@dataclass(frozen=True, slots=True)
class OpComparison:
    """One result of one op, or of a group of ops that is one kernel.

    Attributes:
        number: of the op, in the order in which the function runs them.
        op: its name; of a group, the kind and the ops.
        at: the user's line, as `file:line`.
        type: of the result.
        largest: largest absolute difference; inf where NaN or an infinity stands on one side only.
        relative: the same over the largest magnitude among operands and result.
        tolerance: what `relative` may be.
    """

    number: int
    op: str
    at: str
    type: str
    largest: float
    relative: float
    tolerance: float

    @property
    def differs(self) -> bool:
        """Whether it is more than rounding."""
        return self.relative > self.tolerance


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; prints as a table.

    Attributes:
        name: the function's.
        level: of optimization.
        ops: each result of each op, in order.
        groups: each result of each group that the program has.
    """

    name: str
    level: int
    ops: tuple[OpComparison, ...]
    groups: tuple[OpComparison, ...]

    @property
    def agrees(self) -> bool:
        """Whether nothing differs by more than rounding."""
        return self.first is None

    @property
    def first(self) -> OpComparison | None:
        """The first op at fault, or else the first group; None where all agree."""
        return next((row for row in (*self.ops, *self.groups) if row.differs), None)

    def __str__(self) -> str:
        header = ("", "op", "line", "result", "largest", "relative", "allowed", "")
        rows = [
            (
                str(row.number),
                row.op,
                row.at,
                row.type,
                f"{row.largest:.2g}",
                f"{row.relative:.2g}",
                f"{row.tolerance:.2g}",
                "differs" if row.differs else "",
            )
            for row in (*self.ops, *self.groups)
        ]
        return "\n".join((self._summary(), *lines(header, rows)))

    def _summary(self) -> str:
        counts = f"{len(self.ops)} results of ops, {len(self.groups)} of groups"
        first = self.first
        if first is None:
            return f"{self.name}, level {self.level}: {counts}; all agree"
        where = f" at {first.at}" if first.at else ""
        return (
            f"{self.name}, level {self.level}: {counts}; the first that differs: {first.op}{where}"
        )


def compare(
    function: Callable[..., Any],
    *args: Any,
    level: int = 2,
    options: Options | None = None,
    rtol: float | None = None,
    **kwargs: Any,
) -> Comparison:
    """Compare every op of a compiled function with its NumPy reference, and name the first wrong.

    The function is captured. Its graph is compiled with all intermediate results as outputs, to
    compare op by op, and as it is, to compare the groups of ops that are one kernel. State stays
    as it is; random numbers are drawn as in one call.

    Args:
        function: what to look at, compiled or not. A compiled one keeps its options, unless
            `level` or `options` say otherwise.
        args: of the function.
        level: of optimization, 0 to 3.
        options: all options in one value, in place of `level`.
        rtol: largest difference over the largest magnitude among operands and result; None: 1e-9
            for float64, 1e-4 for float32, 1e-2 for float16, 4e-2 for bfloat16. Integers and bools
            must be equal.
        kwargs: of the function.

    Returns:
        A `Comparison`: `first` is what is at fault or None, `str` a table.

    Raises:
        TraceError: the function cannot be captured.
        CompileError: it has results whose shape depends on data.

    Example:
        >>> x = mge.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> found = mge.jit.compare(lambda x: F.softmax(F.exp(x)), x)
        >>> found.agrees, found.first, [row.op for row in found.ops]
        (True, None, ['exp', 'softmax'])
    """
    chosen = options or _options_of(function, level)
    made = function if isinstance(function, Compiled) else Compiled(function, chosen)
    variant = made.variant(args, kwargs)
    graph, frozen = variant.captured.graph, Interface(variant.stages.interface.frozen)
    _, leaves = under_casting(*signature(args, kwargs))
    whole = Stages(graph, frozen, chosen)
    payloads = Binding(variant.captured, (), whole.compile()).payloads(leaves)
    arrays = [np.array(a) for a in payloads.arrays]
    ops = _ops(graph, chosen, arrays, rtol)
    groups = _groups(whole.lower(), chosen, arrays, rtol)
    return Comparison(graph.name, chosen.level, tuple(ops), tuple(groups))


def _options_of(function: Callable[..., Any], level: int) -> Options:
    known = function._options if isinstance(function, Compiled) else Options(level=level)
    return known if level == 2 else replace(known, level=level)


def _ops(
    graph: Graph, options: Options, arrays: Sequence[Array], rtol: float | None
) -> Iterator[OpComparison]:
    """Each op on the operands that the program computed."""
    nodes = [node for node in graph.nodes if not isinstance(node.op, Constant)]
    wanted = [value for node in nodes for value in node.outputs]
    if not wanted:
        return
    program = Stages(graph.with_nodes(graph.nodes, wanted), options=options).compile()
    known = dict(zip(graph.inputs, arrays, strict=True))
    known.update(zip(wanted, program.run(arrays), strict=True))
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            known[node.output] = as_tuple(node.op.reference())[0]
    for number, node in enumerate(nodes):
        given = [known[v] for v in node.inputs]
        expected = as_tuple(node.op.reference(*given))
        found = [known[v] for v in node.outputs]
        yield from _rows(number, node, given, found, expected, rtol)


def _groups(
    graph: Graph, options: Options, arrays: Sequence[Array], rtol: float | None
) -> Iterator[OpComparison]:
    """Each group of an optimized program, alone, on the operands that the reference gives."""
    known: dict[Value, Array] = dict(zip(graph.inputs, arrays, strict=True))
    evaluate(graph, arrays, lambda n, made: known.update(zip(n.outputs, made, strict=True)))
    groups = [n for n in graph.nodes if isinstance(n.op, Fused) and not n.op.engine]
    for number, node in enumerate(groups):
        given = [known[v] for v in node.inputs]
        alone = replace(options, level=0, fusion=False)
        found = Stages(_alone(node), options=alone).compile().run(given)
        yield from _rows(number, node, given, found, [known[v] for v in node.outputs], rtol)


def _alone(node: Node) -> Graph:
    """A graph of one node."""
    inputs = tuple(Value(v.type, None, i, v.name) for i, v in enumerate(node.inputs))
    made = Node(node.op, inputs, node.loc)
    return Graph(node.op.name, inputs, (made,), made.outputs)


def _rows(
    number: int,
    node: Node,
    given: Sequence[Array],
    found: Sequence[Array],
    expected: Sequence[Array],
    rtol: float | None,
) -> Iterator[OpComparison]:
    at = f"{node.loc.file.rpartition('/')[2]}:{node.loc.line}" if node.loc else ""
    for value, seen, wanted in zip(node.outputs, found, expected, strict=True):
        allowed = _TOLERANCES.get(value.type.dtype.name, 0.0)
        if allowed and rtol is not None:
            allowed = rtol
        largest = _difference(np.asarray(seen), np.asarray(wanted))
        # Sums may cancel: what was added is the measure of their rounding.
        scale = max([_magnitude(a) for a in (wanted, *given)])
        relative = largest / scale if scale else largest
        name = _name(node.op)
        yield OpComparison(number, name, at, str(value.type), largest, relative, allowed)


def _name(op: Op) -> str:
    if isinstance(op, Fused) and isinstance(op.body, Graph):
        return f"{op.kind}({'+'.join(node.op.name for node in op.body.nodes)})"
    return op.name


def _difference(found: Array, wanted: Array) -> float:
    """The largest absolute difference."""
    if not wanted.size:
        return 0.0
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    x, y = found.astype(wide), wanted.astype(wide)
    same = (found == wanted) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(x - y))
    if wanted.dtype.kind in "iub":  # Large integers that differ may be one number in float64.
        apart = np.where(same, 0.0, np.maximum(apart, 1.0))
    return float(np.where(np.isnan(apart), np.inf, apart).max())


def _magnitude(array: Array) -> float:
    """The largest finite magnitude of a floating array; 0 of others."""
    given = np.asarray(array)
    if given.dtype.kind in "iub":
        return 0.0
    wide = np.abs(given.astype(np.complex128 if given.dtype.kind == "c" else np.float64))
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


__all__ = ["Comparison", "OpComparison", "compare"]
