"""The first few of many: a sorted list beside a scan that most elements pass in one comparison.

The list holds words of key and number as in `sort`; a word q enters it by new[j] = min(max(list[j -
1], q), list[j]), a whole vector at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.ordering import key_of
from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    over_rows,
    unravel,
    vector_loop,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Kernel
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import is_identical
from treadle.base.types import TensorType
from treadle.ops.sort import TopK

MANY = 256
"""Elements from which on `sort` leaves most of a line out, where only its head is wanted."""
_LONGEST = 128
"""Longest list that is kept."""
_SIGN = 1 << 31


def worth_a_list(k: int, extent: int) -> bool:
    """True if a list of k is quicker than what `sort` does, if the order of a line is random.

    Element i enters with probability k / i; figures measured on an AVX2 machine, in nanoseconds.
    """
    if k > _LONGEST:
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
    room = _room(op.k)
    kernel = _few_kernel(x.dtype, lanes, room, op.largest)
    refs = Ref("output", 0), Ref("output", 1), Ref("input", 0)
    cost = 30 + op.k * (8 + room) + estimate(extent) * (0.4 if dense else 1.5)
    launch = over_rows(kernel, (*refs, extent, inner, op.k), outer * inner, cost)
    return Lowered((launch,))


@dataclass(frozen=True, slots=True)
class _List:
    """Sorted words in memory: `room` of them from `words[1]` on, after a least one at 0.

    Words are signed, as vectors of those compare faster: the sign bit of keys is inverted.
    """

    words: Pointer
    room: int
    k: Value
    enter: Function

    def clear(self, e: Builder) -> None:
        """Nothing but greatest words."""
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


def _enter_function(room: int) -> Function:
    """`enter(words, word)`: see the head of this file."""
    e = Builder()
    words, word = e.pointer(dt.int64, "words"), e.size("word")
    new = word.splat(4)
    for j in reversed(range(0, room, 4)):
        before, own = words.load(j, 4), words.load(j + 1, 4)
        words[j + 1] = minimum(maximum(before, new), own)
    return e.function("enter")


@cache
def _few_kernel(dtype: DType, lanes: int, room: int, descending: bool) -> Kernel:
    """Each row of the launch is a line."""
    enter = _enter_function(room)
    e = RowBuilder()
    target, order = e.pointer(dtype, "target"), e.pointer(dt.int32, "order")
    x, extent, inner, k = e.pointer(dtype, "x"), *e.sizes("extent", "inner", "k")
    best = _List(e.stack(dt.int64, room + 8), room, k, enter)

    def key_at(source: Pointer, j: Value, lanes: int, mask: Value | None = None) -> Value:
        # Only neighbors are loaded together.
        place = j if lanes > 1 else j * inner
        value = load_value(source, place, lanes, mask)
        return key_of(value, dt.uint32, descending)

    with e.loop(e.first, e.stop) as number:
        outer, column = unravel(number, (inner, inner))
        source = x + (outer * extent * inner + column)
        best.clear(e)
        with e.loop(k) as j:
            best.insert(e, key_at(source, j, 1), j)
        bar = [best.bar()]
        for j, mask in vector_loop(e, k, extent, lanes, carrying=bar):
            _enter(e, best, key_at(source, j, lanes, mask), j, mask, bar)
        to = outer * k * inner + column
        with e.loop(k) as i:
            word = best.words[i + 1]
            found = word & 0xFFFFFFFF
            place = to + i * inner
            order.store(place, found.cast(dt.int32))
            target[place] = source[found * inner]
    name = f"top_{room}_{dtype.name}_{lanes}" + ("_down" * descending)
    return e.kernel(name, (enter,))


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
