"""`Stepwise`: runs a graph on a device op by op, as eager code does, for kinds without a compiler.

Every op has the launch that an eager call has: the device's kernel, else generated code, else the
host, counted in the fallback report. Values are freed after their last use.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import EngineError, TreadleError
from treadle.base.loc import Loc
from treadle.base.table import lines
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.eager.placed import PlacedLaunch, decision_of, host_plan, plan_for
from treadle.engine.execute.counters import Counters, Tally, total
from treadle.graph.analysis import has_effect
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import Constant
from treadle.ops.control import Cond, Scan, While
from treadle.ops.fused import Fused
from treadle.ops.movement import Concat, Reshape
from treadle.ops.op import Op
from treadle.ops.slicing import Slice
from treadle.ops.transfer import Identity, Transfer
from treadle.runtime.array import DeviceArray, from_host, to_device

Launch = Callable[..., Any]
Segment = Callable[[Fused], Launch]
_ALIASES = (Identity, Transfer)
"""Ops whose result is their operand: arrays are immutable, and all are on one device."""


@dataclass(frozen=True, slots=True)
class _OpStep:
    """One op: where its operands and results are kept, and what is not needed afterwards."""

    op: Op
    loc: Loc
    run: Launch
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]
    single: bool


class _Block:
    """A graph with a launch for every node; regions of control flow are blocks of their own."""

    def __init__(self, graph: Graph, where: CompNode, segment: Segment | None = None) -> None:
        numbers = {v: i for i, v in enumerate(graph.inputs)}
        known: list[tuple[int, Any]] = []
        alias: dict[Value, Value] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            if isinstance(node.op, _ALIASES):
                alias[node.output] = alias.get(node.inputs[0], node.inputs[0])
                continue
            for value in node.outputs:
                numbers[value] = len(numbers)
            if isinstance(node.op, Constant):
                array = np.asarray(node.op.reference())
                known.append((numbers[node.output], from_host(array, where.open())))
                continue
            nodes.append(node)
        numbers.update({v: numbers[source] for v, source in alias.items()})
        self._inputs = len(graph.inputs)
        self._known = known
        self._size = len(numbers)
        self._outputs = [numbers[v] for v in graph.outputs]
        kept = {*self._outputs, *(i for i, _ in known), *range(self._inputs)}
        self.steps = _steps(nodes, numbers, kept, where, segment)

    @property
    def launches(self) -> int:
        """Number of ops; those of regions count where the region is one."""
        return len(self.steps)

    def __call__(self, inputs: Sequence[DeviceArray]) -> list[DeviceArray]:
        """The results."""
        values: list[Any] = [None] * self._size
        values[: self._inputs] = inputs
        for i, array in self._known:
            values[i] = array
        for step in self.steps:
            try:
                made = step.run(*[values[i] for i in step.inputs])
            except TreadleError as error:
                if step.loc:
                    error.locate(step.loc)
                raise
            if step.single:
                values[step.outputs[0]] = made
            else:
                for i, result in zip(step.outputs, made, strict=True):
                    values[i] = result
            for i in step.dead:
                values[i] = None
        return [values[i] for i in self._outputs]


def _steps(
    nodes: Sequence[Node],
    numbers: dict[Value, int],
    kept: set[int],
    where: CompNode,
    segment: Segment | None,
) -> list[_OpStep]:
    """Steps in order, each with the values that nobody reads after it."""
    used: set[int] = set(kept)
    steps = []
    for node in reversed(nodes):
        inputs = tuple([numbers[v] for v in node.inputs])
        outputs = tuple([numbers[v] for v in node.outputs])
        dead = tuple({i for i in (*inputs, *outputs) if i not in used})
        used.update(inputs)
        run, single = _launch(node, where, segment), node.op.n_outputs == 1
        steps.append(_OpStep(node.op, node.loc, run, inputs, outputs, dead, single))
    return steps[::-1]


def _launch(node: Node, where: CompNode, segment: Segment | None) -> Launch:
    """Return the launch that runs a node, with the device's arrays in and out."""
    op, place = node.op, where.logical_name
    types = tuple([TensorType(v.type.dtype, v.type.shape, place) for v in node.inputs])
    if isinstance(op, Cond):
        return _Choice(op, where)
    if isinstance(op, While):
        return _Loop(op, where)
    if isinstance(op, Scan):
        return _Turns(op, types, where)
    if isinstance(op, Fused):
        return _group(op, types, where, segment)
    if not types:
        made = plan_for(op, (), where)
        return made if has_effect(op) else _Once(made)
    if all(v.type.is_static for v in (*node.inputs, *node.outputs)):
        return plan_for(op, types, where)
    return PlacedLaunch(op, tuple(t.dtype for t in types), where)


def _group(
    op: Fused, types: tuple[TensorType, ...], where: CompNode, segment: Segment | None
) -> Launch:
    """A segment of another engine, or an op that the user leaves to the host."""
    if op.is_segment and segment is not None:
        return segment(op)
    nodes = op.body.nodes if isinstance(op.body, Graph) else ()
    if op.is_segment or len(nodes) != 1:
        raise EngineError("op by op", f"a group of kind {op.kind} belongs to no engine")
    return host_plan(nodes[0].op, types, where, "force_fallback")


class _Once:
    """An op without operands: its result never changes, and is made when it is first needed."""

    def __init__(self, make: Launch) -> None:
        self.make = make
        self._made: Any = None

    def __call__(self) -> Any:
        if self._made is None:
            self._made = self.make()
        return self._made


# -- control flow ------------------------------------------------------------------------------


def _block(region: object, where: CompNode) -> _Block:
    if not isinstance(region, Graph):
        raise EngineError("stepwise", "a region of control flow is not a graph")
    return _Block(region, where)


def _delivered(op: Op, results: Sequence[DeviceArray]) -> Any:
    return results[0] if op.n_outputs == 1 else results


class _Choice:
    """A branch: the predicate comes to the host, which decides."""

    def __init__(self, op: Cond, where: CompNode) -> None:
        self._op = op
        self._then, self._otherwise = _block(op.then, where), _block(op.otherwise, where)

    def __call__(self, predicate: DeviceArray, *operands: DeviceArray) -> Any:
        taken = self._then if bool(predicate.host()) else self._otherwise
        return _delivered(self._op, taken(operands))


class _Loop:
    """A loop as long as its condition, which comes to the host, holds."""

    def __init__(self, op: While, where: CompNode) -> None:
        self._op = op
        self._condition, self._body = _block(op.condition, where), _block(op.body, where)

    def __call__(self, *state: DeviceArray) -> Any:
        held: Sequence[DeviceArray] = state
        while bool(self._condition(held)[0].host()):
            held = self._body(held)
        return _delivered(self._op, held)


class _Turns:
    """A scan: entries are sliced from what is stacked, results are stacked again."""

    def __init__(self, op: Scan, types: Sequence[TensorType], where: CompNode) -> None:
        self._op = op
        self._where = where
        self._body = _block(op.body, where)
        self._shapes = [tuple(int(d) for d in t.shape) for t in types[op.n_carried :]]
        self._launches: dict[tuple[Op, tuple[DType, ...]], PlacedLaunch] = {}

    def __call__(self, *operands: DeviceArray) -> Any:
        n, held = self._op.n_carried, list(operands[: self._op.n_carried])
        rows: list[list[DeviceArray]] = []
        for turn in self._op.turns:
            results = self._body([*held, *self._entries(operands[n:], turn)])
            held = results[:n]
            rows.append([self._apply(Reshape((1, *x.shape)), x) for x in results[n:]])
        rows = rows[::-1] if self._op.backwards else rows
        stacked = [self._apply(Concat(0), *column) for column in zip(*rows, strict=True)]
        if not rows:
            stacked = self._empty()
        return _delivered(self._op, [*held, *stacked])

    def _entries(self, stacked: Sequence[DeviceArray], turn: int) -> list[DeviceArray]:
        entries = []
        for array, shape in zip(stacked, self._shapes, strict=True):
            starts, stops = (turn, *[0] * (len(shape) - 1)), (turn + 1, *shape[1:])
            row = self._apply(Slice(starts, stops, (1,) * len(shape)), array)
            entries.append(self._apply(Reshape(shape[1:]), row))
        return entries

    def _empty(self) -> list[DeviceArray]:
        types = self._op.body.output_types[self._op.n_carried :]
        device = self._where.open()
        arrays = [np.empty((0, *[int(d) for d in t.shape]), t.dtype.numpy) for t in types]
        return [from_host(a, device) for a in arrays]

    def _apply(self, op: Op, *arrays: DeviceArray) -> Any:
        key = op, tuple([as_dtype(a.dtype) for a in arrays])
        if key not in self._launches:
            self._launches[key] = PlacedLaunch(*key, self._where)
        return self._launches[key](*arrays)


# -- the program -------------------------------------------------------------------------------


def _describe(step: _OpStep) -> list[tuple[str, str, str]]:
    """The ops of a step, who runs them, and the last reason of those who do not."""
    run = step.run.make if isinstance(step.run, _Once) else step.run
    decision = decision_of(run)
    if decision is None:
        engine = f"engine {step.op.engine}" if isinstance(step.op, Fused) else ""
        return [(step.op.name, engine, "")]
    return [
        (d.subject, d.winner, d.refusals[-1][1].message if d.refusals else "")
        for d in (*decision.before, decision)
    ]


class Stepwise:
    """Runs a graph on a device op by op.

    Args:
        graph: prepared, not fused.
        where: the device.
        segment: what runs a part of the graph that another engine compiles as a whole.
    """

    def __init__(self, graph: Graph, where: CompNode, segment: Segment | None = None) -> None:
        self._graph = graph
        self._segment = segment
        self._where = where
        self._tally = Tally()
        self._lock = threading.Lock()
        self._block: _Block | None = None
        self._made_on: object = None

    @property
    def counters(self) -> Counters:
        """Cost of all runs so far; every op is an entry."""
        return total([self._tally], self._ready().launches)

    def run(
        self, inputs: Sequence[Any], varying: int = 0, version: object = None
    ) -> list[DeviceArray]:
        """Run once; nothing that is passed changes.

        Args:
            inputs: arrays of the graph's input types, on the device or on the host.
            varying, version: as for compiled programs; nothing depends on them here.

        Returns:
            One array on the device per output.
        """
        block, device = self._ready(), self._where.open()
        results = block([to_device(x, device) for x in inputs])
        with self._lock:
            self._tally.iterations += 1
            self._tally.entries += block.launches
            self._tally.transfers += len(inputs) + len(results)
        return results

    def table(self) -> str:
        """Return a table of who runs the ops, and why not the device where it is the host."""
        rows = Counter(row for step in self._ready().steps for row in _describe(step))
        cells = [(op, str(n), who, why) for (op, who, why), n in rows.items()]
        return "\n".join(("ops", *lines(("op", "n", "runs on", "why"), cells, reasons=True)))

    def close(self) -> None:
        """Drop constants and launches; running again makes them anew."""
        self._block = None

    def _ready(self) -> _Block:
        """The launches, made for the device as it is open now."""
        device = self._where.open()
        with self._lock:
            if self._block is None or self._made_on is not device:
                self._block, self._made_on = _Block(self._graph, self._where, self._segment), device
            return self._block
