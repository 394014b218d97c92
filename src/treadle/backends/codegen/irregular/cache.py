"""New positions written into a cache where it lies: the bytes of the new tokens, and no others."""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.irregular.copying import NS_PER_BYTE, copy
from treadle.backends.codegen.irregular.rows import RowBuilder, bits_of, over_rows
from treadle.backends.codegen.kernel.ir import Kernel
from treadle.backends.codegen.kernel.language import Value, maximum, minimum
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.cache import MOST_POSITIONS, CacheUpdate


@lowers(CacheUpdate)
def lower_cache_update(
    op: CacheUpdate, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """The cache copied, unless it is updated in place, and then the new positions."""
    kept, x, *places = types
    out = Ref("output", 0)
    indices = tuple(t.dtype for t in places)
    kernel = _kernel(bits_of(kept.dtype), indices, op.ring)
    sizes = kept.shape[0], kept.shape[2], x.shape[0], x.shape[1], x.shape[2], x.shape[3]
    nbytes = product(x.shape) * kept.dtype.itemsize
    each = estimate(nbytes) / max(estimate(x.shape[1]), 1) * NS_PER_BYTE + 8
    arguments = (out, *(Ref("input", i) for i in range(1, 5)), *sizes)
    write = over_rows(kernel, arguments, x.shape[1], each, 2 * nbytes)
    whole = copy(out, Ref("input", 0), product(kept.shape) * kept.dtype.itemsize)
    return Lowered((whole, write), in_place=((0, 0),))


def bounded(index: Value, most: Value | int) -> Value:
    """An index operand's element as an int64 number in [0, most]; the reference raises outside."""
    return minimum(maximum(index.cast(dt.int64), 0), most)


@cache
def _kernel(bits: DType, indices: tuple[DType, ...], ring: bool) -> Kernel:
    """Each row of the launch is a head, for all rows of x, so that the order of writes is fixed."""
    e = RowBuilder()
    kept, x = e.pointer(bits, "kept"), e.pointer(bits, "x")
    starts, ends, rows = map(e.pointer, indices, ("starts", "ends", "rows"))
    sequences, capacity, batch = e.sizes("sequences", "capacity", "batch")
    heads, time, features = e.sizes("heads", "time", "features")
    with e.loop(e.first, e.stop) as head, e.loop(batch) as turn:
        row = batch - turn - 1  # Of two rows for one sequence the first one stays.
        most = MOST_POSITIONS if ring else capacity
        start, end = bounded(starts[row], most), bounded(ends[row], most)
        sequence = bounded(rows[row], sequences - 1)
        count = maximum(minimum(end - start, time), 0)
        line = (sequence * heads + head) * capacity
        source = (row * heads + head) * time

        def move(slot: Value | int, step: Value | int, count: Value) -> None:
            to = kept + (line + slot) * features
            given = x + (source + step) * features
            to.copy_from(given, count * features)

        if ring:
            slot = start % capacity
            before = minimum(count, capacity - slot)
            move(slot, 0, before)
            move(0, before, count - before)
        else:
            move(start, 0, count)
    name = f"{'ring' if ring else 'cache'}_{bits.name}_" + "_".join(t.name for t in indices)
    return e.kernel(name)
