"""`Profiler`: what runs when, for https://ui.perfetto.dev, and as a table.

    with Profiler("profile"):
        train_step(x)

Every op that runs in eager mode is an event, and so is every run of a compiled program and every
`scope`. Compiled programs are looked into kernel by kernel with their own `profile` method.
Format: the Trace Event Format of Chromium.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import platform
import re
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from treadle.base.observer import OBSERVER, observe
from treadle.jit.ops_table import BY_OP
from treadle.ops.families import Elementwise
from treadle.ops.op import Op, as_tuple
from treadle.runtime.comm import groups
from treadle.utils.memory_flow import Block, memory_flow
from treadle.utils.profile_analyzer import TITLES, summed

P = ParamSpec("P")
R = TypeVar("R")

SMALL = 20.0
"""Microseconds below which an op costs about as much as calling it."""
FORMATS = ("chrome_timeline.json", "memory_flow.svg")
MERGED = "merge.chrome_timeline.json"


@dataclass(slots=True)
class _Record:
    """Everything seen so far; shared by all runs of one profiler."""

    events: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    held: int = 0
    peak: int = 0
    peak_at: float = 0.0
    devices: dict[str, int] = field(default_factory=dict)
    """The most bytes that each device's allocator held."""


class Profiler:
    """Record what runs, between `start` and `stop` or inside a `with` block.

    Files `<pid>.chrome_timeline.json` (and `<pid>.memory_flow.svg`) are written into the directory
    `path` by `dump`, which `stop` and the end of the process call; in a group of processes they are
    `rank-<number>.…`, and `merge_trace_events` makes one timeline of all.

    Args:
        path: a directory, which is made.
        format, formats: what to write: "chrome_timeline.json", "memory_flow.svg".
        with_backtrace: keep the Python stack with every op.
        with_scopes: make every call of a module a scope.
        sample_rate, profile_device, num_tensor_watch, enable_cupti: for MegEngine's signature.

    Raises:
        AssertionError: there is no such format.

    Example:
        >>> import treadle as mge
        >>> profiler = mge.utils.profiler.Profiler("profile")     # doctest: +SKIP
        >>> profiler.start()                                      # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "profile",
        format: str = "chrome_timeline.json",
        formats: Sequence[str] | str | None = None,
        with_backtrace: bool = False,
        with_scopes: bool = False,
        sample_rate: int = 0,
        profile_device: int = 1,
        num_tensor_watch: int = 10,
        enable_cupti: int = 0,
    ) -> None:
        wanted = [formats] if isinstance(formats, str) else list(formats or [format])
        for name in wanted:
            if name not in FORMATS:
                raise AssertionError(f"Profiler: unknown format {name!r}; there are {FORMATS}")
        self.path = os.fspath(path)
        self.formats = wanted
        self._backtrace = with_backtrace
        self._scopes = with_scopes
        self._record = _Record()
        self._origin = time.perf_counter()
        self._epoch = time.time()
        self._running = False
        self._rank: int | None = None
        self._lock = threading.RLock()  # Garbage may be collected while it is held.

    @property
    def directory(self) -> str:
        """Directory of the files."""
        return self.path

    # -- start and stop --------------------------------------------------------------------

    def start(self) -> Profiler:
        """Begin to record.

        Raises:
            RuntimeError: a profiler is running.
        """
        observe(self)
        self._place()
        self._running = True
        _CURRENT[:] = [self]
        os.makedirs(self.path, exist_ok=True)
        atexit.register(self._at_exit)
        return self

    def stop(self) -> None:
        """End recording and write the files; harmless when not recording."""
        if not self._running:
            return
        self._running = False
        _CURRENT.clear()
        observe(None)
        atexit.unregister(self._at_exit)
        self.dump()

    def step(self) -> Profiler:
        """Mark the end of a training step."""
        self._event({"name": "step", "ph": "i", "s": "p", "ts": self._now(), "tid": _thread()})
        return self

    def _at_exit(self) -> None:
        if self._running:
            self.stop()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, so that every call of it is recorded."""

        @functools.wraps(function)
        def profiled(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return profiled

    # -- what dispatch tells ---------------------------------------------------------------

    def launch(self, op: Op, launch: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the launch of an op, which records itself."""
        name = event_name(op)

        def watched(*payloads: Any) -> Any:
            began = self._now()
            made = launch(*payloads)
            ended = self._now()
            shapes = [list(np.shape(p)) for p in payloads]
            results = as_tuple(made)
            args: dict[str, Any] = {"op": op.name, "inputs": shapes}
            args["outputs"] = [list(np.shape(r)) for r in results]
            if self._backtrace:
                args["backtrace"] = traceback.format_stack(limit=16)[:-1]
            self._complete(name, began, ended, args)
            for result in results:
                self._born(name, result, ended)
            return made

        return watched

    def program(self, name: str, run: Callable[[], Any], /) -> Any:
        """Run a compiled program, and record the run."""
        began = self._now()
        try:
            results = run()
        finally:
            ended = self._now()
            self._complete(f"program {name}", began, ended, {})
        for result in results if isinstance(results, list | tuple) else ():
            self._born(f"program {name}", result, ended)
        return results

    def stage(self, program: str, name: str, began: float, ended: float, /) -> None:
        """Record a stage of a program's compilation."""
        times = {"ts": (began - self._origin) * 1e6, "dur": (ended - began) * 1e6}
        event = {"name": f"compile: {name}", "cat": "compile", "ph": "X", "tid": _thread()}
        self._event({**event, **times, "args": {"program": program, "stage": name}})

    def allocated(self, device: str, nbytes: int, held: int, /) -> None:
        """Record that a device's allocator gave memory, or took it back."""
        peaks = self._record.devices
        peaks[device] = max(peaks.get(device, 0), held)
        at = {"cat": "memory", "ts": self._now(), "tid": _thread()}
        name, args = "allocate" if nbytes >= 0 else "free", {"bytes": abs(nbytes)}
        self._event({"name": f"{name} on {device}", "ph": "i", "s": "t", "args": args, **at})
        self._event({**at, "name": f"memory of {device}", "ph": "C", "args": {"bytes": held}})

    def kept(self, name: str, array: Any, /) -> None:
        """Record memory of the host that a program keeps."""
        self._born(name, array, self._now())

    def module(self, module: Any, inputs: tuple[Any, ...], forward: Callable[[], Any], /) -> Any:
        """Run a module, in a scope where those were asked for."""
        if not self._scopes:
            return forward()
        with self.scoped(_title(module)):
            return forward()

    # -- events ----------------------------------------------------------------------------

    def _now(self) -> float:
        return (time.perf_counter() - self._origin) * 1e6

    def _event(self, event: dict[str, Any]) -> None:
        if self._running:
            self._record.events.append({"pid": os.getpid(), **event})

    def _complete(self, name: str, began: float, ended: float, args: dict[str, Any]) -> None:
        self._event(
            {
                "name": name,
                "ph": "X",
                "ts": began,
                "dur": ended - began,
                "tid": _thread(),
                "args": args,
            }
        )

    def _born(self, name: str, result: Any, now: float) -> None:
        if not isinstance(result, np.ndarray) or not result.nbytes:
            return
        block, record = Block(name, result.nbytes, now), self._record
        with self._lock:
            record.blocks.append(block)
            record.held += block.nbytes
            if record.held > record.peak:
                record.peak, record.peak_at = record.held, now
        self._count()
        weakref.finalize(result, self._gone, block).atexit = False

    def _gone(self, block: Block) -> None:
        block.gone = self._now()
        with self._lock:
            self._record.held -= block.nbytes
        self._count()

    def _count(self) -> None:
        held = {"bytes": self._record.held}
        self._event({"name": "memory", "ph": "C", "ts": self._now(), "tid": 0, "args": held})

    @contextmanager
    def scoped(self, name: str) -> Iterator[None]:
        """Record an event around a block."""
        self._event({"name": name, "ph": "B", "ts": self._now(), "tid": _thread()})
        try:
            yield
        finally:
            self._event({"name": name, "ph": "E", "ts": self._now(), "tid": _thread()})

    # -- results ---------------------------------------------------------------------------

    def dump(self) -> None:
        """Write what was recorded so far.

        Raises:
            OSError: a file cannot be written.
        """
        os.makedirs(self.path, exist_ok=True)
        pid, rank = os.getpid(), self._place()
        for name in self.formats:
            target = Path(self.path) / f"{pid if rank is None else f'rank-{rank}'}.{name}"
            if name == "memory_flow.svg":
                target.write_text(memory_flow(self._record.blocks), encoding="utf-8")
                continue
            target.write_text(json.dumps(self._timeline(pid, rank)), encoding="utf-8")

    def _place(self) -> int | None:
        """Return which of several processes this is, or has been; None where it is alone."""
        world = groups.world()
        if world is not None and world.size > 1:
            self._rank = world.rank
        return self._rank

    def _timeline(self, pid: int, rank: int | None) -> dict[str, Any]:
        title = "treadle" if rank is None else f"rank {rank} on {platform.node()}"
        names: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": title}}
        ]
        for thread in threading.enumerate():
            if thread.ident is not None:
                args = {"name": thread.name}
                names.append(
                    {
                        "name": "thread_name",
                        "ph": "M",
                        "pid": pid,
                        "tid": thread.ident,
                        "args": args,
                    }
                )
        record = self._record
        metadata: dict[str, Any] = {"localTime": self._epoch * 1e6, "pid": pid}
        metadata |= {"peak_bytes": record.peak, "peak_bytes_of_devices": dict(record.devices)}
        if record.peak:
            peak = {"name": "memory peak", "ph": "i", "s": "p", "pid": pid, "tid": 0}
            peak |= {"ts": record.peak_at, "args": {"bytes": record.peak}}
            names.append(peak)
        if rank is not None:
            metadata["rank"] = rank
        return {"traceEvents": names + record.events, "metadata": metadata}

    def table(self) -> Table:
        """Ops and programs by name: calls, time, share; rich prints it.

        Where ops shorter than 20 us take most of the time, the caption says so, and what helps.
        """
        rows = summed(self._record.events)
        table = Table(title=f"{len(self._record.events)} events, peak {self._record.peak} bytes")
        for title in TITLES:
            table.add_column(title, justify="left" if title == "op" else "right")
        for row in rows:
            table.add_row(*row.cells)
        table.caption = self._advice(sum(row.total for row in rows) or 1.0)
        return table

    def _advice(self, whole: float) -> str | None:
        """Return advice on many small ops; None where they are not what takes the time."""
        events = (e for e in self._record.events if e["ph"] == "X" and "op" in e["args"])
        small = sum(e["dur"] for e in events if e["dur"] < SMALL)
        if small <= 0.5 * whole:
            return None
        return (
            f"{100 * small / whole:.0f} % of the time is in ops shorter than {SMALL:.0f} us: "
            "compile the function, or work on larger batches"
        )

    def print_table(self) -> None:
        """Print `table()`."""
        Console().print(self.table())


_CURRENT: list[Profiler] = []


def _title(module: Any) -> str:
    """A module's name, or its class's; attributes of other frameworks' modules may be anything."""
    name = getattr(module, "name", "")
    return name if isinstance(name, str) and name else type(module).__name__


def _thread() -> int:
    return threading.get_ident()


def event_name(op: Op) -> str:
    """An op as timelines name it: RELU, MatrixMul."""
    if op.name in BY_OP:
        return BY_OP[op.name]
    return op.name.upper() if isinstance(op, Elementwise) else op.name


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Name what runs inside the block in the timeline; nothing where no profiler runs."""
    if not _CURRENT:
        yield
        return
    with _CURRENT[0].scoped(name):
        yield


def profile(*args: Any, **kwargs: Any) -> Any:
    """A decorator that profiles a function, bare or with the arguments of `Profiler`."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        return Profiler()(args[0])
    return Profiler(*args, **kwargs)


def is_profiling() -> bool:
    """Return whether a profiler is running."""
    return OBSERVER.now is not None


def merge_trace_events(directory: str | os.PathLike[str]) -> None:
    """Merge the timelines of several processes in a directory into `merge.chrome_timeline.json`.

    Clocks are lined up by the time at which each profiler was made, so those of several machines
    are as far apart as the machines' clocks. Ranks of a group come in their order, under their
    numbers, as processes of two machines may have the same one.

    Raises:
        ValueError: there are no timelines.
    """
    folder = Path(directory)
    files = [
        p
        for p in sorted(folder.iterdir())
        if re.fullmatch(r"(rank-)?\d+\.chrome_timeline\.json", p.name)
    ]
    if not files:
        raise ValueError(f"merge_trace_events: {folder} has no timelines")
    contents = [json.loads(p.read_text(encoding="utf-8")) for p in files]
    first = min(c["metadata"]["localTime"] for c in contents)
    events = []
    for content in contents:
        shift, rank = content["metadata"]["localTime"] - first, content["metadata"].get("rank")
        for given in content["traceEvents"]:
            event = {**given, "ts": given["ts"] + shift} if "ts" in given else given
            events.append(event if rank is None else {**event, "pid": rank})
        if rank is not None:
            place = {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0}
            events.append({**place, "args": {"sort_index": rank}})
    merged = json.dumps({"traceEvents": events, "metadata": {"localTime": first}})
    (folder / MERGED).write_text(merged, encoding="utf-8")


__all__ = ["Profiler", "is_profiling", "merge_trace_events", "profile", "scope"]
