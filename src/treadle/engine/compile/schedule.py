"""Schedules: which launches share a slot, and what that means for memory.

Launches that run together need memory together. A schedule is made, the bytes alive in each of its
slots are compared with what the program needs one by one, and where they are too many, the launches
that brought them there get less freedom, and it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from treadle.base.estimates import estimate
from treadle.engine.compile.memory import Buffer, live_bytes
from treadle.engine.compile.place import Home, Placement, share_buffers
from treadle.engine.compile.together import REACH, LaunchUnit, Slots, modelled, one_by_one, slots_of
from treadle.engine.compile.work import Work
from treadle.engine.options import Options
from treadle.engine.plan import aligned

_MORE_MEMORY = 0.02, 128 << 10
"""Limits of the memory that running launches together may add to the arena: a part of it, and
bytes."""
_TRIES = 8
"""Number of times slots are made anew."""
_SHORTER = 8
"""Factor by which a launch's reach is shorter then."""


Users = Callable[[int], set[int]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of units, and lives of values.

    Attributes:
        slots: units that run together, in order.
        buffers: sizes and lifetimes of the arena's buffers, in slots.
        merged: for each buffer that takes another's place, that one.
    """

    slots: Slots
    buffers: tuple[Buffer, ...]
    merged: Mapping[int, int]

    def distinct(self) -> dict[int, Buffer]:
        """Buffers that are not merged, with the lifetimes of those that are."""
        roots: dict[int, Buffer] = {}
        for i, b in enumerate(self.buffers):
            root = self.root(i)
            known = roots.get(root, self.buffers[root])
            roots[root] = Buffer(known.size, min(known.start, b.start), max(known.end, b.end))
        return roots

    def root(self, i: int) -> int:
        """The buffer whose memory number `i` has."""
        while i in self.merged:
            i = self.merged[i]
        return i

    def live(self) -> list[int]:
        """The bytes alive in every slot."""
        return live_bytes(list(self.distinct().values()))


def best_schedule(
    work: Sequence[Work],
    order: Sequence[int],
    placement: Placement,
    spaces: Mapping[int, tuple[Home, ...]],
    units: Sequence[LaunchUnit],
    options: Options,
) -> Schedule:
    """Launches together where options allow it and memory hardly grows, else one by one.

    Several streams are another way to the same end, and have more to choose from one by one.

    Args:
        work: what runs.
        order: of its pieces.
        placement: where values lie.
        spaces: buffers that a piece needs besides.
        units: the launches, in that order.
        options: of the compilation.
    """

    def made(slots: Slots) -> Schedule:
        spans = spans_of(units, slots)
        buffers = tuple(_lifetimes(work, spans, placement, spaces))
        if not options.reuse_memory:
            return Schedule(slots, buffers, {})
        return Schedule(slots, buffers, share_buffers(work, order, placement, spans))

    plain = made(one_by_one(units))
    if not options.allows("together", 2) or options.streams > 1:
        return plain
    users = _users(work, placement, spaces, units)
    share, nbytes = _MORE_MEMORY
    most = int(max(plain.live(), default=0) * (1 + share)) + nbytes

    def fitted(early: bool) -> Schedule:
        """Units moved one way, as far as memory allows."""
        reach: dict[int, int] = {}
        for _ in range(_TRIES):
            found = made(slots_of(units, reach, early=early))
            excess = {slot: alive - most for slot, alive in enumerate(found.live()) if alive > most}
            if not excess:
                return found
            fixed = {u for u, slots in reach.items() if not slots}
            for u in crowding(plain, found, users, excess, fixed, early=early):
                reach[u] = reach.get(u, REACH) // _SHORTER
        return plain

    def cost(found: Schedule) -> tuple[float, int]:
        return round(modelled(units, found.slots), 9), len(found.slots)

    return min((fitted(False), fitted(True)), key=cost)


# -- lifetimes ---------------------------------------------------------------------------------


def spans_of(units: Sequence[LaunchUnit], slots: Slots) -> dict[int, tuple[int, int]]:
    """The first and the last slot of every piece of work that runs."""
    spans: dict[int, tuple[int, int]] = {}
    for position, slot in enumerate(slots):
        for u in slot:
            first, _ = spans.get(units[u].work, (position, position))
            spans[units[u].work] = first, position
    return spans


def _lifetimes(
    work: Sequence[Work],
    spans: Mapping[int, tuple[int, int]],
    placement: Placement,
    spaces: Mapping[int, tuple[Home, ...]],
) -> Iterator[Buffer]:
    """Yield each buffer's lifetime, from the first slot of its maker to the last of its readers."""
    lives: dict[int, tuple[int, int]] = {}
    for number, (first, last) in spans.items():
        for i in _buffers(work[number], placement, spaces.get(number, ())):
            start, end = lives.get(i, (first, last))
            lives[i] = min(start, first), max(end, last)
    for i, size in enumerate(placement.sizes):
        yield Buffer(estimate(size), *lives.get(i, (0, 0)))


def _buffers(item: Work, placement: Placement, spaces: Sequence[Home]) -> Iterator[int]:
    """The buffers that a piece of work uses."""
    homes = [placement.home(v)[0] for v in (*item.inputs, *item.outputs)]
    for home in (*homes, *spaces):
        if home.kind == "arena":
            yield home.index


def _users(
    work: Sequence[Work],
    placement: Placement,
    spaces: Mapping[int, tuple[Home, ...]],
    units: Sequence[LaunchUnit],
) -> Users:
    """Return the units that keep a buffer alive, as a function: all of each piece that uses it."""
    own: dict[int, list[int]] = {}
    for u, unit in enumerate(units):
        own.setdefault(unit.work, []).append(u)
    pieces: list[dict[int, None]] = [{} for _ in placement.sizes]
    for number in own:
        for i in _buffers(work[number], placement, spaces.get(number, ())):
            pieces[i][number] = None
    return lambda i: {u for number in pieces[i] for u in own[number]}


# -- too much memory ---------------------------------------------------------------------------


def crowding(
    plain: Schedule,
    found: Schedule,
    users: Users,
    excess: Mapping[int, int],
    fixed: Set[int] = frozenset(),
    *,
    early: bool = False,
) -> set[int]:
    """Units that have brought more memory to a slot than it has room for.

    Args:
        plain: all units one by one.
        found: some of them together.
        users: gives for each buffer the units that keep it alive.
        excess: bytes that slots of `found` have too many.
        fixed: units that joined nobody, though others may have joined them.
        early: whether units of `found` were brought forward, rather than put off.

    Returns:
        Units that joined another one or were moved; more than necessary, but those with the
        largest buffers rather than those with small ones.
    """
    sign = -1 if early else 1
    where = {u: position for position, slot in enumerate(found.slots) for u in slot}
    alive = dict(enumerate(plain.live()))  # None at the end, where only results are left.
    blamed: set[int] = set()
    for slot, too_much in excess.items():
        members = found.slots[slot]
        # Who needs most is at home in this slot; what was not alive beside it came with others.
        host = max(members, key=lambda u: alive.get(u, 0))
        left = too_much
        for i in _intruders(plain, found, slot, host):
            if left <= 0:
                break
            left -= aligned(found.buffers[i].size)
            beside = {u for u in users(i) - {host} if where[u] == slot}
            passed = {
                u for u in users(i) if sign * where[u] > sign * slot and sign * u < sign * host
            }
            blamed |= beside | passed or {host}
        if left > 0:  # Operands that are not overwritten in place any more, as others read them.
            blamed |= set(members) - {host}
    return blamed - fixed or {u for slot in excess for u in found.slots[slot]} - fixed


def _intruders(plain: Schedule, found: Schedule, slot: int, host: int) -> list[int]:
    """Buffers alive in a slot that are not where its host runs on its own, the largest first."""
    alive = [i for i, b in enumerate(found.buffers) if b.start <= slot <= b.end]
    strange = [i for i in alive if not plain.buffers[i].start <= host <= plain.buffers[i].end]
    return sorted(strange, key=lambda i: -found.buffers[i].size)
