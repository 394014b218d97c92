"""Random numbers: Philox4x32-10 in lanes, and what distributions make of its words.

Word for word the streams of `ops/random.py`: a launch's groups stand for fixed blocks of the
stream, so neither lanes nor threads change a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from treadle.backends.codegen.irregular.rows import over_rows, row_kernel
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars import vector_math
from treadle.backends.codegen.scalars.code import store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.distribution import RandomNormal, RandomUniform
from treadle.ops.random import RandomBits

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW = 0xFFFFFFFF
_CHAINS = 2
"""Vectors of blocks made side by side: one alone would wait for its products."""
_GROUPS = 256
"""Groups of blocks per row of a launch."""
_SIGNIFICANT = {"float16": 11, "bfloat16": 8, "float32": 24}

Emit = Callable[[Builder, Value, Value, list[Value]], None]
"""Writes elements from a start on, below a limit, given the words of a group in order."""


@lowers(RandomBits)
def lower_random_bits(
    op: RandomBits, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """The words themselves."""
    return Lowered((draw(Ref("output", 0), "bits", dt.uint32, product(op.shape), target),))


@lowers(RandomUniform, RandomNormal)
def lower_draw(
    op: RandomUniform | RandomNormal,
    types: tuple[TensorType, ...],
    frozen: tuple[bool, ...],
    target: Target,
) -> Lowered:
    """Words made reals in registers."""
    kind = "normal" if isinstance(op, RandomNormal) else "uniform"
    return Lowered((draw(Ref("output", 0), kind, op.dtype, product(op.shape), target),))


def draw(out: Ref, kind: str, dtype: DType, count: Dim, target: Target) -> Launch:
    """The first `count` numbers of the stream whose state is input 0; kind: see `_EMITTERS`."""
    lanes = target.vector_bytes // 8
    kernel = _kernel(kind, dtype, lanes)
    words = count * (2 if dtype is dt.float64 else 1)
    per_row = _GROUPS * _CHAINS * 4 * lanes
    each = 2.5 if kind == "normal" else 0.8
    rows, cost = -(-words // per_row), min(estimate(words), per_row) * each
    return over_rows(kernel, (out, Ref("input", 0), count), rows, cost, count * dtype.itemsize)


@cache
def _kernel(kind: str, dtype: DType, lanes: int) -> Kernel:
    target, state, count = pointer(dtype, "target"), pointer(dt.uint32, "state"), size("count")
    blocks = _CHAINS * lanes
    elements = blocks * 4 // (2 if dtype is dt.float64 else 1)
    emit = partial(_EMITTERS[kind], target)

    def body(b: Builder, first: Value, stop: Value) -> None:
        words = [b.cast(b.load(state, i), dt.uint64) for i in range(4)]
        begin = b.bitwise("or", words[2], b.bitwise("shl", words[3], 32))
        keys = _round_keys(b, words[0], words[1], lanes)
        every = b.add(count, elements - 1)
        groups = b.min(b.mul(stop, _GROUPS), b.div(every, elements))

        def group(number: Value) -> None:
            start = b.add(b.cast(b.mul(number, blocks), dt.uint64), begin)
            lines = [start if i == 0 else b.add(start, i * lanes) for i in range(_CHAINS)]
            emit(b, b.mul(number, elements), count, _philox(b, lines, keys, lanes))

        b.loop(b.mul(first, _GROUPS), groups, 1, group)

    return row_kernel(f"random_{kind}_{dtype.name}", (target, state, count), body)


def _round_keys(b: Builder, low: Value, high: Value, lanes: int) -> list[tuple[Value, Value]]:
    """The two key words of every round, in every lane."""
    keys = []
    for i in range(_ROUNDS):
        pair = (b.add(k, i * w & _LOW) for k, w in zip((low, high), _WEYL, strict=True))
        one, two = (b.splat(b.bitwise("and", k, _LOW), lanes) for k in pair)
        keys.append((one, two))
    return keys


def _philox(
    b: Builder, starts: list[Value], keys: list[tuple[Value, Value]], lanes: int
) -> list[Value]:
    """Words of `lanes` blocks from each start on: uint32 vectors, in the order of the stream."""
    zero = b.constant(0, dt.uint64, lanes)
    chains = []
    for start in starts:
        number = b.add(b.splat(start, lanes), b.iota(dt.uint64, lanes))
        chains.append((b.bitwise("and", number, _LOW), b.bitwise("shr", number, 32), zero, zero))
    for key in keys:
        chains = [_round(b, words, key) for words in chains]
    return [vector for words in chains for vector in _in_order(b, words, lanes)]


Words = tuple[Value, Value, Value, Value]


def _round(b: Builder, words: Words, key: tuple[Value, Value]) -> Words:
    """One round: 32-bit words in 64-bit lanes, whose products need no widening."""
    first, second = b.mul(words[0], _MULTIPLIERS[0]), b.mul(words[2], _MULTIPLIERS[1])
    even = b.bitwise("xor", b.bitwise("xor", b.bitwise("shr", second, 32), words[1]), key[0])
    odd = b.bitwise("xor", b.bitwise("xor", b.bitwise("shr", first, 32), words[3]), key[1])
    return even, b.bitwise("and", second, _LOW), odd, b.bitwise("and", first, _LOW)


def _in_order(b: Builder, words: Words, lanes: int) -> list[Value]:
    """Word after word, block after block: two vectors of uint32."""
    pairs = [b.bitwise("or", words[i], b.bitwise("shl", words[i + 1], 32)) for i in (0, 2)]
    order = [place for lane in range(lanes) for place in (lane, lane + lanes)]
    halves = order[:lanes], order[lanes:]
    return [b.bitcast(b.shuffle(pairs[0], pairs[1], half), dt.uint32) for half in halves]


# -- what words become -------------------------------------------------------------------------


def _store(b: Builder, target: Value, start: Value, limit: Value, vectors: list[Value]) -> None:
    """Consecutive vectors from `start` on, below the limit."""
    total = sum(v.lanes for v in vectors)

    def write(masked: bool) -> None:
        at = start
        for vector in vectors:
            mask = b.first_lanes(b.sub(limit, at), vector.lanes) if masked else None
            store_value(target, at, vector, mask)
            at = b.add(at, vector.lanes)

    fits = b.compare("le", b.add(start, total), limit)
    b.branch(fits, lambda: write(False), lambda: write(True))


def _emit_bits(target: Value, b: Builder, start: Value, limit: Value, words: list[Value]) -> None:
    _store(b, target, start, limit, words)


def _emit_uniform(
    target: Value, b: Builder, start: Value, limit: Value, words: list[Value]
) -> None:
    if target.dtype is dt.float64:
        reals = [_unit_pair(b, w) for w in words]
    else:
        reals = [_unit(b, w, _SIGNIFICANT[target.dtype.name]) for w in words]
    _store(b, target, start, limit, reals)


def _unit(b: Builder, words: Value, digits: int) -> Value:
    """float32 in [0, 1) of the top bits: exact."""
    top = b.bitcast(b.bitwise("shr", words, 32 - digits), dt.int32)
    return b.mul(b.cast(top, dt.float32), 2.0**-digits)


def _unit_pair(b: Builder, words: Value) -> Value:
    """float64 in [0, 1) of 26 bits of every even word and 27 of the odd one after it: exact."""
    whole = b.bitcast(words, dt.int64)
    low = b.bitwise("shr", b.bitwise("and", whole, _LOW), 6)
    high = b.bitwise("and", b.bitwise("shr", whole, 37), _LOW >> 5)
    # They fit int32, whose conversion is an instruction everywhere.
    parts = (b.cast(b.cast(part, dt.int32), dt.float64) for part in (low, high))
    return b.add(*(b.mul(x, worth) for x, worth in zip(parts, (2.0**-53, 2.0**-27), strict=True)))


def _emit_normal(target: Value, b: Builder, start: Value, limit: Value, words: list[Value]) -> None:
    """Box and Muller's method on neighbors."""
    wide = target.dtype is dt.float64
    made = []
    for i in range(0, len(words), 2):
        if wide:
            units = [_unit_pair(b, w) for w in words[i : i + 2]]
            one, v = _even_and_odd(b, *units)
            u = b.sub(b.constant(1.0, dt.float64, one.lanes), one)
        else:
            one, two = _even_and_odd(b, *words[i : i + 2])
            u = b.add(b.mul(b.cast(one, dt.float32), 2.0**-32), 2.0**-33)
            v = _unit(b, two, 24)
        made += _turned(b, u, v)
    _store(b, target, start, limit, made)


def _even_and_odd(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """Elements at even and at odd places of two vectors."""
    every = range(2 * x.lanes)
    return b.shuffle(x, y, every[0::2]), b.shuffle(x, y, every[1::2])


def _turned(b: Builder, u: Value, v: Value) -> list[Value]:
    """sqrt(-2 log u) times cos and sin of 2 pi v, in turns: two vectors."""
    radius = b.sqrt(b.mul(vector_math.log(u), -2.0))
    angle = b.mul(v, 2 * math.pi)
    x = b.mul(radius, vector_math.cos(angle))
    y = b.mul(radius, vector_math.sin(angle))
    order = [place for lane in range(u.lanes) for place in (lane, lane + u.lanes)]
    return [b.shuffle(x, y, order[: u.lanes]), b.shuffle(x, y, order[u.lanes :])]


_EMITTERS: dict[str, Callable[[Value, Builder, Value, Value, list[Value]], None]] = {
    "bits": _emit_bits,
    "uniform": _emit_uniform,
    "normal": _emit_normal,
}
