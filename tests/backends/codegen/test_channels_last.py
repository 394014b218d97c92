"""Convolutions of channels-last operands and their gradients against the oracles."""

import re

import numpy as np
import pytest
from tests.backends.codegen.channels_last import channels_last, last, moved, to_first, to_last
from tests.backends.codegen.contractions import check, fused, interpreted, lowered, types_of, values
from tests.backends.codegen.execution import assembly, object_code
from tests.backends.codegen.irregular import HOST

from treadle.backends.api import Support
from treadle.backends.codegen.contraction.direct import lower as pixels
from treadle.backends.codegen.contraction.direct.panels import PanelsParameters, panels_kernel
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile, tile_function
from treadle.backends.codegen.contraction.weights.kernel import rows_function
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX2, AVX512, NEON
from treadle.base import dtype as dt
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, IntConv
from treadle.ops.slicing import Slice
from treadle.ops.unary import Relu

TILE = Tile(dt.float32, 6, 4, 2, 8)
PAIRS = ((1, 1), (1, 1))

# x, weight, strides, padding, dilation, groups
LAYERS = [
    ((2, 5, 13, 11), (7, 5, 3, 3), (1, 1), PAIRS, (1, 1), 1),
    ((3, 6, 14, 9), (8, 3, 5, 2), (2, 1), ((2, 1), (0, 1)), (1, 2), 2),
    ((2, 4, 40), (6, 2, 7), (3,), ((3, 3),), (1,), 2),
    ((2, 3, 6, 7, 8), (5, 3, 2, 3, 3), (1, 2, 2), ((0, 1), (1, 1), (2, 0)), (2, 1, 1), 1),
    ((2, 16, 9, 9), (20, 16, 1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1),
    ((2, 34, 8, 8), (20, 17, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 2),
    ((2, 8, 5, 5), (24, 8, 5, 5), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ((1, 2, 2, 3), (3, 2, 4, 5), (1, 1), ((2, 1), (1, 2)), (1, 1), 1),
    ((3, 40, 1, 1), (70, 40, 3, 3), (1, 1), PAIRS, (1, 1), 1),
    ((2, 17, 9, 9), (50, 17, 3, 3), (2, 3), PAIRS, (1, 1), 1),
    ((1, 3, 30, 28), (9, 3, 7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1), 1),
    ((1, 256, 5, 5), (18, 256, 3, 3), (1, 1), PAIRS, (1, 1), 1),
]


def operations(x, weight, strides, padding, dilation, groups, dtype):
    """The convolution and both gradients, each with its operands and the length of its sums."""
    rng = np.random.default_rng(4)
    image, kernel = values(rng, x, dtype), values(rng, weight, dtype)
    common = strides, padding, dilation, groups
    forward = Conv(*common)
    dy = values(rng, forward.reference(image, kernel).shape, dtype)
    taps = int(np.prod(weight[1:]))
    yield forward, image, kernel, taps
    yield ConvGradInput(*common, x[2:]), dy, kernel, taps // weight[1] * weight[0]
    yield ConvGradWeight(*common, weight[2:]), image, dy, dy.size // dy.shape[1]


TYPED = [(layer, dt.float32) for layer in LAYERS]
TYPED += [(layer, (dt.float64, dt.bfloat16)[i % 2]) for i, layer in enumerate(LAYERS)]


@pytest.mark.parametrize(
    "layer, dtype", TYPED, ids=lambda v: str(v[:2]) if type(v) is tuple else str(v)
)
def test_layers_and_their_gradients(layer, dtype):
    for op, first, second, terms in operations(*layer, dtype):
        check(*channels_last(op, first, second), terms)


def random_layer(rng):
    """A layer of any geometry that is small and whose window fits."""
    while True:
        axes, groups = rng.integers(1, 4), int(rng.choice([1, 1, 2, 3]))
        inputs, outputs = rng.choice([1, 2, 5, 8, 17, 24]), rng.choice([1, 3, 8, 16, 21])
        kernel, strides = rng.integers(1, 5, axes), rng.integers(1, 4, axes)
        dilation, size = rng.integers(1, 3, axes), rng.integers(1, 12, axes)
        padding = rng.integers(0, 3, (axes, 2))
        fits = (size + padding.sum(1) > (kernel - 1) * dilation).all()
        work = size.prod() * kernel.prod() * inputs * outputs * groups
        if fits and work < 200_000:
            x = (rng.integers(1, 4), inputs * groups, *size)
            weight = (outputs * groups, inputs, *kernel)
            pairs = [(int(low), int(high)) for low, high in padding]
            ints = [tuple(int(n) for n in v) for v in (x, weight, strides, dilation)]
            return ints[0], ints[1], ints[2], tuple(pairs), ints[3], groups


@pytest.mark.parametrize("seed", range(12))
def test_any_geometry_and_layout(seed, monkeypatch):
    if seed % 2:
        # Parts for all positions with the same taps, also where they do not pay.
        monkeypatch.setattr(pixels, "_LAUNCH", 0)
        monkeypatch.setattr(pixels, "_PANEL", 0)
    rng = np.random.default_rng(seed)
    dtype = (dt.float32, dt.float32, dt.float16, dt.float64)[seed % 4]
    layouts = [(True, True), (True, False), (False, True)]
    for op, first, second, terms in operations(*random_layer(rng), dtype):
        given, made = layouts[rng.integers(3)]
        frozen = (False, bool(rng.integers(2)) and not isinstance(op, ConvGradWeight))
        group, operands = channels_last(op, first, second, given=given, made=made)
        how = lower(group, types_of(operands), frozen, HOST)
        assert not isinstance(how, Support), how
        check(group, operands, terms, frozen)


SMALL = [
    ((1, 2, 2, 3), (3, 2, 4, 5), (1, 1), ((2, 1), (1, 2)), (1, 1), 1),
    ((1, 6, 4, 3), (4, 3, 3, 2), (2, 1), ((2, 1), (0, 1)), (1, 2), 2),
    ((2, 3, 2, 3, 2), (2, 3, 1, 2, 2), (1, 2, 2), ((0, 1), (1, 1), (2, 0)), (2, 1, 1), 1),
    ((1, 3, 5), (2, 3, 3), (1,), ((0, 0),), (1,), 1),
    ((1, 9, 2, 2), (18, 9, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
]


@pytest.mark.parametrize("layer", SMALL, ids=str)
def test_every_access_stays_inside(layer):
    x, weight, *others = layer
    for op, first, second, terms in operations(x, weight, *others, dt.float32):
        check(*channels_last(op, first, second), terms, runner=interpreted)


def test_integers_are_exact():
    rng = np.random.default_rng(5)
    weight = values(rng, (9, 40, 3, 3), dt.int8)
    for kind in (dt.int8, dt.uint8):
        x = values(rng, (2, 40, 8, 8), kind)
        check(*channels_last(IntConv((1, 1), PAIRS, (1, 1), 1), x, weight), 1)


def test_bias_residual_and_mask():
    rng = np.random.default_rng(6)
    x, w, bias, residual = (
        values(rng, s, dt.float32) for s in ((2, 6, 9, 10), (8, 3, 3, 3), (8,), (2, 8, 9, 10))
    )

    def after(y, bias, residual):
        y = y + bias + residual
        return y.apply(Relu(), (y,))[0], y > 0.0

    op = Conv((1, 1), PAIRS, (1, 1), 2)
    check(*channels_last(op, x, w, (bias, residual), after), 27)


def test_scale_of_every_image_and_channel():
    rng = np.random.default_rng(7)
    x, w, scale = (values(rng, s, dt.float32) for s in ((3, 6, 5, 4), (8, 6, 3, 3), (3, 8, 1, 1)))
    op = Conv((1, 1), PAIRS, (1, 1), 1)
    group, operands = channels_last(op, x, w, (scale,), lambda y, s: y * s)
    check(group, operands, 54)
    x, w = values(rng, (3, 6, 5, 4), dt.float32), values(rng, (8, 6, 1, 1), dt.float32)
    group, operands = channels_last(
        Conv((1, 1), ((0, 0),) * 2, (1, 1), 1), x, w, (scale,), lambda y, s: y * s
    )
    check(group, operands, 6)


def test_phases_of_a_transposed_convolution_meet_their_operands():
    rng = np.random.default_rng(8)
    dy, w, bias, residual = (
        values(rng, s, dt.float32) for s in ((2, 6, 5, 4), (6, 4, 3, 3), (8,), (2, 8, 10, 8))
    )

    def after(x, bias, residual):
        x = x + bias
        return x.apply(Relu(), (x,))[0] + residual, x

    op = ConvGradInput((2, 2), PAIRS, (1, 1), 2, (10, 8))
    group, operands = channels_last(op, dy, w, (bias, residual), after)
    products = [r for r in lowered(group, operands).launches if "contract" in r.kernel.name]
    assert len(products) == 4
    check(group, operands, 54)


def test_cells_of_the_padding_are_left_out_where_that_saves_much(monkeypatch):
    monkeypatch.setattr(pixels, "_LAUNCH", 0)
    rng = np.random.default_rng(14)
    x, w, bias = (
        values(rng, s, dt.float32) for s in ((48, 16, 3, 4), (16, 16, 3, 3), (1, 16, 1, 1))
    )
    for op in (Conv((1, 1), PAIRS, (1, 1), 1), ConvGradInput((1, 1), PAIRS, (1, 1), 1, (3, 4))):
        group, operands = channels_last(op, x, w, (bias,), lambda y, b: (y + b, y))
        names = [launch.kernel.name for launch in lowered(group, operands).launches]
        assert sum("picked" in name for name in names) == 9
        check(group, operands, 144)
    op = Conv((2, 1), ((1, 2), (3, 1)), (1, 2), 1)
    check(*channels_last(op, x, w), 144)


def test_a_weight_gradient_is_added_to_another_one():
    rng = np.random.default_rng(9)
    x, dy, before = (
        values(rng, s, dt.float32) for s in ((2, 20, 9, 9), (2, 18, 9, 9), (18, 20, 3, 3))
    )
    op = ConvGradWeight((1, 1), PAIRS, (1, 1), 1, (3, 3))
    group, operands = channels_last(op, x, dy, (before,), lambda w, b: w * 0.5 + b, made=False)
    check(group, operands, 162)


def test_cells_that_lie_far_apart_are_packed():
    rng = np.random.default_rng(15)
    x, dy = values(rng, (1, 524, 4, 3), dt.float32), values(rng, (1, 9, 4, 3), dt.float32)
    group, operands = channels_last(ConvGradWeight((1, 1), PAIRS, (1, 1), 1, (3, 3)), x, dy)
    *_, launch = lowered(group, operands).launches
    assert any(f.name.startswith("tile_column") for f in launch.kernel.functions)
    check(group, operands, 12)


def test_many_positions_are_added_in_parts():
    rng = np.random.default_rng(10)
    x, dy = (values(rng, (2, 64, 56, 56), dt.float32) for _ in range(2))
    group, operands = channels_last(ConvGradWeight((1, 1), PAIRS, (1, 1), 1, (3, 3)), x, dy)
    *_, multiply, add = lowered(group, operands).launches
    assert multiply.items > add.items
    check(group, operands, 6272)


def test_operands_inside_larger_ones_are_read_where_they_lie():
    """Channels of a concatenation, and every second image."""
    rng = np.random.default_rng(11)
    whole, w = values(rng, (4, 6, 7, 24), dt.float32), values(rng, (5, 8, 3, 3), dt.float32)
    op = Conv((1, 1), ((0, 0), (0, 0)), (1, 1), 1)

    def body(x, w):
        part = x.apply(Slice((0, 0, 0, 8), (4, 6, 7, 16), (2, 1, 1, 1)), (x,))[0]
        y = x.apply(op, (moved(part, to_first(4)), w))[0]
        return moved(y, to_last(4))

    group = fused(body, (whole, w))
    names = [launch.kernel.name for launch in lowered(group, (whole, w)).launches]
    assert len(names) == 2 and names[0].startswith("pack_weight")
    check(group, (whole, w), 72)


def test_weights_that_never_change_are_packed_once():
    rng = np.random.default_rng(12)
    x, w = values(rng, (2, 16, 6, 6), dt.float32), values(rng, (16, 16, 3, 3), dt.float32)
    for op in (Conv((1, 1), PAIRS, (1, 1), 1), ConvGradInput((1, 1), PAIRS, (1, 1), 1, (6, 6))):
        group, operands = channels_last(op, x, w)
        how = lowered(group, operands, (False, True))
        assert len(how.prelude) == 1 and len(how.launches) == 2
        check(group, operands, 144, (False, True))


def test_pointwise_convolutions_are_plain_products():
    rng = np.random.default_rng(13)
    x, w = values(rng, (2, 16, 6, 6), dt.float32), values(rng, (40, 16, 1, 1), dt.float32)
    group, operands = channels_last(Conv((1, 1), ((0, 0),) * 2, (1, 1), 1), x, w)
    (launch,) = lowered(group, operands).launches
    assert "_row_" in launch.kernel.name
    check(group, operands, 16)


def test_samples_in_channels_last():
    for kind in (Conv, ConvGradInput, ConvGradWeight, IntConv):
        for sample in kind.samples():
            if all(0 not in a.shape for a in sample.args):
                rng = np.random.default_rng(1)
                x, y = (values(rng, a.shape, a.dtype or dt.float32) for a in sample.args)
                check(*channels_last(sample.op, x, y), 40)


def test_last_is_the_layout_of_the_graph():
    x = np.arange(24).reshape(1, 2, 3, 4)
    np.testing.assert_array_equal(last(x), x.transpose(to_last(4)))
    assert last(x).transpose(to_first(4)).shape == x.shape


# -- the parts by themselves -------------------------------------------------------------------


def kernel_of(function):
    """A kernel that calls the function once."""
    e = KernelBuilder([type(p)(p.type, p.name) for p in function.parameters])
    e.call(function, *e.parameters)
    return e.kernel("once", [function])


@pytest.mark.parametrize("form", ["table", "picked"])
@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_tile_of_tables(count, form):
    rng = np.random.default_rng(count)
    small = count < TILE.rows
    a, b = values(rng, (100,), dt.float32), values(rng, (5, 16), dt.float32)
    picks = rng.permutation(5).astype(np.int32) if form == "picked" else np.arange(5)
    of_b = picks * np.int32(16) if form == "picked" else 16
    rows = rng.integers(0, 50, count).astype(np.int32)
    terms = rng.integers(0, 50, 5).astype(np.int32)
    made = np.zeros((count, 16), np.float32)
    function = tile_function(TILE, form, small=small, accumulate=False)
    more = [count] if small else []
    run(kernel_of(function), [a, rows, terms, b, of_b, 5, made, 16, *more])
    np.testing.assert_allclose(made, a[np.add.outer(rows, terms)] @ b[picks], 1e-5, 1e-5)


@pytest.mark.parametrize("columns", [3, 16, 32, 41])
def test_panels_are_packed_row_after_row(columns):
    rng = np.random.default_rng(columns)
    source, panels = values(rng, (5, 50), dt.bfloat16), -(-columns // 16)
    made = np.full((panels, 5, 16), np.nan, np.float32)
    run(kernel_of(rows_function(TILE, dt.bfloat16)), [source, 50, made, 5, columns])
    wanted = np.zeros((5, 16 * panels), np.float32)
    wanted[:, :columns] = source[:, :columns]
    np.testing.assert_array_equal(made, wanted.reshape(5, panels, 16).swapaxes(0, 1))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("inputs, outputs, taps", [(3, 20, 9), (17, 5, 1), (8, 16, 8)])
def test_weights_are_packed_tap_by_tap(inputs, outputs, taps, turned):
    rng = np.random.default_rng(inputs)
    w = values(rng, (outputs, inputs, taps), dt.float32)
    matrix = w.transpose(2, 0, 1) if turned else w.transpose(2, 1, 0)
    lines, step, length = (outputs, inputs * taps, taps) if turned else (1, 0, inputs * taps)
    order = np.arange(taps) * matrix.shape[1]
    order = order if turned else np.add.outer(np.arange(inputs), order).ravel()
    terms, n = taps * matrix.shape[1], matrix.shape[2]
    made = np.zeros((-(-n // 16), terms, 16), np.float32)
    kernel = panels_kernel(TILE, dt.float32)
    given = PanelsParameters(
        source=w,
        order=order.astype(np.int32),
        target=made,
        group_step=0,
        panels=len(made),
        lines=lines,
        line_step=step,
        length=length,
        n=n,
        column_step=taps if turned else inputs * taps,
        terms=terms,
    )
    run(kernel.kernel, kernel.arguments(given), 0, len(made))
    whole = made.swapaxes(0, 1).reshape(terms, -1)[:, :n]
    np.testing.assert_array_equal(whole, matrix.reshape(terms, n))


@pytest.mark.parametrize("form", ["table", "picked"])
@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
def test_no_vector_register_is_spilled(target, form):
    for dtype in (dt.float32, dt.float64):
        for rows, columns in ((100, 768), (100, 256)):
            tile = choose_tile(target, dtype, rows, columns)
            for small in (False, True):
                function = tile_function(tile, form, small=small, accumulate=True)
                text = assembly([kernel_of(function)], target)
                # Behind it is the caller, which passes arguments on the stack.
                text = text[: text.index(".Lfunc_end0")]
                assert "vfmadd" in text
                assert not re.search(r"%[yz]mm\d+, -?\d*\(%rsp\)|\(%rsp\), %[yz]mm\d+", text)


@pytest.mark.parametrize("target", [AVX512, NEON], ids=lambda t: t.name)
def test_kernels_compile_for_other_targets(target):
    for op, first, second, _ in operations(*LAYERS[9], dt.float32):
        group, operands = channels_last(op, first, second)
        for launch in lowered(group, operands, (), target).launches:
            assert object_code([launch.kernel], target)
