"""Products of rows of activations with weights in panels, as launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from treadle.backends.api import Support, no
from treadle.backends.codegen.block_products.kernel import (
    BlockConfig,
    ExpertParameters,
    MatrixSizes,
    ProductParameters,
    product_kernel,
)
from treadle.backends.codegen.block_products.lower_pairs import (
    ROUTES,
    SERIAL,
    Pairing,
    in_pairs,
    routed_in_pairs,
    routes_of,
    sharing,
)
from treadle.backends.codegen.block_products.matrices import (
    LINES,
    MOST_TILES,
    STEP,
    matrices_kernel,
)
from treadle.backends.codegen.block_products.rows import Records, RowsParameters, rows_kernel
from treadle.backends.codegen.block_products.several import (
    MOST,
    SeveralParameters,
    several_experts_kernel,
    several_kernel,
)
from treadle.backends.codegen.block_products.values import ValuesParameters, values_kernel
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
    BlockWeight,
)

_CHUNK = 64
"""Rows that an item has at least, for which levels are widened once."""
_SHARED = 2
"""Rows for each expert from which on levels are widened once for all of them."""
_OPERANDS = Ref("workspace", 0), Ref("input", 1), Ref("output", 0)
_LEAST = 9
"""Rows from which matrix registers are faster than vectors."""


@lowers(BlockMatmul)
def lower_block_matmul(
    op: BlockMatmul, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """Lower to a launch that rounds rows, and a second one that multiplies."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    if op.activations == "bfloat16":
        return in_pairs(_pairing(op, types, given, target))
    x, panels = types
    m = product(x.shape[:-1])
    matrices = target.matrices and estimate(m) >= _LEAST and given.k % STEP == 0
    tile = LINES if matrices else _tile(estimate(m), target)
    pairs = not matrices and in_shorts(op.activations, target)
    signed = not matrices and target.dot_signed
    records = Records(tile, LAYOUTS[op.format], op.activations, matrices, pairs, signed)
    rows = given.rows(records, m, apart=target.is_card)
    chunk = max(1, target.l2 // 2 // given.row_bytes(records))
    spec = BlockConfig(records, x.dtype, given.lanes)
    spec = _arranged(spec, target)
    if pairs and estimate(m) > tile and not target.is_card:
        chunk = min(max(chunk, _CHUNK // tile), MOST // tile)
        kernel = several_kernel(spec, op.format)
    elif matrices:
        chunk = min(chunk, MOST_TILES)
        kernel = matrices_kernel(spec, op.format, target.features)
    else:
        chunk = 1 if target.is_card else chunk
        kernel = product_kernel(spec, op.format)
    tiles, count = -(-m // records.tile), panels.shape[0]
    flops = 2 * m * op.rows * given.k
    sizes = MatrixSizes[Ref, Dim](m, op.rows, given.blocks, count)
    launch = kernel.launch(
        ProductParameters(*_OPERANDS, sizes, chunk),
        items=-(-tiles // chunk) * count * spec.parts,
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
    """Lower the gradient to a product in bfloat16 with the transposed matrix."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    return in_pairs(_pairing(op, types, given, target))


@lowers(BlockExpertsGrad)
def lower_block_experts_grad(
    op: BlockExpertsGrad, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """Lower the gradient as for one matrix, with rows sorted by the expert that they chose."""
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
    launch = values_kernel(LAYOUTS[op.format], op.format).launch(
        ValuesParameters(Ref("input", 0), Ref("output", 0), op.rows, given.blocks),
        items=count,
        serial=estimate(count * given.k) < SERIAL // 64,
        nbytes=product(types[0].shape) + op.rows * given.k * 4,
    )
    return Lowered((launch,))


@lowers(BlockExperts)
def lower_block_experts(
    op: BlockExperts, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """Lower the product as for one matrix; rows of the result look up where theirs begins."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    if op.activations == "bfloat16":
        return routed_in_pairs(_pairing(op, types, given, target), types[2])
    x, panels, experts = types
    m, pairs = product(experts.shape), in_shorts(op.activations, target)
    layout, signed = LAYOUTS[op.format], target.dot_signed
    records = Records(1, layout, op.activations, pairs=pairs, signed=signed)
    source = product(x.shape[:-1])
    rows = given.rows(records, source, apart=target.is_card)
    flops, (count, each) = 2 * m * op.rows * given.k, panels.shape[:2]
    nbytes = m * product(panels.shape[1:]) + m * op.rows * x.dtype.itemsize
    workspaces = (source * given.row_bytes(records),)
    described: Any = {"serial": estimate(flops) < SERIAL, "flops": flops, "nbytes": nbytes}
    sizes = MatrixSizes[Ref, Dim](m, op.rows, given.blocks, each)
    many = estimate(m) >= _SHARED * estimate(count)
    if pairs and many and not target.is_card:
        config, routes = BlockConfig(records, x.dtype, given.lanes), routes_of(experts, count)
        kernel = several_experts_kernel(config, _most(target), op.format)
        several = SeveralParameters(*_OPERANDS, ROUTES, sizes, sharing(x, experts))
        launch = kernel.launch(several, items=count * each, **described)
        return Lowered((rows, routes, launch), workspaces=(*workspaces, m * 4, count * 4))
    spec = _arranged(BlockConfig(records, x.dtype, given.lanes, experts.dtype), target)
    one = ExpertParameters(*_OPERANDS, Ref("input", 2), sizes, count, sharing(x, experts))
    launch = product_kernel(spec, op.format).launch(one, items=each * m * spec.parts, **described)
    return Lowered((rows, launch), workspaces=workspaces)


@dataclass(frozen=True, slots=True)
class _Given:
    """Facts that both products share: rows of `k` elements of a type, with vectors of `lanes`."""

    k: int
    blocks: int
    dtype: DType
    lanes: int

    def row_bytes(self, records: Records) -> int:
        """Bytes of a tile of rows."""
        return self.k // records.terms * records.units * 4

    def rows(self, records: Records, m: Dim, *, apart: bool) -> Launch:
        """The launch that makes m rows bytes."""
        count = self.k // records.terms
        return rows_kernel(records, self.dtype, self.lanes, apart=apart).launch(
            RowsParameters(Ref("input", 0), Ref("workspace", 0), count),
            items=m * count if apart else m,
            serial=estimate(m * self.k) < SERIAL // 4,
            nbytes=m * self.k * (self.dtype.itemsize + 1),
        )


def _given(op: BlockWeight, types: tuple[TensorType, ...], target: Target) -> _Given | Support:
    """Facts that launches are made from, or the reason why there are none."""
    x, layout = types[0], LAYOUTS[op.format]
    width = types[0 if isinstance(op, BlockValues) else 1].shape[-1]
    whole = not isinstance(op, BlockMatmul | BlockExperts) or op.activations == "bfloat16"
    if whole and target.fine:
        return no("op", "values of quantized blocks are made by processors alone")
    if not isinstance(width, int):
        return no("dynamic-shape", "the rows of a weight have a known number of elements")
    # Levels lie in vectors of bytes, or of pairs of 16 bits where no table is looked up.
    narrowest = 4 if layout.table or not in_shorts(_rounding(op), target) else 2
    lanes = min(target.lanes(dt.float32), ROWS, target.widest // narrowest)
    blocks = width // layout.block
    return _Given(blocks * layout.elements, blocks, x.dtype, lanes)


def _rounding(op: BlockWeight) -> str:
    return op.activations if isinstance(op, BlockMatmul | BlockExperts) else "bfloat16"


def _pairing(
    op: BlockWeight, types: tuple[TensorType, ...], given: _Given, target: Target
) -> Pairing:
    return Pairing(op.format, types[0], types[1], op.rows, given.k, target, op.transposed)


def _tile(rows: int, target: Target) -> int:
    """Rows that share what is read of a panel: their sums stay in registers."""
    tile = 1
    while tile < min(rows, _most(target)):
        tile *= 2
    return tile


def _most(target: Target) -> int:
    """Most rows of a tile."""
    return 8 if target.registers >= 32 else 4


def in_shorts(activations: str, target: Target) -> bool:
    """True if integers of activations are multiplied as 16 bits: where no bytes are multiplied."""
    return activations == "int16" and not (target.dot_int8 or target.dot_signed)


def _arranged(spec: BlockConfig, target: Target) -> BlockConfig:
    """Divide columns: with pairs, all of a panel share what is read of one or two rows.

    Threads of a graphics card have a vector each, so that there are many.
    """
    if target.is_card:
        return replace(spec, apart=True)
    return replace(spec, vectors=ROWS // spec.lanes if spec.records.pairs else 1)
