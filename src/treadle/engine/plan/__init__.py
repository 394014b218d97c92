"""Plans of steps over bases, and programs in memory: what the last three stages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from treadle.backends.native_code import Executable
from treadle.backends.program import (
    Address,
    DeviceExecutable,
    Host,
    Jump,
    Limits,
    Program,
    Run,
    Step,
    StopStep,
    Together,
)
from treadle.base.array import Array
from treadle.base.symbol import Dim, Expr, symbol
from treadle.base.types import TensorType
from treadle.runtime.host import HostBuffer

if TYPE_CHECKING:  # Processes that run compiled code need no op.
    from treadle.ops.op import Op

ALIGNMENT = 64
D = TypeVar("D", int, Dim)


@dataclass(frozen=True, slots=True)
class OpenBuffer:
    """A buffer of an arena that is not laid out yet: the symbol of its offset, and its life."""

    name: str
    size: Dim
    start: int
    end: int

    @property
    def offset(self) -> Expr:
        """The symbol itself."""
        return offset_named(self.name)


def offset_named(name: str) -> Expr:
    """The symbol of an offset that is a number when the sizes of buffers are."""
    return symbol(name, 0, multiple=ALIGNMENT)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets into one arena.

    Attributes:
        offsets: one per buffer, multiples of `ALIGNMENT`.
        peak: bytes of the arena.
        bound: the largest sum of bytes alive at one step.
        naive: the sum of all buffers.
        order: name of the placement order that won.
        spans: for pictures, per buffer: offset, bytes, first and last step.
        open: buffers of a program for many extents, whose offsets are symbols until a call.
        least: bytes that the arena of such a program has in any case.
    """

    offsets: tuple[Dim, ...]
    peak: int
    bound: int
    naive: int
    order: str = ""
    spans: tuple[tuple[int, int, int, int], ...] = ()
    open: tuple[OpenBuffer, ...] = ()
    least: int = 0


def aligned(size: D) -> D:
    """The size rounded up to whole lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Interface:
    """Border of a program: how its inputs and outputs meet the outside.

    Attributes:
        frozen: which inputs keep their contents from run to run, unless the caller says so.
        updates: (output, input) pairs: the output replaces that input's contents in place.
        donated: numbers of inputs that nobody reads after the run; it may leave anything in them.
            No two inputs may share their memory.
    """

    frozen: tuple[bool, ...] = ()
    updates: tuple[tuple[int, int], ...] = ()
    donated: tuple[int, ...] = ()


REFERENCE = "reference"
"""The engine of ops that no other one takes."""


START, FINISH = "start", "finish"
"""Phases of what goes on behind other steps."""
CHECK = "check"
"""Phase of what a program stops at where an index is out of range."""


@dataclass(frozen=True, slots=True)
class HostTask:
    """An op that is not compiled: the caller has an engine run it on the memory of the program.

    One with a phase begins, or waits for, what takes place in the memory of its one operand; or it
    is only reached where that says that a check has failed.
    """

    op: Op
    inputs: tuple[tuple[Address, TensorType], ...]
    outputs: tuple[tuple[Address, TensorType], ...]
    engine: str = REFERENCE
    phase: str = ""

    @property
    def name(self) -> str:
        """Name for reports."""
        return f"{self.phase} {self.op.name}".lstrip()


# -- what is known about steps ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """`nbytes` bytes from an address on. Spans of different bases never meet."""

    base: int
    offset: Dim
    nbytes: Dim

    @property
    def ends(self) -> tuple[int, int]:
        """Offsets of the first byte and of the one behind the last, where both are numbers."""
        return int(self.offset), int(self.offset + self.nbytes)

    def meets(self, other: Span) -> bool:
        """Return whether both have a byte in common."""
        return (
            self.base == other.base
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """A step seen from outside: what it touches, what it costs, and what it is a part of.

    Attributes:
        reads, writes: memory; what is also read need not be listed if it is written.
        flops: arithmetic operations.
        nbytes: bytes that are moved at least.
        node: number of its node in the compiled graph; -1 for copies to where outputs belong, and
            for launches on behalf of several nodes.
        members: the same for each run of a merged launch.
        scratch: what of `writes` is needed while the step runs, and by nobody else.
        replaceable: (operand, result) pairs: the result may lie where the operand does; it does
            where both are the same.
        unit: what does the arithmetic: see `Launch`.
    """

    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    flops: Dim = 0
    nbytes: Dim = 0
    node: int = -1
    members: tuple[Facts, ...] = ()
    scratch: tuple[Span, ...] = ()
    replaceable: tuple[tuple[Span, Span], ...] = ()
    unit: str = ""

    def least(self, limits: Limits) -> float:
        """Seconds that a machine's limits leave for the work."""
        if self.members:
            return sum(member.least(limits) for member in self.members)
        return limits.seconds(self.flops, self.nbytes, self.unit)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Recorded on its stream when step `source` is done; step `target` waits for it.

    Loops and branches wait when they are entered, and are done when they are left.
    """

    source: int
    target: int
    number: int


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams of the steps. The steps of a stream run one after the other, in plan order.

    Attributes:
        of: the stream of every step.
        events: what streams wait for; a number is used again when nobody can mistake it.
        crossing: dependencies between streams, before those that follow from others were dropped.
        single: modelled seconds of all steps on one stream.
        makespan: modelled seconds with these streams.
        reason: why there are as many as there are.
    """

    of: tuple[int, ...]
    events: tuple[StreamEvent, ...] = ()
    crossing: int = 0
    single: float = 0.0
    makespan: float = 0.0
    reason: str = ""

    @property
    def count(self) -> int:
        """Number of streams."""
        return max(self.of, default=0) + 1

    @property
    def numbers(self) -> int:
        """Number of events that exist at a time."""
        return len({e.number for e in self.events})


@dataclass(slots=True)
class ConstantPool:
    """Constant data, laid out one after the other; equal arrays are kept once."""

    nbytes: int = 0
    entries: list[tuple[int, Array]] = field(default_factory=list)
    _known: dict[tuple[bytes, str, tuple[int, ...]], int] = field(default_factory=dict)

    def add(self, array: Array) -> int:
        """The offset of an array with these contents."""
        dense = np.ascontiguousarray(array)
        key = dense.tobytes(), str(dense.dtype), dense.shape
        if key not in self._known:
            self._known[key] = self.nbytes
            self.entries.append((self.nbytes, dense))
            self.nbytes += aligned(dense.nbytes)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class Plan:
    """A program over `inputs + outputs + 3` bases: inputs, outputs, constants, kept, arena.

    Attributes:
        steps: what runs.
        host: what `Host` steps stand for.
        inputs, outputs: how many of each there are.
        constants: data with its offsets.
        kept: bytes of memory that lives as long as the program, filled by `prelude`.
        prelude: runs once, and again when a frozen input has changed.
        memory: the plan of the arena.
        updates: (output, input) pairs that are written in place; these outputs have no base.
        facts: one for each of the steps.
        streams: the stream of each of the steps.
        launches: kernels that the steps start, every one counted once.
        once: numbers of the nodes that the prelude computes.
        areas: offset and bytes of everything in `kept`.
        halts: (step, task) pairs of a program out of the cache, whose steps are not known.
        slots: entries of the table behind the bases, which have the numbers of a call's extents.
        sums: which of them are sums of two others: see `Program`.
    """

    steps: tuple[Step, ...]
    host: tuple[HostTask, ...]
    inputs: int
    outputs: int
    constants: ConstantPool
    kept: int
    prelude: tuple[Step, ...]
    memory: MemoryPlan
    updates: tuple[tuple[int, int], ...] = ()
    facts: tuple[Facts, ...] = ()
    streams: Streams = field(default_factory=lambda: Streams(()))
    launches: int = 0
    once: tuple[int, ...] = ()
    areas: tuple[tuple[int, int], ...] = ()
    halts: tuple[tuple[int, int], ...] = ()
    slots: int = 0
    sums: tuple[tuple[int, int, int], ...] = ()

    @property
    def tasks(self) -> dict[int, int]:
        """The number of the host task at each step that is one."""
        found = {i: step.task for i, step in enumerate(self.steps) if isinstance(step, Host)}
        return found or dict(self.halts)

    @property
    def left(self) -> tuple[HostTask, ...]:
        """The ops that are left to the host."""
        return tuple(task for task in self.host if task.phase != CHECK)

    @property
    def bases(self) -> int:
        """Number of bases that the steps address."""
        return self.inputs + self.outputs + 3

    def program(self, steps: tuple[Step, ...], beside: tuple[Any, ...]) -> Program:
        """Some of its steps as a program over the table; see `Program` for what is beside it."""
        sums = self.sums if steps is self.steps else ()
        return Program(steps, self.bases + self.slots, beside, sums)


def parts_of(step: Step, facts: Facts) -> tuple[tuple[Step, Facts], ...]:
    """Return the runs that a step consists of; one that is not a merged launch is its own part."""
    if not isinstance(step, Together):
        return ((step, facts),)
    return tuple(zip(step.runs, facts.members, strict=True))


def step_names(plan: Plan, step: Step) -> tuple[str, str]:
    """Return what a step runs, and the name of its kernel."""
    if isinstance(step, Run):
        return step.label, str(step.kernel.name)
    if isinstance(step, Together):
        return step.label, "together"
    if isinstance(step, StopStep):
        return "stop: an index is out of range", "stop"
    if isinstance(step, Host):
        return plan.host[step.task].name, "host"
    return "jump", ""


Rebase = Callable[[Address], Address]


def relocate(steps: Sequence[Step], rebase: Rebase, jump: int, host: int) -> tuple[Step, ...]:
    """The steps with other addresses, jump targets moved by `jump` and host tasks by `host`."""
    return tuple(_relocated(step, rebase, jump, host) for step in steps)


def moved(facts: Facts, rebase: Rebase, node: int) -> Facts:
    """The facts of a step that has become a part of another node, at other addresses."""

    def shift(span: Span) -> Span:
        at = rebase(Address(span.base, span.offset))
        return Span(at.base, at.offset, span.nbytes)

    return replace(
        facts,
        reads=tuple(map(shift, facts.reads)),
        writes=tuple(map(shift, facts.writes)),
        node=node,
        members=tuple(moved(f, rebase, node) for f in facts.members),
        scratch=tuple(map(shift, facts.scratch)),
        replaceable=tuple((shift(old), shift(new)) for old, new in facts.replaceable),
    )


def _relocated(step: Step, rebase: Rebase, jump: int, host: int) -> Step:
    if isinstance(step, Run):
        return _relocated_run(step, rebase)
    if isinstance(step, Together):
        return replace(step, runs=tuple(_relocated_run(run, rebase) for run in step.runs))
    if isinstance(step, Jump):
        unless = None if step.unless is None else rebase(step.unless)
        return Jump(step.target + jump, unless)
    return replace(step, task=step.task + host)


def _relocated_run(run: Run, rebase: Rebase) -> Run:
    arguments = tuple(rebase(a) if isinstance(a, Address) else a for a in run.arguments)
    return replace(run, arguments=arguments)


# -- in memory ---------------------------------------------------------------------------------

ProgramT = TypeVar("ProgramT", Executable, DeviceExecutable)


@dataclass(slots=True)
class Loaded(Generic[ProgramT]):
    """A program in memory, ready to be executed.

    Attributes:
        plan: what it was made from.
        main: runs the steps.
        prelude: fills the kept memory; None where there is nothing to fill.
        constants, kept: memory that lives as long as this object. For a device, its constants are
            copied there by whoever runs it, and what is kept lies there alone.
        empty: makes the arrays of results on the host.
    """

    plan: Plan
    main: ProgramT
    prelude: ProgramT | None
    constants: HostBuffer
    kept: HostBuffer
    empty: Callable[[Sequence[int], Any], Array]
