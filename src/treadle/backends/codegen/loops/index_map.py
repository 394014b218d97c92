"""Positions of a loop nest as index arithmetic of the kernel IR.

Extents and strides become parameters, so that one kernel serves many shapes; what a kernel's text
depends on is only whether a factor is 0, 1 or something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import (
    KernelError,
    Pointer,
    Value,
    maximum,
    minimum,
    pointer,
    select,
    size,
)
from treadle.backends.program import Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.graph.domains import CounterAxis
from treadle.graph.positions import Atom, Position


class Parameters:
    """Parameters of a kernel, found while it is written: pointers and integers."""

    def __init__(self, e: Builder) -> None:
        self.e = e
        self._sizes: dict[Dim, Value] = {}
        self._pointers: dict[tuple[Ref, DType], Pointer] = {}

    def size(self, number: Dim) -> Value | int:
        """An integer as a parameter; -1, 0 and 1 stay literals, which code is simplified by."""
        if not isinstance(number, Expr) and -1 <= number <= 1:
            return number
        if number not in self._sizes:
            self._sizes[number] = self.e.adopt(size())
        return self._sizes[number]

    def pointer(self, ref: Ref, dtype: DType) -> Pointer:
        """Memory of the op as a parameter."""
        if (ref, dtype) not in self._pointers:
            self._pointers[ref, dtype] = self.e.adopt(pointer(dtype))
        return self._pointers[ref, dtype]

    @property
    def values(self) -> tuple[Value, ...]:
        """The parameters."""
        return (*self._pointers.values(), *self._sizes.values())

    @property
    def arguments(self) -> tuple[Ref | Dim, ...]:
        """One argument per parameter."""
        return (*(ref for ref, _ in self._pointers), *self._sizes)


@dataclass(frozen=True, slots=True)
class LanePosition:
    """A position as the lanes of a vector see it: `base` + lane * `step`.

    Where `step` is None, `base` is a vector with one position per lane.
    """

    base: Value
    step: Dim | None


class IndexWriter:
    """Evaluates positions while axes are bound to loop counters, one after the other.

    Args:
        b: where instructions go.
        parameters: extents and strides come from here.
        counters: the counter of each number, as positions name them.
        lane_axis: the axis that vectors lie along, if any.
        lanes: lanes of a vector.
    """

    def __init__(
        self, e: Builder, parameters: Parameters, lane_axis: CounterAxis | None, lanes: int
    ) -> None:
        self.e = e
        self.parameters = parameters
        self.lane_axis = lane_axis
        self.lanes = lanes
        self._bound: list[tuple[CounterAxis, Value | int]] = []
        self._sums: list[dict[Position, Value]] = [{}]
        self._atoms: list[dict[Atom, LanePosition]] = [{}]

    @property
    def bound(self) -> int:
        """Bitset of the counters that have a value."""
        found = 0
        for axis, _ in self._bound:
            found |= axis.varies
        return found

    @property
    def lane_varies(self) -> int:
        """Bitset of the counters that differ from lane to lane."""
        return self.lane_axis.varies if self.lane_axis is not None else 0

    @contextmanager
    def binding(
        self, axis: CounterAxis, index: Value | int, known: Iterable[Position]
    ) -> Iterator[None]:
        """Give an axis a value inside the block; `known` positions are added up on the way."""
        before = {p: self._sum(p) for p in known}
        self._bound.append((axis, index))
        self._sums.append({})
        self._atoms.append({})
        for position, value in before.items():
            self._sums[-1][position] = self._added(value, position, axis, index)
        yield
        self._sums.pop()
        self._atoms.pop()
        self._bound.pop()

    def _added(
        self, total: Value, position: Position, axis: CounterAxis, index: Value | int
    ) -> Value:
        factor = factor_of(position, axis)
        if is_identical(factor, 0):
            return total
        if is_identical(factor, -1):
            return total - index
        return self.e.index(index) * self.parameters.size(factor) + total

    def _sum(self, position: Position) -> Value:
        """The affine part of a position over the axes bound so far."""
        found = self._sums[-1].get(position)
        if found is None:
            found = self.e.index(self.parameters.size(position.constant))
            for axis, index in self._bound:
                found = self._added(found, position, axis, index)
            self._sums[-1][position] = found
        return found

    def place(self, position: Position) -> LanePosition:
        """The value of a position whose axes are all bound."""
        base = self._sum(position)
        step: Dim = 0
        if self.lane_axis is not None and position.varies & self.lane_varies & self.bound:
            step = factor_of(position, self.lane_axis)
        result = LanePosition(base, step)
        for atom, factor in position.terms:
            if atom.kind != "counter":
                result = self._plus(result, self._atom(atom), factor)
        return result

    def _plus(self, x: LanePosition, y: LanePosition, factor: Dim) -> LanePosition:
        """x + y * factor."""
        scale = self.parameters.size(factor)
        if x.step == 0 and y.step is not None:
            base = x.base + y.base * scale
            return LanePosition(base, y.step * factor)
        if y.step == 0:
            return LanePosition(x.base + y.base * scale, x.step)
        return LanePosition(self.vector(x) + self.vector(y) * self._splat(scale), None)

    def _splat(self, scale: Value | int) -> Value:
        return self.e.index(scale).splat(self.lanes)

    def vector(self, place: LanePosition) -> Value:
        """One position per lane; a scalar where all lanes have the same."""
        if place.step is None or place.step == 0:
            return place.base
        numbers = self.e.iota(dt.int64, self.lanes)
        if place.step != 1:
            numbers = numbers * self._splat(self.parameters.size(place.step))
        return place.base.splat(self.lanes) + numbers

    def _atom(self, atom: Atom) -> LanePosition:
        for scope in reversed(self._atoms):
            if atom in scope:
                return scope[atom]
        value = self._made(atom)
        lanes_differ = value.lanes > 1
        found = self._atoms[-1][atom] = LanePosition(value, None if lanes_differ else 0)
        return found

    def _made(self, atom: Atom) -> Value:
        """A position that is not affine."""
        if atom.kind == "fetch":
            return self.fetched(atom)
        if atom.of is None:
            raise KernelError(f"a {atom.kind} of nothing")
        x = self.vector(self.place(atom.of))
        if atom.kind in ("quotient", "remainder"):
            return self._divided(atom, x, atom.of.bounds[1])
        last = self.parameters.size(atom.extent - 1)
        if atom.kind == "clamp":
            return minimum(maximum(x, 0), last)
        turned = abs(x)
        twice = self.e.index(last) + last
        return minimum(turned, twice.splat(x.lanes) - turned)

    def _divided(self, atom: Atom, x: Value, high: Dim) -> Value:
        """A quotient or remainder of x, which is at most `high`; no division where 1 is enough."""
        divisor = self.parameters.size(atom.divisor)
        if high >= 2 * atom.divisor:
            return x // divisor if atom.kind == "quotient" else x % divisor
        below = x < divisor
        if atom.kind == "quotient":
            return (~below).cast(dt.int64)
        return select(below, x, x - divisor)

    def fetched(self, atom: Atom) -> Value:
        """An index that is loaded; cells know how."""
        raise KernelError("an index is fetched where no cells are written")


def factor_of(position: Position, axis: CounterAxis) -> Dim:
    """The stride of a position along an axis."""
    for atom, factor in position.terms:
        if atom.number == axis.number:
            return factor
    return 0
