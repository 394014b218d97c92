"""Matrices of resizing for extents that are expressions: kernels write them at each call.

What a row holds is computed as `ops.resample.interpolation_taps` does, number by number, so that
weights have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from treadle.backends.codegen.irregular.rows import over_rows, row_kernel
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim
from treadle.ops.resample import CUBIC, Interpolation

TERMS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Cells that a cell of the result is made of, by mode."""


@dataclass(slots=True)
class Tables:
    """Workspaces of a lowering, and the launches that write tables to them."""

    wide: DType
    workspaces: list[Dim] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)

    def workspace(self, nbytes: Dim) -> Ref:
        """A new scratch area."""
        self.workspaces.append(nbytes)
        return Ref("workspace", len(self.workspaces) - 1)

    def forward(self, op: Interpolation, n: Dim, m: Dim) -> tuple[Ref, Ref, Ref]:
        """Starts, columns and weights of the matrix that makes m cells of n."""
        terms = TERMS[op.mode]
        starts = self.workspace((m + 1) * 8)
        columns, weights = self._entries(m * terms)
        kernel = _forward_kernel(op.mode, op.coordinates, self.wide)
        refs = starts, columns, weights
        nbytes = 8 * estimate(m) * (1 + 2 * terms)
        self.launches.append(over_rows(kernel, (*refs, n, m), m, 10.0 * terms, nbytes))
        return refs

    def transposed(self, op: Interpolation, n: Dim, m: Dim) -> tuple[Ref, Ref, Ref]:
        """The same of the transposed matrix."""
        _, columns, weights = self.forward(op, n, m)
        count = m * TERMS[op.mode]
        starts, cursors = self.workspace((n + 1) * 8), self.workspace((n + 1) * 8)
        made = self._entries(count)
        arguments = (columns, weights, starts, cursors, *made, n, count, TERMS[op.mode])
        kernel = _transpose_kernel(self.wide)
        cost = 6.0 * (estimate(count) + estimate(n))
        self.launches.append(over_rows(kernel, arguments, 1, cost, 32 * estimate(count)))
        return (starts, *made)

    def _entries(self, count: Dim) -> tuple[Ref, Ref]:
        return self.workspace(count * 8), self.workspace(count * self.wide.itemsize)


@cache
def _forward_kernel(mode: str, coordinates: str, wide: DType) -> Kernel:
    """Rows of the launch are cells of the result."""
    starts, columns = pointer(dt.int64, "starts"), pointer(dt.int64, "columns")
    weights, n, m = pointer(wide, "weights"), size("extent"), size("count")
    terms = TERMS[mode]

    def body(b: Builder, first: Value, stop: Value) -> None:
        last = b.sub(n, 1)

        def cell(i: Value) -> None:
            b.branch(b.compare("eq", i, 0), lambda: b.store(starts, 0, b.index(0)))
            at = b.mul(i, terms)
            b.store(starts, b.add(i, 1), b.add(at, terms))
            if mode == "nearest":
                found = [(_nearest(b, coordinates, i, n, m), b.constant(1.0, dt.float64))]
            else:
                found = _around(b, mode, _place(b, coordinates, i, n, m), last)
            for j, (column, weight) in enumerate(found):
                b.store(columns, b.add(at, j), b.max(b.min(column, last), 0))
                b.store(weights, b.add(at, j), b.cast(weight, wide))

        b.loop(first, stop, 1, cell)

    parameters = (starts, columns, weights, n, m)
    return row_kernel(f"resample_{mode}_{coordinates}_{wide.name}", parameters, body)


def _nearest(b: Builder, coordinates: str, i: Value, n: Value, m: Value) -> Value:
    if coordinates == "half_pixel":
        return b.div(b.mul(b.add(b.mul(i, 2), 1), n), b.mul(m, 2))
    if coordinates == "asymmetric":
        return b.div(b.mul(i, n), m)
    steps = b.sub(m, 1)
    above = b.add(b.mul(b.mul(i, 2), b.sub(n, 1)), steps)
    return b.div(above, b.max(b.mul(steps, 2), 1))


def _place(b: Builder, coordinates: str, i: Value, n: Value, m: Value) -> Value:
    """Where a cell stands on those that it is made of."""
    cell, cells, count = (b.cast(x, dt.float64) for x in (i, n, m))
    if coordinates == "half_pixel":
        return b.sub(b.div(b.mul(b.add(cell, 0.5), cells), count), 0.5)
    if coordinates == "asymmetric":
        return b.div(b.mul(cell, cells), count)
    several = b.compare("lt", 1, m)
    steps = b.select(several, b.sub(count, 1.0), b.constant(1.0, dt.float64))
    step = b.select(several, b.div(b.sub(cells, 1.0), steps), b.constant(0.0, dt.float64))
    return b.mul(cell, step)


def _around(b: Builder, mode: str, place: Value, last: Value) -> list[tuple[Value, Value]]:
    """Cells around a place, and their weights."""
    if mode == "linear":
        place = b.min(b.max(place, 0.0), b.cast(last, dt.float64))
    cell = b.cast(place, dt.int64)
    above = b.compare("lt", place, b.cast(cell, dt.float64))
    cell = b.select(above, b.sub(cell, 1), cell)
    part = b.sub(place, b.cast(cell, dt.float64))
    if mode == "linear":
        return [(cell, b.sub(1.0, part)), (b.add(cell, 1), part)]
    rest = b.sub(1.0, part)
    weights = [
        _far(b, b.add(part, 1.0)),
        _near(b, part),
        _near(b, rest),
        _far(b, b.sub(2.0, part)),
    ]
    return [(b.add(cell, j - 1), weight) for j, weight in enumerate(weights)]


def _near(b: Builder, d: Value) -> Value:
    """Keys' kernel at distances up to 1."""
    inner = b.sub(b.mul(d, CUBIC + 2), CUBIC + 3)
    return b.add(b.mul(b.mul(inner, d), d), 1.0)


def _far(b: Builder, d: Value) -> Value:
    """The same from 1 to 2."""
    inner = b.add(b.mul(b.sub(d, 5.0), d), 8.0)
    return b.sub(b.mul(b.mul(inner, d), CUBIC), 4 * CUBIC)


@cache
def _transpose_kernel(wide: DType) -> Kernel:
    """Entries by their columns, those of a column in their order."""
    names = ("columns", "starts", "cursors", "rows_of")
    columns, starts, cursors, rows = (pointer(dt.int64, name) for name in names)
    weights, into = pointer(wide, "weights"), pointer(wide, "into")
    n, count, terms = (size(name) for name in ("extent", "entries", "terms"))

    def body(b: Builder, first: Value, stop: Value) -> None:
        def whole(_: Value) -> None:
            b.loop(0, b.add(n, 1), 1, lambda j: b.store(starts, j, b.index(0)))

            def counted(e: Value) -> None:
                at = b.add(b.load(columns, e), 1)
                b.store(starts, at, b.add(b.load(starts, at), 1))

            def summed(j: Value, before: Value) -> tuple[Value, ...]:
                total = b.add(before, b.load(starts, j))
                b.store(starts, j, total)
                b.store(cursors, j, total)
                return (total,)

            def moved(e: Value) -> None:
                column = b.load(columns, e)
                at = b.load(cursors, column)
                b.store(cursors, column, b.add(at, 1))
                b.store(rows, at, b.div(e, terms))
                b.store(into, at, b.load(weights, e))

            b.loop(0, count, 1, counted)
            b.loop(0, b.add(n, 1), 1, summed, (b.index(0),))
            b.loop(0, count, 1, moved)

        b.loop(first, stop, 1, whole)

    parameters = (columns, weights, starts, cursors, rows, into, n, count, terms)
    return row_kernel(f"resample_transposed_{wide.name}", parameters, body)
