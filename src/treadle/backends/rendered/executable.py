"""Programs on a device: one launch after the other into its stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.backends.program import Address, Jump, Program, Run, Step, Together, runs_of
from treadle.backends.rendered.library import Library
from treadle.backends.rendering import Argument, Launchable
from treadle.base.errors import CompileError
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


def _pair(argument: Address | int) -> list[int] | int:
    return [argument.base, argument.offset] if isinstance(argument, Address) else argument


@dataclass(slots=True, eq=False)
class _Launch:
    """One launch of a program; `arguments` are those of the last time, `made` whether of now."""

    launchable: Launchable
    template: tuple[tuple[int, int] | int, ...]
    items: int
    serial: bool
    arguments: tuple[Argument, ...] = ()
    stale: bool = True

    def place(self, bases: Sequence[Buffer]) -> None:
        """Put buffers in the place of bases."""
        self.arguments = tuple(
            [a if isinstance(a, int) else (bases[a[0]], a[1]) for a in self.template]
        )
        self.stale = False


class _Bound:
    """A program on one device: launches with what they were given last."""

    def __init__(self, encoded: Encoded, library: Library, device: Device) -> None:
        self.lock = threading.Lock()
        self.last: list[Buffer] = [None] * encoded["bases"]
        self.steps: list[list[_Launch]] = []
        self.users: list[list[_Launch]] = [[] for _ in self.last]
        symbols, runs = encoded["symbols"], list(_runs(encoded))
        made = iter(library.load(device, [symbols[run[0]] for run in runs]))
        for step in encoded["steps"]:
            own = [self._launch(next(made), run) for run in step[1]] if step[0] == "run" else []
            self.steps.append(own)

    def _launch(self, launchable: Launchable, run: Sequence[Any]) -> _Launch:
        _, items, serial, arguments = run
        template = tuple(a if isinstance(a, int) else (a[0], a[1]) for a in arguments)
        launch = _Launch(launchable, template, items, bool(serial))
        for base in {a[0] for a in template if not isinstance(a, int)}:
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

    def __init__(self, encoded: Encoded, library: Library) -> None:
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
            bound.rebase(bases)
            return self._run(bound, device, stream, bases, start)

    def _on(self, device: Device) -> _Bound:
        found = self._bound.get(id(device))
        if found is None or found[0] is not device:
            if len(self._bound) >= _MOST_DEVICES:  # they may have been closed long ago
                self._bound.clear()
            found = device, _Bound(self._encoded, self._library, device)
            self._bound[id(device)] = found
        return found[1]

    def _run(
        self, bound: _Bound, device: Device, stream: Stream, bases: Sequence[Buffer], at: int
    ) -> int:
        launch, steps = self._library.renderer.launch, self._encoded["steps"]
        while at < len(steps):
            step = steps[at]
            if step[0] == "host":
                return at
            if step[0] == "jump":
                _, target, unless = step
                taken = unless is None or not _truth(device, stream, bases, unless)
                at = target if taken else at + 1
                continue
            for run in bound.steps[at]:
                if run.stale:
                    run.place(bases)
                launch(device, run.launchable, run.arguments, run.items, run.serial, stream)
            at += 1
        return -1

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
    """Whether every step names bases and steps that there are.

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


def restored(data: bytes, library: Library) -> RenderedExecutable | None:
    """What `stored` wrote; None where that was for other code, or the cache no longer has it."""
    encoded: Encoded = json.loads(data)
    if encoded["code"] != library.renderer.fingerprint or not library.has(encoded["symbols"]):
        return None
    return RenderedExecutable(encoded, library)
