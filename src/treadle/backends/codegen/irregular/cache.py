"""New positions written into a cache where it lies: the bytes of the new tokens, and no others."""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.irregular.copying import NS_PER_BYTE, copy
from treadle.backends.codegen.irregular.rows import RowBuilder, bits_of, over_rows
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.cache import MOST_POSITIONS, CacheUpdate, pages_of


@lowers(CacheUpdate)
def lower_cache_update(
    op: CacheUpdate, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """The cache copied, unless it is updated in place, and then the new positions."""
    kept, x, *places = types
    out = Ref("output", 0)
    indices = tuple(t.dtype for t in places)
    kernel = _kernel(bits_of(kept.dtype), indices, op.ring)
    batch, heads, time, features = x.shape
    nbytes = product(x.shape) * kept.dtype.itemsize
    each = estimate(nbytes) / max(estimate(heads), 1) * NS_PER_BYTE + 8
    given = _Cache(
        *(out, Ref("input", 1), Ref("input", 2), Ref("input", 3), Ref("input", 4)),
        *(kept.shape[0], kept.shape[2], pages_of(places[2]), batch, heads, time, features),
    )
    write = over_rows(kernel, given, heads, each, 2 * nbytes)
    whole = copy(out, Ref("input", 0), product(kept.shape) * kept.dtype.itemsize)
    return Lowered((whole, write), in_place=((0, 0),))


def bounded(index: Value, most: Value | int) -> Value:
    """An index operand's element as an int64 number in [0, most]; the reference raises outside."""
    return minimum(maximum(index.cast(dt.int64), 0), most)


class _Cache(Record[P, S]):
    kept: P
    x: P
    starts: P
    ends: P
    rows: P
    sequences: S
    capacity: S
    pages: S
    batch: S
    heads: S
    time: S
    features: S


@cache
def _kernel(bits: DType, indices: tuple[DType, ...], ring: bool) -> RecordedKernel:
    """Return the kernel; a row of the launch is a head of all rows of x: writes have an order."""
    e = RowBuilder()
    places = dict(zip(("starts", "ends", "rows"), indices, strict=True))
    p = e.record(_Cache[Pointer, Value], kept=bits, x=bits, **places)
    with e.loop(e.first, e.stop) as head, e.loop(p.batch) as turn:
        row = p.batch - turn - 1  # Of two rows for one sequence the first one stays.
        most = MOST_POSITIONS if ring else p.pages * p.capacity
        start, end = bounded(p.starts[row], most), bounded(p.ends[row], most)
        count = maximum(minimum(end - start, p.time), 0)
        source = (row * p.heads + head) * p.time

        def move(page: Value, slot: Value | int, step: Value | int, count: Value) -> None:
            line = (bounded(p.rows[page], p.sequences - 1) * p.heads + head) * p.capacity
            to = p.kept + (line + slot) * p.features
            given = p.x + (source + step) * p.features
            to.copy_from(given, count * p.features)

        if ring:
            slot = start % p.capacity
            before = minimum(count, p.capacity - slot)
            move(row, slot, 0, before)
            move(row, 0, before, count - before)
        else:
            stop = start + count
            with e.when(count > 0), e.loop(start // p.capacity, (stop - 1) // p.capacity + 1) as i:
                first, last = maximum(i * p.capacity, start), minimum((i + 1) * p.capacity, stop)
                slot = first - i * p.capacity
                move(row * p.pages + i, slot, first - start, last - first)
    name = f"{'ring' if ring else 'cache'}_{bits.name}_" + "_".join(t.name for t in indices)
    return RecordedKernel(e.kernel(name), p)
