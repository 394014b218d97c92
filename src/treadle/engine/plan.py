"""What the last three stages share: plans of steps over bases, and programs in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.program import Address, Executable, Host, Jump, Run, Step
from treadle.base.errors import OutOfMemory
from treadle.base.types import TensorType
from treadle.ops.op import Op
from treadle.runtime.host import HostBuffer, HostDevice

Array = npt.NDArray[Any]
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets into one arena.

    Attributes:
        offsets: one per buffer, multiples of `ALIGNMENT`.
        peak: bytes of the arena.
        bound: the largest sum of bytes alive at one step.
        naive: the sum of all buffers.
        order: name of the placement order that won.
    """

    offsets: tuple[int, ...]
    peak: int
    bound: int
    naive: int
    order: str = ""


def aligned(size: int) -> int:
    """The size rounded up to whole lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Interface:
    """How a program's inputs and outputs meet the outside.

    Attributes:
        frozen: which inputs keep their contents from run to run, unless the caller says so.
        updates: (output, input) pairs: the output replaces that input's contents in place.
    """

    frozen: tuple[bool, ...] = ()
    updates: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class HostTask:
    """An op that no engine compiled: the caller runs its oracle on the memory of the program."""

    op: Op
    inputs: tuple[tuple[Address, TensorType], ...]
    outputs: tuple[tuple[Address, TensorType], ...]


@dataclass(slots=True)
class Pool:
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
    """

    steps: tuple[Step, ...]
    host: tuple[HostTask, ...]
    inputs: int
    outputs: int
    constants: Pool
    kept: int
    prelude: tuple[Step, ...]
    memory: MemoryPlan
    updates: tuple[tuple[int, int], ...] = ()

    @property
    def bases(self) -> int:
        """How many bases the steps address."""
        return self.inputs + self.outputs + 3


Rebase = Callable[[Address], Address]


def relocate(steps: Sequence[Step], rebase: Rebase, jump: int, host: int) -> tuple[Step, ...]:
    """The steps with other addresses, jump targets moved by `jump` and host tasks by `host`."""
    return tuple(_relocated(step, rebase, jump, host) for step in steps)


def _relocated(step: Step, rebase: Rebase, jump: int, host: int) -> Step:
    if isinstance(step, Run):
        arguments = tuple(rebase(a) if isinstance(a, Address) else a for a in step.arguments)
        return replace(step, arguments=arguments)
    if isinstance(step, Jump):
        unless = None if step.unless is None else rebase(step.unless)
        return Jump(step.target + jump, unless)
    return Host(step.task + host)


# -- in memory ---------------------------------------------------------------------------------

_HOST = HostDevice()


@dataclass(slots=True)
class Loaded:
    """A program in memory, ready to be executed.

    Attributes:
        plan: what it was made from.
        main: runs the steps.
        prelude: fills the kept memory; None where there is nothing to fill.
        constants, kept: memory that lives as long as this object.
    """

    plan: Plan
    main: Executable
    prelude: Executable | None
    constants: HostBuffer
    kept: HostBuffer


def memory(what: str, nbytes: int) -> HostBuffer:
    """Aligned host memory.

    Raises:
        OutOfMemory: names what it was for.
    """
    try:
        return _HOST.alloc(max(nbytes, 1))
    except OutOfMemory as error:
        raise OutOfMemory(
            "memory",
            f"there is no room for {nbytes} bytes of {what}",
            hint="use smaller batches, or recompute activations",
        ) from error


def address(array: Array) -> int:
    """Where an array's memory starts."""
    start: int = array.__array_interface__["data"][0]
    return start
