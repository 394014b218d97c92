"""Random numbers: Philox4x32-10 in lanes, and what distributions make of its words.

Word for word the streams of `ops/random.py`: a launch's groups stand for fixed blocks of the
stream, so neither lanes nor threads change a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, shuffle, sqrt
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
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
    """The first `count` numbers of the stream whose state is input 0; kind: see `_REALS`."""
    lanes = target.vector_bytes // 8
    kernel = _kernel(kind, dtype, lanes)
    words = count * (2 if dtype is dt.float64 else 1)
    per_row = _GROUPS * _CHAINS * 4 * lanes
    each = 2.5 if kind == "normal" else 0.8
    rows, cost = -(-words // per_row), min(estimate(words), per_row) * each
    return over_rows(
        kernel, _Numbers(out, Ref("input", 0), count), rows, cost, count * dtype.itemsize
    )


class _Numbers(Record[P, S]):
    target: P
    state: P
    count: S


@cache
def _kernel(kind: str, dtype: DType, lanes: int) -> RecordedKernel:
    """Return the kernel; each row of the launch is `_GROUPS` groups of blocks."""
    e = RowBuilder()
    p = e.record(_Numbers[Pointer, Value], target=dtype, state=dt.uint32)
    blocks = _CHAINS * lanes
    elements = blocks * 4 // (2 if dtype is dt.float64 else 1)
    words = [p.state[i].cast(dt.uint64) for i in range(4)]
    begin = words[2] | (words[3] << 32)
    keys = _round_keys(words[0], words[1], lanes)
    every = p.count + (elements - 1)
    groups = minimum(e.stop * _GROUPS, every // elements)
    with e.loop(e.first * _GROUPS, groups) as number:
        start = (number * blocks).cast(dt.uint64) + begin
        lines = [start if i == 0 else start + i * lanes for i in range(_CHAINS)]
        first = number * elements
        found = _REALS[kind](dtype, _philox(e, lines, keys, lanes))
        _store(e, p.target, first, p.count, found)
    return RecordedKernel(e.kernel(f"random_{kind}_{dtype.name}"), p)


def _round_keys(low: Value, high: Value, lanes: int) -> list[tuple[Value, Value]]:
    """The two key words of every round, in every lane."""
    keys = []
    for i in range(_ROUNDS):
        pair = (k + (i * w & _LOW) for k, w in zip((low, high), _WEYL, strict=True))
        one, two = ((k & _LOW).splat(lanes) for k in pair)
        keys.append((one, two))
    return keys


def _philox(
    e: Builder, starts: list[Value], keys: list[tuple[Value, Value]], lanes: int
) -> list[Value]:
    """Words of `lanes` blocks from each start on: uint32 vectors, in the order of the stream."""
    zero = e.constant(0, dt.uint64, lanes)
    chains = []
    for start in starts:
        number = start.splat(lanes) + e.iota(dt.uint64, lanes)
        chains.append((number & _LOW, number >> 32, zero, zero))
    for key in keys:
        chains = [_round(words, key) for words in chains]
    return [vector for words in chains for vector in _in_order(words, lanes)]


Words = tuple[Value, Value, Value, Value]


def _round(words: Words, key: tuple[Value, Value]) -> Words:
    """One round: 32-bit words in 64-bit lanes, whose products need no widening."""
    first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
    even = (second >> 32) ^ words[1] ^ key[0]
    odd = (first >> 32) ^ words[3] ^ key[1]
    return even, second & _LOW, odd, first & _LOW


def _in_order(words: Words, lanes: int) -> list[Value]:
    """Word after word, block after block: two vectors of uint32."""
    pairs = [words[i] | (words[i + 1] << 32) for i in (0, 2)]
    order = [place for lane in range(lanes) for place in (lane, lane + lanes)]
    halves = order[:lanes], order[lanes:]
    return [shuffle(pairs[0], pairs[1], half).bitcast(dt.uint32) for half in halves]


def _store(e: Builder, target: Pointer, start: Value, limit: Value, vectors: list[Value]) -> None:
    """Consecutive vectors from `start` on, below the limit."""
    total = sum(v.lanes for v in vectors)

    def write(masked: bool) -> None:
        at = start
        for vector in vectors:
            mask = e.first_lanes(limit - at, vector.lanes) if masked else None
            store_value(target, at, vector, mask)
            at = at + vector.lanes

    with e.when(start + total <= limit):
        write(False)
    with e.otherwise():
        write(True)


# -- what words become -------------------------------------------------------------------------


def _uniform(dtype: DType, words: list[Value]) -> list[Value]:
    if dtype is dt.float64:
        return [_unit_pair(w) for w in words]
    return [_unit(w, _SIGNIFICANT[dtype.name]) for w in words]


def _unit(words: Value, digits: int) -> Value:
    """float32 in [0, 1) of the top bits: exact."""
    top = (words >> (32 - digits)).bitcast(dt.int32)
    return top.cast(dt.float32) * 2.0**-digits


def _unit_pair(words: Value) -> Value:
    """float64 in [0, 1) of 26 bits of every even word and 27 of the odd one after it: exact."""
    whole = words.bitcast(dt.int64)
    low = (whole & _LOW) >> 6
    high = (whole >> 37) & (_LOW >> 5)
    # They fit int32, whose conversion is an instruction everywhere.
    return (
        low.cast(dt.int32).cast(dt.float64) * 2.0**-53
        + high.cast(dt.int32).cast(dt.float64) * 2.0**-27
    )


def _normal(dtype: DType, words: list[Value]) -> list[Value]:
    """Box and Muller's method on neighbors."""
    made = []
    for i in range(0, len(words), 2):
        if dtype is dt.float64:
            one, v = _even_and_odd(*(_unit_pair(w) for w in words[i : i + 2]))
            u = 1.0 - one
        else:
            one, two = _even_and_odd(*words[i : i + 2])
            u = one.cast(dt.float32) * 2.0**-32 + 2.0**-33
            v = _unit(two, 24)
        made += _turned(u, v)
    return made


def _even_and_odd(x: Value, y: Value) -> tuple[Value, Value]:
    """Elements at even and at odd places of two vectors."""
    every = range(2 * x.lanes)
    return shuffle(x, y, every[0::2]), shuffle(x, y, every[1::2])


def _turned(u: Value, v: Value) -> list[Value]:
    """sqrt(-2 log u) times cos and sin of 2 pi v, in turns: two vectors."""
    radius = sqrt(vector_math.log(u) * -2.0)
    angle = v * (2 * math.pi)
    x = radius * vector_math.cos(angle)
    y = radius * vector_math.sin(angle)
    order = [place for lane in range(u.lanes) for place in (lane, lane + u.lanes)]
    return [shuffle(x, y, order[: u.lanes]), shuffle(x, y, order[u.lanes :])]


_REALS: dict[str, Callable[[DType, list[Value]], list[Value]]] = {
    "bits": lambda dtype, words: words,
    "uniform": _uniform,
    "normal": _normal,
}
