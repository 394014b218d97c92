"""Moves operands of attention into dense padded scratch of the compute type, and results out.

The products then see no strides, no ragged edge and no narrow type. Packing reads and writes each
element once, where the products use it some hundred times.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.backends.codegen.attention.operands import Matrix, Problem, padded, round_up
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value


def pack_rows(
    b: Builder,
    p: Problem,
    source: Matrix,
    first: Value,
    counts: tuple[Value, Value],
    width: int,
    target: Value,
    scale: float = 1.0,
) -> None:
    """Rows from `first` on, times `scale`, one after the other; zeros fill up columns and rows.

    `counts` are the rows there are and the rows to write.
    """
    pitch = round_up(width, p.tile_columns)
    taken, wanted = counts

    def row(index: Value) -> None:
        start = source.row_at(b, b.add(first, index))
        into = b.offset(target, b.mul(index, pitch))
        for column in range(0, pitch, p.lanes):
            if column < width:
                value = source.load(b, start, column, p.lanes, tail(b, p, width - column))
                if scale != 1.0:
                    value = b.mul(value, scale)
            else:
                value = b.constant(0.0, p.compute, p.lanes)
            b.store(into, column, value, aligned=True)

    b.loop(0, taken, 1, row)
    b.zero(b.offset(target, b.mul(taken, pitch)), b.mul(b.sub(wanted, taken), pitch))


def tail(b: Builder, p: Problem, left: int) -> Value | None:
    """The mask of a vector of which `left` lanes exist; None where all do."""
    return None if left >= p.lanes else b.first_lanes(left, p.lanes)


def pack_panels(
    b: Builder,
    p: Problem,
    source: Matrix,
    first: Value,
    count: Value,
    width: int,
    target: Value,
) -> None:
    """Rows from `first` on, transposed: panels [width][tile columns], each of that many rows.

    A last panel that is not full repeats the last row.
    """
    columns, lanes = p.tile_columns, p.lanes
    last = b.sub(count, 1)

    def group(begin: Value) -> None:
        rows = [source.row_at(b, b.add(first, b.min(b.add(begin, r), last))) for r in range(lanes)]
        # Rows [begin, begin + lanes) are one half of panel begin // columns.
        half = b.rem(begin, columns)
        into = b.offset(target, b.add(b.mul(b.sub(begin, half), width), half))

        def block(column: Value) -> None:
            values = [source.load(b, row, column, lanes) for row in rows]
            for i, value in enumerate(transpose(b, values)):
                b.store(into, b.mul(b.add(column, i), columns), value, aligned=True)

        whole = width // lanes * lanes
        b.loop(0, whole, lanes, block)
        if whole < width:
            mask = tail(b, p, width - whole)
            values = [source.load(b, row, whole, lanes, mask) for row in rows]
            for i, value in enumerate(transpose(b, values)[: width - whole]):
                b.store(into, (whole + i) * columns, value, aligned=True)

    b.loop(0, padded(b, count, columns), lanes, group)


def transpose(b: Builder, rows: list[Value]) -> list[Value]:
    """The columns of a square block of vectors."""
    lanes = len(rows)
    found = list(rows)
    distance = lanes // 2
    while distance:
        low = [j if not j & distance else lanes + j - distance for j in range(lanes)]
        high = [j + distance if not j & distance else lanes + j for j in range(lanes)]
        for i in range(lanes):
            if not i & distance:
                x, y = found[i], found[i + distance]
                found[i], found[i + distance] = b.shuffle(x, y, low), b.shuffle(x, y, high)
        distance //= 2
    return found


def unpack_rows(
    b: Builder,
    p: Problem,
    source: Value,
    target: Matrix,
    rows: tuple[Value | int, Value],
    width: int,
    factor: Callable[[Value], Value | float] | None = None,
) -> None:
    """Packed rows, times the factor of their number, into rows `rows[0]` and on of a result.

    `rows` holds the first row of the result and the number of rows.
    """
    pitch = round_up(width, p.tile_columns)
    first, count = rows

    def row(index: Value) -> None:
        start = target.row_at(b, b.add(index, first))
        scale = None if factor is None else factor(index)
        for column in range(0, width, p.lanes):
            place = b.add(b.mul(index, pitch), column)
            value = b.load(source, place, p.lanes, aligned=True)
            if scale is not None:
                value = b.mul(value, scale)
            target.store(b, start, column, value, tail(b, p, width - column))

    b.loop(0, count, 1, row)
