"""Inputs that the caller has no more use for: what is made after their last use lies in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from treadle.engine.compile.memory import Buffer
from treadle.engine.compile.place import Home, Placement
from treadle.engine.compile.schedule import Schedule, spans_of
from treadle.engine.compile.together import LaunchUnit
from treadle.engine.compile.work import ValuePart, Work
from treadle.engine.options import Options
from treadle.engine.plan import Interface
from treadle.graph.ir import Graph, Value

Spans = Mapping[int, tuple[int, int]]


def use_donated(
    graph: Graph,
    interface: Interface,
    options: Options,
    work: Sequence[Work],
    units: Sequence[LaunchUnit],
    schedule: Schedule,
    placement: Placement,
    spaces: Mapping[int, tuple[Home, ...]],
) -> Schedule:
    """Move buffers of the arena into inputs that nobody reads any more; `placement` is changed.

    A program that may stop at a check leaves its inputs alone, as it is run again to tell what is
    wrong, and so does one with work in phases. Inputs of open extents are left alone, too.

    Args:
        graph: the program.
        interface: which inputs may be overwritten.
        options: whether memory is shared, and by how many streams.
        work: what runs.
        units: its launches.
        schedule: when they run.
        placement: where values lie.
        spaces: scratch memory of each piece of work, which stays in the arena.

    Returns:
        The schedule, in which buffers that have moved are empty.
    """
    may = options.reuse_memory and options.streams == 1
    if not interface.donated or not may or any(item.phase for item in work):
        return schedule
    spans = spans_of(units, schedule.slots)
    groups = dict(_movable(schedule, placement, spaces))
    moved: dict[int, int] = {}
    for number in sorted(interface.donated, key=lambda i: -_bytes(graph, i)):
        for root in _tenants(graph, number, groups, work, spans, placement, schedule):
            moved[root] = number
            del groups[root]
    if not moved:
        return schedule
    for value, home in list(placement.homes.items()):
        if home.kind == "arena" and schedule.root(home.index) in moved:
            placement.homes[value] = Home("input", moved[schedule.root(home.index)])
    buffers = [
        replace(b, size=0) if schedule.root(i) in moved else b
        for i, b in enumerate(schedule.buffers)
    ]
    return replace(schedule, buffers=tuple(buffers))


def _bytes(graph: Graph, number: int) -> int:
    """Bytes of an input; 0 where they are open."""
    size = graph.inputs[number].type.open_nbytes
    return size if isinstance(size, int) else 0


def _movable(
    schedule: Schedule, placement: Placement, spaces: Mapping[int, tuple[Home, ...]]
) -> Iterator[tuple[int, Buffer]]:
    """Yield buffers that hold values, of a size that is known."""
    fixed = {home.index for homes in spaces.values() for home in homes}
    fixed |= {i for i, size in enumerate(placement.sizes) if not isinstance(size, int)}
    kept = {schedule.root(i) for i in fixed}
    for root, buffer in schedule.distinct().items():
        if root not in kept:
            yield root, buffer


def _tenants(
    graph: Graph,
    number: int,
    groups: Mapping[int, Buffer],
    work: Sequence[Work],
    spans: Spans,
    placement: Placement,
    schedule: Schedule,
) -> list[int]:
    """Buffers that take an input's place one after another: the largest and longest first."""
    value, room = graph.inputs[number], _bytes(graph, number)
    readers = {w for w in spans if any(placement.part(v).root is value for v in work[w].inputs)}
    last = max((spans[w][1] for w in readers), default=-1)
    over = _overwritten(value, readers, last, work, spans, placement, schedule)
    found: list[int] = []
    for root in sorted(groups, key=lambda r: (-groups[r].size * _length(groups[r]), r)):
        buffer = groups[root]
        is_later = buffer.start > last or (root == over and buffer.start == last)
        if not is_later or not 0 < buffer.size <= room:
            continue
        if not any(buffer.overlaps(groups[other]) for other in found):
            found.append(root)
    return found


def _length(buffer: Buffer) -> int:
    return buffer.end - buffer.start + 1


def _overwritten(
    value: Value,
    readers: set[int],
    last: int,
    work: Sequence[Work],
    spans: Spans,
    placement: Placement,
    schedule: Schedule,
) -> int | None:
    """The buffer that the input's last reader may write where it reads the input; None: none."""
    final = [w for w in readers if spans[w][1] == last]
    item = work[final[0]] if len(final) == 1 else None
    if item is None or item.lowered is None or spans[final[0]][0] != last:
        return None
    for i, j in item.lowered.in_place:
        home, offset = placement.home(item.outputs[j])
        alone = sum(placement.part(v).root is value for v in item.inputs) == 1
        whole = placement.part(item.inputs[i]) == ValuePart(value)
        alike = item.inputs[i].type.open_nbytes == item.outputs[j].type.open_nbytes
        if home.kind == "arena" and not offset and alone and whole and alike:
            return schedule.root(home.index)
    return None
