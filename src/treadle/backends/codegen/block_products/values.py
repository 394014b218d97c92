"""The kernel that widens panels to numbers, in the order of the matrix."""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.block_products.levels import Levels
from treadle.backends.codegen.block_products.widening import values
from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.base import dtype as dt
from treadle.base.blocks.panels import ROWS, PanelLayout


class ValuesParameters(Record[P, S], panels=dt.uint8, y=dt.float32):
    """Panels, y [rows, k], and blocks of a row."""

    panels: P
    y: P
    rows: S
    blocks: S


@cache
def values_kernel(layout: PanelLayout, name: str) -> RecordedKernel:
    """A kernel over panels."""
    e = KernelBuilder()
    p = e.record(ValuesParameters[Pointer, Value])
    rows, blocks, levels = p.rows, p.blocks, Levels(layout, ROWS)
    k = blocks * layout.elements
    with e.items() as i:
        top = i * ROWS
        source = p.panels + i * (blocks * layout.block)
        target = p.y + top * k
        last = minimum(rows, top + ROWS) - (top + 1)
        with e.loop(blocks) as b:
            here = source + b * layout.block
            header = levels.header(here, 0)
            with e.loop(layout.pieces) as piece:
                given = here + (piece * layout.piece + layout.header)
                column = b * layout.elements + piece * layout.span
                square: list[Value] = []
                for place, four in values(levels, given, header):
                    square += four
                    if len(square) < ROWS:
                        continue
                    into = target + (column + (place + 4 - ROWS))
                    # Rows behind the last one of the matrix are written before it, over it.
                    for r, line in reversed([*enumerate(transpose(square))]):
                        into[minimum(r, last) * k] = line
                    square = []
    return RecordedKernel(e.kernel(f"values_{name}"), p)
