"""The first few of many: a sorted list beside a scan that most elements pass in one comparison.

The list holds words of key and number as in `sort`; a word q enters it by new[j] = min(max(list[j -
1], q), list[j]), a whole vector at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.ordering import key_of
from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, unravel, vector_loop
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.ops.sort import TopK

MANY = 256
"""Elements from which on `sort` leaves most of a line out, where only its head is wanted."""
_LONGEST = 128
"""Longest list that is kept."""
_SIGN = 1 << 31


def worth_a_list(k: Dim, extent: int) -> bool:
    """True if a list of k is quicker than what `sort` does, if the order of a line is random.

    Element i enters with probability k / i; figures measured on an AVX2 machine, in nanoseconds.
    """
    if not isinstance(k, int) or k > _LONGEST:
        return False
    entries = k * (1 + math.log(extent / k))
    otherwise = 1500 + extent * 2 + k * 20 if extent >= MANY else extent * 15
    return entries * (8 + _room(k) * 1.2) + extent * 0.4 < otherwise


def _room(k: int) -> int:
    """Words of a list: four times a power of two, so that few kernels serve all k."""
    return max(4, 1 << (k - 1).bit_length())


def lower_few(op: TopK, x: TensorType, target: Target) -> Lowered:
    """x as [outer, extent, inner], in types of at most 4 bytes; k is as `worth_a_list` says."""
    shape, axis = x.shape, op.axis % len(x.shape)
    outer, extent, inner = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    dense = is_identical(inner, 1)
    lanes = target.lanes(dt.uint32) if dense else 1
    k = int(op.k)
    room = _room(k)
    kernel = _few_kernel(x.dtype, lanes, room, op.largest)
    given = _TopLines(Ref("output", 0), Ref("output", 1), Ref("input", 0), extent, inner, k)
    cost = 30 + k * (8 + room) + estimate(extent) * (0.4 if dense else 1.5)
    return Lowered((over_rows(kernel, given, outer * inner, cost),))


@dataclass(frozen=True, slots=True)
class _List:
    """Sorted words in memory: `room` of them from `words[1]` on, after a least one at 0.

    Words are signed, as vectors of those compare faster: the sign bit of keys is inverted.
    """

    words: Pointer
    room: int
    k: Value
    enter: KernelRoutine

    def clear(self, e: Builder) -> None:
        """Fill the list with the greatest word, so that any other enters."""
        self.words[0] = -(1 << 63)
        greatest = e.constant((1 << 63) - 1, dt.int64, 4)
        for j in range(0, self.room, 4):
            self.words[1 + j] = greatest

    def insert(self, e: Builder, key: Value, number: Value) -> None:
        """A word in its place; the greatest one drops out."""
        signed = (key ^ _SIGN).cast(dt.int64)
        e.call(self.enter, self.words, (signed << 32) | number)

    def bar(self) -> Value:
        """The key that an element must be below to enter: that of word k."""
        high = self.words[self.k] >> 32
        return high.cast(dt.uint32) ^ _SIGN


def _enter_function(room: int) -> KernelRoutine:
    """`enter(words, word)`: see the head of this file."""
    e = Builder()
    words, word = e.pointer(dt.int64, "words"), e.size("word")
    new = word.splat(4)
    for j in reversed(range(0, room, 4)):
        before, own = words.load(j, 4), words.load(j + 1, 4)
        words[j + 1] = minimum(maximum(before, new), own)
    return e.function("enter")


class _TopLines(Record[P, S]):
    target: P
    order: P
    x: P
    extent: S
    inner: S
    k: S


@cache
def _few_kernel(dtype: DType, lanes: int, room: int, descending: bool) -> RecordedKernel:
    """Return the kernel; each row of the launch is a line."""
    enter = _enter_function(room)
    e = RowBuilder()
    p = e.record(_TopLines[Pointer, Value], target=dtype, order=dt.int32, x=dtype)
    best = _List(e.stack(dt.int64, room + 8), room, p.k, enter)

    def key_at(source: Pointer, j: Value, lanes: int, mask: Value | None = None) -> Value:
        # Only neighbors are loaded together.
        place = j if lanes > 1 else j * p.inner
        value = load_value(source, place, lanes, mask)
        return key_of(value, dt.uint32, descending)

    with e.loop(e.first, e.stop) as number:
        outer, column = unravel(number, (p.inner, p.inner))
        source = p.x + (outer * p.extent * p.inner + column)
        best.clear(e)
        with e.loop(p.k) as j:
            best.insert(e, key_at(source, j, 1), j)
        bar = [best.bar()]
        for j, mask in vector_loop(e, p.k, p.extent, lanes, carrying=bar):
            _enter(e, best, key_at(source, j, lanes, mask), j, mask, bar)
        to = outer * p.k * p.inner + column
        with e.loop(p.k) as i:
            word = best.words[i + 1]
            found = word & 0xFFFFFFFF
            place = to + i * p.inner
            p.order.store(place, found.cast(dt.int32))
            p.target[place] = source[found * p.inner]
    name = f"top_{room}_{dtype.name}_{lanes}" + ("_down" * descending)
    return RecordedKernel(e.kernel(name, (enter,)), p)


def _enter(
    e: Builder, best: _List, keys: Value, j: Value, mask: Value | None, bar: list[Value]
) -> None:
    """Put the lanes below the bar into the list, and renew the bar."""
    lanes = keys.lanes
    below = keys < bar[0].splat(lanes)
    if mask is not None:
        below = below & mask
    with e.when(below.reduce("or"), changing=bar):
        for lane in range(lanes):
            key = keys.extract(lane) if lanes > 1 else keys
            chosen = key < bar[0]
            if mask is not None:
                chosen = chosen & mask.extract(lane)
            number = j + lane
            with e.when(chosen, changing=bar):
                best.insert(e, key, number)
                bar[0] = best.bar()
