"""Matrices of resizing for extents that are expressions: kernels write them at each call.

What a row holds is computed as `ops.resample.interpolation_taps` does, number by number, so that
weights have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim
from treadle.ops.resample import CUBIC, Interpolation

TERMS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Cells that a cell of the result is made of, by mode."""


class MatrixTables(Record[P, S], starts=dt.int64, columns=dt.int64):
    """Starts of the terms of every row, their columns, and their weights."""

    starts: P
    columns: P
    weights: P


class _Forward(MatrixTables[P, S]):
    extent: S
    count: S


class _Transposed(
    Record[P, S], columns=dt.int64, starts=dt.int64, cursors=dt.int64, rows_of=dt.int64
):
    columns: P
    weights: P
    starts: P
    cursors: P
    rows_of: P
    into: P
    extent: S
    entries: S
    terms: S


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

    def forward(self, op: Interpolation, n: Dim, m: Dim) -> MatrixTables[Ref, Dim]:
        """Tables of the matrix that makes m cells of n."""
        terms = TERMS[op.mode]
        starts = self.workspace((m + 1) * 8)
        columns, weights = self._entries(m * terms)
        kernel = _forward_kernel(op.mode, op.coordinates, self.wide)
        tables = MatrixTables[Ref, Dim](starts, columns, weights)
        given, nbytes = _Forward(starts, columns, weights, n, m), 8 * estimate(m) * (1 + 2 * terms)
        self.launches.append(over_rows(kernel, given, m, 10.0 * terms, nbytes))
        return tables

    def transposed(self, op: Interpolation, n: Dim, m: Dim) -> MatrixTables[Ref, Dim]:
        """The same of the transposed matrix."""
        given = self.forward(op, n, m)
        count = m * TERMS[op.mode]
        starts, cursors = self.workspace((n + 1) * 8), self.workspace((n + 1) * 8)
        made = self._entries(count)
        sizes = n, count, TERMS[op.mode]
        entries = _Transposed(given.columns, given.weights, starts, cursors, *made, *sizes)
        kernel = _transpose_kernel(self.wide)
        cost = 6.0 * (estimate(count) + estimate(n))
        self.launches.append(over_rows(kernel, entries, 1, cost, 32 * estimate(count)))
        return MatrixTables(starts, *made)

    def _entries(self, count: Dim) -> tuple[Ref, Ref]:
        return self.workspace(count * 8), self.workspace(count * self.wide.itemsize)


@cache
def _forward_kernel(mode: str, coordinates: str, wide: DType) -> RecordedKernel:
    """Return the kernel; rows of the launch are cells of the result."""
    e = RowBuilder()
    p = e.record(_Forward[Pointer, Value], weights=wide)
    n, m, terms = p.extent, p.count, TERMS[mode]
    last = n - 1
    with e.loop(e.first, e.stop) as i:
        with e.when(i == 0):
            p.starts[0] = 0
        at = i * terms
        p.starts.store(i + 1, at + terms)
        if mode == "nearest":
            found = [(_nearest(coordinates, i, n, m), e.constant(1.0, dt.float64))]
        else:
            found = _around(mode, _place(coordinates, i, n, m), last)
        for j, (column, weight) in enumerate(found):
            p.columns.store(at + j, maximum(minimum(column, last), 0))
            p.weights.store(at + j, weight.cast(wide))
    return RecordedKernel(e.kernel(f"resample_{mode}_{coordinates}_{wide.name}"), p)


def _nearest(coordinates: str, i: Value, n: Value, m: Value) -> Value:
    if coordinates == "half_pixel":
        return ((i * 2 + 1) * n) // (m * 2)
    if coordinates == "asymmetric":
        return (i * n) // m
    steps = m - 1
    above = i * 2 * (n - 1) + steps
    return above // maximum(steps * 2, 1)


def _place(coordinates: str, i: Value, n: Value, m: Value) -> Value:
    """Return the position of a cell on those that it is made of."""
    cell, cells, count = (x.cast(dt.float64) for x in (i, n, m))
    if coordinates == "half_pixel":
        return (cell + 0.5) * cells / count - 0.5
    if coordinates == "asymmetric":
        return cell * cells / count
    several = m > 1
    steps = select(several, count - 1.0, 1.0)
    step = select(several, (cells - 1.0) / steps, 0.0)
    return cell * step


def _around(mode: str, place: Value, last: Value) -> list[tuple[Value, Value]]:
    """Cells around a place, and their weights."""
    if mode == "linear":
        place = minimum(maximum(place, 0.0), last.cast(dt.float64))
    cell = place.cast(dt.int64)
    above = place < cell.cast(dt.float64)
    cell = select(above, cell - 1, cell)
    part = place - cell.cast(dt.float64)
    if mode == "linear":
        return [(cell, 1.0 - part), (cell + 1, part)]
    rest = 1.0 - part
    weights = [_far(part + 1.0), _near(part), _near(rest), _far(2.0 - part)]
    return [(cell + (j - 1), weight) for j, weight in enumerate(weights)]


def _near(d: Value) -> Value:
    """Keys' kernel at distances up to 1."""
    inner = d * (CUBIC + 2) - (CUBIC + 3)
    return inner * d * d + 1.0


def _far(d: Value) -> Value:
    """The same from 1 to 2."""
    inner = (d - 5.0) * d + 8.0
    return inner * d * CUBIC - 4 * CUBIC


@cache
def _transpose_kernel(wide: DType) -> RecordedKernel:
    """Entries by their columns, those of a column in their order."""
    e = RowBuilder()
    p = e.record(_Transposed[Pointer, Value], weights=wide, into=wide)
    starts, cursors, n, count = p.starts, p.cursors, p.extent, p.entries
    with e.loop(e.first, e.stop):
        with e.loop(n + 1) as j:
            starts[j] = 0
        with e.loop(count) as entry:
            at = p.columns[entry] + 1
            starts[at] += 1
        before = [e.index(0)]
        with e.loop(0, n + 1, carrying=before) as j:
            total = before[0] + starts[j]
            starts[j] = total
            cursors[j] = total
            before[0] = total
        with e.loop(count) as entry:
            column = p.columns[entry]
            at = cursors[column]
            cursors.store(column, at + 1)
            p.rows_of.store(at, entry // p.terms)
            p.into[at] = p.weights[entry]
    return RecordedKernel(e.kernel(f"resample_transposed_{wide.name}"), p)
