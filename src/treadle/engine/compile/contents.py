"""The proof that everybody reads what was meant for them, apart from the code that placed it.

The prelude and the slots of a program are followed launch by launch, with a record of what every
byte holds: a value, a packed form, or scratch. Whoever reads must find what they ask for, whole; a
view is bytes of what it is a part of, and a copy holds what its source does. What the prelude
leaves in the arena is forgotten before the program starts, since runs write there, and memory that
is kept may not be written after.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from treadle.backends.program import Address, Launch, Ref, Run, Step
from treadle.base.errors import CompileError
from treadle.base.symbol import Dim
from treadle.engine.compile.early import Turn
from treadle.engine.compile.link import Linker
from treadle.engine.compile.place import Home
from treadle.engine.compile.together import LaunchUnit
from treadle.engine.compile.work import COPY, Work
from treadle.engine.plan import FINISH, Facts, Interface
from treadle.graph.ir import Graph, Value


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes that somebody reads or writes.

    Attributes:
        at: where they are.
        nbytes: how many.
        what: what they hold, a root value or a numbered area of a piece of work.
        origin: where all of that begins, of which these bytes may be a part.
        name: what messages call it.
    """

    at: Address
    nbytes: int
    what: object
    origin: int
    name: str

    @property
    def ends(self) -> tuple[int, int]:
        """Offsets of the first byte and of the one behind the last."""
        low = int(self.at.offset)
        return low, low + self.nbytes


class MemoryContents:
    """Contents of every byte of every base, as spans that do not overlap."""

    def __init__(self) -> None:
        self._spans: dict[int, list[tuple[int, int, object, int]]] = {}

    def forget(self, base: int) -> None:
        """Forget all that is known of a base."""
        self._spans.pop(base, None)

    def write(self, use: Use) -> None:
        """Replace the contents of these bytes."""
        if not use.nbytes:
            return
        spans = self._spans.setdefault(use.at.base, [])
        low, high = use.ends
        first, last = _met(spans, low, high)
        new = [(low, high, use.what, use.origin)]
        if first < last:
            start, _, what, origin = spans[first]
            new[:0] = [(start, low, what, origin)] if start < low else []
            _, end, what, origin = spans[last - 1]
            new += [(high, end, what, origin)] if end > high else []
        spans[first:last] = new

    def holds(self, use: Use, instead: Collection[object] = ()) -> bool:
        """Return whether all of the bytes hold this, or something that may be there instead."""
        if not use.nbytes:
            return True
        spans = self._spans.get(use.at.base, [])
        low, high = use.ends
        for start, end, what, origin in spans[slice(*_met(spans, low, high))]:
            right = what is use.what and origin == use.origin
            if start > low or not (right or what in instead):
                return False
            low = end
        return low >= high


def _met(spans: Sequence[tuple[int, int, object, int]], low: int, high: int) -> tuple[int, int]:
    """Return the range of spans that end after `low` and start before `high`."""
    first = bisect_left(spans, low + 1, key=lambda s: s[1])
    return first, max(first, bisect_left(spans, high, key=lambda s: s[0]))


class Contents:
    """Follows a program through its memory.

    Args:
        graph: the program.
        interface: which inputs are frozen, and which are updated.
        work: the program's, with its copies.
        linker: knows where everything lies.
    """

    def __init__(
        self, graph: Graph, interface: Interface, work: Sequence[Work], linker: Linker
    ) -> None:
        self._graph = graph
        self._updates = dict(interface.updates)
        self._donated = interface.donated
        self._linker = linker
        self._copied = {w.outputs[0]: w.inputs[0] for w in work if w.op is COPY}
        self._memory = MemoryContents()
        self._areas: dict[tuple[int, str, int], object] = {}
        self._begun: set[tuple[int, str, int]] = set()
        """Results and scratch memory that an earlier launch of the same work has written to."""
        self._kept = linker.inputs + linker.outputs + 1
        changed = set(self._updates.values())
        self._fixed = {
            v
            for i, (v, yes) in enumerate(zip(graph.inputs, interface.frozen, strict=False))
            if yes and i not in changed
        }
        for i, value in enumerate(graph.inputs):
            self._memory.write(self._use(value, Address(i)))

    def prelude(self, turns: Sequence[Turn], steps: Iterable[Step]) -> None:
        """Follow what runs once.

        Args:
            turns: pieces of work, in order.
            steps: their launches, in order.

        Raises:
            CompileError: a launch reads what nobody has written yet, what something else has taken
                the place of, or an input that may change from run to run.
        """
        runs = iter(steps)
        for turn in turns:
            item = turn.work
            for value in turn.reads():
                root, _ = self._root(value)
                if root in self._graph.inputs and root not in self._fixed:
                    raise _wrong(item.label, value.type, "is read once, though it may change")
            if item.lowered is None:
                continue
            for launch in item.lowered.prelude if turn.packs else item.lowered.launches:
                run = next(runs)
                if isinstance(run, Run):
                    self._slot([(item, launch, run)], once=True)
        self._memory.forget(self._kept + 1)
        self._begun.clear()

    def program(
        self,
        slots: Iterable[Iterable[int]],
        units: Sequence[LaunchUnit],
        work: Sequence[Work],
        runs: Mapping[int, Sequence[tuple[Run, Facts] | None]],
        spaces: Mapping[int, Sequence[Home]],
    ) -> None:
        """Follow what runs every time.

        Args:
            slots: units that run together, in order.
            units: launches, and pieces of work that are none.
            work: the pieces.
            runs: for each piece its launches; None is a copy of what lies where it belongs.
            spaces: scratch memory of each piece.

        Raises:
            CompileError: as above; or what is kept is written, or an output or an input does not
                hold what it is to hold at the end.
        """
        for slot in slots:
            members: list[tuple[Work, Launch, Run]] = []
            for unit in (units[u] for u in slot):
                item = work[unit.work]
                if unit.launch < 0 or item.lowered is None:
                    self._whole(item, spaces.get(unit.work, ()))
                    continue
                found = runs[unit.work][unit.launch]
                if found is not None:
                    members.append((item, item.lowered.launches[unit.launch], found[0]))
            self._slot(members, once=False)
        self._end()

    # -- one step ----------------------------------------------------------------------------

    def _slot(self, members: Sequence[tuple[Work, Launch, Run]], *, once: bool) -> None:
        """Launches at one time: all find what they read, and all that they write stays."""
        written: list[tuple[str, Use]] = []
        for item, launch, run in members:
            instead = self._made_in_place(item)
            began: set[tuple[int, str, int]] = set()  # A launch may be given one result twice.
            for kind, index, use in self._uses(item, launch, run):
                area = id(item), kind, index
                writes = kind in ("output", "workspace") or (kind == "kept" and once)
                if writes and use.at.base == self._kept and not once:
                    raise _wrong(item.label, use.name, "lies in memory that is filled only once")
                if not writes or area in self._begun:
                    self._read(item, use, instead if kind == "input" else ())
                if writes:
                    began.add(area)
                    written.append((item.label, use))
            self._begun |= began
        self._written(written)

    def _whole(self, item: Work, spaces: Sequence[Home]) -> None:
        """A host task, or control flow."""
        where = self._linker.where
        for value in item.inputs:
            self._read(item, self._use(value, where(value)))
        # What waits for a reduction leaves everything where it is.
        outputs = () if item.phase == FINISH else item.outputs
        written = [self._use(v, where(v)) for v in outputs]
        for k, home in enumerate(spaces):
            at, size = self._linker.address(home), self._linker.placement.sizes[home.index]
            written.append(self._area(item, "workspace", k, at, size))
        self._written([(item.label, use) for use in written])

    def _read(self, item: Work, use: Use, instead: Collection[object] = ()) -> None:
        if use.at.base != self._kept - 1 and not self._memory.holds(use, instead):
            place = f"is not in base {use.at.base} at byte {use.at.offset}, where it is read"
            raise _wrong(item.label, use.name, place)

    def _written(self, uses: Sequence[tuple[str, Use]]) -> None:
        for _, use in uses:
            self._memory.write(use)
        for label, use in uses:
            if not self._memory.holds(use):
                raise _wrong(label, use.name, "is written where something else is, at one time")

    def _end(self) -> None:
        """Check that outputs hold their values, and inputs theirs, but for updated and donated
        ones.
        """
        results = [v for j, v in enumerate(self._graph.outputs) if j not in self._updates]
        expected = [*self._graph.inputs, *results]
        for j, i in self._updates.items():
            expected[i] = self._graph.outputs[j]
        for base, value in enumerate(expected):
            if base in self._donated:
                continue
            use = self._use(value, Address(base))
            if not self._memory.holds(use):
                raise _wrong("the program", use.name, f"is not in base {base} at the end")

    # -- what bytes hold -----------------------------------------------------------------------

    def _root(self, value: Value) -> tuple[Value, int]:
        """Return the value that a value is a part of, or a copy of, and where in it."""
        before = 0
        while True:
            if value in self._copied:
                value = self._copied[value]
                continue
            part = self._linker.placement.part(value)
            if part.root is value:
                return value, before
            value, before = part.root, before + part.offset

    def _use(self, value: Value, at: Address) -> Use:
        root, before = self._root(value)
        return Use(at, value.type.nbytes, root, int(at.offset) - before, str(value.type))

    def _area(self, item: Work, kind: str, index: int, at: Address, size: Dim) -> Use:
        """Scratch memory of a piece of work, or what it packs."""
        what = self._areas.setdefault((id(item), kind, index), object())
        return Use(at, int(size), what, int(at.offset), f"its {kind} memory {index}")

    def _uses(self, item: Work, launch: Launch, run: Run) -> Iterator[tuple[str, int, Use]]:
        """Yield what a launch reads and writes, at the addresses that it is given."""
        for ref, given in zip(launch.arguments, run.arguments, strict=True):
            if not isinstance(ref, Ref) or not isinstance(given, Address) or item.lowered is None:
                continue
            at = Address(given.base, int(given.offset) - ref.offset)
            if ref.kind in ("input", "output"):
                values = item.inputs if ref.kind == "input" else item.outputs
                yield ref.kind, ref.index, self._use(values[ref.index], at)
            elif ref.kind != "constant":
                sizes = item.lowered.kept if ref.kind == "kept" else item.lowered.workspaces
                use = self._area(item, ref.kind, ref.index, at, sizes[ref.index])
                yield ref.kind, ref.index, use

    def _made_in_place(self, item: Work) -> set[object]:
        """Results that take the place of operands, which later launches may still be given."""
        pairs = () if item.lowered is None else item.lowered.in_place
        return {self._root(item.outputs[j])[0] for _, j in pairs}


def _wrong(who: str, what: object, how: str) -> CompileError:
    return CompileError("memory plan", f"{who}: {what} {how}")
