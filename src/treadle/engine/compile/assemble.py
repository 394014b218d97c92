"""From work in order to a plan: lifetimes, offsets, steps with addresses."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backends.program import Compiler
from treadle.engine.compile.link import Linker, region_spaces, regions_of
from treadle.engine.compile.memory import Buffer, check_memory, plan_memory
from treadle.engine.compile.order import Task, best_order
from treadle.engine.compile.place import Home, Placement, place_values, share_buffers
from treadle.engine.compile.work import Work, lower_nodes
from treadle.engine.options import Options
from treadle.engine.plan import Interface, MemoryPlan, Plan, Pool, aligned
from treadle.engine.types import CompileReport
from treadle.graph.ir import Graph, Value
from treadle.ops.control import ControlFlow


def assemble(
    graph: Graph,
    compiler: Compiler,
    interface: Interface,
    options: Options,
    report: CompileReport,
) -> Plan:
    """The plan of a graph.

    Args:
        graph: optimized; types are static.
        compiler: lowers its ops.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        report: told what is left to the host.

    Raises:
        CompileError: a result's extent depends on data.
    """
    constants = Pool()
    work = lower_nodes(graph, compiler, interface, report)
    placement = place_values(graph, work, interface, compiler, constants)
    parts = _subplans(work, compiler, options, report)
    spaces = _workspaces(work, parts, placement)
    order = _order(work, placement)
    buffers = _lifetimes(work, order, placement, spaces)
    if options.reuse_memory:
        last = {i: b.end for i, b in enumerate(buffers)}
        merged = share_buffers(work, order, placement, last)
    else:
        merged = {}
    memory = _plan(buffers, merged, options)
    updated = len(interface.updates)
    linker = Linker(
        placement, memory, constants, len(graph.inputs), len(graph.outputs) - updated, compiler
    )
    numbers = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
    for number in order:
        item = work[number]
        node = numbers.get(item.outputs[0], -1) if item.outputs else -1
        linker.add(item, spaces.get(number, ()), parts.get(number, ()), node)
    return linker.plan(interface)


# -- order and memory --------------------------------------------------------------------------


def _order(work: Sequence[Work], placement: Placement) -> tuple[int, ...]:
    maker = {v: i for i, w in enumerate(work) for v in w.outputs}
    maker.update({placement.part(v).root: i for v, i in list(maker.items()) if _owns(placement, v)})
    tasks = []
    for item in work:
        after = dict.fromkeys(maker[v] for v in item.inputs if v in maker)
        after.update(dict.fromkeys(item.after))
        makes = [
            (home.index, v.type.nbytes)
            for v in item.outputs
            if _owns(placement, v) and (home := placement.home(v)[0]).kind == "arena"
        ]
        reads = {home.index for v in item.inputs if (home := placement.home(v)[0]).kind == "arena"}
        tasks.append(Task(tuple(after), tuple(makes), tuple(reads)))
    return best_order(tasks)


def _owns(placement: Placement, value: Value) -> bool:
    """Whether the value has memory of its own, rather than a part of another's."""
    return value not in placement.parts or value in placement.homes


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


def _lifetimes(
    work: Sequence[Work],
    order: Sequence[int],
    placement: Placement,
    spaces: dict[int, tuple[Home, ...]],
) -> list[Buffer]:
    """From the step that makes a buffer to the last that reads it."""
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    for position, number in enumerate(order):
        item = work[number]
        homes = [placement.home(v)[0] for v in (*item.inputs, *item.outputs)]
        for home in (*homes, *spaces.get(number, ())):
            if home.kind == "arena":
                start.setdefault(home.index, position)
                end[home.index] = position
    return [
        Buffer(size, start.get(i, 0), end.get(i, -1) if i in start else 0)
        for i, size in enumerate(placement.sizes)
    ]


def _plan(buffers: Sequence[Buffer], merged: dict[int, int], options: Options) -> MemoryPlan:
    """Offsets for all buffers; merged ones get those of what they became."""
    roots: dict[int, Buffer] = {}
    for i, b in enumerate(buffers):
        root = _root(merged, i)
        known = roots.get(root, buffers[root])
        roots[root] = Buffer(known.size, min(known.start, b.start), max(known.end, b.end))
    numbers = list(roots)
    distinct = [roots[i] for i in numbers]
    found = plan_memory(distinct, reuse=options.reuse_memory)
    if options.check:
        check_memory(distinct, found)
    at = dict(zip(numbers, found.offsets, strict=True))
    offsets = tuple(at[_root(merged, i)] for i in range(len(buffers)))
    naive = sum(aligned(b.size) for b in buffers)
    return MemoryPlan(offsets, found.peak, found.bound, naive, found.order)


def _root(merged: dict[int, int], i: int) -> int:
    while i in merged:
        i = merged[i]
    return i


def _subplans(
    work: Sequence[Work], compiler: Compiler, options: Options, report: CompileReport
) -> dict[int, tuple[Plan, ...]]:
    """The plans of the regions of each control-flow op."""
    return {
        number: tuple(
            assemble(region, compiler, Interface(), options, report) for region in regions_of(item)
        )
        for number, item in enumerate(work)
        if isinstance(item.op, ControlFlow)
    }
