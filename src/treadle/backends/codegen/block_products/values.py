"""The kernel that widens panels to numbers, in the order of the matrix."""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.block_products.levels import Levels
from treadle.backends.codegen.block_products.widening import values
from treadle.backends.codegen.contraction.pack import transpose
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt
from treadle.base.blocks.panels import ROWS, Layout


@cache
def values_kernel(layout: Layout, name: str) -> Kernel:
    """A kernel over panels: (panels, y [rows, k], rows, blocks of a row)."""
    panels, y = pointer(dt.uint8, "panels"), pointer(dt.float32, "y")
    rows, blocks = size("rows"), size("blocks")
    levels = Levels(layout, ROWS)

    def write(e: Builder, lo: Value, hi: Value) -> None:
        k = e.mul(blocks, layout.elements)

        def panel(i: Value) -> None:
            top = e.mul(i, ROWS)
            source = e.offset(panels, e.mul(i, e.mul(blocks, layout.block)))
            target = e.offset(y, e.mul(top, k))
            last = e.sub(e.min(rows, e.add(top, ROWS)), e.add(top, 1))

            def block(b: Value) -> None:
                here = e.offset(source, e.mul(b, layout.block))
                header = levels.header(e, here, 0)

                def piece(p: Value) -> None:
                    given = e.offset(here, e.add(e.mul(p, layout.piece), layout.header))
                    column = e.add(e.mul(b, layout.elements), e.mul(p, layout.span))
                    square: list[Value] = []
                    for place, four in values(e, levels, given, header):
                        square += four
                        if len(square) < ROWS:
                            continue
                        into = e.offset(target, e.add(column, place + 4 - ROWS))
                        # Rows behind the last one of the matrix are written before it, over it.
                        for r, line in reversed([*enumerate(transpose(e, square))]):
                            e.store(into, e.mul(e.min(e.index(r), last), k), line)
                        square = []

                e.loop(0, layout.pieces, 1, piece)

            e.loop(0, blocks, 1, block)

        e.loop(lo, hi, 1, panel)

    return builder.kernel(f"values_{name}", [panels, y, rows, blocks], write)
