"""Tables of offsets: where elements of an operand lie, as sums of one number per axis.

Where extents are numbers, a table is an array, and a constant of the program. Where an extent or a
step is an expression, it is written down as axes and computed by a small launch at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, unravel
from treadle.backends.codegen.kernel.builder import numbered
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, Expr

Offsets = npt.NDArray[np.int64]
_AXES = 5
"""Axes of a table besides its list."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """A table with expressions in it: sums of one offset per axis, the last axis fastest.

    Attributes:
        axes: (how many, how far apart), outermost first.
        terms: a list below the axes, as columns that are multiplied and added: element i of it is
            the sum of column[i] * factor; () for a list of one zero.
    """

    axes: tuple[tuple[Dim, Dim], ...] = ()
    terms: tuple[tuple[Offsets, Dim], ...] = ()

    @property
    def length(self) -> int:
        """Elements of the list."""
        return len(self.terms[0][0]) if self.terms else 1

    @property
    def count(self) -> Dim:
        """Elements of the table."""
        return product(n for n, _ in self.axes) * self.length

    def listed(self) -> Sums:
        """The same with axes of so many elements as part of the list, if all are numbers."""
        made = Sums()
        for count, step in self.axes:
            made = made.then(Sums(terms=((np.arange(int(count), dtype=np.int64), step),)))
        return made.then(Sums(terms=self.terms))

    def then(self, inner: Sums) -> Sums:
        """Sums with those of further, faster axes."""
        if inner.axes and self.terms:
            if any(isinstance(n, Expr) for n, _ in inner.axes):
                raise NotImplementedError("an axis of a symbolic extent below a list")
            inner = inner.listed()
        if inner.axes or not self.terms:
            return Sums((*self.axes, *inner.axes), inner.terms)
        if not inner.terms:
            return self
        mine = [(np.repeat(column, inner.length), by) for column, by in self.terms]
        theirs = [(np.tile(column, self.length), by) for column, by in inner.terms]
        return Sums(self.axes, (*mine, *theirs))


Table: TypeAlias = Offsets | Sums


def steps_of(extent: int, step: int) -> Offsets:
    """Offsets along an axis of numbers."""
    return np.arange(extent, dtype=np.int64) * step


def grid(*axes: Offsets) -> Offsets:
    """Sums of one offset per axis, the last axis fastest."""
    offsets = np.zeros(1, np.int64)
    for axis in axes:
        offsets = np.add.outer(offsets, axis).ravel()
    return offsets


def along(extent: Dim, step: Dim) -> Table:
    """Offsets along an axis."""
    if isinstance(extent, int) and isinstance(step, int):
        return steps_of(extent, step)
    return Sums(axes=((extent, step),))


def joined(*axes: Table) -> Table:
    """Sums of one offset per axis, the last axis fastest."""
    fixed = [axis for axis in axes if not isinstance(axis, Sums)]
    if len(fixed) == len(axes):
        return grid(*fixed)
    symbolic = [i for i, axis in enumerate(axes) if _is_open(axis)]
    last = symbolic[-1] if symbolic else 0
    found = Sums()
    for i, axis in enumerate(axes):
        found = found.then(_stepped(_sums(axis)) if i < last else _sums(axis))
    return found


def _is_open(table: Table) -> bool:
    return isinstance(table, Sums) and any(isinstance(n, Expr) for n, _ in table.axes)


def _stepped(table: Sums) -> Sums:
    """The same with its list as an axis, where it has one step: lists lie below all axes."""
    if len(table.terms) != 1:
        return table
    ((column, by),) = table.terms
    step = int(column[1]) if len(column) > 1 else 0
    if not np.array_equal(column, steps_of(len(column), step)):
        return table
    return Sums((*table.axes, (len(column), by * step)))


def _sums(table: Table) -> Sums:
    if isinstance(table, Sums):
        return table
    return Sums() if len(table) == 1 and table[0] == 0 else Sums(terms=((table, 1),))


def scaled(table: Table, by: Dim) -> Table:
    """A table times a number."""
    if isinstance(table, Sums):
        axes = tuple([(count, step * by) for count, step in table.axes])
        return Sums(axes, tuple([(column, factor * by) for column, factor in table.terms]))
    return table * by if isinstance(by, int) else Sums(terms=((table, by),))


def combined(columns: Offsets, by: Sequence[Dim]) -> Table:
    """One element per row of a matrix: the row times factors."""
    if all(isinstance(factor, int) for factor in by):
        return columns @ np.array(by, np.int64)
    return Sums(terms=tuple((columns[:, i], factor) for i, factor in enumerate(by)))


def fixed(table: Table) -> Offsets:
    """Return a table that is known to be of numbers, since the caller has refused open extents."""
    if isinstance(table, Sums):
        raise NotImplementedError("a table of numbers is needed")
    return table


def every(table: Table, step: int) -> Table:
    """Every so many-th element of a list."""
    if not isinstance(table, Sums):
        return table[::step]
    if table.axes:
        raise NotImplementedError("a list is needed, not axes")
    return Sums(terms=tuple((column[::step], by) for column, by in table.terms))


def length_of(table: Table) -> int:
    """Elements of a list."""
    return table.length if isinstance(table, Sums) else len(table)


def count_of(table: Table) -> Dim:
    """Elements of a table."""
    return table.count if isinstance(table, Sums) else len(table)


def table_launch(table: Sums, columns: Ref, target: Ref) -> Launch:
    """The launch that writes a table of int32; `columns` has those of its list, one by one."""
    axes = (*((1, 0),) * (_AXES - len(table.axes)), *table.axes)
    if len(axes) > _AXES:
        raise NotImplementedError("a table of too many axes")
    counts, steps = zip(*axes, strict=True)
    factors = tuple([factor for _, factor in table.terms])
    kernel = table_kernel(len(factors))
    lines = product(counts[:-1])
    cost = 4 + estimate(counts[-1]) * table.length * (1 + 0.5 * len(factors))
    given = TableParameters(target, columns, counts, steps, table.length, factors)
    return over_rows(kernel, given, lines, cost, 4 * table.count)


def columns_of(table: Sums) -> Offsets:
    """The columns of its list, one after the other."""
    columns = [column for column, _ in table.terms]
    return np.concatenate(columns) if columns else np.zeros(1, np.int64)


class TableParameters(Record[P, S], target=dt.int32, columns=dt.int32):
    """Parameters of `table_kernel`."""

    target: P
    columns: P
    counts: tuple[S, ...]
    steps: tuple[S, ...]
    length: S
    factors: tuple[S, ...]


@lru_cache(maxsize=16)
def table_kernel(factors: int) -> RecordedKernel:
    """A kernel whose rows are lines of a table: all of its axes but the last one."""
    e, by = RowBuilder(), numbered("factor", factors)
    sizes = {"counts": numbered("count", _AXES), "steps": numbered("step", _AXES), "factors": by}
    p = e.record(TableParameters[Pointer, Value], **sizes)
    counts, steps, length = p.counts, p.steps, p.length
    with e.loop(e.first, e.stop) as row:
        start, places = e.index(0), unravel(row, counts[:-1])
        for place, step in zip(places, steps, strict=False):
            start = start + place * step
        made = p.target + row * (counts[-1] * length)
        with e.loop(counts[-1]) as i:
            at = start + i * steps[-1]
            line = i * length
            with e.loop(length) as j:
                total = at
                for c, factor in enumerate(p.factors):
                    column = p.columns[j + length * c]
                    total = total + column.cast(dt.int64) * factor
                made.store(line + j, total.cast(dt.int32))
    return RecordedKernel(e.kernel(f"offsets_{factors}"), p)
