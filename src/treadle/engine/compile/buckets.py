"""Buckets of reductions: operands side by side in the arena, and others computed meanwhile.

A bucket is one buffer. Whoever makes an operand writes it there, the reduction takes place in that
memory, and those who read results read them there: nothing is packed or unpacked but what somebody
else reads as well. It is begun by one piece of work and waited for by another.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from treadle.backends.program import Compiler, Lowered
from treadle.engine.compile.order import Task
from treadle.engine.compile.work import COPY, ValuePart, Work, find_parts, lower
from treadle.engine.plan import FINISH, START, aligned
from treadle.graph.ir import Graph, Value


def fill_buckets(
    graph: Graph, work: Sequence[Work], compiler: Compiler
) -> tuple[list[Work], dict[Value, ValuePart]]:
    """Place operands of buckets inside them.

    Args:
        graph: the program.
        work: in program order, before anything refers to its numbers.
        compiler: lowers copies.

    Returns:
        The work, with copies of operands that cannot be made in a bucket, and where in one each
        operand lies.
    """
    if not any(item.phase == START for item in work):
        return list(work), {}
    parts = find_parts(work)
    roots = _Roots(graph, work, parts)
    made: list[Work] = []
    inside: dict[Value, ValuePart] = {}
    for item in work:
        if item.phase == START:
            bucket = item.outputs[0]
            ends = accumulate(aligned(v.type.nbytes) for v in item.inputs)
            places = (0, *ends)
            values = []
            for value, offset in zip(item.inputs, places, strict=False):
                if (
                    not roots.may_move(value, item)
                    or parts.get(value, ValuePart(value)).root in inside
                ):
                    made.append(_copy(value, compiler))
                    value = made[-1].outputs[0]
                inside[parts.get(value, ValuePart(value)).root] = ValuePart(bucket, offset)
                values.append(value)
            item.inputs = tuple(values)
        made.append(item)
    return made, inside


def _copy(value: Value, compiler: Compiler) -> Work:
    """Work that copies an operand into its bucket."""
    made = Value(value.type, None, 0, value.name)
    found = lower(compiler, COPY, (value,))
    return Work(COPY, (value,), (made,), found if isinstance(found, Lowered) else None, "copy")


class _Roots:
    """Values that can be made anywhere: work makes them, and nobody else has a use for them."""

    def __init__(
        self, graph: Graph, work: Sequence[Work], parts: Mapping[Value, ValuePart]
    ) -> None:
        self._parts = parts
        self._made = {v for w in work if not w.once for v in w.outputs}
        self._wanted = {parts[v].root if v in parts else v for v in graph.outputs}
        self._readers: dict[Value, list[Work]] = {}
        for item in work:
            for root in dict.fromkeys(parts[v].root if v in parts else v for v in item.inputs):
                self._readers.setdefault(root, []).append(item)

    def may_move(self, value: Value, reader: Work) -> bool:
        """Return whether a value may lie in the bucket of its reader."""
        part = self._parts.get(value, ValuePart(value))
        root = part.root
        if part.offset or root.type.nbytes != value.type.nbytes:
            return False
        others = [w for w in self._readers[root] if w is not reader and not _only_views(w)]
        return root in self._made and root not in self._wanted and not others


def _only_views(item: Work) -> bool:
    return item.lowered is not None and not item.lowered.launches


# -- order -------------------------------------------------------------------------------------


def overlapped(work: Sequence[Work], tasks: Sequence[Task], order: Sequence[int]) -> Sequence[int]:
    """The order changed so that reductions go on while other work is done.

    They begin as soon as they can. What needs their results comes last, bucket by bucket: the
    first ones are used while the last ones are still on their way. Later steps may move launches;
    to keep them in these bounds, some work is said to follow other work.

    Args:
        work: what runs; receives the bounds.
        tasks: the same, for ordering.
        order: a valid one.
    """
    if not any(item.phase == START for item in work):
        return order
    levels = _levels(work, tasks, order)
    position = {t: i for i, t in enumerate(order)}

    def key(t: int) -> tuple[int, bool, int]:
        return levels[t], work[t].phase != START, position[t]

    found = _by_priority(tasks, key_of=[key(t) for t in range(len(tasks))])
    _bound(work, levels)
    return found


def _levels(work: Sequence[Work], tasks: Sequence[Task], order: Sequence[int]) -> list[int]:
    """Return for each piece how many buckets it waits for, in the order of their start."""
    numbers: dict[Value, int] = {}
    for t in order:
        if work[t].phase == START:
            numbers[work[t].outputs[0]] = len(numbers) + 1
    levels = [0] * len(tasks)
    for t in order:
        levels[t] = max((levels[p] for p in tasks[t].after), default=0)
        if work[t].phase == FINISH:
            levels[t] = max(levels[t], numbers[work[t].inputs[0]])
    return levels


def _by_priority(tasks: Sequence[Task], key_of: Sequence[tuple[int, bool, int]]) -> tuple[int, ...]:
    """The topological order that always takes the least of what is ready."""
    waiting = [len(set(task.after)) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for t, task in enumerate(tasks):
        for p in set(task.after):
            followers[p].append(t)
    heap = [(key_of[t], t) for t, n in enumerate(waiting) if not n]
    heapq.heapify(heap)
    order = []
    while heap:
        _, t = heapq.heappop(heap)
        order.append(t)
        for f in followers[t]:
            waiting[f] -= 1
            if not waiting[f]:
                heapq.heappush(heap, (key_of[f], f))
    return tuple(order)


def _bound(work: Sequence[Work], levels: Sequence[int]) -> None:
    """Wait for no bucket before all have begun and all use of the one before it is over."""
    starts = [t for t, item in enumerate(work) if item.phase == START]
    for item, level in zip(work, levels, strict=True):
        if item.phase == FINISH:
            item.after += [*starts, *_of_level(levels, level - 1)] if level > 1 else starts


def _of_level(levels: Sequence[int], level: int) -> Iterable[int]:
    return (t for t, found in enumerate(levels) if found == level)
