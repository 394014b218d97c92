"""The kernel that widens panels to numbers, in the order of the matrix."""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.block_products.levels import Levels
from treadle.backends.codegen.block_products.widening import values
from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import Kernel
from treadle.backends.codegen.kernel.language import Value, minimum
from treadle.base import dtype as dt
from treadle.base.blocks.panels import ROWS, Layout


@cache
def values_kernel(layout: Layout, name: str) -> Kernel:
    """A kernel over panels: (panels, y [rows, k], rows, blocks of a row)."""
    e = KernelBuilder()
    panels, y = e.pointer(dt.uint8, "panels"), e.pointer(dt.float32, "y")
    rows, blocks = e.sizes("rows", "blocks")
    levels = Levels(layout, ROWS)
    k = blocks * layout.elements
    with e.items() as i:
        top = i * ROWS
        source = panels + i * (blocks * layout.block)
        target = y + top * k
        last = minimum(rows, top + ROWS) - (top + 1)
        with e.loop(blocks) as b:
            here = source + b * layout.block
            header = levels.header(here, 0)
            with e.loop(layout.pieces) as p:
                given = here + (p * layout.piece + layout.header)
                column = b * layout.elements + p * layout.span
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
    return e.kernel(f"values_{name}")
