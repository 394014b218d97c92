"""Products of rows of activations with weights in panels, as launches."""

from __future__ import annotations

from treadle.backends.api import Support, no
from treadle.backends.codegen.block_products.kernel import Spec, product_kernel
from treadle.backends.codegen.block_products.rows import Records, rows_kernel
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.blocks.activations import TERMS
from treadle.base.blocks.panels import LAYOUTS, ROWS
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.block_matmul import BlockMatmul

_SERIAL = 1 << 17
"""Fewer operations than this are over before other threads have woken up."""


@lowers(BlockMatmul)
def lower_block_matmul(
    op: BlockMatmul, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """Rows become bytes in a first launch; the second multiplies."""
    if target.fine:
        return no("op", "products with quantized blocks are written for processors")
    x, panels = types
    layout = LAYOUTS[op.format]
    m, k = product(x.shape[:-1]), x.shape[-1]
    if not isinstance(k, int):
        return no("dynamic-shape", "the rows of a weight have a known number of elements")
    lanes = min(target.lanes(dt.float32), ROWS)
    records = Records(_tile(estimate(m), target), layout)
    tiles = -(-m // records.tile)
    row_bytes = k // TERMS * records.units * 4
    chunk = max(1, target.l2 // 2 // row_bytes)
    flops, count = 2 * m * op.rows * k, panels.shape[0]
    sizes = (m, op.rows, k // layout.elements, count, chunk)
    return Lowered(
        (
            Launch(
                rows_kernel(records, x.dtype, lanes),
                (Ref("input", 0), Ref("workspace", 0), k // TERMS),
                items=m,
                serial=estimate(m * k) < _SERIAL // 4,
                nbytes=m * k * (x.dtype.itemsize + 1),
            ),
            Launch(
                product_kernel(Spec(records, x.dtype, lanes), op.format),
                (Ref("workspace", 0), Ref("input", 1), Ref("output", 0), *sizes),
                items=-(-tiles // chunk) * count,
                serial=estimate(flops) < _SERIAL,
                flops=flops,
                nbytes=product(panels.shape) + m * (k + op.rows) * x.dtype.itemsize,
            ),
        ),
        workspaces=(tiles * row_bytes,),
    )


def _tile(rows: int, target: Target) -> int:
    """Rows that share what is read of a panel: their sums stay in registers."""
    most = 8 if target.registers >= 32 else 4
    tile = 1
    while tile < min(rows, most):
        tile *= 2
    return tile
