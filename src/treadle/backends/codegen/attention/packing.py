"""Moves operands of attention into dense padded scratch of the compute type, and results out.

The products then see no strides, no ragged edge and no narrow type. Packing reads and writes each
element once, where the products use it some hundred times.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.backends.codegen.attention.operands import AttentionProblem, Matrix, padded, round_up
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, shuffle


def pack_rows(
    e: Builder,
    p: AttentionProblem,
    source: Matrix,
    first: Value,
    counts: tuple[Value, Value],
    width: int,
    target: Pointer,
    scale: float = 1.0,
) -> None:
    """Rows from `first` on, times `scale`, one after the other; zeros fill up columns and rows.

    `counts` are the rows there are and the rows to write.
    """
    pitch = round_up(width, p.tile_columns)
    taken, wanted = counts

    with e.loop(taken) as index:
        start = source.row_at(first + index)
        into = target + index * pitch
        for column in range(0, pitch, p.lanes):
            if column < width:
                value = source.load(start, column, p.lanes, tail(e, p.lanes, width - column))
                if scale != 1.0:
                    value = value * scale
            else:
                value = e.constant(0.0, p.compute, p.lanes)
            into.store(column, value, aligned=True)
    (target + taken * pitch).zero((wanted - taken) * pitch)


def tail(e: Builder, lanes: int, left: int) -> Value | None:
    """The mask of a vector of which `left` lanes exist; None where all do."""
    return None if left >= lanes else e.first_lanes(left, lanes)


def pack_panels(
    e: Builder,
    p: AttentionProblem,
    source: Matrix,
    first: Value,
    count: Value,
    width: int,
    target: Pointer,
) -> None:
    """Rows from `first` on, transposed: panels [width][tile columns], each of that many rows.

    A last panel that is not full repeats the last row.
    """
    columns, lanes = p.tile_columns, p.lanes
    last = count - 1

    with e.loop(0, padded(count, columns), lanes) as begin:
        rows = [source.row_at(first + minimum(begin + r, last)) for r in range(lanes)]
        # Rows [begin, begin + lanes) are one half of panel begin // columns.
        half = begin % columns
        into = target + ((begin - half) * width + half)
        whole = width // lanes * lanes
        with e.loop(0, whole, lanes) as column:
            values = [source.load(row, column, lanes) for row in rows]
            for i, value in enumerate(transpose(values)):
                into.store((column + i) * columns, value, aligned=True)
        if whole < width:
            mask = tail(e, p.lanes, width - whole)
            values = [source.load(row, whole, lanes, mask) for row in rows]
            for i, value in enumerate(transpose(values)[: width - whole]):
                into.store((whole + i) * columns, value, aligned=True)


def transpose(rows: list[Value]) -> list[Value]:
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
                found[i], found[i + distance] = shuffle(x, y, low), shuffle(x, y, high)
        distance //= 2
    return found


def unpack_rows(
    e: Builder,
    p: AttentionProblem,
    source: Pointer,
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

    with e.loop(count) as index:
        start = target.row_at(index + first)
        scale = None if factor is None else factor(index)
        for column in range(0, width, p.lanes):
            place = index * pitch + column
            value = source.load(place, p.lanes, aligned=True)
            if scale is not None:
                value = value * scale
            target.store(start, column, value, tail(e, p.lanes, width - column))
