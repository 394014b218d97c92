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

from treadle.base.array import Array
from treadle.base.difference import Difference, difference, magnitude
from treadle.base.errors import EngineError
from treadle.base.layers import within
from treadle.base.observer import OBSERVER, observe
from treadle.base.table import lines
from treadle.engine.devices.names import CompNode
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node, Value
from treadle.jit.binding import Binding
from treadle.jit.compiled import Compiled, signature, under_casting
from treadle.jit.variants import Variant
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused
from treadle.ops.op import Op, as_tuple
from treadle.runtime.array import from_host, to_host


@dataclass(frozen=True, slots=True)
class OpComparison:
    """One result of one op, or of a group of ops that is one kernel.

    Attributes:
        number: of the op, in the order in which the function runs them.
        op: its name; of a group, the kind and the ops.
        at: the user's line, as `file:line`.
        layer: path and class of the module that ran it, "" outside of modules.
        type: of the result.
        difference: from the reference, in every measure, with the values around the first element
            that differs.
    """

    number: int
    op: str
    at: str
    layer: str
    type: str
    difference: Difference

    @property
    def largest(self) -> float:
        """Largest absolute difference; inf where NaN or an infinity stands on one side only."""
        return self.difference.largest

    @property
    def relative(self) -> float:
        """The same over the largest magnitude among operands and result."""
        return self.difference.relative

    @property
    def tolerance(self) -> float:
        """Largest `relative` that is not a difference."""
        return self.difference.tolerance

    @property
    def differs(self) -> bool:
        """True if it is more than rounding."""
        return self.difference.differs


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`; prints as a table.

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
        """True if nothing differs by more than rounding."""
        return self.first is None

    @property
    def first(self) -> OpComparison | None:
        """The first op at fault, or else the first group; None where all agree."""
        return next((row for row in (*self.ops, *self.groups) if row.differs), None)

    def __str__(self) -> str:
        header = ("", "op", "line", "layer", "result", "largest", "relative", "ulp", "allowed", "")
        rows = [
            (
                str(row.number),
                row.op,
                row.at,
                row.layer,
                row.type,
                f"{row.largest:.2g}",
                f"{row.relative:.2g}",
                f"{row.difference.ulps:.3g}",
                f"{row.tolerance:.2g}",
                f"{row.difference.count} of {row.difference.size}" if row.differs else "",
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
        where += f", in {first.layer}" if first.layer else ""
        return (
            f"{self.name}, level {self.level}: {counts}; the first that differs: {first.op}{where}"
            f"\n  {first.difference}\n  {first.difference.around}"
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

    The function is captured, and runs where its tensors live. Its graph is compiled with all
    intermediate results as outputs, to compare op by op, and as it is, to compare the groups of
    ops that are one kernel. State stays as it is; random numbers are drawn as in one call.

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
        EngineError: it uses several devices.

    Example:
        >>> x = mge.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> found = mge.jit.compare(lambda x: F.softmax(F.exp(x)), x)
        >>> found.agrees, found.first, [row.op for row in found.ops]
        (True, None, ['exp', 'softmax'])
    """
    chosen = options or _options_of(function, level)
    variant = _variant(function, chosen, args, kwargs)
    graph, frozen = variant.captured.graph, Interface(variant.interface.frozen)
    home = variant.stages.home
    _, leaves = under_casting(*signature(args, kwargs))
    whole = Stages(graph, frozen, chosen, home)
    payloads = Binding(variant.captured, (), whole.compile()).payloads(leaves)
    arrays = [np.array(to_host(a)) for a in payloads.arrays]
    ops = _ops(graph, _Runs(chosen, home), arrays, rtol)
    groups = _groups(whole.lowered.graph, _Runs(chosen, home), arrays, rtol)
    return Comparison(graph.name, chosen.level, tuple(ops), tuple(groups))


def _variant(function: Callable[..., Any], options: Options, args: Any, kwargs: Any) -> Variant:
    """A capture in which every op knows its layer, if nobody else watches.

    Raises:
        EngineError: the function uses several devices.
    """
    compiled = function if isinstance(function, Compiled) else None
    plain, axes = (compiled._function, compiled._dynamic) if compiled else (function, None)
    watched = OBSERVER.now is None
    if watched:
        observe(_Layers())
    try:
        found = Compiled(plain, options, axes).variant(args, kwargs)
    finally:
        if watched:
            observe(None)
    if found.captured.spread is not None:
        hint = "compare what runs on each of them by itself"
        raise EngineError("compare", "the function uses several devices", hint=hint)
    return found


class _Layers:
    """An observer that only lets modules be known by their paths."""

    def launch(self, op: Op, launch: Callable[..., Any], /) -> Callable[..., Any]:
        return launch

    def program(self, name: str, run: Callable[[], Any], /) -> Any:
        return run()

    def module(self, module: Any, inputs: tuple[Any, ...], forward: Callable[[], Any], /) -> Any:
        return within(module, forward)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Ways and places in which graphs are run."""

    options: Options
    home: CompNode | None

    def __call__(self, graph: Graph, arrays: Sequence[Array]) -> list[Array]:
        """The outputs of a graph that is compiled for the purpose."""
        program = Stages(graph, options=self.options, home=self.home).compile()
        where = None if self.home is None or self.home.on_host else self.home.open()
        return [to_host(a) for a in program.run([from_host(a, where) for a in arrays])]


def _options_of(function: Callable[..., Any], level: int) -> Options:
    known = function._options if isinstance(function, Compiled) else Options(level=level)
    return known if level == 2 else replace(known, level=level)


def _ops(
    graph: Graph, run: _Runs, arrays: Sequence[Array], rtol: float | None
) -> Iterator[OpComparison]:
    """Each op on the operands that the program computed."""
    nodes = [node for node in graph.nodes if not isinstance(node.op, Constant)]
    wanted = [value for node in nodes for value in node.outputs]
    if not wanted:
        return
    known = dict(zip(graph.inputs, arrays, strict=True))
    made = run(graph.with_nodes(graph.nodes, wanted), arrays)
    known.update(zip(wanted, made, strict=True))
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            known[node.output] = as_tuple(node.op.reference())[0]
    for number, node in enumerate(nodes):
        given = [known[v] for v in node.inputs]
        expected = as_tuple(node.op.reference(*given))
        found = [known[v] for v in node.outputs]
        yield from _rows(number, node, given, found, expected, rtol)


def _groups(
    graph: Graph, run: _Runs, arrays: Sequence[Array], rtol: float | None
) -> Iterator[OpComparison]:
    """Each group of an optimized program, alone, on the operands that the reference gives."""
    known: dict[Value, Array] = dict(zip(graph.inputs, arrays, strict=True))
    evaluate(graph, arrays, lambda n, made: known.update(zip(n.outputs, made, strict=True)))
    groups = [n for n in graph.nodes if isinstance(n.op, Fused) and not n.op.engine]
    for number, node in enumerate(groups):
        given = [known[v] for v in node.inputs]
        alone = _Runs(replace(run.options, level=0, fusion=False), run.home)
        found = alone(_alone(node), given)
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
    layer = node.loc.layer
    for value, seen, wanted in zip(node.outputs, found, expected, strict=True):
        # Sums may cancel: what was added is the measure of their rounding.
        scale = max([magnitude(a) for a in (wanted, *given)])
        apart = difference(np.asarray(seen), np.asarray(wanted), scale=scale, rtol=rtol)
        yield OpComparison(number, _name(node.op), at, layer, str(value.type), apart)


def _name(op: Op) -> str:
    if isinstance(op, Fused) and isinstance(op.body, Graph):
        return f"{op.kind}({'+'.join(node.op.name for node in op.body.nodes)})"
    return op.name


__all__ = ["Comparison", "OpComparison", "compare"]
