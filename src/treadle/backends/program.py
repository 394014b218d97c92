"""Programs of devices that generate code: launches, and steps of launches.

An op is lowered on its own, to launches whose arguments name its inputs and outputs (`Lowered`).
The engine's compile stage places every value in memory and joins the launches to a `Program`, whose
arguments are offsets from numbered bases: no address is baked in, so programs and kernels can be
cached, shared between threads, and shipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from treadle.backends.api import Engine, Support
from treadle.backends.native_code import Executable, NativeCode, NativeProgram
from treadle.base.arithmetic import Rows, Words
from treadle.base.array import Array
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.runtime.api import Buffer, Device, Stream

if TYPE_CHECKING:  # Processes that run compiled code need no op.
    from treadle.ops.op import Op

ALIGNMENT = 64
"""Every value, workspace and constant starts at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Memory of one lowered op: `offset` bytes into an input, output, workspace and so on.

    `kept` is memory that lives as long as the program; `constant` is data the lowering made.
    """

    kind: Literal["input", "output", "workspace", "kept", "constant"]
    index: int
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a kernel over [0, items), shared among threads unless `serial`.

    Attributes:
        kernel: a kernel of the IR (the engine does not look inside; it has a `name`).
        arguments: one per parameter of the kernel.
        items: work items; each is worth at least a microsecond or so, or the launch is serial.
        serial: run by the calling thread alone.
        flops: arithmetic operations of the whole launch, for reports and models.
        nbytes: bytes it reads and writes at least.
        unit: what does the arithmetic, an entry of `Limits.units`; "" for lines of float32.
        moves: it only copies its second argument to its first, so it is left out where both are
            one place.
    """

    kernel: Any
    arguments: tuple[Ref | Dim, ...]
    items: Dim = 1
    serial: bool = False
    flops: Dim = 0
    nbytes: Dim = 0
    unit: str = ""
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Lowered:
    """The way an op runs.

    Attributes:
        launches: run in order.
        workspaces: bytes of each scratch area.
        constants: arrays the launches read.
        in_place: (input, output) pairs: the output may take the memory of that input, if nobody
            needs the input afterwards.
        views: (output, input, byte offset): the output is a part of the input; nothing is written.
        kept: bytes of each area that lives as long as the program.
        prelude: launches that fill `kept` areas, once, from inputs said to be frozen.
        strategy: name of the way in which it is computed, where there are several.
        refused: (name, reason) of the ways that were asked before, for reports.
    """

    launches: tuple[Launch, ...] = ()
    workspaces: tuple[Dim, ...] = ()
    constants: tuple[Array, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    views: tuple[tuple[int, int, int], ...] = ()
    kept: tuple[int, ...] = ()
    prelude: tuple[Launch, ...] = ()
    strategy: str = ""
    refused: tuple[tuple[str, str], ...] = ()


# -- programs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """`offset` bytes from base number `base`."""

    base: int
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Run a kernel.

    Attributes:
        kernel: of the IR.
        arguments: addresses and plain 64-bit integers. A number that is known at a call only is
            an address, too: a base that holds a number, and an offset.
        items: work items.
        serial: the calling thread does them all.
        label: what reports call it.
        counted: the base that holds how many items there are, in place of `items`; -1: none.
    """

    kernel: Any
    arguments: tuple[Address | Dim, ...]
    items: Dim = 1
    serial: bool = False
    label: str = ""
    counted: int = -1


@dataclass(frozen=True, slots=True)
class Together:
    """Runs that need nothing of one another, as one launch.

    Attributes:
        runs: what runs, in any order and at the same time.
        grains: for each of them how many items are one unit, so that units take about the same
            time; the units of all runs are shared among threads as if they were one kernel's. A
            serial run is one unit in any case. Empty means that every item is one.
        serial: the calling thread does them all.
        ends: bases that hold how many units there are up to each run's last, where no numbers say.
    """

    runs: tuple[Run, ...]
    grains: tuple[int, ...] = ()
    serial: bool = False
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        given = self.grains or (1,) * len(self.runs)
        pairs = zip(self.runs, given, strict=True)
        grains = tuple(_all(run) if run.serial else grain for run, grain in pairs)
        object.__setattr__(self, "grains", grains)

    @property
    def label(self) -> str:
        """Name of what runs, and how often."""
        counts = Counter(run.label for run in self.runs)
        return " + ".join(f"{n} {label}" for label, n in counts.most_common())


def _all(run: Run) -> int:
    """Items of a unit that has them all; more than there ever are where only a call says."""
    is_known = isinstance(run.items, int) and run.counted < 0
    return max(int(run.items), 1) if is_known else 1 << 62


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on at instruction `target`; with `unless`, only where that bool in memory is false."""

    target: int
    unless: Address | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """Return to the caller, who does task number `task` and resumes after this instruction."""

    task: int


@dataclass(frozen=True, slots=True)
class StopStep(Host):
    """Return to the caller for good: task number `task` says what is wrong with the data."""


Step = Run | Together | Jump | Host


def runs_of(steps: Iterable[Step]) -> Iterator[Run]:
    """All runs of some steps in order, those of merged launches one by one."""
    for step in steps:
        if isinstance(step, Run):
            yield step
        elif isinstance(step, Together):
            yield from step.runs


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions over `bases` base addresses; it ends after the last one.

    Kernels `beside` are those of other programs that are built with it: all are compiled together.
    Before the first step, for (base, x, y) in `sums`, `base` becomes the sum of bases x and y.
    """

    steps: tuple[Step, ...]
    bases: int
    beside: tuple[Any, ...] = ()
    sums: tuple[tuple[int, int, int], ...] = ()


class DeviceExecutable(Protocol):
    """A program that is ready to run on memory of a device.

    Several threads may run it at the same time, on other bases.
    """

    def run(
        self, device: Device, stream: Stream, bases: Sequence[Buffer], start: int = 0, /
    ) -> int:
        """Submit what follows from instruction `start` on, in the order of `stream`.

        It need not have finished when this returns; a `Jump` with a condition waits for what it
        depends on.

        Args:
            device: whose memory it is; the one that `Backend.open` made.
            stream: where launches are submitted.
            bases: a buffer for every base; `Address(i, n)` is n bytes from the start of `bases[i]`.
            start: the first instruction.

        Returns:
            The number of the `Host` instruction reached, or -1 at the end.
        """
        ...

    def stored(self) -> bytes:
        """The program as bytes, from which `Compiler.restore` makes it again in any process."""
        ...


Watch = Callable[[int, Callable[[], None]], None]
"""Takes the number of an instruction and what submits it, which it calls once."""


@runtime_checkable
class WatchedExecutable(Protocol):
    """Optional: a device program whose instructions can be measured one by one."""

    def run_watched(
        self,
        device: Device,
        stream: Stream,
        bases: Sequence[Buffer],
        start: int,
        watch: Watch,
        /,
    ) -> int:
        """Run the program as `DeviceExecutable.run` does, with every launch submitted by `watch`.

        Launches are submitted one by one, whatever else a run would make of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the device, as measured: the lines of its roofline.

    Attributes:
        flops: multiplications and additions of float32 per second, on operands in registers.
        bandwidth: bytes per second to and from memory, of arrays that no cache holds.
        units: (name, the same per second) of what has instructions that add several products:
            "bfloat16", "int8".
    """

    flops: float
    bandwidth: float
    units: tuple[tuple[str, float], ...] = ()

    def seconds(self, flops: Dim, nbytes: Dim, unit: str = "") -> float:
        """The least time for so much work; what is not an entry of `units` counts as float32."""
        return max(flops / dict(self.units).get(unit, self.flops), nbytes / self.bandwidth)

    def joined(self, other: Limits) -> Limits:
        """The higher ones of two measurements."""
        mine, theirs = dict(self.units), dict(other.units)
        units = {u: max(mine.get(u, 0.0), theirs.get(u, 0.0)) for u in mine | theirs}
        flops, bandwidth = max(self.flops, other.flops), max(self.bandwidth, other.bandwidth)
        return Limits(flops, bandwidth, tuple(units.items()))


@dataclass(frozen=True, slots=True)
class Way:
    """One of several ops that compute the same, and the number that it is recorded under."""

    number: int
    op: Op


@dataclass(frozen=True, slots=True)
class Watched:
    """An op that was lowered, and which choices there were.

    Attributes:
        op, types, frozen: what was lowered, as the model has it.
        asked: alternatives by the question's name.
        others: where alternatives are other ops, those ops.
    """

    op: Op
    types: tuple[TensorType, ...]
    frozen: tuple[bool, ...]
    asked: Mapping[str, tuple[Mapping[str, int], ...]]
    others: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class Tuned:
    """Outcome of a question: seconds by the model's choice and by the one that is recorded.

    `choice` is None where the model's is as good as any of the others that were tried.
    """

    name: str
    choice: Mapping[str, int] | None
    before: float
    after: float
    tried: int


@dataclass(frozen=True, slots=True)
class MapLayout:
    """An order of the axes of maps [N, C, *S] that kernels read and write, besides row-major.

    Attributes:
        name: "channels-last", which is [N, *S, C], or "blocked" or "blocked-N",
            [N, C / block, *S, block].
        block: channels of a block; 0: all channels are neighbors.
        preferred: whether programs are held in it where nobody asks for another one.
        columns: channels that a convolution computes side by side; those that are missing are
            computed in vain.
        narrow: where there are no more channels than half of the columns, half as many are
            computed, and so on down to this number.
        bfloat16: times as many products per second as of float32 that convolutions of bfloat16 do.
        dense, depthwise, windows: speed of kernels of convolutions, of depthwise ones, and of
            pooling and resizing, as shares of that of channels-last ones.
    """

    name: str
    block: int = 0
    preferred: bool = True
    columns: int = 16
    narrow: int = 8
    bfloat16: float = 1.0
    dense: float = 1.0
    depthwise: float = 1.0
    windows: float = 1.0


@runtime_checkable
class Choosing(Protocol):
    """Optional: a compiler that keeps composites whole on some operands only."""

    def takes(self, op: Op, types: Sequence[TensorType], /) -> bool:
        """Return whether a composite that it keeps by name is to stay whole on operands of these
        types.
        """
        ...


class Compiler(Protocol):
    """An engine that lowers ops to launches and builds programs of them."""

    @property
    def target(self) -> str:
        """Names processor features, widths and compiler: equal targets share compiled code."""
        ...

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        """Lower an op on dense row-major operands of static types, or say why it cannot run.

        `frozen` says which inputs never change while a program lives.
        """
        ...

    def keeps(self, name: str, /) -> bool:
        """Return whether it has a kernel for composites of this name, so that they are not taken
        apart.
        """
        ...

    def build(self, program: Program, /) -> Executable | DeviceExecutable:
        """Compile (or fetch from the cache) what the program runs, and make it ready.

        An engine of the host gives an `Executable`, one of another kind a `DeviceExecutable`.
        """
        ...

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any], /) -> Array:
        """Aligned memory for a result or an arena, taken from what earlier ones gave back."""
        ...

    def restore(self, stored: bytes, /) -> Executable | DeviceExecutable | None:
        """A program from what its `stored` gave; None where its code is no longer in the cache."""
        ...

    def save(self, key: str, data: bytes, /) -> None:
        """Keep data on disk beside compiled code, as far as there is room and permission."""
        ...

    def saved(self, key: str, /) -> bytes | None:
        """Return the bytes saved under a key, by this process or another one; None where there are
        none.
        """
        ...

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        """The kernel of a launch as text."""
        ...


@runtime_checkable
class LayoutCompiler(Protocol):
    """A compiler that knows in which orders of axes its kernels like maps."""

    @property
    def layouts(self) -> tuple[MapLayout, ...]:
        """Layouts that it takes besides row-major, the best one first."""
        ...


@runtime_checkable
class OpenCompiler(Protocol):
    """A compiler whose launches may hold expressions of a call's extents in place of numbers."""

    @property
    def is_open(self) -> bool:
        """True if they may, for the target that it compiles for."""
        ...

    def evaluator(self, rows: Rows, /) -> Callable[[Words], int]:
        """Code as a function of registers; see `base.arithmetic.evaluate`."""
        ...


@runtime_checkable
class MeasuringCompiler(Protocol):
    """A compiler that knows what its device can do."""

    def limits(self, *, anew: bool = False) -> Limits:
        """The device's limits, measured once per machine (in a second) and kept; or `anew`."""
        ...

    def cores(self) -> tuple[int, int]:
        """Threads that share the work of a kernel, and cores that this process may use."""
        ...

    def units(self) -> tuple[str, ...]:
        """Element types whose products have instructions that add several at a time."""
        ...

    def about(self) -> Mapping[str, str]:
        """Names and figures of the machine and what is kept of it, for people."""
        ...

    def recorded(
        self,
        question: str,
        types: tuple[TensorType, ...],
        frozen: tuple[bool, ...],
        ways: Callable[[], Sequence[Way]],
        /,
    ) -> int | None:
        """The number of the way that was measured to be the fastest; None if none was.

        `ways` lists ops that compute the same of such operands, that of the model first.
        """
        ...

    def watch(self) -> AbstractContextManager[list[Watched]]:
        """Compile programs anew in the block, and collect what can be tuned of them."""
        ...

    def tune(
        self, watched: Sequence[Watched], seconds: float = 0.5, /, *, apart: bool = False
    ) -> Iterator[Tuned]:
        """Measure the alternatives of what was watched and record the best ones on disk.

        Programs use them from then on, in this process and in others. `seconds` are for each;
        `apart` has another process measure.
        """
        ...


@runtime_checkable
class CompilingEngine(Engine, Protocol):
    """An engine that also compiles programs."""

    def compiler(self) -> Compiler:
        """Return the engine's compiler; the same one at every call."""
        ...


@dataclass(frozen=True, slots=True)
class Linked:
    """Programs with their code as objects for a linker, to run in processes without Python.

    Attributes:
        programs: in words, over one table of kernels.
        symbols: the kernels, by number.
        objects: object files with the kernels and the executor.
        target: name of the instructions that the code uses.
        requires: features that the processor must have, as /proc/cpuinfo spells them.
        architecture: of the processor, such as "x86_64".
        layout: sizes and offsets that the executor and whoever starts its threads agree on.
    """

    programs: tuple[NativeProgram, ...]
    symbols: tuple[str, ...]
    objects: tuple[bytes, ...]
    target: str
    requires: tuple[str, ...]
    architecture: str
    layout: Mapping[str, int]


@runtime_checkable
class LibraryCompiler(Compiler, Protocol):
    """A compiler whose code runs without it."""

    def build(self, program: Program, /) -> Executable:
        """Build a program that the host runs."""
        ...

    def linked(self, programs: Sequence[Program], prefix: str, /) -> Linked:
        """The programs' code; names of the executor's functions begin with `prefix`."""
        ...


# -- code that is shipped ----------------------------------------------------------------------


@runtime_checkable
class ShippingCompiler(Compiler, Protocol):
    """A compiler whose programs run in processes that cannot compile, on other machines as well."""

    def build(self, program: Program, /) -> Executable:
        """Build a program that this host runs, whatever target its ops are lowered for."""
        ...

    def toward(self, target: str = "", system: str = "", /) -> ShippingCompiler:
        """A compiler for this target, which ships; what it builds runs here nevertheless.

        Args:
            target: "" for the one that it has.
            system: that the code is for; "" for this one.

        Raises:
            CompileError: there is no target or system of this name, or LLVM has no code generator
                for it.
        """
        ...

    def shipped(self, programs: Sequence[Program], /) -> NativeCode:
        """The programs and all their code.

        Raises:
            CompileError: LLVM does not accept a kernel.
        """
        ...

    def compiled_by(self) -> str:
        """Name and version of what generates code, and a digest of what was measured for it."""
        ...
