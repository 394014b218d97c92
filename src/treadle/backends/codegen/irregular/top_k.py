"""The first few of many: a sorted list beside a scan that most elements pass in one comparison.

The list holds words of key and number as in `sort`; a word q enters it by new[j] = min(max(list[j -
1], q), list[j]), a whole vector at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.ordering import key_of
from treadle.backends.codegen.irregular.rows import over_rows, row_kernel, unravel, vector_loop
from treadle.backends.codegen.kernel.builder import Builder, function
from treadle.backends.codegen.kernel.ir import Function, Kernel, Value, pointer, size
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
    """Whether a list of k is quicker than what `sort` does, if the order of a line is random.

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

    words: Value
    room: int
    k: Value
    enter: Function

    def clear(self, b: Builder) -> None:
        """Nothing but greatest words."""
        b.store(self.words, 0, b.constant(-(1 << 63), dt.int64))
        greatest = b.constant((1 << 63) - 1, dt.int64, 4)
        for j in range(0, self.room, 4):
            b.store(self.words, 1 + j, greatest)

    def insert(self, b: Builder, key: Value, number: Value) -> None:
        """A word in its place; the greatest one drops out."""
        signed = b.cast(b.bitwise("xor", key, _SIGN), dt.int64)
        b.call(self.enter, self.words, b.bitwise("or", b.bitwise("shl", signed, 32), number))

    def bar(self, b: Builder) -> Value:
        """The key that an element must be below to enter: that of word k."""
        high = b.bitwise("shr", b.load(self.words, self.k), 32)
        return b.bitwise("xor", b.cast(high, dt.uint32), _SIGN)


def _enter_function(room: int) -> Function:
    """`enter(words, word)`: see the head of this file."""
    words, word = pointer(dt.int64, "words"), size("word")

    def body(b: Builder) -> None:
        new = b.splat(word, 4)
        for j in reversed(range(0, room, 4)):
            before, own = b.load(words, j, 4), b.load(words, j + 1, 4)
            b.store(words, j + 1, b.min(b.max(before, new), own))

    return function("enter", (words, word), body)


@cache
def _few_kernel(dtype: DType, lanes: int, room: int, descending: bool) -> Kernel:
    target, order = pointer(dtype, "target"), pointer(dt.int32, "order")
    x, sizes = pointer(dtype, "x"), [size(n) for n in ("extent", "inner", "k")]
    extent, inner, k = sizes
    enter = _enter_function(room)

    def body(b: Builder, first: Value, stop: Value) -> None:
        best = _List(b.stack(dt.int64, room + 8), room, k, enter)

        def key_at(source: Value, j: Value, lanes: int, mask: Value | None = None) -> Value:
            # Only neighbors are loaded together.
            place = j if lanes > 1 else b.mul(j, inner)
            value = load_value(source, place, lanes, mask)
            return key_of(b, value, dt.uint32, descending)

        def row(number: Value) -> None:
            outer, column = unravel(b, number, (inner, inner))
            source = b.offset(x, b.add(b.mul(b.mul(outer, extent), inner), column))
            best.clear(b)
            b.loop(0, k, 1, lambda j: best.insert(b, key_at(source, j, 1), j))

            def turn(j: Value, mask: Value | None, bar: Value) -> Value:
                keys = key_at(source, j, lanes, mask)
                return _enter(b, best, keys, j, mask, bar)

            vector_loop(b, k, extent, lanes, turn, (best.bar(b),))
            to = b.add(b.mul(b.mul(outer, k), inner), column)

            def write(i: Value) -> None:
                word = b.load(best.words, b.add(i, 1))
                found = b.bitwise("and", word, 0xFFFFFFFF)
                place = b.add(to, b.mul(i, inner))
                b.store(order, place, b.cast(found, dt.int32))
                b.store(target, place, b.load(source, b.mul(found, inner)))

            b.loop(0, k, 1, write)

        b.loop(first, stop, 1, row)

    name = f"top_{room}_{dtype.name}_{lanes}" + ("_down" * descending)
    return row_kernel(name, (target, order, x, *sizes), body, (enter,))


def _enter(b: Builder, best: _List, keys: Value, j: Value, mask: Value | None, bar: Value) -> Value:
    """Put the lanes below the bar into the list; the new bar."""
    lanes = keys.lanes
    below = b.compare("lt", keys, b.splat(bar, lanes))
    if mask is not None:
        below = b.bitwise("and", below, mask)

    def each() -> Value:
        now = bar
        for lane in range(lanes):
            key = b.extract(keys, lane) if lanes > 1 else keys
            chosen = b.compare("lt", key, now)
            if mask is not None:
                chosen = b.bitwise("and", chosen, b.extract(mask, lane))
            now = _one(b, best, key, b.add(j, lane), chosen, now)
        return now

    (after,) = b.branch(b.reduce("or", below), each, lambda: bar, like=(bar,))
    return after


def _one(b: Builder, best: _List, key: Value, number: Value, chosen: Value, bar: Value) -> Value:
    def enter() -> Value:
        best.insert(b, key, number)
        return best.bar(b)

    (after,) = b.branch(chosen, enter, lambda: bar, like=(bar,))
    return after
