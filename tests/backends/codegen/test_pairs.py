"""Products of bfloat16 whose terms go by twos into words, for vectors and for matrix registers."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.backends.codegen.channels_last import channels_last
from tests.backends.codegen.contractions import check, fused, interpreted, lowered, run, values
from tests.backends.codegen.execution import RUNNABLE, assembly
from tests.backends.codegen.irregular import native, runner_of
from tests.backends.codegen.spelled import Builder, kernel

from treadle.backends.codegen import lower as lowering
from treadle.backends.codegen.contraction.pairs import lower as pairs_lower
from treadle.backends.codegen.kernel.interpret import _Machine
from treadle.backends.codegen.kernel.interpret import run as interpret
from treadle.backends.codegen.kernel.ir import KernelError, pointer
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX2, AVX512, NEON_DOT
from treadle.backends.cpu.host import flags
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, IntConv
from treadle.ops.elementwise import Add, Cast, Mul
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.movement import Transpose
from treadle.ops.op import as_tuple
from treadle.ops.slicing import Slice

PAIRS = replace(AVX512, name="pairs", features=("+avx512bf16",), dot_bfloat16=True)
TILES = ("+avx512bf16", "+amx-tile", "+amx-bf16", "+amx-int8")
MATRICES = replace(PAIRS, name="matrices", features=TILES, matrices=True)
TARGETS = (PAIRS, MATRICES)
NEEDS = {
    "pairs": {"avx512_bf16"},
    "matrices": {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
}


def runs_here(target):
    """Whether this processor has the instructions."""
    return AVX512 in RUNNABLE and flags() >= NEEDS[target.name]


def runner(target, case=None):
    """Native where this processor has the instructions, else as far as others stand for them.

    Some cases are interpreted on all processors: that checks every access to memory.
    """
    if case in INTERPRETED:
        return interpreted
    return native(target) if runs_here(target) else runner_of(target)


def word_of(target):
    """What kernels of the target are called by."""
    return "matrices" if target.matrices else "pairs"


def launches(target, m, n, k, dtype=dt.bfloat16):
    types = TensorType(dtype, (m, k)), TensorType(dtype, (k, n))
    return [launch.kernel.name for launch in lower(Matmul(), types, (), target).launches]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_products_of_bfloat16_take_words(target):
    names = launches(target, 64, 64, 64)
    assert any(name.startswith(f"contract_bfloat16_{word_of(target)}") for name in names)
    assert not any(word_of(target) in name for name in launches(target, 64, 64, 64, dt.float32))
    assert not any(word_of(target) in name for name in launches(AVX2, 64, 64, 64))


def test_launches_say_what_multiplies():
    """Reports hold them against what the processor's instructions could do."""
    for op, dtype, unit in ((Matmul(), dt.bfloat16, "bfloat16"), (IntMatmul(), dt.int8, "int8")):
        types = TensorType(dtype, (64, 64)), TensorType(dtype, (64, 64))
        units = [launch.unit for launch in lower(op, types, (), MATRICES).launches if launch.flops]
        assert units == [unit]
    types = TensorType(dt.float32, (64, 64)), TensorType(dt.float32, (64, 64))
    assert not any(launch.unit for launch in lower(Matmul(), types, (), MATRICES).launches)


SHAPES = (
    # rows, columns, terms
    (40, 40, 40),
    (9, 33, 60),
    (33, 65, 31),
    (64, 32, 64),
    (100, 70, 129),
    (17, 16, 700),
)


INTERPRETED = ((9, 33, 60), (1, 24, (40,), 33, (3,), 1, 2, 1, 1))
"""Of `SHAPES` and `CASES`."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("transposed", [*itertools.product((False, True), repeat=2)], ids=str)
def test_products(target, transposed):
    rng = np.random.default_rng(0)
    for (m, n, k), frozen in zip(SHAPES, itertools.cycle(((), (False, True))), strict=False):
        x = values(rng, (k, m) if transposed[0] else (m, k), dt.bfloat16)
        y = values(rng, (n, k) if transposed[1] else (k, n), dt.bfloat16)
        check(Matmul(*transposed), (x, y), k, frozen, runner(target, (m, n, k)), target)


def test_products_by_short_vectors():
    """Arm's: panels go by parts, and a tile has fewer rows. The emulator has more of them."""
    rng = np.random.default_rng(0)
    for m, n, k in ((5, 33, 40), (9, 20, 33)):
        x, y = values(rng, (m, k), dt.bfloat16), values(rng, (k, n), dt.bfloat16)
        check(Matmul(), (x, y), k, (), interpreted, NEON_DOT)
    names = launches(NEON_DOT, 64, 64, 64)
    assert any(name.startswith("contract_bfloat16_pairs") for name in names)


@pytest.mark.parametrize(
    ("rows", "tiles"), [(8, [8]), (15, [8, 8]), (17, [8, 8, 2]), (12, [8, 4]), (35, [8] * 4 + [4])]
)
def test_rows_that_are_left_take_smaller_tiles(rows, tiles, monkeypatch):
    """The 49 pixels of a network's last maps took the time of 56."""
    rng = np.random.default_rng(0)
    x, y = values(rng, (rows, 80), dt.bfloat16), values(rng, (80, 32), dt.bfloat16)
    called = []
    function = _Machine.function

    def noted(self, function_, arguments):
        called.append(function_.name)
        return function(self, function_, arguments)

    monkeypatch.setattr(_Machine, "function", noted)
    check(Matmul(), (x, y), 80, (), interpreted, PAIRS)
    made = [name for name in called if name.startswith("tile_pairs_")]
    assert [int(name.split("_")[-1].split("x")[0]) for name in made] == tiles


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_interpreted_and_native_agree_in_every_bit(target):
    if not runs_here(target) and (not target.matrices or runner(target) is interpreted):
        pytest.skip(f"this processor lacks {NEEDS[target.name]}")
    rng = np.random.default_rng(1)
    for m, n, k in ((40, 40, 40), (33, 17, 96), (9, 33, 1300)):
        x, y = values(rng, (m, k), dt.bfloat16), values(rng, (k, n), dt.bfloat16)
        x[3, 5], x[4, 6], y[7, 3], x[8, :] = np.inf, np.nan, -np.inf, -0.0
        x[5] *= np.float32(2.0**-126)  # Sums are subnormal, or nearly.
        y[:, 5] *= np.float32(2.0**-20)
        with np.errstate(all="ignore"):
            found = [run(Matmul(), (x, y), how, target=target) for how in (None, interpreted)]
            found[0] = run(Matmul(), (x, y), runner(target), target=target)
        bits = [r[0].view(np.uint16) for r in found]
        nan = np.isnan(found[0][0].astype(np.float32))
        np.testing.assert_array_equal(nan, np.isnan(found[1][0].astype(np.float32)))
        np.testing.assert_array_equal(bits[0][~nan], bits[1][~nan])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_stacks_and_strides(target):
    rng = np.random.default_rng(2)
    x, y = values(rng, (3, 2, 40, 33), dt.bfloat16), values(rng, (2, 33, 20), dt.bfloat16)
    check(Matmul(), (x, y), 33, (), runner(target), target)
    heads = values(rng, (2, 24, 3, 16), dt.bfloat16), values(rng, (2, 24, 3, 16), dt.bfloat16)
    body = fused(
        lambda q, k: Matmul(False, True)(Transpose((0, 2, 1, 3))(q), Transpose((0, 2, 1, 3))(k)),
        heads,
    )
    check(body, heads, 16, (), runner(target), target)
    far = values(rng, (16, 40, 2), dt.bfloat16), values(rng, (2, 16, 40), dt.bfloat16)
    body = fused(lambda a, b: Matmul()(Transpose((2, 1, 0))(a), b), far)
    check(body, far, 16, (), runner(target), target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_long_sums_are_split_and_what_follows_is_applied_once(target):
    rng = np.random.default_rng(3)
    m, n, k = 70, 40, 1500
    given = (
        values(rng, (m, k), dt.bfloat16),
        values(rng, (n, k), dt.bfloat16),
        values(rng, (n,), dt.bfloat16),
        values(rng, (m, 1), dt.bfloat16),
    )

    def body(x, y, bias, scale):
        return Mul()(Add()(Matmul(False, True)(x, y), bias), scale)

    check(fused(body, given), given, k, (False, True), runner(target), target)


@pytest.fixture
def forgotten():
    """What is lowered in a test is lowered anew behind it."""
    yield
    lowering._lower.cache_clear()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_columns_by_parts_in_one_room_give_the_same_bits(target, transposed, monkeypatch):
    """Panels of a table of words took as much memory again as the table."""
    rng, m, n, k = np.random.default_rng(4), 20, 600, 70
    given = (
        values(rng, (m, k), dt.bfloat16),
        values(rng, (n, k) if transposed else (k, n), dt.bfloat16),
        values(rng, (n,), dt.bfloat16),
        values(rng, (m, n), dt.float32),
    )

    def body(x, y, bias, more):
        made = Add()(Matmul(False, transposed)(x, y), bias)
        return made, Mul()(Cast(dt.float32)(made), more)

    op = fused(body, given)
    whole = check(op, given, k, (), runner(target), target)
    room = lowered(op, given, (), target).workspaces
    monkeypatch.setattr(pairs_lower, "_ROOM", 1)
    lowering._lower.cache_clear()
    parts = lowered(op, given, (), target)
    assert len(parts.launches) == 6
    assert len(parts.workspaces) == 1 and 2.5 * parts.workspaces[0] < room[0]
    for one, other in zip(whole, check(op, given, k, (), runner(target), target), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    known = lowered(op, given, (False, True), target)
    assert len(known.launches) == 1 and not known.workspaces  # packed once, whole


CASES = [
    # images, channels, spatial, outputs, window, stride, padding, dilation, groups
    (1, 3, (15, 14), 40, (7, 7), 2, 3, 1, 1),
    (2, 16, (9, 8), 33, (3, 3), 1, 1, 1, 1),
    (1, 40, (7, 7), 32, (3, 3), 2, 1, 1, 1),
    (2, 32, (6, 6), 64, (3, 3), 1, 1, 2, 2),
    (2, 64, (7, 7), 40, (1, 1), 2, 0, 1, 1),
    (1, 260, (4, 4), 33, (3, 3), 1, 1, 1, 1),
    (1, 24, (40,), 33, (3,), 1, 2, 1, 1),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_and_their_gradients(case, target):
    images, channels, spatial, outputs, window, stride, padding, dilation, groups = case
    each = len(spatial)
    pads = ((padding, padding),) * each
    common = (stride,) * each, pads, (dilation,) * each, groups
    rng = np.random.default_rng(5)
    x = values(rng, (images, channels, *spatial), dt.bfloat16)
    weight = values(rng, (outputs, channels // groups, *window), dt.bfloat16)
    terms = weight[0].size
    op = Conv(*common)
    taken = []
    for given, made in ((True, True), (False, True)):
        body, operands = channels_last(op, x, weight, given=given, made=made)
        names = [k.kernel.name for k in lowered(body, operands, (), target).launches]
        taken += [any(word_of(target) in name for name in names)]
        check(body, operands, terms, (False, given), runner(target, case), target)
    assert all(taken), "made of products of words"
    (y,) = as_tuple(op.reference(x, weight))
    back = ConvGradInput(*common, spatial)
    body, operands = channels_last(back, values(rng, y.shape, dt.bfloat16), weight)
    names = [k.kernel.name for k in lowered(body, operands, (), target).launches]
    # With vectors, zeros between the cells of dy cost more than words save.
    assert any(word_of(target) in name for name in names) == (target.matrices or stride == 1)
    check(body, operands, outputs // groups * weight[0, 0].size, (), runner(target, case), target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", [c for c in CASES if c[-1] == 1], ids=str)
def test_gradients_in_the_weight(case, target):
    images, channels, spatial, outputs, window, stride, padding, dilation, groups = case
    each = len(spatial)
    common = (stride,) * each, ((padding, padding),) * each, (dilation,) * each, groups
    rng = np.random.default_rng(8)
    x = values(rng, (images, channels, *spatial), dt.bfloat16)
    weight = values(rng, (outputs, channels // groups, *window), dt.bfloat16)
    (y,) = as_tuple(Conv(*common).reference(x, weight))
    dy = values(rng, y.shape, dt.bfloat16)
    scale = values(rng, (outputs, 1, *(1,) * each), dt.bfloat16)
    op = ConvGradWeight(*common, window)
    body, operands = channels_last(op, x, dy, (scale,), lambda z, s: Mul()(z, s))
    names = [k.kernel.name for k in lowered(body, operands, (), target).launches]
    wide = min(channels, outputs) >= 16
    cells = np.prod([n + 2 * padding for n in spatial]) / y[0, 0].size
    few = target.matrices or cells < 1.9 or (weight[0, 0].size == 1 and not padding)
    assert any(word_of(target) in name for name in names) == (wide and few and y[:, 0].size >= 16)
    check(body, operands, y[:, 0].size, (), runner(target, case), target)


BYTES = [*itertools.product((dt.int8, dt.uint8), repeat=2)]


@pytest.mark.parametrize("kinds", BYTES, ids=str)
def test_products_of_bytes_are_exact(kinds):
    rng = np.random.default_rng(6)
    transposed = itertools.cycle(itertools.product((False, True), repeat=2))
    for (m, n, k), flips in zip((*SHAPES, (40, 40, 1500)), transposed, strict=False):
        x = values(rng, (k, m) if flips[0] else (m, k), kinds[0])
        y = values(rng, (n, k) if flips[1] else (k, n), kinds[1])
        op = IntMatmul(*flips)
        names = [launch.kernel.name for launch in lowered(op, (x, y), (), MATRICES).launches]
        assert any("matrices" in name for name in names)
        check(op, (x, y), k, (), runner(MATRICES, (m, n, k)), MATRICES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_of_bytes_are_exact(case):
    images, channels, spatial, outputs, window, stride, padding, dilation, groups = case
    each = len(spatial)
    pads = ((padding, padding),) * each
    op = IntConv((stride,) * each, pads, (dilation,) * each, groups)
    rng = np.random.default_rng(7)
    for kind, (given, made) in zip((dt.int8, dt.uint8), ((True, True), (False, True)), strict=True):
        x = values(rng, (images, channels, *spatial), kind)
        weight = values(rng, (outputs, channels // groups, *window), dt.int8)
        body, operands = channels_last(op, x, weight, given=given, made=made)
        names = [k.kernel.name for k in lowered(body, operands, (), MATRICES).launches]
        assert any("matrices" in name for name in names)
        check(body, operands, 1, (False, given), runner(MATRICES, case), MATRICES)


def test_terms_behind_the_last_one_are_not_read():
    """What lies behind a row is of another one, and may be NaN."""
    rng = np.random.default_rng(4)
    for target, k in itertools.product(TARGETS, (17, 48)):
        wide = values(rng, (40, k + 7), dt.bfloat16)
        wide[:, k:] = np.nan
        y = values(rng, (k, 40), dt.bfloat16)

        def body(x, y, k=k):
            return Matmul()(Slice((0, 0), (40, k), (1, 1))(x), y)

        (found,) = run(fused(body, (wide, y)), (wide, y), runner(target), target=target)
        assert np.isfinite(found.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("target", "code"), [(PAIRS, "vdpbf16ps"), (MATRICES, "tdpbf16ps")], ids=("pairs", "matrices")
)
def test_kernels_are_the_instructions(target, code):
    types = TensorType(dt.bfloat16, (256, 256)), TensorType(dt.bfloat16, (256, 256))
    how = lower(Matmul(), types, (), target)
    text = assembly([launch.kernel for launch in how.launches], target)
    assert code in text and "vcvtneps2bf16" in text
    inner = next(part for part in text.split("\n\n") if code in part)
    assert "zmmword ptr [rsp" not in inner and "(%rsp), %zmm" not in inner, "a spill"
    assert text.count("tilerelease") == text.count("ldtilecfg")


def test_casts_that_may_flush_and_registers_are_checked():
    x, out = pointer(dt.float32), pointer(dt.bfloat16)

    def cast(b, lo, hi):
        b.flushes = True
        b.store(out, 0, b.cast(b.load(x, 0, 16), dt.bfloat16))

    numbers = np.linspace(-1, 1, 16, dtype=np.float32)
    numbers[3:7] = np.inf, np.nan, 1e-39, -1e-39
    expected = numbers.astype(dt.bfloat16.numpy)
    expected[5:7] = 0.0, -0.0
    for how in (interpreted, *[native(PAIRS)] * runs_here(PAIRS)):
        result = np.zeros(16, dt.bfloat16.numpy)
        how(kernel("cast", (x, out), cast), [numbers, result], 0, 1)
        np.testing.assert_array_equal(result.view(np.int16), expected.view(np.int16))

    def unready(b, lo, hi):
        b.matrix_zero(0)

    with pytest.raises(KernelError, match="before begin_matrices"):
        interpret(kernel("unready", (x,), unready), [numbers])
    with pytest.raises(KernelError, match="no matrix registers"):
        assembly([kernel("unready", (x,), lambda b, lo, hi: Builder.begin_matrices(b))], AVX2)


def test_products_of_few_rows_or_terms_take_no_words():
    names = launches(MATRICES, 4, 64, 8), launches(MATRICES, 64, 64, 8)
    assert not any("matrices" in name for found in names for name in found)
