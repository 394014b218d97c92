"""Native parts of models, run: the right gear, addresses into a table, one native call.

All runs of a part share its weights; runs at the same time have a frame each: a table of addresses
and an arena, of the size that the largest gear for one set of shapes needs, or as large as what was
run in it.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from treadle.backends import registry
from treadle.backends.native_code import Executable, Machine, NativeLoader
from treadle.base.array import Array
from treadle.base.errors import DTypeError, LoadError, ShapeError, TreadleError, out_of_range
from treadle.base.shape import Shape
from treadle.base.types import TensorType
from treadle.engine.package.extents import ManyNumbers, Numbers
from treadle.engine.package.native_part import Gear, NativePart
from treadle.runtime.host import ALIGNMENT, HostBuffer, address, memory

Shapes = tuple[Shape, ...]
"""Of all inputs; those of gears are numbers."""
_Kind = tuple[tuple[int, ...], np.dtype[Any]]
_PAGE = 4096
MOST_INSTANCES = 1024
"""Extents whose numbers are kept, a few hundred bytes each."""
_MOST_TOUCHED = 1 << 28
"""Bytes of an arena that are put in place ahead of the first run; a damaged file may ask for all
memory there is."""


def loader_of(engine: str) -> NativeLoader:
    """The backend that runs native parts of an engine.

    Raises:
        DeviceError: there is no backend of this name.
        LoadError: it runs no code that it has not compiled.
    """
    home = registry.NATIVE.get(engine)
    if home is None:
        found = registry.load(engine)
    else:  # Reading the metadata of what is installed takes longer than opening a model.
        try:
            found = importlib.import_module(home)
        except ImportError as error:
            raise LoadError("model", f"the backend {engine!r} is not there: {error}") from error
    if not isinstance(found, NativeLoader):
        raise LoadError("model", f"the backend {engine!r} runs no code out of files")
    return found


def best_of(offers: Sequence[tuple[str, Machine]]) -> int | None:
    """The number of the part (by engine and machine) that asks for most of what is here."""
    fitting = [i for i, (name, made) in enumerate(offers) if loader_of(name).misfit(made) is None]
    return max(fitting, key=lambda i: len(offers[i][1].requires), default=None)


@dataclass(frozen=True, slots=True, eq=False)
class GearInstance:
    """A gear at one set of shapes.

    Attributes:
        program: what runs.
        gear: the gear.
        outputs: types of the results.
        kinds: their shapes and element types.
        numbers: of a gear for many extents.
    """

    program: Executable
    gear: Gear
    outputs: tuple[TensorType, ...]
    kinds: list[_Kind]
    numbers: Numbers | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Wide:
    """A gear for many extents.

    Attributes:
        code: that computes its numbers.
        program: what runs.
        gear: the gear.
    """

    code: ManyNumbers
    program: Executable
    gear: Gear

    def at(self, asked: tuple[int, ...]) -> GearInstance | None:
        """The gear at extents in the order of its code; None where it does not serve them."""
        numbers = self.code.at(asked)
        if numbers is None:
            return None
        outputs = tuple(
            TensorType(type_.dtype, shape)
            for type_, shape in zip(self.gear.outputs, numbers.results, strict=True)
        )
        kinds = [(extents(t), t.dtype.numpy) for t in outputs]
        return GearInstance(self.program, self.gear, outputs, kinds, numbers)


class _Frame:
    """Addresses and scratch memory of one run at a time, touched before."""

    __slots__ = ("arena", "at", "bases", "last")

    def __init__(self, bases: int, last: int, weights: int, nbytes: int) -> None:
        self.bases = np.zeros(bases, np.int64)
        self.last = last
        """The place of the arena's address."""
        self.bases[last - 2 : last] = weights
        self.at: GearInstance | None = None
        """The instance whose numbers are in the table."""
        self._grow(nbytes)

    def _grow(self, nbytes: int) -> None:
        self.arena: HostBuffer = memory("activations", nbytes)
        self.arena.bytes[:_MOST_TOUCHED:_PAGE] = 0
        self.bases[self.last] = address(self.arena.bytes)

    def turn_to(self, instance: GearInstance) -> None:
        """Write the numbers of certain extents into the table, with scratch memory for them."""
        numbers = instance.numbers
        if numbers is None or self.at is instance:
            return
        if numbers.arena > self.arena.nbytes:
            self._grow(min(numbers.arena + numbers.arena // 8, instance.gear.arena))
        first = self.last + 1
        self.bases[first : first + len(numbers.entries)] = numbers.entries
        self.at = instance


class NativeRunner:
    """The programs of a native part, opened.

    Args:
        part: it fits this machine; its weights stay where they are.
        check: raises where the weights are damaged; called ahead of the first run.
        opened: the programs of its code, where that has been opened.

    Raises:
        LoadError: its code cannot be opened.
    """

    def __init__(
        self,
        part: NativePart,
        check: Callable[[], None] | None = None,
        opened: Sequence[Executable] = (),
    ) -> None:
        self._check = check
        loader = loader_of(part.engine)
        programs = opened or loader.open_native(part.code)
        self.gears, self.ranges = part.gears, part.ranges
        self._instances: dict[Shapes, GearInstance] = {}
        self._gears: list[GearInstance | _Wide] = []
        for gear, program in zip(part.gears, programs, strict=True):
            if gear.many is None:
                kinds = [(extents(t), t.dtype.numpy) for t in gear.outputs]
                fixed = GearInstance(program, gear, gear.outputs, kinds)
                self._gears.append(fixed)
                self._instances[gear.shapes] = fixed
            else:
                code = ManyNumbers(gear.many, len(gear.outputs), gear.arena, loader.evaluator)
                self._gears.append(_Wide(code, program, gear))
        self._many = [gear for gear in self._gears if isinstance(gear, _Wide)]
        self._fixed = len(self._instances)
        self._lock = threading.Lock()
        self._empty = loader.empty
        # An address alone would keep nothing alive.
        self._weights = _at_a_line(part.weights)
        self.arena = max((gear.arena for gear in part.gears if gear.many is None), default=0)
        self._bases = max(program.bases for program in part.code.programs)
        self._frames = [self._frame()]

    def at(self, shapes: Shapes) -> GearInstance | None:
        """The program for inputs of these shapes; None where there is none.

        Raises:
            OutOfMemory: it needs more scratch memory than the file declares.
            ShapeError: sizes are beyond 64 bits.
        """
        found = self._instances.get(shapes)
        if found is None and self._many:
            found = self._made(shapes)
        return found

    def _made(self, shapes: Shapes) -> GearInstance | None:
        numbered = [tuple(int(d) for d in shape) for shape in shapes]
        for wide in self._many:
            asked = wide.code.many.extents(numbered)
            made = None if asked is None else wide.at(asked)
            if made is None:
                continue
            with self._lock:
                if len(self._instances) >= self._fixed + MOST_INSTANCES:
                    keys = list(self._instances)  # The oldest go; those of numbers come first.
                    del self._instances[keys[self._fixed]]
                return self._instances.setdefault(shapes, made)
        return None

    def gear_at(self, number: int, known: Mapping[str, int]) -> GearInstance | None:
        """A gear by number, at extents by name; None where it does not serve them.

        Raises:
            OutOfMemory: it needs more scratch memory than the file declares.
            ShapeError: sizes are beyond 64 bits.
        """
        gear = self._gears[number]
        if isinstance(gear, GearInstance):
            return gear
        return gear.at(tuple([known[name] for name in gear.code.many.ranges]))

    def serves(self, shapes: Shapes) -> bool:
        """Return whether there is a program for inputs of these shapes."""
        return self.at(shapes) is not None

    def results(self, shapes: Shapes) -> list[tuple[int, ...]] | None:
        """Shapes of the results, for inputs of these; None where there is no program."""
        found = self.at(shapes)
        return None if found is None else [shape for shape, _ in found.kinds]

    def refused(self, shapes: Sequence[tuple[int, ...]]) -> ShapeError | None:
        """Return the error for shapes that no program is for, as ranges tell it."""
        return None if self.ranges is None else self.ranges.refused_at(shapes)

    def run(
        self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Run on dense row-major arrays of the input types; threads may do so at the same time.

        Args:
            inputs: one per input.
            out: where results go; None, for one or for all, for new arrays.

        Raises:
            ShapeError: there is no gear of these shapes, or an array of `out` cannot be used.
            OutOfMemory: it needs more scratch memory than the file declares.
            IndexRangeError: an index is out of range; arrays of `out` may hold anything.
            CheckpointError: the weights are damaged.
        """
        found = self.at(tuple([a.shape for a in inputs]))
        if found is None:
            raise ShapeError("model", "there is no gear of these shapes", saw=_listed(inputs))
        if self._check is not None:
            self._check()
            self._check = None
        return self.launch(found, inputs, out)

    def launch(
        self,
        found: GearInstance,
        inputs: Sequence[Array],
        out: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """Run a gear at the shapes of its inputs; see `run`."""
        results = [
            self._empty(*kind) if given is None else usable(given, type_, inputs)
            for kind, given, type_ in zip(
                found.kinds, out or repeat(None), found.outputs, strict=False
            )
        ]
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame()
        try:
            frame.turn_to(found)
            bases = frame.bases
            for i, array in enumerate((*inputs, *results)):
                bases[i] = array.__array_interface__["data"][0]
            reached = found.program.run(bases)
            if reached >= 0:
                raise _stopped(found, reached, frame)
        finally:
            self._frames.append(frame)
        return results

    def close(self) -> None:
        """Give scratch memory back; the next run takes new."""
        self._frames.clear()

    def _frame(self) -> _Frame:
        gear = self.gears[0]
        last = len(gear.inputs) + len(gear.outputs) + 2
        return _Frame(self._bases, last, address(self._weights), self.arena)


def _stopped(found: GearInstance, step: int, frame: _Frame) -> TreadleError:
    """Return the error of a program that has stopped at a step."""
    for number, stop in enumerate(found.gear.stops):
        if stop.step == step:
            # Of a gear for many extents the base is a place in the arena.
            start = stop.offset + int(frame.bases[stop.base] - frame.bases[frame.last])
            low, high = stop.low, stop.high
            if found.numbers is not None:
                low, high = found.numbers.pairs[number]
            if 0 <= start <= frame.arena.nbytes - 16:
                index = frame.arena.bytes[start + 8 : start + 16].view(np.int64)
                return out_of_range(stop.op, int(index[0]), low, high)
    return LoadError("model", f"its program stopped at step {step}", hint="compile it anew")


def _at_a_line(weights: Array) -> Array:
    """Weights as kernels expect them to lie: where a file is mapped they do."""
    if not address(weights) % ALIGNMENT:
        return weights
    copy = memory("weights", weights.nbytes).bytes[: weights.nbytes]
    copy[:] = weights
    return copy


def as_input(value: Any, wanted: np.dtype[Any], name: str) -> Array:
    """Return a given input as an array, dense, row-major and of its element type.

    Raises:
        DTypeError: that type would lose more than digits: fractions, imaginary parts, or integers
            out of its range.
    """
    array = np.asarray(value, order="C")
    if array.dtype == wanted:
        return array
    have, need = (_ORDER.get(dtype.kind, 2) for dtype in (array.dtype, wanted))
    whole = have == need == 1 and array.size and not np.can_cast(array.dtype, wanted)
    bounds = (int(array.min()), int(array.max())) if whole else ()
    if (have > need and array.size) or any(not _fits(number, wanted) for number in bounds):
        seen = f" with {bounds[0]} to {bounds[1]}" if bounds else ""
        raise DTypeError(
            "model",
            f"what is given for input {name!r} does not fit {wanted.name}",
            saw=f"{array.dtype}{list(array.shape)}{seen}",
            hint=f"scale and round it as the model wants it, then .astype({wanted.name!r})",
        )
    return array.astype(wanted)


_ORDER = {"b": 1, "u": 1, "i": 1, "c": 3, "O": 4, "S": 4, "U": 4, "m": 4, "M": 4}
"""Kinds of element types by what they can hold; 2 for floats, those of other packages included."""


def _fits(number: int, wanted: np.dtype[Any]) -> bool:
    if wanted.kind == "b":  # of masks, all but 0 is true
        return True
    bounds = np.iinfo(wanted)
    return int(bounds.min) <= number <= int(bounds.max)


def usable(array: Any, type_: TensorType, inputs: Sequence[Array]) -> Array:
    """An array of the caller as a place for a result.

    Raises:
        ShapeError: it is of another type, not dense, not writeable, or shares memory with an input.
    """
    problem = ""
    if not isinstance(array, np.ndarray) or array.dtype != type_.dtype.numpy:
        problem = f"is not an array of {type_.dtype.name}"
    elif array.shape != type_.shape:
        problem = f"has the shape {list(array.shape)}"
    elif not (array.flags.c_contiguous and array.flags.writeable):
        problem = "is not dense, row-major and writeable"
    elif any(np.may_share_memory(array, x) for x in inputs):
        problem = "shares memory with an input"
    if problem:
        raise ShapeError("model", f"an array for a result {problem}", saw=f"a result {type_}")
    made: Array = array
    return made


def extents(type_: TensorType) -> tuple[int, ...]:
    """A static shape, as numbers."""
    return tuple(int(d) for d in type_.shape)


def _listed(arrays: Sequence[Array]) -> str:
    return ", ".join(str(list(a.shape)) for a in arrays)


__all__ = ["GearInstance", "NativeRunner", "as_input", "best_of", "loader_of", "usable"]
