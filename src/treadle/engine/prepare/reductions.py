"""Reductions that end a program travel in few buckets.

A training step reduces one gradient per parameter. Each of these costs a start-up time, and a
single one for all would wait for the last gradient; `runtime/comm/buckets.py` finds the cut with
the least modelled end. Ranks must cut alike, so the first one of a group decides, when a program
with such reductions is first made there.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from treadle.backends.program import Compiler, Lowered
from treadle.engine.cost import RATES
from treadle.engine.options import Options
from treadle.engine.report import CompileReport
from treadle.graph.analysis import has_effect, topological_order
from treadle.graph.flop_count import flops, nbytes
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.bucket import AllReduceBucket
from treadle.ops.collective import AllReduce
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.elementwise import Mul
from treadle.runtime.comm import buckets, groups
from treadle.runtime.comm.buckets import Buckets


@dataclass(frozen=True, slots=True)
class _Reduction:
    """One reduction: its node, and when its operand is there, as modelled."""

    node: Node
    place: int
    ready: float

    @property
    def operand(self) -> Value:
        """Value that is reduced."""
        return self.node.inputs[0]

    @property
    def bucket(self) -> str:
        """The name of the bucket that it is to share; empty where others choose."""
        name: str = self.node.op.attributes["bucket"]
        return name

    @property
    def kind(self) -> tuple[str, str]:
        """Key that the reductions of a bucket share."""
        return kind_of(self.node), self.operand.type.dtype.name


def kind_of(node: Node) -> str:
    """Return the kind of reduction of a bucket: a mean is a sum of parts that are scaled before.

    Not so for 16 bits, which are summed in 32 and would be rounded twice.
    """
    kind: str = node.op.attributes["kind"]
    return "sum" if kind == "mean" and node.output.type.dtype.itemsize >= 4 else kind


_CARRIED = 25 << 20
"""Bytes of a bucket that a device's library carries: nothing is known of its times."""


def bucket_reductions(
    graph: Graph, options: Options, report: CompileReport, carrier: Compiler | None = None
) -> Graph:
    """Put all-reductions that no later collective waits for into buckets, group by group.

    Args:
        graph: prepared.
        options: `reductions` says how they are cut.
        report: told of the buckets.
        carrier: the compiler of a device whose library carries arrays; None on the host.

    Raises:
        CommunicationError: ranks of a group make programs that reduce different things.
    """
    if options.reductions == "off" or not options.allows("reductions", 1):
        return graph
    if carrier is not None and options.reductions == "auto":
        options = replace(options, reductions=_CARRIED)
    found: dict[str, list[_Reduction]] = defaultdict(list)
    for reduction in _candidates(graph, carrier):
        found[reduction.node.op.attributes["group"]].append(reduction)
    for group, members in sorted(found.items()):
        cut = _cut(group, members, options, report)
        graph = _rebuilt(graph, [[members[i] for i in bucket] for bucket in cut])
        sizes = ", ".join(str(len(bucket)) for bucket in cut)
        how = f"{options.reductions}" if isinstance(options.reductions, str) else "as asked"
        if names := sorted({m.bucket for m in members} - {""}):
            how += ", and by name: " + ", ".join(names)
        report.decide("reductions", f"{len(members)} of {group}", f"{len(cut)} buckets", how)
        report.decide("reductions", f"buckets of {group}", sizes, "in order of readiness")
    return graph


def _candidates(graph: Graph, carrier: Compiler | None) -> list[_Reduction]:
    """Sums and means over several processes whose results reach no other effect."""
    awaited: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in awaited or has_effect(node.op):
            awaited.update(v.producer for v in node.inputs if v.producer is not None)
    seconds = accumulate(map(_seconds, graph.nodes), initial=0.0)
    ready = dict(zip(graph.nodes, itertools.islice(seconds, 1, None), strict=True))
    found = []
    for place, node in enumerate(graph.nodes):
        if (
            isinstance(node.op, AllReduce)
            and node not in awaited
            and _fits(node.op, node.output)
            and (carrier is None or _is_carried(node, carrier))
        ):
            maker = node.inputs[0].producer
            found.append(_Reduction(node, place, 0.0 if maker is None else ready[maker]))
    return found


def _fits(op: AllReduce, value: Value) -> bool:
    kind, dtype = op.kind, value.type.dtype
    summed = kind == "sum" or (kind == "mean" and dtype.is_float)
    return op.world > 1 and summed and value.type.is_static and value.type.nbytes > 0


def _is_carried(node: Node, carrier: Compiler) -> bool:
    """Return whether the device's library reduces it in a bucket."""
    group, world = node.op.attributes["group"], node.op.attributes["world"]
    alone = AllReduceBucket(group, world, kind_of(node))
    return isinstance(carrier.lower(alone, [node.output.type]), Lowered)


def _seconds(node: Node) -> float:
    """Modelled time of a node in a program whose ops are fused."""
    if node.op.is_view or isinstance(node.op, (Constant, AllReduce)):
        return 0.0
    rates = RATES["cpu"]
    moved = sum(map(nbytes, node.outputs))
    return rates.seconds(flops(node), moved) - rates.launch


# -- cutting -----------------------------------------------------------------------------------


def _cut(
    group: str, members: Sequence[_Reduction], options: Options, report: CompileReport
) -> Buckets:
    """Return the members of each bucket, the same on all ranks."""
    comm = groups.find(group)
    if comm is None:
        return _proposal(members, len(members), buckets.ReductionCost(0.0, 0.0))
    how, link = options.reductions, buckets.ReductionCost(0.0, 0.0)
    what = repr(([(*m.kind, m.bucket, m.operand.type.nbytes) for m in members], how))
    if how == "auto" and not buckets.is_agreed(comm, what):
        # Found out by all ranks together, so not within the proposal, which is the first one's.
        link = buckets.link_of(comm)
    cut = buckets.agreed(comm, what, lambda: _proposal(members, how, link))
    report.cuts.append((what, cut))
    return cut


def _proposal(members: Sequence[_Reduction], how: Any, link: buckets.ReductionCost) -> Buckets:
    """The cut that this rank would choose: by name, and the rest as `Options.reductions` says."""
    order = sorted(range(len(members)), key=lambda i: (members[i].ready, i))
    found: list[tuple[int, ...]] = []
    for name in dict.fromkeys(members[i].bucket for i in order):
        part = [i for i in order if members[i].bucket == name]
        ends: tuple[int, ...] = ()
        if not name:
            ready, kinds = [members[i].ready for i in part], [members[i].kind for i in part]
            sizes = [members[i].operand.type.nbytes for i in part]
            ends = buckets.ends(how, ready, sizes, kinds, link)
        found += _by_ends(part, members, ends)
    return tuple(found)


def _by_ends(order: Sequence[int], members: Sequence[_Reduction], ends: Iterable[int]) -> Buckets:
    """Buckets that end after so many members, and where the kind changes."""
    stops = {0, len(order), *(e for e in ends if 0 < e < len(order))}
    stops |= {
        i
        for i, (a, b) in enumerate(itertools.pairwise(order), 1)
        if members[a].kind != members[b].kind
    }
    return tuple(tuple(order[a:b]) for a, b in itertools.pairwise(sorted(stops)))


# -- the graph ---------------------------------------------------------------------------------


def _rebuilt(graph: Graph, cut: Sequence[Sequence[_Reduction]]) -> Graph:
    """The graph with a node per bucket, right behind the last operand."""
    place = {n: i for i, n in enumerate(graph.nodes)}
    instead: dict[Value, Value] = {}
    behind: dict[int, list[Node]] = defaultdict(list)
    # They begin in the order of their last operands, and the first one announces all.
    cut = sorted(cut, key=lambda bucket: _last(bucket, place))
    series = _series(cut)
    for number, bucket in enumerate(cut):
        nodes, scaled = _scaled(bucket)
        first = bucket[0].node
        op = AllReduceBucket(
            first.op.attributes["group"],
            first.op.attributes["world"],
            kind_of(first),
            len(bucket),
            number,
            series,
        )
        node = Node(op, tuple(scaled), first.loc)
        instead.update((m.node.output, v) for m, v in zip(bucket, node.outputs, strict=True))
        behind[_last(bucket, place)] += [*nodes, node]
    gone = {m.node for bucket in cut for m in bucket}
    made = list(behind[-1])
    for i, node in enumerate(graph.nodes):
        if node not in gone:
            inputs = tuple([instead.get(v, v) for v in node.inputs])
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            again = node if same else remake(node, node.op, inputs)
            if again is not node:
                instead.update(zip(node.outputs, again.outputs, strict=True))
            made.append(again)
        made += behind[i]
    outputs = [instead.get(v, v) for v in graph.outputs]
    return graph.with_nodes(topological_order(made, graph.name), outputs)


def _last(bucket: Sequence[_Reduction], place: Mapping[Node, int]) -> int:
    """Return the place at which the last operand of a bucket is made; -1 for inputs."""
    makers = (m.operand.producer for m in bucket)
    return max((place[n] for n in makers if n is not None), default=-1)


def _series(cut: Sequence[Sequence[_Reduction]]) -> str:
    """A name for all buckets of a program, equal where they are."""
    text = repr([[(*m.kind, m.operand.type.shape) for m in bucket] for bucket in cut])
    return f"{len(cut)} buckets {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _scaled(bucket: Sequence[_Reduction]) -> tuple[list[Node], list[Value]]:
    """The operands as they are added up: those of means are divided by the number of ranks."""
    nodes: list[Node] = []
    values = []
    for member in bucket:
        value, op = member.operand, member.node.op
        if op.attributes["kind"] != kind_of(member.node):
            part = np.asarray(1 / op.attributes["world"], value.type.dtype.numpy)
            factor = Node(Constant(ArrayData(part), value.type.device), ())
            nodes += [factor, Node(Mul(), (value, factor.output), member.node.loc)]
            value = nodes[-1].output
        values.append(value)
    return nodes, values
