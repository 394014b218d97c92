"""Orders of buffers in memory, taken from a plan for some sizes, as code that serves all sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.base.arithmetic import ADD, MOST, Rows, Words
from treadle.engine.compile.memory import Buffer, plan_memory
from treadle.engine.scheme import Registers


def placed(at: Registers, lives: Sequence[tuple[int, int]], registers: Words) -> Rows:
    """Code that places buffers of any sizes in the order that suits those that registers hold."""
    sizes = registers[list(at.sizes)].tolist()
    buffers = [Buffer(size, *life) for size, life in zip(sizes, lives, strict=True)]
    found = plan_memory(buffers).offsets
    rows = []
    tops = set(range(len(buffers)))
    for i, below in order_of(buffers, [int(offset) for offset in found]):
        tops -= set(below)
        ends = [at.ends[j] for j in below]
        first, second, *others = [*ends, at.zero, at.zero][: max(len(ends), 2)]
        rows.append((MOST, at.offsets[i], first, second))
        rows += [(MOST, at.offsets[i], at.offsets[i], end) for end in others]
        rows.append((ADD, at.ends[i], at.offsets[i], at.sizes[i]))
    rows.append((ADD, at.peak, at.least, at.zero))
    rows += [(MOST, at.peak, at.peak, at.ends[i]) for i in sorted(tops)]
    return np.array(rows, np.int32).reshape(-1, 4)


def order_of(
    buffers: Sequence[Buffer], offsets: Sequence[int]
) -> list[tuple[int, tuple[int, ...]]]:
    """The buffers from the lowest up, each with those directly below it.

    Of two that are needed at one step one is below the other, directly or by way of others.
    """
    order = sorted(range(len(buffers)), key=lambda i: (offsets[i], buffers[i].size > 0, i))
    start = np.array([buffers[i].start for i in order], np.int64)
    end = np.array([buffers[i].end for i in order], np.int64)
    below: list[int] = []
    """For each place in the order all places below it, as bits."""
    found = []
    for place, i in enumerate(order):
        meets = (start[:place] <= end[place]) & (end[:place] >= start[place])
        reached, direct = 0, []
        for other in np.flatnonzero(meets)[::-1].tolist():
            if not reached >> other & 1:
                direct.append(other)
                reached |= below[other] | 1 << other
        below.append(reached)
        found.append((i, tuple(order[other] for other in direct)))
    return found
