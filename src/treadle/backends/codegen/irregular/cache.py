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
from treadle.base.symbol import Dim
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
    kernel = _kernel(bits_of(kept.dtype), indices, op.ring, op.page)
    sizes: tuple[Dim, Dim, Dim] = (kept.shape[0], kept.shape[2], 1)
    if op.page is not None:
        sizes = (kept.shape[2] // op.page, kept.shape[2], places[2].shape[1])
    batch, heads, time, features = x.shape
    nbytes = product(x.shape) * kept.dtype.itemsize
    each = estimate(nbytes) / max(estimate(heads), 1) * NS_PER_BYTE + 8
    given = _Cache(
        *(out, Ref("input", 1), Ref("input", 2), Ref("input", 3), Ref("input", 4)),
        *(*sizes, batch, heads, time, features),
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
def _kernel(
    bits: DType, indices: tuple[DType, ...], ring: bool, page: int | None
) -> RecordedKernel:
    """Return the kernel; a row of the launch is a head of all rows of x: writes have an order."""
    e = RowBuilder()
    places = dict(zip(("starts", "ends", "rows"), indices, strict=True))
    p = e.record(_Cache[Pointer, Value], kept=bits, x=bits, **places)
    with e.loop(e.first, e.stop) as head, e.loop(p.batch) as turn:
        row = p.batch - turn - 1  # Of two rows for one sequence the first one stays.
        room = p.capacity if page is None else p.pages * page
        most = MOST_POSITIONS if ring else room
        start, end = bounded(p.starts[row], most), bounded(p.ends[row], most)
        count = maximum(minimum(end - start, p.time), 0)
        source = (row * p.heads + head) * p.time

        def which(place: Value) -> Value:
            return bounded(p.rows[place], p.sequences - 1)

        def move(slot: Value | int, step: Value | int, count: Value) -> None:
            to = p.kept + slot * p.features
            given = p.x + (source + step) * p.features
            to.copy_from(given, count * p.features)

        if page is not None:
            stop = start + count
            with e.when(count > 0), e.loop(start // page, (stop - 1) // page + 1) as i:
                first, last = maximum(i * page, start), minimum((i + 1) * page, stop)
                at = head * p.capacity + (which(row * p.pages + i) - i) * page
                move(at + first, first - start, last - first)
        else:
            line = (which(row) * p.heads + head) * p.capacity
            slot = start % p.capacity if ring else start
            before = minimum(count, p.capacity - slot) if ring else count
            move(line + slot, 0, before)
            if ring:
                move(line, before, count - before)
    name = "ring" if ring else "cache" if page is None else f"pages_of_{page}"
    name = f"{name}_{bits.name}_" + "_".join(t.name for t in indices)
    return RecordedKernel(e.kernel(name), p)
