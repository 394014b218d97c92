"""Launches: the number of threads, and the size of their scratch memory."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.cuda.driver import Facts

WARP = 32
"""Threads that run in step; blocks of few items have as many."""
BLOCK = 128
"""Threads of a block where there are enough items."""
MOST_BLOCKS = (1 << 31) - 1
SCRATCH = 1 << 29
"""Most bytes of scratch memory of one launch; threads then take several items each."""


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """Blocks, threads of each, and bytes of scratch memory for all of them."""

    blocks: int
    threads: int
    scratch: int


def geometry(items: int, scratch: int, facts: Facts) -> LaunchGeometry:
    """The launch of so many items, each thread of which needs `scratch` bytes.

    Few items are spread over all processors; many threads hide the time memory takes.
    """
    threads = BLOCK if items >= BLOCK * facts.processors else WARP
    blocks = min(-(-items // threads), MOST_BLOCKS)
    if scratch:
        room = min(SCRATCH, facts.memory // 16) // scratch
        if room < threads:
            blocks, threads = 1, max(room, 1)
        else:
            blocks = min(blocks, room // threads)
    return LaunchGeometry(blocks, threads, blocks * threads * scratch)
