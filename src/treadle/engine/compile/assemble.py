"""From work in order to a plan: slots, offsets, steps with addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from treadle.backends.program import Compiler
from treadle.base.estimates import estimate
from treadle.base.guards import is_open
from treadle.base.symbol import Dim, Expr
from treadle.engine.compile.buckets import fill_buckets, overlapped
from treadle.engine.compile.contents import Contents
from treadle.engine.compile.control import interfaces_of, region_spaces, regions_of, write_control
from treadle.engine.compile.donate import use_donated
from treadle.engine.compile.early import plan_early
from treadle.engine.compile.link import Linker
from treadle.engine.compile.memory import Buffer, check_memory, plan_memory
from treadle.engine.compile.order import Task, best_order
from treadle.engine.compile.place import Home, Placement, place_values
from treadle.engine.compile.schedule import Schedule, best_schedule
from treadle.engine.compile.together import LaunchUnit, units_of
from treadle.engine.compile.work import Work, keep_order, lower_nodes, stop_at_checks
from treadle.engine.options import Options
from treadle.engine.plan import (
    CHECK,
    FINISH,
    ConstantPool,
    Interface,
    MemoryPlan,
    OpenBuffer,
    Plan,
    aligned,
    offset_named,
)
from treadle.engine.report import CompileReport
from treadle.graph.ir import Graph, Value
from treadle.ops.control import ControlFlow


def assemble(
    graph: Graph,
    compiler: Compiler,
    interface: Interface,
    options: Options,
    report: CompileReport,
    within: str = "",
) -> Plan:
    """The plan of a graph.

    Args:
        graph: optimized; types are static.
        compiler: lowers its ops.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        report: told what is left to the host.
        within: of a region, what the names of its offsets begin with.

    Raises:
        CompileError: a result's extent depends on data.
    """
    constants = ConstantPool()
    every = lower_nodes(graph, compiler, interface, options, report)
    every, inside = fill_buckets(graph, every, compiler)
    early, work = [w for w in every if w.once], [w for w in every if not w.once]
    stop_at_checks(graph, work)
    keep_order(work)
    placement = place_values(graph, work, interface, compiler, constants, early, inside)
    before = plan_early(early, work, placement, options)
    parts = _subplans(work, compiler, options, report, within)
    spaces = _workspaces(work, parts, placement)
    maker = _makers(work, placement)
    order = _order(work, placement, maker)
    units = units_of(work, order, maker)
    made = best_schedule(work, order, placement, spaces, units, options)
    schedule = use_donated(graph, interface, options, work, units, made, placement, spaces)
    memory = _plan(schedule, placement.sizes, options, within, _inner(schedule, units, parts))
    memory = _with_early(memory, before.memory, parts)
    linker = Linker(
        placement,
        memory,
        constants,
        len(graph.inputs),
        len(graph.outputs) - len(interface.updates),
        compiler,
        early=before.memory,
        kept=placement.kept,
        areas=list(placement.areas),
    )
    linker.prepare(before.turns, before.spaces)
    numbers = _numbers(graph, work)
    nodes = [numbers.get(item.outputs[0], -1) if item.outputs else -1 for item in work]
    runs = {n: linker.runs(work[n], spaces.get(n, ()), nodes[n]) for n in order}
    if options.check and not is_open():
        contents = Contents(graph, interface, work, linker)
        contents.prelude(before.turns, linker.prelude)
        contents.program(schedule.slots, units, work, runs, spaces)
    for slot in schedule.slots:
        members = [units[u] for u in slot]
        first = members[0].work
        if members[0].launch < 0:
            if first in parts:
                write_control(linker, work[first], spaces[first], parts[first], nodes[first])
            else:
                linker.add(work[first], nodes[first])
            continue
        found = [runs[m.work][m.launch] for m in members]
        linker.add_runs([entry for entry in found if entry is not None])
        for m in members:
            if work[m.work].phase == CHECK and m.launch == len(runs[m.work]) - 1:
                linker.guard(work[m.work], nodes[m.work])
    done = [w.outputs[0] for w in early if w.lowered is not None and w.lowered.launches]
    return replace(linker.plan(interface), once=tuple(numbers[v] for v in done))


def _numbers(graph: Graph, work: Sequence[Work]) -> dict[Value, int]:
    """The number of the node that makes each value."""
    found = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
    found.update({w.inputs[0]: found[w.outputs[0]] for w in work if w.phase == FINISH})
    return found


# -- order -------------------------------------------------------------------------------------


def _makers(work: Sequence[Work], placement: Placement) -> dict[Value, int]:
    """The work that makes each value, or what it is a part of."""
    maker = {v: i for i, w in enumerate(work) for v in w.outputs}
    maker.update({placement.part(v).root: i for v, i in list(maker.items()) if _owns(placement, v)})
    return maker


def _order(work: Sequence[Work], placement: Placement, maker: Mapping[Value, int]) -> Sequence[int]:
    tasks = []
    for item in work:
        after = dict.fromkeys(maker[v] for v in item.inputs if v in maker)
        after.update(dict.fromkeys(item.after))
        makes = [
            (home.index, estimate(v.type.open_nbytes))
            for v in item.outputs
            if _owns(placement, v) and (home := placement.home(v)[0]).kind == "arena"
        ]
        reads = {home.index for v in item.inputs if (home := placement.home(v)[0]).kind == "arena"}
        tasks.append(Task(tuple(after), tuple(makes), tuple(reads)))
    return overlapped(work, tasks, best_order(tasks))


def _owns(placement: Placement, value: Value) -> bool:
    """Return whether the value has memory of its own, rather than a part of another's."""
    return value not in placement.parts or value in placement.homes


# -- memory --------------------------------------------------------------------------------------


def _workspaces(
    work: Sequence[Work], parts: dict[int, tuple[Plan, ...]], placement: Placement
) -> dict[int, tuple[Home, ...]]:
    """Buffers of the arena that one piece of work needs while it runs."""
    found: dict[int, tuple[Home, ...]] = {}
    for number, item in enumerate(work):
        sizes = [] if item.lowered is None else list(item.lowered.workspaces)
        sizes += region_spaces(item, parts.get(number, ()))
        if sizes:
            found[number] = tuple(placement.buffer(size) for size in sizes)
    return found


def _inner(
    schedule: Schedule, units: Sequence[LaunchUnit], parts: Mapping[int, tuple[Plan, ...]]
) -> dict[int, list[MemoryPlan]]:
    """The memory of regions whose buffers are not laid out yet, by the slot in which they run."""
    found: dict[int, list[MemoryPlan]] = {}
    for slot, members in enumerate(schedule.slots):
        for plan in parts.get(units[members[0]].work, ()):
            if plan.memory.open:
                found.setdefault(slot, []).append(plan.memory)
    return found


def _plan(
    schedule: Schedule,
    sizes: Sequence[Dim],
    options: Options,
    within: str,
    inner: Mapping[int, Sequence[MemoryPlan]],
) -> MemoryPlan:
    """Offsets for all buffers; merged ones get those of what they became."""
    roots = schedule.distinct()
    distinct = list(roots.values())
    if inner or any(isinstance(size, Expr) for size in sizes):
        return _open(schedule, roots, sizes, inner, within)
    found = plan_memory(distinct, reuse=options.reuse_memory)
    if options.check:
        check_memory(distinct, found)
    at = dict(zip(roots, found.offsets, strict=True))
    offsets = tuple(at[schedule.root(i)] for i in range(len(schedule.buffers)))
    naive = sum(aligned(b.size) for b in schedule.buffers)
    spans = tuple(
        (int(offset), b.size, b.start, b.end)
        for offset, b in zip(found.offsets, distinct, strict=True)
    )
    return MemoryPlan(offsets, found.peak, found.bound, naive, found.order, spans)


def _open(
    schedule: Schedule,
    roots: Mapping[int, Buffer],
    sizes: Sequence[Dim],
    inner: Mapping[int, Sequence[MemoryPlan]],
    within: str,
) -> MemoryPlan:
    """Symbols for offsets, which are numbers when the sizes of buffers are.

    Buffers of regions are buffers of the program. A slot in which regions run is as many as all of
    them have: they run one after the other, and nothing of one is needed in the next.
    """
    names = {root: f"@{within}{root}" for root in roots}
    at = {root: offset_named(name) for root, name in names.items()}
    offsets = tuple(at[schedule.root(i)] for i in range(len(schedule.buffers)))
    begins, now = [], 0
    found: list[OpenBuffer] = []
    for slot in range(len(schedule.slots)):
        begins.append(now)
        after = now
        for memory in inner.get(slot, ()):
            found += [replace(b, start=after + b.start, end=after + b.end) for b in memory.open]
            after += 1 + max(b.end for b in memory.open)
        now = max(after, now + 1)
    begins.append(max(now, 1))
    own = [
        OpenBuffer(names[r], sizes[r], begins[b.start], begins[b.end + 1] - 1)
        for r, b in roots.items()
    ]
    return MemoryPlan(offsets, 0, 0, 0, "at the call", (), (*own, *found))


def _with_early(
    memory: MemoryPlan, early: MemoryPlan, parts: Mapping[int, Sequence[Plan]]
) -> MemoryPlan:
    """The program's arena, with room for what runs before it."""
    inner = [plan.memory.least for plans in parts.values() for plan in plans]
    least = max([early.peak, *inner])
    return replace(
        memory,
        peak=max(memory.peak, least),
        bound=max(memory.bound, least),
        naive=max(memory.naive, least),
        least=least,
    )


def _subplans(
    work: Sequence[Work],
    compiler: Compiler,
    options: Options,
    report: CompileReport,
    within: str,
) -> dict[int, tuple[Plan, ...]]:
    """The plans of the regions of each control-flow op."""
    return {
        number: tuple(
            assemble(region, compiler, ends, options, report, f"{within}{number}.{i}.")
            for i, (region, ends) in enumerate(
                zip(regions_of(item), interfaces_of(item), strict=True)
            )
        )
        for number, item in enumerate(work)
        if isinstance(item.op, ControlFlow) and not item.engine
    }
