"""Launches together: which launches of a program run as one.

To wake threads and to wait for them costs as much as a small kernel does, and a launch of few items
leaves threads without work. So launches that need nothing of one another take one slot of the
program. A training step ends with an update per parameter, for instance: small ones become a single
launch, or go along with one that is large. Slots are decided on dependencies between values, before
memory is planned: what shares a slot is alive at the same time, and gets memory accordingly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from treadle.backends.program import Launch, Lowered, Ref, Run, Step, Together
from treadle.base.errors import CompileError
from treadle.base.estimates import estimate
from treadle.base.symbol import is_identical
from treadle.engine.compile.work import Work
from treadle.engine.cost import RATES
from treadle.engine.plan import Facts, Plan, Span
from treadle.graph.ir import Value

REACH = 24
"""Slots that a launch may be put off to go along with another one."""
SMALL = 100e-6
"""Modelled seconds up to which a launch may join any other one that is near."""
FEW = 16
"""Items up to which it may, however long they take: more threads would be idle."""
BRIEF = 8e-6
"""Modelled seconds that must be left to other threads for waking them to pay."""
THREADS = 4
"""Number of threads of the model."""
MOST = 256
"""Launches in one slot: they share one table of arguments on the stack."""

Slots = tuple[tuple[int, ...], ...]
"""Numbers of units that run together, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class LaunchUnit:
    """One launch of a piece of work, or all of a piece that is not a launch.

    Attributes:
        work: number of the piece.
        launch: number of the launch; -1 for host tasks and control flow.
        before: units that come earlier.
        alike: what it has in common with others of its kernel.
        seconds: modelled time of one thread.
        parts: items that threads can share.
        single: it is all of its piece of work.
    """

    work: int
    launch: int
    before: tuple[int, ...]
    alike: tuple[str, str] = ("", "")
    seconds: float = 0.0
    parts: int = 1
    single: bool = False

    @property
    def joins(self) -> bool:
        """True if it is worth putting it to others."""
        return self.launch >= 0 and (self.seconds <= SMALL or self.parts <= FEW)


def one_by_one(units: Sequence[LaunchUnit]) -> Slots:
    """Every unit on its own."""
    return tuple((u,) for u in range(len(units)))


# -- units and what they wait for --------------------------------------------------------------


def units_of(
    work: Sequence[Work], order: Sequence[int], maker: Mapping[Value, int]
) -> tuple[LaunchUnit, ...]:
    """The launches of all work, in order.

    Args:
        work: what runs.
        order: when, one piece after the other.
        maker: the work that makes each value, or what it is a part of.
    """
    units: list[LaunchUnit] = []
    done: dict[int, tuple[int, ...]] = {}
    """For each piece of work the units after which its results are there."""
    for number in order:
        item = work[number]
        sources = [done[maker[v]] if v in maker else () for v in item.inputs]
        earlier = [u for w in item.after for u in done[w]]
        own = range(len(units), len(units) + 1)
        if item.lowered is None:
            before = (*earlier, *(u for s in sources for u in s))
            units.append(LaunchUnit(number, -1, tuple(dict.fromkeys(before))))
        else:
            units += _launches(number, item, item.lowered, sources, earlier, own.start)
            own = range(own.start, len(units))
        # Whoever waits for the last ones waits for all.
        followed = {u for i in own for u in units[i].before}
        last = (u for u in own if u not in followed)
        done[number] = (*last, *_through(item, sources, earlier))
    return tuple(units)


def _through(
    item: Work, sources: Sequence[tuple[int, ...]], earlier: Sequence[int]
) -> tuple[int, ...]:
    """Return the launches that readers of a result wait for which is only a view of an operand."""
    if item.lowered is None or not item.lowered.views:
        return ()
    viewed = (u for _, source, _ in item.lowered.views for u in sources[source])
    return tuple(dict.fromkeys((*earlier, *viewed)))


def _launches(
    number: int,
    item: Work,
    lowered: Lowered,
    sources: Sequence[tuple[int, ...]],
    earlier: Sequence[int],
    first: int,
) -> Iterator[LaunchUnit]:
    """The units of one piece; they wait for those of it that touch what they touch."""
    taken: dict[int, list[int]] = {}
    for i, j in lowered.in_place:
        taken.setdefault(i, []).append(j)
    uses = [_uses(launch, taken) for launch in lowered.launches]
    for i, (launch, awaited) in enumerate(zip(lowered.launches, _awaited(uses), strict=True)):
        reads, writes = uses[i]
        before = [*earlier, *(u for k, j in reads if k == "input" for u in sources[j])]
        before += [first + k for k in awaited]
        seconds = _seconds(item, lowered, launch, reads | writes)
        yield LaunchUnit(
            number,
            i,
            tuple(dict.fromkeys(before)),
            (item.label, str(launch.kernel.name)),
            seconds,
            1 if launch.serial else max(estimate(launch.items), 1),
            len(uses) == 1,
        )


Place = tuple[str, int]


def _awaited(uses: Sequence[tuple[set[Place], set[Place]]]) -> Iterator[list[int]]:
    """Yield for each launch of a piece the earlier ones it waits for, without those implied.

    It comes after whoever last wrote what it touches, and after all who have read that since if it
    writes there. A piece may be thousands of launches that write to one result.
    """
    writer: dict[Place, int] = {}
    readers: dict[Place, list[int]] = {}
    for i, (reads, writes) in enumerate(uses):
        found = {k: None for place in writes for k in readers.pop(place, ())}
        found.update((writer[place], None) for place in (*reads, *writes) if place in writer)
        yield list(found)
        writer.update((place, i) for place in writes)
        for place in reads - writes:
            readers.setdefault(place, []).append(i)


def _uses(launch: Launch, taken: Mapping[int, list[int]]) -> tuple[set[Place], set[Place]]:
    """Return the places that a launch reads and writes; an input is also the outputs that may take
    its memory.
    """
    reads: set[Place] = set()
    writes: set[Place] = set()
    for argument in launch.arguments:
        if not isinstance(argument, Ref) or argument.kind == "constant":
            continue
        place = argument.kind, argument.index
        (reads if argument.kind in ("input", "kept") else writes).add(place)
        if argument.kind == "input":
            reads.update(("output", j) for j in taken.get(argument.index, ()))
    return reads, writes


def _seconds(item: Work, lowered: Lowered, launch: Launch, places: set[Place]) -> float:
    """Modelled time of a launch, not counting its start."""
    nbytes = 0
    for kind, index in places:
        if kind in ("input", "output"):
            nbytes += (item.inputs if kind == "input" else item.outputs)[index].type.open_nbytes
        elif kind == "workspace":
            nbytes += lowered.workspaces[index]
    rates = RATES["cpu"]
    moved = nbytes if is_identical(launch.nbytes, 0) else launch.nbytes
    return rates.seconds(estimate(launch.flops), estimate(moved)) - rates.launch


# -- slots -------------------------------------------------------------------------------------


def slots_of(
    units: Sequence[LaunchUnit], reach: Mapping[int, int] | None = None, *, early: bool = False
) -> Slots:
    """Units that run together.

    From the last unit back, each joins a slot that comes before all who wait for it, or opens a new
    one. What nobody waits for joins others of its kernel, as far away as they may be; what is
    small, or has few items, a slot within reach, best one whose units have as many before them,
    so that branches of equal form run side by side; and anything a slot of small ones that it has
    right behind it.

    Args:
        units: in a valid order.
        reach: how many slots a unit may be moved, if not `REACH`; with 0 it joins none, but others
            may join it.
        early: the same from the first unit on: units are brought forward, rather than put off.
    """
    depths = _depths(units)
    if not early:
        return _Slots(units, depths, reach or {}).found()
    last = len(units) - 1
    reach = {last - u: slots for u, slots in (reach or {}).items()}
    mirrored = _Slots(_mirrored(units), depths[::-1], reach).found()
    return tuple(tuple(sorted(last - u for u in slot)) for slot in reversed(mirrored))


def _mirrored(units: Sequence[LaunchUnit]) -> list[LaunchUnit]:
    """The same units in a program that runs backwards."""
    last = len(units) - 1
    after: list[list[int]] = [[] for _ in units]
    for i, unit in enumerate(units):
        for p in unit.before:
            after[p].append(last - i)
    return [replace(units[i], before=tuple(after[i])) for i in range(last, -1, -1)]


def modelled(units: Sequence[LaunchUnit], slots: Slots) -> float:
    """Seconds of all slots on a few threads, as far as slots make a difference."""
    total = 0.0
    for slot in slots:
        seconds = [units[u].seconds for u in slot]
        longest = max(units[u].seconds / units[u].parts for u in slot)
        if all(units[u].parts == 1 for u in slot) and sum(seconds) - longest < BRIEF:
            total += sum(seconds)
        else:
            total += RATES["cpu"].launch + max(sum(seconds) / THREADS, longest)
    return total


@dataclass(slots=True)
class _Slot:
    """Units of a slot, and what decides who else may join.

    Attributes:
        units: from the last to the first.
        depth: how many units are before the one that opened it, one after the other.
        open: it is of launches, and has room.
        small: all of them may join others.
    """

    units: list[int]
    depth: int
    open: bool
    small: bool


class _Slots:
    """Slots from the last to the first."""

    def __init__(
        self, units: Sequence[LaunchUnit], depths: Sequence[int], reach: Mapping[int, int]
    ) -> None:
        self._units = units
        self._reach = reach
        self._slots: list[_Slot] = []
        self._depth = depths
        self._followed = {p for u in units for p in u.before}
        self._least = [0] * len(units)
        """The last slot, counted from the end, that a unit may be in."""
        self._alike: dict[tuple[str, str], int] = {}
        """For each kernel the first slot that has a unit with nothing after it."""

    def found(self) -> Slots:
        for u in reversed(range(len(self._units))):
            self._put(u, self._choice(u))
        return tuple(tuple(reversed(slot.units)) for slot in reversed(self._slots))

    def _put(self, u: int, number: int) -> None:
        unit = self._units[u]
        if number == len(self._slots):
            self._slots.append(_Slot([u], self._depth[u], unit.launch >= 0, unit.joins))
        else:
            slot = self._slots[number]
            slot.units.append(u)
            slot.open = len(slot.units) < MOST
            slot.small &= unit.joins
        for p in unit.before:
            self._least[p] = max(self._least[p], number + 1)
        if u not in self._followed and unit.single:
            self._alike[unit.alike] = max(number, self._alike.get(unit.alike, 0))

    def _choice(self, u: int) -> int:
        """The slot for a unit."""
        unit, new, least = self._units[u], len(self._slots), self._least[u]
        reach = self._reach.get(u, REACH)
        if unit.launch < 0 or not reach:
            return new
        if not unit.joins:
            near = new > least and self._slots[-1].open and self._slots[-1].small
            return new - 1 if near else new
        last = u not in self._followed and unit.single
        if last and unit.seconds <= SMALL and reach == REACH:
            same = self._alike.get(unit.alike, -1)
            if same >= least and self._slots[same].open:
                return same
        reached = range(max(least, new - reach), new)
        fits = (number for number in reached if self._slots[number].open)
        depth = self._depth[u]
        return min(fits, key=lambda n: (abs(self._slots[n].depth - depth), -n), default=new)


def _depths(units: Sequence[LaunchUnit]) -> list[int]:
    """Return for each unit the length of the longest chain of units before it."""
    depths: list[int] = []
    for unit in units:
        depths.append(1 + max((depths[p] for p in unit.before), default=-1))
    return depths


# -- steps -------------------------------------------------------------------------------------


def joined(members: Sequence[tuple[Run, Facts]]) -> tuple[Step, Facts]:
    """One step of runs that share a slot, at least one."""
    if len(members) == 1:
        return members[0]
    longest = max(_at_a_stretch(*m) for m in members)
    rows = [(*m, _grain(*m, longest / 2)) for m in members]
    # Long units first: whoever is done early takes short ones.
    rows.sort(key=lambda row: -row[2] * _at_a_stretch(row[0], row[1]))
    runs, facts, grains = zip(*rows, strict=True)
    nodes = {f.node for f in facts}
    together = Facts(
        tuple(dict.fromkeys(s for f in facts for s in f.reads)),
        tuple(dict.fromkeys(s for f in facts for s in f.writes)),
        sum(f.flops for f in facts),
        sum(f.nbytes for f in facts),
        nodes.pop() if len(nodes) == 1 else -1,
        facts,
        tuple(dict.fromkeys(s for f in facts for s in f.scratch)),
        tuple(dict.fromkeys(pair for f in facts for pair in f.replaceable)),
    )
    return Together(runs, grains, _is_serial(members)), together


def _is_serial(members: Sequence[tuple[Run, Facts]]) -> bool:
    """Return whether other threads would come too late to help."""
    if any(not run.serial and estimate(run.items) > 1 for run, _ in members):
        return False
    seconds = [_at_a_stretch(*m) for m in members]
    return sum(seconds) - max(seconds) < BRIEF


def _grain(run: Run, facts: Facts, seconds: float) -> int:
    """Return the number of items that take so long."""
    item = _at_a_stretch(run, facts)
    if run.serial or not item:
        return 1
    return max(1, min(estimate(run.items), int(seconds / item)))


def _at_a_stretch(run: Run, facts: Facts) -> float:
    """Modelled seconds of what one thread has to do at a stretch."""
    rates = RATES["cpu"]
    nbytes = facts.nbytes or sum(s.nbytes for s in (*facts.reads, *facts.writes))
    seconds = rates.seconds(estimate(facts.flops), estimate(nbytes)) - rates.launch
    return seconds if run.serial else seconds / max(estimate(run.items), 1)


# -- proof -------------------------------------------------------------------------------------


def check_together(plan: Plan) -> None:
    """Hold merged launches against what they promise, on the bytes that they touch in the end.

    Raises:
        CompileError: one of a step writes what another one of the same step reads or writes.
    """
    for number, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        if not isinstance(step, Together):
            continue
        touched: list[tuple[Span, bool, int]] = [
            (span, writes, i)
            for i, f in enumerate(facts.members)
            for spans, writes in ((f.reads, False), (f.writes, True))
            for span in spans
        ]
        touched.sort(key=lambda entry: (entry[0].base, entry[0].offset))
        _check_apart(number, touched)


def _check_apart(number: int, touched: Sequence[tuple[Span, bool, int]]) -> None:
    """A sweep over addresses; `open_` are the spans that reach the present one."""
    open_: list[tuple[Span, bool, int]] = []
    for span, writes, i in touched:
        open_ = [o for o in open_ if o[0].meets(span)]
        for _, written, other in open_:
            if other != i and (writes or written):
                raise CompileError(
                    "together",
                    f"two launches of step {number} use the same memory",
                    saw=f"{span.nbytes} bytes of base {span.base} from {span.offset} on",
                )
        open_.append((span, writes, i))
