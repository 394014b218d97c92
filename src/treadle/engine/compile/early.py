"""Work that runs once, before the program: on frozen inputs, and packing for kernels.

Results that the program reads lie in memory that is kept. Those that are only packed, or read by
other such work, lie in the arena, which is free at that time: each is made right before it is read
first, so that weights of many layers share it one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.engine.compile.memory import Buffer, check_memory, plan_memory
from treadle.engine.compile.place import Home, Placement
from treadle.engine.compile.work import Work, read_by
from treadle.engine.options import Options
from treadle.engine.plan import MemoryPlan
from treadle.graph.ir import Value


@dataclass(frozen=True, slots=True)
class Turn:
    """One piece of work on its way into the prelude: its launches, or what it packs."""

    work: Work
    packs: bool

    def reads(self) -> list[Value]:
        """The values it reads."""
        lowered = self.work.lowered
        if lowered is None:
            return []
        return read_by(self.work, lowered.prelude if self.packs else lowered.launches)


@dataclass(frozen=True, slots=True)
class Early:
    """The prelude of a program.

    Attributes:
        turns: what runs, in order.
        spaces: scratch memory of what runs.
        memory: offsets in the arena of results that are not kept, and of scratch memory.
    """

    turns: tuple[Turn, ...]
    spaces: Mapping[Work, tuple[Home, ...]]
    memory: MemoryPlan


def plan_early(
    early: Sequence[Work], work: Sequence[Work], placement: Placement, options: Options
) -> Early:
    """Order the prelude and give its scratch memory a place.

    Args:
        early: work that is done once, in an order in which it can run.
        work: the program's, which may have something to pack.
        placement: where values lie.
        options: whether memory is shared, and the plan checked.

    Raises:
        CompileError: memory was planned wrongly.
    """
    turns = _turns(early, work, placement)
    spaces: dict[Work, tuple[Home, ...]] = {}
    ends: dict[int, tuple[int, int]] = {}

    def touch(home: Home, now: int) -> None:
        if home.kind == "early":
            ends[home.index] = ends.get(home.index, (now, now))[0], now

    for now, turn in enumerate(turns):
        for value in (*turn.reads(), *(() if turn.packs else turn.work.outputs)):
            touch(placement.home(value)[0], now)
        lowered = turn.work.lowered
        if lowered is not None and not turn.packs:
            spaces[turn.work] = tuple(placement.scratch(size) for size in lowered.workspaces)
            for home in spaces[turn.work]:
                touch(home, now)
    buffers = [Buffer(int(n), *ends.get(i, (0, 0))) for i, n in enumerate(placement.scratches)]
    memory = plan_memory(buffers, reuse=options.reuse_memory)
    if options.check:
        check_memory(buffers, memory)
    return Early(tuple(turns), spaces, memory)


def _turns(early: Sequence[Work], work: Sequence[Work], placement: Placement) -> list[Turn]:
    """Return the packing, in the program's order, and before each what it is packed from."""
    packing = [
        (rank, Turn(item, packs=True))
        for rank, item in enumerate(work)
        if item.lowered is not None and item.lowered.prelude
    ]
    # A view has no launches: what it shows is made by the work that makes what it is a part of.
    maker = {v: item for item in early for v in item.outputs if v not in placement.parts}
    ranks = {item: len(work) for item in early if item.lowered and item.lowered.launches}
    for rank, turn in reversed(packing):
        for value in turn.reads():
            made_by = maker.get(placement.part(value).root)
            if made_by is not None:
                ranks[made_by] = rank
    for item in reversed(ranks):
        for value in item.inputs:
            made_by = maker.get(placement.part(value).root)
            if made_by is not None:
                ranks[made_by] = min(ranks[made_by], ranks[item])
    order = [(rank, 0, Turn(item, packs=False)) for item, rank in ranks.items()]
    order += [(rank, 1, turn) for rank, turn in packing]
    return [turn for *_, turn in sorted(order, key=lambda entry: entry[:2])]
