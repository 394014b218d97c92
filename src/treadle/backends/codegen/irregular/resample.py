"""Resizing and its adjoint: products with sparse matrices, one per spatial axis.

Along an axis every cell of the result is a weighted sum of a few cells of the source. The adjoint
is the transposed matrix, so no two threads ever write one cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from treadle.backends.codegen.irregular.resample_tables import TERMS, MatrixTables, Tables
from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    RowParameters,
    over_rows,
    overlapping_loop,
)
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import Shape, product
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.resample import Interpolation, Resize, ResizeGrad, interpolation_taps

_PANEL = 512
"""Columns per row of a launch."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Rows of (column, weight) pairs: those of row i stand at starts[i] to starts[i + 1]."""

    columns_of: int
    starts: Array
    columns: Array
    weights: Array

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.starts) - 1

    @property
    def terms(self) -> float:
        """Pairs of a row."""
        return max(len(self.columns) / self.rows, 1.0)


@dataclass(frozen=True, slots=True)
class _Open:
    """The same where extents are expressions."""

    columns_of: Dim
    rows: Dim
    places: MatrixTables[Ref, Dim]
    terms: float


def _interpolation(op: Interpolation, n: int, m: int) -> _Matrix:
    """m cells out of n."""
    taps = interpolation_taps(n, m, op.mode, op.coordinates)
    columns = np.stack([cells for cells, _ in taps], 1)
    weights = np.stack([weight for _, weight in taps], 1)
    starts = np.arange(m + 1) * len(taps)
    return _Matrix(n, starts, columns.reshape(-1), weights.reshape(-1))


def _transposed(matrix: _Matrix) -> _Matrix:
    rows = np.repeat(np.arange(matrix.rows), np.diff(matrix.starts))
    order = np.argsort(matrix.columns, kind="stable")
    counts = np.bincount(matrix.columns, minlength=matrix.columns_of)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return _Matrix(matrix.rows, starts, rows[order], matrix.weights[order])


@lowers(Resize, ResizeGrad)
def lower_resize(
    op: Resize | ResizeGrad,
    types: tuple[TensorType, ...],
    frozen: tuple[bool, ...],
    target: Target,
) -> Lowered:
    """One product per spatial axis, in their order; for the gradient, with transposed matrices."""
    x = types[0]
    return _lowered(op, x, x.shape, 2, Ref("input", 0), target)


def lower_resize_last(
    op: Resize | ResizeGrad, x: TensorType, source: Ref, target: Target
) -> Lowered:
    """The same of x [N,C,*S] that lies densely as [N,*S,C], and so for the result."""
    shape = (x.shape[0], *x.shape[2:], x.shape[1])
    return _lowered(op, x, shape, 1, source, target)


def _lowered(
    op: Resize | ResizeGrad, x: TensorType, shape: Shape, first: int, source: Ref, target: Target
) -> Lowered:
    """Launches over x, which lies as `shape` says: its spatial axes are those from `first` on."""
    spatial, others = x.shape[2:], op.spatial if isinstance(op, ResizeGrad) else op.sizes
    if not any(isinstance(n, Expr) for n in (*spatial, *others)):
        return _products(x.dtype, shape, first, matrices_of(op, spatial), source, target)
    tables = Tables(compute_type(x.dtype))
    matrices = []
    for have, want in zip(spatial, others, strict=True):
        if isinstance(op, ResizeGrad):
            refs = tables.transposed(op, want, have)
        else:
            refs = tables.forward(op, have, want)
        matrices.append(_Open(have, want, refs, float(TERMS[op.mode])))
    found = _products(x.dtype, shape, first, matrices, source, target, len(tables.workspaces))
    workspaces = (*tables.workspaces, *found.workspaces)
    return replace(found, launches=(*tables.launches, *found.launches), workspaces=workspaces)


def matrices_of(op: Resize | ResizeGrad, spatial: Shape) -> list[_Matrix]:
    """Return the matrices that cells along each axis are multiplied with."""
    if isinstance(op, ResizeGrad):
        pairs = zip(op.spatial, spatial, strict=True)
        return [_transposed(_interpolation(op, int(n), int(m))) for n, m in pairs]
    return [_interpolation(op, int(n), int(m)) for n, m in zip(spatial, op.sizes, strict=True)]


def _products(
    dtype: DType,
    extents: Shape,
    first: int,
    matrices: Sequence[_Matrix | _Open],
    source: Ref,
    target: Target,
    taken: int = 0,
) -> Lowered:
    """Axis after axis, from axis `first` on.

    What lies between is kept in the compute type, in workspaces, behind those that are taken.
    """
    wide, shape = compute_type(dtype), list(extents)
    launches, workspaces = list[Launch](), list[Dim]()
    constants = list[Array]()
    origin = dtype
    for i, matrix in enumerate(matrices):
        outer, inner = product(shape[: first + i]), product(shape[first + i + 1 :])
        shape[first + i] = matrix.rows
        last = i == len(matrices) - 1
        to, kept = (Ref("output", 0), dtype) if last else (Ref("workspace", taken + i), wide)
        if not last:
            workspaces.append(product(shape) * wide.itemsize)
        if isinstance(matrix, _Open):
            tables = matrix.places
        else:
            begin = len(constants)
            tables = MatrixTables(*[Ref("constant", begin + j) for j in range(3)])
            constants += [matrix.starts, matrix.columns, matrix.weights.astype(wide.numpy)]
        line = _Line(to, source, tables, matrix.rows, matrix.columns_of)
        launches.append(_product(line, matrix.terms, (kept, origin), (outer, inner), target))
        source, origin = to, kept
    numbers = tuple(c.astype(np.int64) if c.dtype.kind == "i" else c for c in constants)
    return Lowered(tuple(launches), tuple(workspaces), numbers)


class _Line(RowParameters[P, S]):
    tables: MatrixTables[P, S]
    count: S
    extent: S


class _Plane(_Line[P, S]):
    inner: S
    panels: S


def _product(
    given: _Line[Ref, Dim],
    terms: float,
    dtypes: tuple[DType, DType],
    around: tuple[Dim, Dim],
    target: Target,
) -> Launch:
    outer, inner = around
    if is_identical(inner, 1):
        return over_rows(
            _line_kernel(*dtypes), given, outer, estimate(given.count) * (1 + terms * 1.2)
        )
    kernel, panels = _plane_kernel(*dtypes, target.lanes(dtypes[1])), -(-inner // _PANEL)
    cost = 3 + min(estimate(inner), _PANEL) * (0.1 + 0.1 * terms)
    plane = _Plane(given.target, given.x, given.tables, given.count, given.extent, inner, panels)
    return over_rows(kernel, plane, outer * given.count * panels, cost)


@cache
def _line_kernel(kept: DType, given: DType) -> RecordedKernel:
    """Return the kernel; the axis is the last one: each row of the launch is a line."""
    e, wide = RowBuilder(), compute_type(kept)
    tables = partial(e.record, MatrixTables[Pointer, Value], weights=wide)
    p = e.record(_Line[Pointer, Value], target=kept, x=given, tables=tables)
    matrix, zero = p.tables, e.constant(0.0, wide)
    with e.loop(e.first, e.stop) as line:
        source, to = p.x + line * p.extent, p.target + line * p.count
        with e.loop(p.count) as i:
            total = [zero]
            with e.loop(matrix.starts[i], matrix.starts[i + 1], carrying=total) as term:
                value = load_value(source, matrix.columns[term])
                total[0] = total[0] + value * matrix.weights[term]
            store_value(to, i, total[0])
    return RecordedKernel(e.kernel(f"resample_last_{given.name}_{kept.name}"), p)


@cache
def _plane_kernel(kept: DType, given: DType, lanes: int) -> RecordedKernel:
    """Return the kernel with lanes across the axis; rows of the launch: panels of one cell."""
    e, wide = RowBuilder(), compute_type(kept)
    tables = partial(e.record, MatrixTables[Pointer, Value], weights=wide)
    p = e.record(_Plane[Pointer, Value], target=kept, x=given, tables=tables)
    matrix, zero = p.tables, e.constant(0.0, wide, lanes)
    with e.rows(p.count, p.count, p.panels) as (_, outer, i, panel):
        source = p.x + outer * p.extent * p.inner
        to = p.target + (outer * p.count + i) * p.inner
        begin, end = matrix.starts[i], matrix.starts[i + 1]
        start = panel * _PANEL
        for j, mask in overlapping_loop(e, start, minimum(start + _PANEL, p.inner), lanes):
            total = [zero]
            with e.loop(begin, end, carrying=total) as term:
                place = matrix.columns[term] * p.inner + j
                value = load_value(source, place, lanes, mask)
                total[0] = total[0] + value * matrix.weights[term].splat(lanes)
            store_value(to, j, total[0], mask)
    return RecordedKernel(e.kernel(f"resample_{given.name}_{kept.name}_{lanes}"), p)
