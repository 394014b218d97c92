"""Launches of programs that are submitted as one: which ones, and on which memory.

A recording names addresses, and a program gets new memory for its results every time. Loops that
make and drop the same arrays come back to the same addresses, so a stretch of launches is kept per
set of addresses: seen once, it is noted; at the second time it is recorded; from then on replayed.

A few of a program's bases may never come back, such as losses that are put into a list. A base
whose place was not among its last ones is *unsettled*; launches that touch one are submitted as
they are, and what lies between them is recorded apart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from treadle.backends.rendering import Recording, RecordingRenderer
from treadle.base.errors import DeviceLost
from treadle.base.log import get_logger
from treadle.runtime.api import Buffer, Device, Stream
from treadle.runtime.synchronous import SYNCHRONOUS

LEAST = 4
"""Launches from which on one submission is quicker than theirs."""
MOST = 16
"""Recordings that a program keeps on a device; the one that was not used for longest goes."""
NOTED = 64
"""Stretches that were seen and not yet recorded."""
REMEMBERED = 8
"""Places of a base that it may come back to."""
DIVISIONS = 16
"""Ways to divide stretches at unsettled bases that are remembered."""
PATIENCE = 32
"""Runs without a replay after which nothing is tried for a while."""
REST = 512
"""Runs that go by without trying."""
ATTEMPTS = 2
"""Recordings that are tried in one run: memory may move while the first one is made."""

LaunchT = TypeVar("LaunchT")
Places = tuple[Hashable, ...]
Plainly = Callable[[Sequence[LaunchT], Stream], None]


@dataclass(slots=True)
class RecordingCounts:
    """Counts of a backend's recordings: made, replayed, refused; launches they spared."""

    recorded: int = 0
    replayed: int = 0
    refused: int = 0
    spared: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of a program: the places of its bases, and those that are unsettled."""

    places: Places
    unsettled: frozenset[int]
    settings: Hashable


@dataclass(frozen=True, slots=True)
class _Part(Generic[LaunchT]):
    """Launches that go together; `pick` takes the places that they touch, if they are recorded."""

    first: int
    launches: Sequence[LaunchT]
    pick: Callable[[Places], Hashable] | None


class Recorder(Generic[LaunchT]):
    """The recordings of a program on one device. One thread at a time uses it.

    Args:
        renderer: what records.
        device: where.
        bases: how many bases the program has.
        uses: the bases that a launch touches; None where it cannot be recorded.
        counts: what is added to.
    """

    def __init__(
        self,
        renderer: RecordingRenderer,
        device: Device,
        bases: int,
        uses: Callable[[LaunchT], Collection[int] | None],
        counts: RecordingCounts,
    ) -> None:
        self._renderer = renderer
        self._device = device
        self._uses = uses
        self._counts = counts
        self._last: list[OrderedDict[Hashable, None]] = [OrderedDict() for _ in range(bases)]
        self._kept: OrderedDict[Hashable, Recording] = OrderedDict()
        self._noted: OrderedDict[Hashable, None] = OrderedDict()
        self._divisions: OrderedDict[Hashable, list[_Part[LaunchT]]] = OrderedDict()
        self._turn: Turn | None = None
        self._refused = False
        self._idle = self._rest = 0

    def begin(self, bases: Sequence[Buffer], resumed: bool = False) -> Turn | None:
        """Start a run on these bases, or go on with it after something else was done.

        Returns:
            What `submit` needs; None where launches are submitted one by one.
        """
        if self._refused or SYNCHRONOUS.on:
            return None
        if self._rest:
            self._rest -= 1
            return None
        settings = self._renderer.settings()
        if settings is None:
            return None
        places, last = self._renderer.places(bases), self._turn
        if not resumed or last is None:
            self._idle += 1
            if self._idle > PATIENCE:
                self._idle, self._rest = 0, REST
            self._turn = Turn(places, self._settle(places), settings)
        elif last.places != places or last.settings != settings:
            self._turn = Turn(places, self._settle(places) | last.unsettled, settings)
        return self._turn

    def _settle(self, places: Places) -> frozenset[int]:
        """The bases whose places are new; they are known from now on."""
        pairs = zip(places, self._last, strict=True)
        unsettled = [i for i, (place, last) in enumerate(pairs) if place not in last]
        for i in unsettled:
            last = self._last[i]
            last[places[i]] = None
            if len(last) > REMEMBERED:
                last.popitem(last=False)
        return frozenset(unsettled)

    def submit(
        self,
        turn: Turn,
        at: int,
        launches: Sequence[LaunchT],
        stream: Stream,
        plainly: Plainly[LaunchT],
    ) -> None:
        """Submit the stretch that begins at step `at`, from recordings as far as there are any."""
        for part in self._divided(turn, at, launches):
            if part.pick is None or not self._replays(turn, at, part, stream, plainly):
                plainly(part.launches, stream)

    def close(self) -> None:
        """Free all recordings."""
        while self._kept:
            self._kept.popitem()[1].close()

    # -- recordings ------------------------------------------------------------------------

    def _replays(
        self,
        turn: Turn,
        at: int,
        part: _Part[LaunchT],
        stream: Stream,
        plainly: Plainly[LaunchT],
    ) -> bool:
        """Submit a part from its recording; False, with nothing submitted, if there is none."""
        if self._refused or part.pick is None:
            return False
        key = at, part.first, len(part.launches), turn.settings, part.pick(turn.places)

        def record() -> Recording:
            return self._renderer.record(
                self._device, stream, lambda to: plainly(part.launches, to)
            )

        try:
            if key not in self._kept and not self._is_noted(key):
                return False
            for _ in range(ATTEMPTS):
                recording = self._kept.get(key) or self._made(key, record)
                if recording.replay(stream):
                    self._replayed(key, part)
                    return True
                self._kept.pop(key).close()
        except DeviceLost:
            raise
        except Exception as error:  # whatever it is, the launches themselves are still to be done
            self._refuse(error)
        return False

    def _is_noted(self, key: Hashable) -> bool:
        """Return whether a key is there for the second time."""
        if key in self._noted:
            del self._noted[key]
            return True
        self._noted[key] = None
        if len(self._noted) > NOTED:
            self._noted.popitem(last=False)
        return False

    def _made(self, key: Hashable, record: Callable[[], Recording]) -> Recording:
        made = self._kept[key] = record()
        self._counts.recorded += 1
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)[1].close()
        return made

    def _replayed(self, key: Hashable, part: _Part[LaunchT]) -> None:
        self._kept.move_to_end(key)
        self._counts.replayed += 1
        self._counts.spared += len(part.launches) - 1
        self._idle = 0

    def _refuse(self, error: Exception) -> None:
        """Record nothing of this program any more."""
        self._refused = True
        self._counts.refused += 1
        get_logger().warning(
            "launches of a program could not be recorded and are submitted one by one: %s: %s",
            type(error).__name__,
            error,
        )
        self.close()

    # -- what is recorded ------------------------------------------------------------------

    def _divided(self, turn: Turn, at: int, launches: Sequence[LaunchT]) -> list[_Part[LaunchT]]:
        key = at, turn.unsettled
        found = self._divisions.get(key)
        if found is None:
            found = self._divisions[key] = list(self._divide(launches, turn.unsettled))
            if len(self._divisions) > DIVISIONS:
                self._divisions.popitem(last=False)
        else:
            self._divisions.move_to_end(key)
        return found

    def _divide(
        self, launches: Sequence[LaunchT], unsettled: frozenset[int]
    ) -> Iterator[_Part[LaunchT]]:
        """Runs of launches that touch settled bases alone, and what is between them."""
        first, apart = 0, None
        for i, launch in enumerate(launches):
            uses = self._uses(launch)
            other = uses is None or not unsettled.isdisjoint(uses)
            if apart is not None and other != apart:
                yield self._part(launches, first, i, apart)
                first = i
            apart = other
        yield self._part(launches, first, len(launches), bool(apart))

    def _part(
        self, launches: Sequence[LaunchT], first: int, end: int, apart: bool
    ) -> _Part[LaunchT]:
        own = launches[first:end]
        if apart or len(own) < LEAST:
            return _Part(first, own, None)
        bases = sorted({base for launch in own for base in self._uses(launch) or ()})
        pick = itemgetter(*bases) if bases else _nothing
        return _Part(first, own, pick)


def _nothing(_: Places) -> Hashable:
    return ()
