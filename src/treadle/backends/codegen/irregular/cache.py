"""New positions written into a cache where it lies: the bytes of the new tokens, and no others."""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.irregular.copying import NS_PER_BYTE, copy
from treadle.backends.codegen.irregular.rows import bits_of, over_rows, row_kernel
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
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


def bounded(b: Builder, index: Value, most: Value | int) -> Value:
    """An index operand's element as an int64 number in [0, most]; the reference raises outside."""
    return b.min(b.max(b.cast(index, dt.int64), 0), most)


@cache
def _kernel(bits: DType, indices: tuple[DType, ...], ring: bool) -> Kernel:
    """Each row of the launch is a head, for all rows of x, so that the order of writes is fixed."""
    kept, x = pointer(bits, "kept"), pointer(bits, "x")
    places = [pointer(t, n) for t, n in zip(indices, ("starts", "ends", "rows"), strict=True)]
    names = ("sequences", "capacity", "batch", "heads", "time", "features")
    sequences, capacity, batch, heads, time, features = sizes = [size(n) for n in names]

    def body(b: Builder, first: Value, stop: Value) -> None:
        def write(head: Value, turn: Value) -> None:
            row = b.sub(b.sub(batch, turn), 1)  # Of two rows for one sequence the first one stays.
            most = MOST_POSITIONS if ring else capacity
            start, end = (bounded(b, b.load(p, row), most) for p in places[:2])
            sequence = bounded(b, b.load(places[2], row), b.sub(sequences, 1))
            count = b.max(b.min(b.sub(end, start), time), 0)
            line = b.mul(b.add(b.mul(sequence, heads), head), capacity)
            source = b.mul(b.add(b.mul(row, heads), head), time)

            def move(slot: Value | int, step: Value | int, count: Value) -> None:
                to = b.offset(kept, b.mul(b.add(line, slot), features))
                given = b.offset(x, b.mul(b.add(source, step), features))
                b.copy(to, given, b.mul(count, features))

            if not ring:
                move(start, 0, count)
                return
            slot = b.rem(start, capacity)
            before = b.min(count, b.sub(capacity, slot))
            move(slot, 0, before)
            move(0, before, b.sub(count, before))

        b.loop(first, stop, 1, lambda h: b.loop(0, batch, 1, lambda turn: write(h, turn)) and None)

    name = f"{'ring' if ring else 'cache'}_{bits.name}_" + "_".join(t.name for t in indices)
    return row_kernel(name, (kept, x, *places, *sizes), body)
