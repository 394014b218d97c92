"""Products of rows of activations with weights in panels, as launches."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.api import Support, no
from treadle.backends.codegen.block_products.kernel import Spec, product_kernel
from treadle.backends.codegen.block_products.matrices import (
    LINES,
    MOST_TILES,
    STEP,
    matrices_kernel,
)
from treadle.backends.codegen.block_products.pairs import (
    BLOCK,
    DEPTH,
    HEIGHT,
    MOST,
    ROUTED,
    SUMS,
    TERMS,
    PairSpec,
    pairs_kernel,
    routed_kernel,
    routes_kernel,
    words_kernel,
)
from treadle.backends.codegen.block_products.rows import Records, rows_kernel
from treadle.backends.codegen.contraction.pair_words import GROUP, WIDTH, WORDS
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.blocks.panels import LAYOUTS, ROWS
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.ops.block_matmul import BlockExperts, BlockMatmul

_LEAST = 9
"""Rows from which matrix registers are faster than vectors."""
_SERIAL = 1 << 17
"""Fewer operations than this are over before other threads have woken up."""


@lowers(BlockMatmul)
def lower_block_matmul(
    op: BlockMatmul, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """Rows are rounded in a first launch; the second multiplies."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    if op.activations == "bfloat16":
        return _in_pairs(op, types, given, target)
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
        serial=estimate(flops) < _SERIAL,
        flops=flops,
        nbytes=product(panels.shape) + m * (given.k + op.rows) * x.dtype.itemsize,
        unit="int8" if matrices else "",
    )
    return Lowered((rows, launch), workspaces=(tiles * given.row_bytes(records),))


def _in_pairs(
    op: BlockMatmul, types: tuple[TensorType, ...], given: _Given, target: Target
) -> Lowered:
    """Words of rows, then the product."""
    x, panels = types
    m, steps, count = product(x.shape[:-1]), given.k // TERMS, panels.shape[0]
    pairs = -(-count // 2)
    height, width = _item(estimate(m), estimate(pairs))
    flops = 2 * m * op.rows * given.k
    matrices = target.matrices and target.dot_bfloat16
    spec = PairSpec(LAYOUTS[op.format], x.dtype, matrices)
    launch = Launch(
        pairs_kernel(spec, op.format, target.features),
        (
            *(Ref("workspace", 0), Ref("input", 1), Ref("output", 0)),
            *(m, op.rows, given.blocks, count, height, width, _depth(steps, given)),
        ),
        items=-(-m // height) * -(-pairs // width),
        serial=estimate(flops) < _SERIAL,
        flops=flops,
        nbytes=product(panels.shape) + m * (given.k + op.rows) * x.dtype.itemsize,
        unit="bfloat16",
    )
    groups = -(-m // WORDS)
    return Lowered((given.words(m, grouped=True), launch), workspaces=(groups * steps * GROUP * 4,))


def _depth(steps: int, given: _Given) -> int:
    """Steps of a part of the sums, whole blocks: parts of about the same size."""
    if steps <= MOST:
        return steps
    block = max(1, steps // given.blocks)
    parts = -(-steps // DEPTH)
    depth = -(-steps // parts)
    return -(-depth // block) * block


def _item(rows: int, pairs: int) -> tuple[int, int]:
    """Rows and pairs of panels of an item: large ones widen once, four keep threads busy."""
    parts = max(1, -(-rows // HEIGHT))
    height = max(1, -(-rows // (parts * BLOCK))) * BLOCK
    most = SUMS // (height * WIDTH)
    items = -(-pairs // most)
    items = -(-items // 4) * 4
    return height, max(1, -(-pairs // items))


@lowers(BlockExperts)
def lower_block_experts(
    op: BlockExperts, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """As for one matrix, but rows of the result look up where theirs begins."""
    given = _given(op, types, target)
    if isinstance(given, Support):
        return given
    if op.activations == "bfloat16":
        return _routed_in_pairs(op, types, given, target)
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
            _sharing(x, experts),
        ),
        items=panels.shape[1] * m,
        serial=estimate(flops) < _SERIAL,
        flops=flops,
        nbytes=m * product(panels.shape[1:]) + m * op.rows * x.dtype.itemsize,
    )
    return Lowered((rows, launch), workspaces=(source * given.row_bytes(records),))


def _routed_in_pairs(
    op: BlockExperts, types: tuple[TensorType, ...], given: _Given, target: Target
) -> Lowered:
    """Words of rows, rows in the order of their experts, then the products."""
    x, panels, experts = types
    m, source = product(experts.shape), product(x.shape[:-1])
    steps, count = given.k // TERMS, panels.shape[1]
    pairs = -(-count // 2)
    parts = -(-estimate(pairs) // (SUMS // (ROUTED * WIDTH)))
    width = -(-estimate(pairs) // parts)
    order, ends = Ref("workspace", 1), Ref("workspace", 2)
    routes = Launch(
        routes_kernel(experts.dtype),
        (Ref("input", 2), order, ends, m, panels.shape[0]),
        items=1,
        serial=True,
        nbytes=m * 16,
    )
    flops = 2 * m * op.rows * given.k
    matrices = target.matrices and target.dot_bfloat16
    spec = PairSpec(LAYOUTS[op.format], x.dtype, matrices)
    launch = Launch(
        routed_kernel(spec, op.format, target.features),
        (
            *(Ref("workspace", 0), Ref("input", 1), Ref("output", 0), order, ends),
            *(m, op.rows, given.blocks, count, ROUTED, width, _depth(steps, given)),
            _sharing(x, experts),
        ),
        items=panels.shape[0] * -(-pairs // width),
        serial=estimate(flops) < _SERIAL,
        flops=flops,
        nbytes=product(panels.shape) + m * (given.k + op.rows) * x.dtype.itemsize,
        unit="bfloat16",
    )
    sizes = source * steps * WORDS * 4, m * 4, panels.shape[0] * 4
    return Lowered((given.words(source, grouped=False), routes, launch), workspaces=sizes)


def _sharing(x: TensorType, experts: TensorType) -> Dim:
    """How many neighboring rows of the result share a row of x."""
    return 1 if is_identical(x.shape[1], experts.shape[1]) else experts.shape[1]


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
            serial=estimate(m * self.k) < _SERIAL // 4,
            nbytes=m * self.k * (self.dtype.itemsize + 1),
        )

    def words(self, m: Dim, *, grouped: bool) -> Launch:
        """The launch that makes m rows words of bfloat16."""
        return Launch(
            words_kernel(self.dtype, grouped=grouped),
            (Ref("input", 0), Ref("workspace", 0), self.k // TERMS),
            items=m,
            serial=estimate(m * self.k) < _SERIAL // 4,
            nbytes=m * self.k * (self.dtype.itemsize + 2),
        )


def _given(
    op: BlockMatmul | BlockExperts, types: tuple[TensorType, ...], target: Target
) -> _Given | Support:
    """What the launches are made from, or why there are none."""
    x = types[0]
    k = x.shape[-1]
    if target.fine:
        return no("op", "products with quantized blocks are written for processors")
    if not isinstance(k, int):
        return no("dynamic-shape", "the rows of a weight have a known number of elements")
    lanes = min(target.lanes(dt.float32), ROWS)
    return _Given(k, k // LAYOUTS[op.format].elements, x.dtype, lanes)


def _tile(rows: int, target: Target) -> int:
    """Rows that share what is read of a panel: their sums stay in registers."""
    most = 8 if target.registers >= 32 else 4
    tile = 1
    while tile < min(rows, most):
        tile *= 2
    return tile
