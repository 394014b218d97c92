"""Products of small integers, whose terms go by twos and fours into words."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.backends.codegen.channels_last import channels_last, to_first, to_last
from tests.backends.codegen.contractions import check, fused, interpreted, lowered, run, values
from tests.backends.codegen.execution import assembly
from tests.backends.codegen.irregular import HOST, one_by_one, whole

from treadle.backends.codegen.contraction.integers.lower import runs_of
from treadle.backends.codegen.contraction.integers.packed import terms_per_word
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, NEON_DOT, TARGETS
from treadle.base import dtype as dt
from treadle.ops.composite import expand
from treadle.ops.conv import IntConv
from treadle.ops.elementwise import Cast
from treadle.ops.fused import Fused
from treadle.ops.matmul import IntMatmul
from treadle.ops.movement import Transpose
from treadle.ops.quant import Dequantize, Quantize
from treadle.ops.select import Clip

VNNI = replace(AVX512, name="vnni", features=("+avx512vnni",), dot_int8=True)
RANGES = {
    "any": ((-(1 << 15), 1 << 15), (-128, 128)),
    "low": ((0, 128), (-128, 128)),
    "tame": ((-(1 << 15), 1 << 15), (-64, 65)),
    "ends": ((250, 256), (-128, -120)),
    "negative": ((-128, -100), (100, 128)),
}
"""Ranges of x and of the weight; some make one way of multiplying bytes exact, some another."""


def drawn(rng, shape, dtype, limits):
    info = np.iinfo(dtype.numpy)
    low, high = max(info.min, limits[0]), min(info.max + 1, limits[1])
    return rng.integers(low, max(high, low + 1), shape).astype(dtype.numpy)


def pair(rng, kind, where, x, weight):
    given, factors = RANGES[where]
    return drawn(rng, x, kind, given), drawn(rng, weight, dt.int8, factors)


KINDS = (dt.int8, dt.uint8, dt.int16)


@pytest.mark.parametrize("where", RANGES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_products_are_exact_whatever_the_values(kind, where):
    rng = np.random.default_rng(0)
    for (m, k, n), frozen in zip(
        ((7, 33, 19), (50, 64, 40), (9, 1, 5), (100, 2100, 16), (8, 3000, 33)),
        itertools.cycle(((), (False, True), (True, False))),
        strict=False,
    ):
        check(IntMatmul(), pair(rng, kind, where, (m, k), (k, n)), k, frozen)


@pytest.mark.parametrize("other", (dt.uint8, dt.int16), ids=str)
def test_both_operands_may_be_other_than_int8(other):
    rng = np.random.default_rng(1)
    for kind in KINDS:
        arrays = values(rng, (3, 20, 37), kind), values(rng, (3, 37, 9), other)
        check(IntMatmul(), arrays, 37)
        check(IntMatmul(True), (arrays[0].swapaxes(1, 2).copy(), arrays[1]), 37)


def test_sums_wrap():
    x, y = np.full((9, 8), -(1 << 15), np.int16), np.full((8, 17), -(1 << 15), np.int16)
    (found,) = check(IntMatmul(), (x, y), 8)
    assert (found == 0).all()  # 2 ** 33


CASES = [
    # images, channels, spatial, outputs, window, stride, padding, dilation, groups
    (1, 3, (15, 14), 20, (7, 7), 2, 3, 1, 1),
    (2, 16, (9, 8), 33, (3, 3), 1, 1, 1, 1),
    (1, 24, (7, 7), 16, (3, 3), 2, 1, 1, 1),
    (2, 8, (6, 6), 12, (3, 3), 1, 1, 2, 2),
    (1, 5, (6, 6), 3, (1, 1), 1, 0, 1, 1),
    (1, 64, (5, 5), 40, (1, 1), 2, 0, 1, 1),
    (1, 520, (3, 3), 17, (3, 3), 1, 1, 1, 1),
    (3, 6, (8,), 6, (3,), 1, 2, 1, 6),
    (2, 9, (7, 6), 18, (3, 3), 2, 1, 1, 9),
    (1, 4, (4, 5, 6), 8, (2, 3, 2), 1, 1, 1, 1),
]


@pytest.mark.parametrize("where", ("any", "low", "tame"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_are_exact_in_every_layout(case, where):
    images, channels, spatial, outputs, window, stride, padding, dilation, groups = case
    each = len(spatial)
    pads = ((padding, padding),) * each
    op = IntConv((stride,) * each, pads, (dilation,) * each, groups)
    rng = np.random.default_rng(2)
    layouts = itertools.cycle(itertools.product((True, False), repeat=2))
    for kind, (given, made) in zip(KINDS, layouts, strict=False):
        sizes = (images, channels, *spatial), (outputs, channels // groups, *window)
        arrays = pair(rng, kind, where, *sizes)
        body, operands = channels_last(op, *arrays, given=given, made=made)
        check(body, operands, 1, (False, True))
    check(op, arrays, 1)


@pytest.mark.parametrize("target", (AVX2, VNNI, NEON, NEON_DOT), ids=lambda t: t.name)
def test_claims_and_accesses_hold_in_the_interpreter(target):
    """It stops where sums of two products do not fit in 16 bits, and at every access outside."""
    rng = np.random.default_rng(3)
    ranges = ("any", "low", "tame", "ends") if target is AVX2 else ("any",)
    for kind, where in itertools.product(KINDS, ranges):
        x, weight = pair(rng, kind, where, (1, 5, 2, 3), (9, 5, 2, 2))
        body, operands = channels_last(IntConv((1, 1), ((1, 0), (0, 1)), (1, 1), 1), x, weight)
        check(body, operands, 1, (False, True), interpreted, target)
    x, weight = pair(rng, dt.int8, "any", (6, 35), (35, 17))
    check(IntMatmul(), (x, weight), 1, (False, True), interpreted, target)


def test_bytes_where_the_processor_multiplies_them():
    for target, terms in (
        (AVX2, 4),
        (AVX512, 4),
        (VNNI, 4),
        (GENERIC, 2),
        (NEON, 2),
        (NEON_DOT, 4),
    ):
        assert terms_per_word(target, dt.uint8, dt.int8) == terms, target.name
        assert terms_per_word(target, dt.int16, dt.int8) == 2
        assert terms_per_word(target, dt.uint8, dt.uint8) == 2


@pytest.mark.parametrize("target", (*TARGETS.values(), VNNI), ids=lambda t: t.name)
def test_kernels_are_code_on_every_target(target):
    wanted = {"avx2": "vpmaddubsw", "avx512": "vpmaddubsw", "vnni": "vpdpbusd"}
    wanted |= {"neon": "mla", "neon-sdot": "mla", "neon-dot": "sudot"}
    rng = np.random.default_rng(4)
    x, weight = values(rng, (1, 16, 6, 6), dt.int8), values(rng, (32, 16, 3, 3), dt.int8)
    op = IntConv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    body, operands = channels_last(op, x, weight)
    how = lowered(body, operands, (False, True), target)
    text = ""
    for launch in (*how.prelude, *how.launches):
        text += assembly([launch.kernel], target)
    assert wanted.get(target.name, "") in text


def test_runs_cover_every_term_once():
    """Long runs are cut; what the last piece repeats has no factor."""
    for length, terms in itertools.product((1, 6, 31, 1023, 2049, 5000), (2, 4)):
        starts, order = np.array([7, 90000]), np.arange(2 * length).reshape(2, length)
        runs = runs_of(starts, order, terms)
        factors = runs.order.reshape(len(runs.starts), -1)
        assert factors.shape[1] == runs.words * terms
        seen = [
            (start + at, factor)
            for start, row in zip(runs.starts, factors, strict=True)
            for at, factor in enumerate(row)
            if factor >= 0
        ]
        where = np.add.outer(starts, np.arange(length)).ravel()
        assert sorted(seen) == list(zip(where, range(2 * length), strict=True))


# -- epilogues ---------------------------------------------------------------------------------


def requantized(dtype):
    """What follows a quantized convolution, channels-last: see `functional.quantized`."""

    def after(sums, bias, factor, *beside):
        real = Cast(dt.float32)(sums + bias) * factor
        if beside:
            one, three = real.constant(0.37), real.constant(3, dt.int32)
            real = real + expand(Dequantize(), (beside[0], one, three))[0]
        real = Clip(0.0, None)(real)
        low, high = (0, 255) if dtype is dt.uint8 else (-128, 127)
        step, zero = real.constant(0.05), real.constant(2, dt.int32)
        return expand(Quantize(dtype, low, high), (real, step, zero))[0]

    return after


def quantized_convolution(rng, window, residual, dtype):
    x = values(rng, (2, 20, 7, 5), dt.int8)
    weight = values(rng, (18, 20, window, window), dt.int8)
    pad = (window // 2, window // 2)
    op = IntConv((1, 1), (pad, pad), (1, 1), 1)
    bias = rng.integers(-9999, 9999, (1, 1, 1, 18)).astype(np.int32)
    factor = rng.uniform(1e-4, 1e-3, (1, 1, 1, 18)).astype(np.float32)
    others = [bias, factor, *([values(rng, (2, 7, 5, 18), dtype)] if residual else [])]
    after = requantized(dtype)

    def body(x, y, *more):
        made = op(Transpose(to_first(4))(x), y)
        return after(Transpose(to_last(4))(made), *more)

    operands = [np.ascontiguousarray(x.transpose(0, 2, 3, 1)), weight, *others]
    return fused(body, operands), operands


@pytest.mark.parametrize("residual", (False, True), ids=("alone", "residual"))
@pytest.mark.parametrize("window", (1, 3))
@pytest.mark.parametrize("dtype", (dt.int8, dt.uint8), ids=str)
def test_sums_become_integers_in_the_kernel(window, residual, dtype):
    """The same bits as op after op: divisions stay divisions, nothing is contracted."""
    body, operands = quantized_convolution(np.random.default_rng(5), window, residual, dtype)
    (found,) = check(body, operands, 1, (False, True))
    assert found.dtype == dtype.numpy and len(np.unique(found)) > 4
    how = lowered(body, operands, (False, True))
    products = [x for x in how.launches if x.kernel.name.startswith("contract")]
    assert len(products) == 1 and len(how.launches) == (1 if window == 1 else 2)
    assert all(4 * size > n for n in how.workspaces for size in [operands[0].nbytes])


def test_any_split_gives_the_same_bytes():
    rng = np.random.default_rng(6)
    x, weight = values(rng, (1, 64, 20, 20), dt.uint8), values(rng, (96, 64, 3, 3), dt.int8)
    body, operands = channels_last(IntConv((1, 1), ((1, 1), (1, 1)), (1, 1), 1), x, weight)
    assert isinstance(body, Fused)
    runs = [run(body, operands, None, split, (False, True)) for split in (whole, one_by_one)]
    assert lowered(body, operands, (False, True)).launches[-1].items > 8
    assert runs[0][0].tobytes() == runs[1][0].tobytes()


def test_weights_are_packed_once():
    rng = np.random.default_rng(7)
    x, weight = values(rng, (1, 16, 6, 6), dt.int8), values(rng, (32, 16, 3, 3), dt.int8)
    body, operands = channels_last(IntConv((1, 1), ((1, 1), (1, 1)), (1, 1), 1), x, weight)
    frozen, fresh = (lowered(body, operands, (False, known), HOST) for known in (True, False))
    assert len(frozen.prelude) == 1 and not fresh.prelude
    assert len(fresh.launches) == len(frozen.launches) + 1
