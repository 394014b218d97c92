"""Products of rows of activations with weights in panels, as launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from treadle.backends.api import Support, no
from treadle.backends.codegen.block_products.kernel import Spec, product_kernel
from treadle.backends.codegen.block_products.lower_pairs import (
    SERIAL,
    Pairing,
    in_pairs,
    routed_in_pairs,
    sharing,
)
from treadle.backends.codegen.block_products.matrices import (
    LINES,
    MOST_TILES,
    STEP,
    matrices_kernel,
)
from treadle.backends.codegen.block_products.rows import Records, rows_kernel
from treadle.backends.codegen.block_products.values import values_kernel
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.blocks.panels import LAYOUTS, ROWS
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.block_matmul import (
    BlockExperts,
    BlockExpertsGrad,
    BlockMatmul,
    BlockMatmulGrad,
    BlockValues,
)

_Op: TypeAlias = BlockValues | BlockMatmul | BlockExperts | BlockMatmulGrad | BlockExpertsGrad

_LEAST = 9
"""Rows from which matrix registers are faster than vectors."""


@lowers(BlockMatmul)
def lower_block_matmul(
    op: BlockMatmul, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """Rows are rounded in a first launch; the second multiplies."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    if op.activations == "bfloat16":
        return in_pairs(_pairing(op, types, given, target))
    x, panels = types
    m = product(x.shape[:-1])
    matrices = target.matrices and estimate(m) >= _LEAST and given.k % STEP == 0
    tile = LINES if matrices else _tile(estimate(m), target)
    records = Records(tile, LAYOUTS[op.format], op.activations, matrices)
    rows = given.rows(records, m)
    chunk = max(1, target.l2 // 2 // given.row_bytes(records))
    spec = Spec(records, x.dtype, given.lanes)
    if matrices:
        chunk = min(chunk, MOST_TILES)
        kernel = matrices_kernel(spec, op.format, target.features)
    else:
        kernel = product_kernel(spec, op.format)
    tiles, count = -(-m // records.tile), panels.shape[0]
    flops = 2 * m * op.rows * given.k
    launch = Launch(
        kernel,
        (
            *(Ref("workspace", 0), Ref("input", 1), Ref("output", 0)),
            *(m, op.rows, given.blocks, count, chunk),
        ),
        items=-(-tiles // chunk) * count,
        serial=estimate(flops) < SERIAL,
        flops=flops,
        nbytes=product(panels.shape) + m * (given.k + op.rows) * x.dtype.itemsize,
        unit="int8" if matrices else "",
    )
    return Lowered((rows, launch), workspaces=(tiles * given.row_bytes(records),))


@lowers(BlockMatmulGrad)
def lower_block_matmul_grad(
    op: BlockMatmulGrad, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """As a product in bfloat16 with the matrix the other way round."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    return in_pairs(_pairing(op, types, given, target))


@lowers(BlockExpertsGrad)
def lower_block_experts_grad(
    op: BlockExpertsGrad, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """As for one matrix; rows are sorted by the expert that they chose."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    return routed_in_pairs(_pairing(op, types, given, target), types[2])


@lowers(BlockValues)
def lower_block_values(
    op: BlockValues, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """One launch over panels."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    count = types[0].shape[0]
    launch = Launch(
        values_kernel(LAYOUTS[op.format], op.format),
        (Ref("input", 0), Ref("output", 0), op.rows, given.blocks),
        items=count,
        serial=estimate(count * given.k) < SERIAL // 64,
        nbytes=product(types[0].shape) + op.rows * given.k * 4,
    )
    return Lowered((launch,))


@lowers(BlockExperts)
def lower_block_experts(
    op: BlockExperts, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """As for one matrix, but rows of the result look up where theirs begins."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    if op.activations == "bfloat16":
        return routed_in_pairs(_pairing(op, types, given, target), types[2])
    x, panels, experts = types
    m = product(experts.shape)
    records = Records(1, LAYOUTS[op.format], op.activations)
    source = product(x.shape[:-1])
    rows = given.rows(records, source)
    flops = 2 * m * op.rows * given.k
    launch = Launch(
        product_kernel(Spec(records, x.dtype, given.lanes, experts.dtype), op.format),
        (
            *(Ref("workspace", 0), Ref("input", 1), Ref("output", 0), Ref("input", 2)),
            *(m, op.rows, given.blocks, panels.shape[1], panels.shape[0]),
            sharing(x, experts),
        ),
        items=panels.shape[1] * m,
        serial=estimate(flops) < SERIAL,
        flops=flops,
        nbytes=m * product(panels.shape[1:]) + m * op.rows * x.dtype.itemsize,
    )
    return Lowered((rows, launch), workspaces=(source * given.row_bytes(records),))


@dataclass(frozen=True, slots=True)
class _Given:
    """What both products share: rows of `k` elements of a type, with vectors of `lanes`."""

    k: int
    blocks: int
    dtype: DType
    lanes: int

    def row_bytes(self, records: Records) -> int:
        """Bytes of a tile of rows."""
        return self.k // records.terms * records.units * 4

    def rows(self, records: Records, m: Dim) -> Launch:
        """The launch that makes m rows bytes."""
        return Launch(
            rows_kernel(records, self.dtype, self.lanes),
            (Ref("input", 0), Ref("workspace", 0), self.k // records.terms),
            items=m,
            serial=estimate(m * self.k) < SERIAL // 4,
            nbytes=m * self.k * (self.dtype.itemsize + 1),
        )


def _given(op: _Op, types: tuple[TensorType, ...], target: Target) -> _Given | Support:
    """What the launches are made from, or why there are none."""
    x, layout = types[0], LAYOUTS[op.format]
    width = types[0 if isinstance(op, BlockValues) else 1].shape[-1]
    if target.fine:
        return no("op", "products with quantized blocks are written for processors")
    if not isinstance(width, int):
        return no("dynamic-shape", "the rows of a weight have a known number of elements")
    lanes = min(target.lanes(dt.float32), ROWS)
    blocks = width // layout.block
    return _Given(blocks * layout.elements, blocks, x.dtype, lanes)


def _pairing(
    op: BlockMatmul | BlockExperts | BlockMatmulGrad | BlockExpertsGrad,
    types: tuple[TensorType, ...],
    given: _Given,
    target: Target,
) -> Pairing:
    transposed = isinstance(op, BlockMatmulGrad | BlockExpertsGrad)
    return Pairing(op.format, types[0], types[1], op.rows, given.k, target, transposed)


def _tile(rows: int, target: Target) -> int:
    """Rows that share what is read of a panel: their sums stay in registers."""
    most = 8 if target.registers >= 32 else 4
    tile = 1
    while tile < min(rows, most):
        tile *= 2
    return tile
