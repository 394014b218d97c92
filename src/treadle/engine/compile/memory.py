"""Memory planning: where in one arena every buffer lies, given when each of them lives.

Several placement orders are tried and the smallest peak is kept; the largest sum of bytes alive at
one moment is a lower bound that no plan beats, and planning stops where it is reached.
Sources: best fit by decreasing size as in XLA's heap simulator and TFLite's GreedyBySize (Pisarchyk
and Lee 2020, arXiv:2001.03288).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from treadle.base.errors import CompileError, OutOfMemory
from treadle.engine.plan import ALIGNMENT, MemoryPlan, aligned


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that are needed from step `start` to step `end`, both inclusive."""

    size: int
    start: int
    end: int

    def overlaps(self, other: Buffer) -> bool:
        """Return whether both are needed at some step."""
        return self.start <= other.end and other.start <= self.end


def live_bytes(buffers: Sequence[Buffer]) -> list[int]:
    """The bytes alive at every step."""
    changes = [0] * (max((b.end for b in buffers), default=-1) + 2)
    for b in buffers:
        changes[b.start] += aligned(b.size)
        changes[b.end + 1] -= aligned(b.size)
    return list(accumulate(changes))


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The largest number of bytes alive at one step."""
    return max(live_bytes(buffers), default=0)


_Key = Callable[[int, Buffer], tuple[int, ...]]
_ORDERS: dict[str, _Key] = {
    "size": lambda i, b: (-b.size, b.start, i),
    "size x lifetime": lambda i, b: (-b.size * (b.end - b.start + 1), i),
    "lifetime": lambda i, b: (b.start - b.end, -b.size, i),
    "first use": lambda i, b: (b.start, -b.size, i),
    "last use": lambda i, b: (-b.end, -b.size, i),
}


def plan_memory(buffers: Sequence[Buffer], *, reuse: bool = True) -> MemoryPlan:
    """Offsets for all buffers.

    Args:
        buffers: sizes and lifetimes.
        reuse: False gives every buffer bytes of its own, for debugging.

    Raises:
        OutOfMemory: no address holds so many.
    """
    naive = sum(aligned(b.size) for b in buffers)
    bound = lower_bound(buffers)
    if bound >= _NO_GAP // 2:
        raise OutOfMemory(
            "memory",
            f"the program needs {bound} bytes at once",
            hint="use smaller batches or shapes",
        )
    if not reuse:
        offsets, end = [], 0
        for b in buffers:
            offsets.append(end)
            end += aligned(b.size)
        return MemoryPlan(tuple(offsets), end, bound, naive, "none")
    best: MemoryPlan | None = None
    for name, key in _ORDERS.items():
        order = sorted(range(len(buffers)), key=lambda i: key(i, buffers[i]))
        found = _place(buffers, order)
        peak = max((o + aligned(b.size) for o, b in zip(found, buffers, strict=True)), default=0)
        if best is None or peak < best.peak:
            best = MemoryPlan(tuple(found), peak, bound, naive, name)
        if best.peak == bound:
            break
    if best is None:
        raise CompileError("memory", "no placement order is known")
    return best


def _place(buffers: Sequence[Buffer], order: Sequence[int]) -> list[int]:
    """Each buffer, in order, into the smallest gap between those it overlaps in time.

    Arrays, since in a training step half of all buffers are alive at once, and each is held
    against all of them.
    """
    offsets = [0] * len(buffers)
    # Offset, end of bytes, start, end of life; by offset.
    placed = np.empty((4, len(order)), np.int64)
    for count, i in enumerate(order):
        b = buffers[i]
        size = aligned(b.size)
        rows = placed[:, :count]
        offset, top = rows[:2, (rows[2] <= b.end) & (rows[3] >= b.start)]
        low = np.zeros(len(top) + 1, np.int64)
        np.maximum.accumulate(top, out=low[1:])
        gap = offset - low[:-1]
        gap[gap < size] = _NO_GAP
        best = int(gap.argmin()) if len(gap) else -1
        offsets[i] = int(low[-1] if best < 0 or gap[best] == _NO_GAP else low[best])
        at = int(rows[0].searchsorted(offsets[i]))
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        placed[:, at] = offsets[i], offsets[i] + size, b.start, b.end
    return offsets


_NO_GAP = np.iinfo(np.int64).max


def check_memory(buffers: Sequence[Buffer], plan: MemoryPlan) -> None:
    """Sweep over time and hold the plan against what it promises.

    Raises:
        CompileError: two buffers that live at one step share bytes, one is misaligned, or one
            reaches beyond the arena.
    """
    events: list[tuple[int, int, int]] = []
    for i, b in enumerate(buffers):
        offset = plan.offsets[i]
        if offset % ALIGNMENT or offset < 0 or offset + b.size > plan.peak:
            raise CompileError(
                "memory plan", f"buffer {i} of {b.size} bytes at {offset} lies outside its place"
            )
        events += [(b.start, 1, i), (b.end + 1, 0, i)]
    alive: dict[int, tuple[int, int]] = {}
    for _, begins, i in sorted(events):
        if not begins:
            alive.pop(i, None)
            continue
        low = int(plan.offsets[i])
        high = low + buffers[i].size
        for other, (start, end) in alive.items():
            if low < end and start < high:
                raise CompileError(
                    "memory plan", f"buffers {i} and {other} share bytes {max(low, start)} and on"
                )
        if high > low:
            alive[i] = (low, high)
