"""Programs on a device: one launch after the other into its stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.backends.program import Address, Jump, Program, Run, Step, Together, Watch, runs_of
from treadle.backends.rendered.library import KernelBinaries
from treadle.backends.rendered.recording import LEAST, Recorder, Turn
from treadle.backends.rendering import Argument, Launchable, RecordingRenderer
from treadle.base.errors import CompileError
from treadle.base.symbol import Dim
from treadle.runtime.api import Buffer, Device, PartDevice, Stream

Encoded = dict[str, Any]
_MOST_DEVICES = 8


def encode(program: Program, symbol_of: Callable[[Any], str], fingerprint: str) -> Encoded:
    """A program as numbers and texts alone, whose kernels are named by their symbols."""
    symbols: dict[str, int] = {}

    def number(kernel: Any) -> int:
        return symbols.setdefault(symbol_of(kernel), len(symbols))

    steps = [_step(step, number) for step in program.steps]
    for kernel in program.beside:
        number(kernel)
    return {
        "code": fingerprint,
        "symbols": list(symbols),
        "bases": program.bases,
        "steps": steps,
    }


def _step(step: Step, number: Callable[[Any], int]) -> list[Any]:
    if isinstance(step, Run | Together):
        runs = [
            [number(r.kernel), r.items, int(r.serial), [_pair(a) for a in r.arguments]]
            for r in runs_of((step,))
        ]
        return ["run", runs]
    if isinstance(step, Jump):
        return ["jump", step.target, None if step.unless is None else _pair(step.unless)]
    return ["host", step.task]


def _pair(argument: Address | Dim) -> list[int] | int:
    return [argument.base, int(argument.offset)] if isinstance(argument, Address) else int(argument)


@dataclass(slots=True, eq=False)
class _RenderedLaunch:
    """One launch of a program; `arguments` are those of the last time, `made` whether of now."""

    launchable: Launchable
    template: tuple[tuple[int, int] | int, ...]
    items: int
    serial: bool
    arguments: tuple[Argument, ...] = ()
    stale: bool = True

    def uses(self) -> set[int]:
        """The bases it touches."""
        return {a[0] for a in self.template if not isinstance(a, int)}

    def place(self, bases: Sequence[Buffer]) -> None:
        """Put buffers in the place of bases."""
        self.arguments = tuple(
            [a if isinstance(a, int) else (bases[a[0]], a[1]) for a in self.template]
        )
        self.stale = False


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Launches that follow one another, up to step `end`."""

    launches: tuple[_RenderedLaunch, ...]
    end: int


class _Bound:
    """A program on one device: launches with what they were given last, and recordings of them."""

    def __init__(self, encoded: Encoded, library: KernelBinaries, device: Device) -> None:
        self.lock = threading.Lock()
        self._library = library
        self._device = device
        self._stretches: dict[int, _Stretch] = {}
        self.last: list[Buffer] = [None] * encoded["bases"]
        self.steps: list[list[_RenderedLaunch]] = []
        self.users: list[list[_RenderedLaunch]] = [[] for _ in self.last]
        symbols, runs = encoded["symbols"], list(_runs(encoded))
        made = iter(library.load(device, [symbols[run[0]] for run in runs]))
        for step in encoded["steps"]:
            own = [self._launch(next(made), run) for run in step[1]] if step[0] == "run" else []
            self.steps.append(own)
        self._kinds = [step[0] for step in encoded["steps"]]
        self.recorder = self._recorder()

    def _recorder(self) -> Recorder[_RenderedLaunch] | None:
        """Return the recorder of launches, where the renderer can and enough of them follow one
        another.
        """
        renderer = self._library.renderer
        if not isinstance(renderer, RecordingRenderer):
            return None
        starts = (i for i in range(len(self.steps)) if i == 0 or self._kinds[i - 1] != "run")
        if max((len(self.stretch(at).launches) for at in starts), default=0) < LEAST:
            return None
        records, counts = renderer.records, self._library.recordings

        def uses(launch: _RenderedLaunch) -> set[int] | None:
            return launch.uses() if records(launch.launchable) else None

        return Recorder(renderer, self._device, len(self.last), uses, counts)

    def stretch(self, at: int) -> _Stretch:
        """The launches from step `at` on to the next jump or task of the host."""
        found = self._stretches.get(at)
        if found is None:
            end = at
            while end < len(self._kinds) and self._kinds[end] == "run":
                end += 1
            launches = tuple(launch for step in self.steps[at:end] for launch in step)
            found = self._stretches[at] = _Stretch(launches, end)
        return found

    def _launch(self, launchable: Launchable, run: Sequence[Any]) -> _RenderedLaunch:
        _, items, serial, arguments = run
        template = tuple(a if isinstance(a, int) else (a[0], a[1]) for a in arguments)
        launch = _RenderedLaunch(launchable, template, items, bool(serial))
        for base in launch.uses():
            self.users[base].append(launch)
        return launch

    def rebase(self, bases: Sequence[Buffer]) -> None:
        """Note which launches have to be given other buffers than the last time."""
        last = self.last
        for i, buffer in enumerate(bases):
            if buffer is not last[i]:
                last[i] = buffer
                for launch in self.users[i]:
                    launch.stale = True


def _runs(encoded: Encoded) -> Iterable[Sequence[Any]]:
    for step in encoded["steps"]:
        if step[0] == "run":
            yield from step[1]


class RenderedExecutable:
    """See `treadle.backends.program.DeviceExecutable`."""

    def __init__(self, encoded: Encoded, library: KernelBinaries) -> None:
        self._encoded = encoded
        self._library = library
        self._bound: dict[int, tuple[Device, _Bound]] = {}
        _check(encoded)

    @property
    def launches(self) -> int:
        """Kernels that are launched, each turn of a loop counted once."""
        return sum(1 for _ in _runs(self._encoded))

    def run(
        self, device: Device, stream: Stream, bases: Sequence[Buffer], start: int = 0, /
    ) -> int:
        if len(bases) != self._encoded["bases"] or not 0 <= start <= len(self._encoded["steps"]):
            raise CompileError(
                self._library.renderer.name,
                "a program is run on bases, or from a step, that do not fit it",
                saw=f"{len(bases)} bases; step {start}",
            )
        bound = self._on(device)
        with bound.lock:
            return self._run(bound, device, stream, bases, start)

    def submit(self, device: Device, stream: Stream, bases: Sequence[Buffer]) -> None:
        """`run` for programs of a few launches and nothing else, without a look at what changed."""
        launch, bound = self._library.renderer.launch, self._on(device)
        with bound.lock:
            for step in bound.steps:
                for run in step:
                    given = [a if isinstance(a, int) else (bases[a[0]], a[1]) for a in run.template]
                    launch(device, run.launchable, tuple(given), run.items, run.serial, stream)

    def run_watched(
        self,
        device: Device,
        stream: Stream,
        bases: Sequence[Buffer],
        start: int,
        watch: Watch,
        /,
    ) -> int:
        """Run the program, with every launch submitted by `watch`."""
        bound = self._on(device)
        with bound.lock:
            return self._run(bound, device, stream, bases, start, watch)

    def _on(self, device: Device) -> _Bound:
        found = self._bound.get(id(device))
        if found is None or found[0] is not device:
            if len(self._bound) >= _MOST_DEVICES:  # they may have been closed long ago
                self._bound.clear()
            found = device, _Bound(self._encoded, self._library, device)
            self._bound[id(device)] = found
        return found[1]

    def _run(
        self,
        bound: _Bound,
        device: Device,
        stream: Stream,
        bases: Sequence[Buffer],
        at: int,
        watch: Watch | None = None,
    ) -> int:
        steps = self._encoded["steps"]
        turn = None
        if watch is None and bound.recorder is not None:
            turn = bound.recorder.begin(bases, resumed=at > 0)
        if turn is not None:
            forward = self._recording(bound, device, stream, bases, turn)
        else:
            bound.rebase(bases)
            forward = self._one_by_one(bound, device, stream, bases, watch)
        while at < len(steps):
            step = steps[at]
            if step[0] == "host":
                return at
            if step[0] == "jump":
                _, target, unless = step
                taken = unless is None or not _truth(device, stream, bases, unless)
                at = target if taken else at + 1
            else:
                at = forward(at)
        return -1

    def _one_by_one(
        self,
        bound: _Bound,
        device: Device,
        stream: Stream,
        bases: Sequence[Buffer],
        watch: Watch | None,
    ) -> Callable[[int], int]:
        """Return a function that submits the launches of a step, and says which step comes next."""

        def forward(at: int) -> int:
            self._submit(bound.steps[at], device, stream, bases)
            return at + 1

        def watched(at: int) -> int:
            if watch is not None:
                watch(at, lambda: self._submit(bound.steps[at], device, stream, bases))
            return at + 1

        return forward if watch is None else watched

    def _recording(
        self, bound: _Bound, device: Device, stream: Stream, bases: Sequence[Buffer], turn: Turn
    ) -> Callable[[int], int]:
        """The same by recordings: all launches up to the next jump or task of the host."""
        rebased = False

        def plainly(launches: Sequence[_RenderedLaunch], to: Stream) -> None:
            nonlocal rebased
            if not rebased:  # replays need no arguments
                bound.rebase(bases)
                rebased = True
            self._submit(launches, device, to, bases)

        def forward(at: int) -> int:
            stretch = bound.stretch(at)
            if bound.recorder is not None:
                bound.recorder.submit(turn, at, stretch.launches, stream, plainly)
            return stretch.end

        return forward

    def _submit(
        self,
        launches: Sequence[_RenderedLaunch],
        device: Device,
        stream: Stream,
        bases: Sequence[Buffer],
    ) -> None:
        launch = self._library.renderer.launch
        for run in launches:
            if run.stale:
                run.place(bases)
            launch(device, run.launchable, run.arguments, run.items, run.serial, stream)

    def stored(self) -> bytes:
        return json.dumps(self._encoded).encode()


def _truth(device: Device, stream: Stream, bases: Sequence[Buffer], where: Sequence[int]) -> bool:
    """A bool in the device's memory, for which all work before it is waited for."""
    base, offset = where
    place = bases[base]
    if offset and isinstance(device, PartDevice):
        place = device.part(place, offset, 1)
    found = bytearray(1)
    device.copy_out(memoryview(found), place, stream)
    return found[0] != 0


def _check(encoded: Encoded) -> None:
    """Return whether every step names bases and steps that there are.

    Raises:
        CompileError: one does not.
    """
    count = len(encoded["steps"])
    for at, step in enumerate(encoded["steps"]):
        places = [a for run in step[1] for a in run[3]] if step[0] == "run" else []
        if step[0] == "jump":
            places = [] if step[2] is None else [step[2]]
            if not 0 <= step[1] <= count:
                raise CompileError("rendered", f"step {at} jumps to {step[1]}")
        for place in places:
            if not isinstance(place, int) and not 0 <= place[0] < encoded["bases"]:
                raise CompileError("rendered", f"step {at} uses base {place[0]}")


def restored(data: bytes, library: KernelBinaries) -> RenderedExecutable | None:
    """Make the executable that `stored` wrote; None where that was for other code, or the cache no
    longer has it.
    """
    encoded: Encoded = json.loads(data)
    if encoded["code"] != library.renderer.fingerprint or not library.has(encoded["symbols"]):
        return None
    return RenderedExecutable(encoded, library)
