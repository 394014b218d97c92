"""From nodes to work: every node lowered by its engine, and which values share memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from treadle.backends.api import Support
from treadle.backends.program import Compiler, Launch, Lowered, Ref
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.plan import CHECK, FINISH, START, Interface, aligned
from treadle.engine.report import CompileReport
from treadle.graph.analysis import has_effect
from treadle.graph.frozen import is_fixed
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.bucket import AllReduceBucket
from treadle.ops.check import CheckIndices
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow, FindingWhile
from treadle.ops.elementwise import Cast
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.op import Op
from treadle.ops.transfer import Transfer

COPY = Transfer("")
"""The op that copies a value where it must lie in a place of its own."""


@dataclass(slots=True, eq=False)
class Work:
    """One node, or one copy, on its way into the program.

    Attributes:
        op: what runs.
        inputs, outputs: its values; a copy's output is a value of its own.
        lowered: its launches; None for a host task and for control flow.
        label: what reports call it.
        engine: the name of the one that partition chose, if it is not the one that compiles.
        after: work that must come earlier although no value says so.
        once: it depends on frozen inputs alone, and runs before the program does.
        phase: of what goes on behind other work: whether this begins it, or waits for it; or that
            the program stops behind it where a check has failed.
    """

    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    lowered: Lowered | None
    label: str
    engine: str = ""
    after: list[int] = field(default_factory=list)
    once: bool = False
    phase: str = ""


@dataclass(frozen=True, slots=True)
class ValuePart:
    """Place of a value inside another: `offset` bytes from the start of `root`."""

    root: Value
    offset: int = 0


def label_of(node: Node) -> str:
    """A short name for reports: the op, and what a group holds."""
    body = getattr(node.op, "body", None)
    if isinstance(node.op, Fused) and node.op.is_segment:
        return f"{node.op.kind}({len(body.nodes) if isinstance(body, Graph) else 0} nodes)"
    if isinstance(node.op, Fused) and node.op.engine:
        return _hosted(node.op).name
    if node.op.name == "fused" and isinstance(body, Graph):
        inside = "+".join(n.op.name for n in body.nodes if not _is_quiet(n.op))
        return f"{getattr(node.op, 'kind', 'fused')}({inside})"
    return node.op.name


def _is_quiet(op: Op) -> bool:
    """Return whether names of groups leave an op out: it changes shapes, axes or types."""
    return op.incidental or isinstance(op, (Transpose, Cast))


def lower_nodes(
    graph: Graph,
    compiler: Compiler,
    interface: Interface,
    options: Options,
    report: CompileReport,
) -> list[Work]:
    """Work for every node but constants, in program order.

    What depends on frozen inputs alone is marked to be done once ("precompute"), and kernels may
    hold frozen inputs in the order that they like, beside the inputs ("prepack").

    Raises:
        CompileError: a result's extent, or one from turn to turn, depends on data.
    """
    precompute, prepack = options.allows("precompute", 1), options.allows("prepack")
    known = {v for v, yes in zip(graph.inputs, interface.frozen, strict=False) if yes}
    known.update(n.output for n in graph.nodes if isinstance(n.op, Constant))
    work: list[Work] = []
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            continue
        open_types = [v.type for v in node.outputs if not v.type.is_resolved]
        if open_types or isinstance(node.op, FindingWhile):
            problem = "the extents of its state are known only at run time"
            if open_types:
                problem = f"the extents of its result {open_types[0]} are known only at run time"
            raise CompileError(
                label_of(node),
                problem,
                hint="leave this op out of the compiled function, or pad to a fixed size",
                at=node.loc,
            )
        label, hosted = label_of(node), None
        if isinstance(node.op, Fused) and node.op.engine:
            hosted = _hosted(node.op)
        if isinstance(hosted or node.op, AllReduceBucket):
            work += _reduced(node, hosted or node.op, compiler, label)
            continue
        if hosted is not None:
            engine = node.op.engine if isinstance(node.op, Fused) else ""
            work.append(Work(hosted, node.inputs, node.outputs, None, label, engine))
            continue
        work.append(Work(node.op, node.inputs, node.outputs, None, label))
        if isinstance(node.op, ControlFlow):
            continue
        once = precompute and is_fixed(node, known)
        # What is done once packs operands as if they were not frozen: nobody needs them packed.
        flags = tuple(v in known and prepack and not once for v in node.inputs)
        found = lower(compiler, node.op, node.inputs, flags)
        if isinstance(found, Lowered):
            work[-1].lowered, work[-1].once = found, once
            known.update(node.outputs if once else ())
            _tell_strategy(label, found, report)
        else:
            report.decide("compile", label, "host", found.message)
    return work


def _tell_strategy(label: str, lowered: Lowered, report: CompileReport) -> None:
    """Note who computes a group, and why those that were asked before do not."""
    if lowered.strategy:
        why = "; ".join(f"{name}: {reason}" for name, reason in lowered.refused)
        report.decide("compile", label, lowered.strategy, f"not {why}" if why else "")


def _reduced(node: Node, op: Op, compiler: Compiler, label: str) -> Sequence[Work]:
    """A bucket: one launch where the device's library carries it, else work in two phases."""
    found = lower(compiler, op, node.inputs)
    if isinstance(found, Lowered):
        return (Work(op, node.inputs, node.outputs, found, label),)
    return _in_phases(node, op)


def _in_phases(node: Node, op: Op) -> tuple[Work, Work]:
    """Part a reduction in two: work that begins it in the memory of a bucket, and work that waits
    for it.
    """
    nbytes = sum(aligned(v.type.nbytes) for v in node.inputs)
    dtype = node.output.type.dtype
    # What lies between operands is added up with the rest, and nobody reads it.
    bucket = Value(TensorType(dtype, (nbytes // dtype.itemsize,)), None, 0, "bucket")
    return (
        Work(op, node.inputs, (bucket,), None, f"start {op.name}", phase=START),
        Work(op, (bucket,), node.outputs, None, f"finish {op.name}", phase=FINISH),
    )


def stop_at_checks(graph: Graph, work: Iterable[Work]) -> None:
    """Stop the program behind checks whose results nobody reads."""
    read = {v for n in graph.nodes for v in n.inputs}.union(graph.outputs)
    for item in work:
        if isinstance(item.op, CheckIndices) and item.lowered and item.outputs[0] not in read:
            item.phase = CHECK


def keep_order(work: Sequence[Work]) -> None:
    """Work with effects runs in program order: other processes wait for it in theirs.

    Checks wait for nobody. Buckets begin in the order of their numbers, whatever order fusion has
    left: the first one announces all of its group.
    """
    last = None
    buckets: dict[str, dict[int, int]] = defaultdict(dict)
    for i, item in enumerate(work):
        if item.phase == START and isinstance(item.op, AllReduceBucket):
            buckets[item.op.group][item.op.number] = i
            if item.op.number:
                continue
        if has_effect(item.op) and item.phase not in (FINISH, CHECK):
            item.after += [] if last is None else [last]
            last = i
    for numbered in buckets.values():
        for before, after in pairwise(sorted(numbered)):
            work[numbered[after]].after.append(numbered[before])


def _hosted(group: Fused) -> Op:
    """The op of a group that another engine runs; a segment runs as a whole."""
    if group.is_segment:
        return group
    body = group.body
    if not isinstance(body, Graph) or len(body.nodes) != 1:
        raise CompileError("compile", f"a group of kind {group.kind} is not a single op")
    return body.nodes[0].op


def lower(
    compiler: Compiler, op: Op, inputs: Sequence[Value], frozen: Sequence[bool] = ()
) -> Lowered | Support:
    """Lower an op on these values by the compiler."""
    types = [TensorType(v.type.dtype, v.type.shape) for v in inputs]
    return compiler.lower(op, types, tuple(frozen))


def find_parts(work: Sequence[Work]) -> dict[Value, ValuePart]:
    """Return for every view the value it is a part of; chains are followed to the end."""
    parts: dict[Value, ValuePart] = {}
    for item in work:
        if item.phase == FINISH:
            at = 0
            for value in item.outputs:
                parts[value] = ValuePart(item.inputs[0], at)
                at += aligned(value.type.nbytes)
        if item.lowered is None:
            continue
        for output, source, offset in item.lowered.views:
            outer = parts.get(item.inputs[source], ValuePart(item.inputs[source]))
            parts[item.outputs[output]] = ValuePart(outer.root, outer.offset + offset)
    return parts


def read_by(item: Work, launches: Iterable[Launch]) -> list[Value]:
    """The inputs of a piece of work that some of its launches read."""
    read = {
        a.index for k in launches for a in k.arguments if isinstance(a, Ref) and a.kind == "input"
    }
    return [item.inputs[i] for i in sorted(read)]


def read_in_runs(work: Sequence[Work], parts: Mapping[Value, ValuePart]) -> set[Value]:
    """Return the values that launches and host tasks of a program read; of a view, what it is a
    part of.
    """
    found: set[Value] = set()
    for item in work:
        read = item.inputs if item.lowered is None else read_by(item, item.lowered.launches)
        found.update(parts[v].root if v in parts else v for v in read)
    return found


class Aliases:
    """Order of work, as bit sets that are kept up to date while constraints are added."""

    def __init__(self, work: Sequence[Work], parts: Mapping[Value, ValuePart]) -> None:
        self._parts = parts
        maker = {v: i for i, w in enumerate(work) for v in w.outputs}
        self.below = [0] * len(work)
        """Bit j of entry i: work j comes after work i."""
        self.readers: dict[Value, list[int]] = {}
        for i in reversed(range(len(work))):
            for v in work[i].inputs:
                if v in maker:
                    self.below[maker[v]] |= self.below[i] | 1 << i
            for j in work[i].after:
                self.below[j] |= self.below[i] | 1 << i
        for i, w in enumerate(work):
            for root in dict.fromkeys(self.root(v) for v in w.inputs):
                self.readers.setdefault(root, []).append(i)

    def root(self, value: Value) -> Value:
        """Return the value that a value is a part of."""
        part = self._parts.get(value)
        return value if part is None else part.root

    def append(self, maker: int | None, source: Value) -> None:
        """One more piece of work at the end, which reads `source`, made by work `maker`."""
        number = len(self.below)
        self.below.append(0)
        self.readers.setdefault(self.root(source), []).append(number)
        if maker is not None:
            for i in range(number):
                if i == maker or self.below[i] >> maker & 1:
                    self.below[i] |= 1 << number

    def require(self, earlier: int, later: int) -> bool:
        """Put one piece of work before another; False where the opposite is already so."""
        if self.below[later] >> earlier & 1 or earlier == later:
            return False
        if not self.below[earlier] >> later & 1:
            new = self.below[later] | 1 << later
            for i in range(len(self.below)):
                if i == earlier or self.below[i] >> earlier & 1:
                    self.below[i] |= new
        return True

    def allows(self, earlier: int, later: int) -> bool:
        """Return whether one piece of work may come before another."""
        return earlier != later and not self.below[later] >> earlier & 1
