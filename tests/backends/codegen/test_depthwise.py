"""Depthwise convolutions with channels last, and their gradients, against the oracles."""

import numpy as np
import pytest
from tests.backends.codegen.contractions import (
    check,
    fused,
    interpreted,
    lowered,
    values,
)
from tests.backends.codegen.execution import RUNNABLE, object_code
from tests.backends.codegen.irregular import FAMILIES, HOST

from treadle.backends.codegen.target import AVX512, GENERIC, NEON
from treadle.base import dtype as dt
from treadle.ops.activation import Relu6
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.unary import Relu
from treadle.ops.windows import Window


def one(op, *xs):
    return xs[0].apply(op, xs)[0]


def to_last(x):
    """[N,C,*S] to [N,*S,C]."""
    rank = len(x.type.shape)
    return one(Transpose((0, *range(2, rank), 1)), x)


def to_first(x):
    """[N,*S,C] to [N,C,*S]."""
    rank = len(x.type.shape)
    return one(Transpose((0, rank - 1, *range(1, rank - 1))), x)


def is_depthwise(op, given, target=HOST):
    launches = lowered(op, given, target=target).launches
    return any("depthwise" in run.kernel.name for run in launches)


# N, C, S, K, strides, padding, dilation
LAYERS = [
    (2, 16, (9, 11), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    (1, 24, (14, 30), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    (2, 13, (7, 7), (3, 3), (2, 2), ((0, 1), (0, 1)), (1, 1)),
    (1, 5, (12, 9), (5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1)),
    (1, 9, (8, 23), (2, 4), (3, 3), ((0, 2), (3, 1)), (2, 2)),
    (1, 8, (5, 19), (7, 7), (1, 2), ((3, 3), (3, 3)), (1, 1)),
    (3, 11, (40,), (3,), (2,), ((5, 4),), (3,)),
    (1, 17, (4, 6, 9), (2, 3, 3), (2, 1, 2), ((1, 0), (1, 1), (0, 1)), (1, 2, 1)),
    (2, 8, (6, 6), (1, 1), (3, 3), ((0, 0), (0, 0)), (1, 1)),
    (1, 600, (3, 5), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    (1, 8, (3, 3), (3, 3), (1, 1), ((4, 4), (5, 5)), (1, 1)),
]


def operands(case, dtype):
    n, c, s, k, strides, padding, dilation = case
    rng = np.random.default_rng(c)
    positions = Window(k, strides, padding, dilation).extents("conv", s, "")
    shapes = (n, *s, c), (c, 1, *k), (n, *(int(p) for p in positions), c)
    return [values(rng, shape, dtype) for shape in shapes]


def groups_of(case, x, weight, dy):
    """The convolution and both gradients as groups, with their operands and lengths of sums."""
    c, taps, s = case[1], int(np.prod(case[3])), case[4:7]
    forward = Conv(*s, c)
    back, to_weight = ConvGradInput(*s, c, case[2]), ConvGradWeight(*s, c, case[3])
    return (
        (fused(lambda x, w: to_last(one(forward, to_first(x), w)), (x, weight)), (x, weight), taps),
        (fused(lambda g, w: to_last(one(back, to_first(g), w)), (dy, weight)), (dy, weight), taps),
        (
            fused(lambda x, g: one(to_weight, to_first(x), to_first(g)), (x, dy)),
            (x, dy),
            dy.size // c,
        ),
    )


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_layers_and_their_gradients(case):
    for op, given, terms in groups_of(case, *operands(case, dt.float32)):
        assert is_depthwise(op, given)
        check(op, given, terms)


@pytest.mark.parametrize("case", LAYERS[1:4:2], ids=str)
@pytest.mark.parametrize("dtype", [dt.float64, dt.float16, dt.bfloat16], ids=str)
def test_other_element_types(case, dtype):
    for op, given, terms in groups_of(case, *operands(case, dtype)):
        assert is_depthwise(op, given)
        check(op, given, terms)


def test_random_geometry():
    rng = np.random.default_rng(3)
    for _ in range(6):
        rank = int(rng.integers(1, 4))
        draw = [[int(v) for v in rng.integers(lo, hi, rank)] for lo, hi in ((1, 4), (1, 4), (1, 3))]
        k, strides, dilation = (tuple(v) for v in draw)
        padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 4, (rank, 2)))
        reach = [(n - 1) * d + 1 for n, d in zip(k, dilation, strict=True)]
        s = tuple(int(rng.integers(1, 12)) + r for r in reach)
        case = (int(rng.integers(1, 3)), int(rng.integers(2, 40)), s, k, strides, padding, dilation)
        for op, given, terms in groups_of(case, *operands(case, dt.float32)):
            assert is_depthwise(op, given)
            check(op, given, terms)


@pytest.mark.parametrize("channels", [5, 24])
def test_every_access_stays_inside(channels):
    case = (2, channels, (4, 9), (3, 3), (2, 1), ((1, 1), (0, 2)), (1, 1))
    for op, given, terms in groups_of(case, *operands(case, dt.float32)):
        check(op, given, terms, runner=interpreted)


@pytest.mark.parametrize("frozen", [False, True])
def test_bias_scale_residual_and_relu6(frozen):
    rng = np.random.default_rng(2)
    shapes = [(2, 7, 9, 20), (20, 1, 3, 3), (20,), (1, 1, 1, 20), (2, 7, 9, 20), (2, 1, 1, 20)]
    given = [values(rng, s, dt.float32) for s in shapes]
    conv = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 20)

    def body(x, w, bias, scale, residual, gate):
        y = to_last(one(conv, to_first(x), w)) * scale + bias
        return one(Relu6(), y) + residual * gate, y > 0.0, y

    op = fused(body, given)
    assert is_depthwise(op, given)
    check(op, given, 9, (False, frozen) + (False,) * 4)


def test_a_frozen_weight_is_packed_once():
    rng = np.random.default_rng(2)
    given = [values(rng, s, dt.float32) for s in ((1, 5, 5, 8), (8, 1, 3, 3))]
    conv = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 8)
    op = fused(lambda x, w: to_last(one(conv, to_first(x), w)), given)
    how = lowered(op, given, (False, True))
    assert len(how.launches) == len(how.prelude) == 1


def test_the_gradient_behind_a_relu():
    rng = np.random.default_rng(5)
    given = [values(rng, s, dt.float32) for s in ((1, 5, 7, 12), (12, 1, 3, 3), (1, 9, 13, 12))]
    back = ConvGradInput((2, 2), ((1, 1), (1, 1)), (1, 1), 12, (9, 13))

    def body(dy, w, y):
        dx = one(back, to_first(dy), w)
        return to_last(dx) * one(Relu(), y)

    op = fused(body, given)
    assert is_depthwise(op, given)
    check(op, given, 9)


def test_weights_with_an_axis_of_groups():
    rng = np.random.default_rng(6)
    given = [values(rng, s, dt.float32) for s in ((1, 5, 6, 10), (10, 1, 1, 3, 3))]
    conv = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 10)
    op = fused(lambda x, w: to_last(one(conv, to_first(x), one(Reshape((10, 1, 3, 3)), w))), given)
    assert is_depthwise(op, given)
    check(op, given, 9)


def test_what_is_applied_to_a_weight_gradient():
    rng = np.random.default_rng(7)
    given = [values(rng, s, dt.float32) for s in ((2, 5, 6, 10), (2, 5, 6, 10), (10, 1, 3, 3))]
    op = ConvGradWeight((1, 1), ((1, 1), (1, 1)), (1, 1), 10, (3, 3))

    def body(x, g, w):
        dw = one(op, to_first(x), to_first(g))
        return w - dw * 0.5, dw

    group = fused(body, given)
    assert is_depthwise(group, given)
    check(group, given, 60)


@pytest.mark.parametrize("target", [AVX512, NEON, GENERIC], ids=lambda t: t.name)
def test_other_targets(target):
    kernels = []
    for dtype in (dt.float32, dt.float16):
        for op, given, terms in groups_of(LAYERS[1], *operands(LAYERS[1], dtype)):
            if target is GENERIC:
                check(op, given, terms, target=target)
            kernels += [run.kernel for run in lowered(op, given, target=target).launches]
    assert object_code(list(dict.fromkeys(kernels)), target)


@pytest.mark.parametrize("repeats", [2, 3, 8])
@pytest.mark.parametrize("case", [*LAYERS[1:3], LAYERS[6]], ids=str)
def test_several_results_per_channel(case, repeats):
    """A group of one channel may have any number of results."""
    n, c, s, k, *others = case
    rng = np.random.default_rng(repeats)
    x, weight = values(rng, (n, *s, c), dt.float32), values(rng, (c * repeats, 1, *k), dt.float32)
    forward = Conv(*others, c)
    dy = forward.reference(np.moveaxis(x, -1, 1), weight)
    dy = np.ascontiguousarray(np.moveaxis(dy, 1, -1))
    to_weight = ConvGradWeight(*others, c, k)
    group = fused(lambda a, b: to_last(one(forward, to_first(a), b)), (x, weight))
    assert is_depthwise(group, (x, weight))
    check(group, (x, weight), int(np.prod(k)))
    group = fused(lambda a, b: one(to_weight, to_first(a), to_first(b)), (x, dy))
    assert is_depthwise(group, (x, dy))
    check(group, (x, dy), dy.size // (c * repeats))
    check(group, (x, dy), dy.size // (c * repeats), runner=interpreted)
    # The other way around: groups of several channels, each of which gets its part of one.
    wide = Conv(*others, c)
    y = np.zeros((n, c * repeats, *s), np.float32)
    weight = values(rng, (c, repeats, *k), dt.float32)
    given = values(rng, wide.reference(y, weight).shape, dt.float32)
    given = np.ascontiguousarray(np.moveaxis(given, 1, -1)), weight
    back = ConvGradInput(*others, c, s)
    group = fused(lambda a, b: to_last(one(back, to_first(a), b)), given)
    assert is_depthwise(group, given)
    check(group, given, int(np.prod(k)))


def blocks_of(x, size):
    """[N,C,*S] as [N,C/c,*S,c]."""
    split = x.reshape(x.shape[0], -1, size, *x.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


@pytest.mark.parametrize("number", range(3), ids=("float32", "float64", "bfloat16"))
@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_channels_in_blocks(target, number):
    """Blocks are groups of channels that lie apart, in every operand and result."""
    dtype = (dt.float32, dt.float64, dt.bfloat16)[number]
    size = (8, 16)[(FAMILIES.index(target) + number) % 2]
    n, c, s, k = (2, 48, (7, 9), (3, 3)) if target in RUNNABLE else (1, 16, (3, 4), (3, 3))
    common = (2, 1), ((1, 1), (0, 1)), (1, 1)
    rng = np.random.default_rng(size)
    x, weight = values(rng, (n, c, *s), dtype), values(rng, (c, 1, *k), dtype)
    bias = values(rng, (1, c, 1, 1), dtype)
    forward, to_weight = Conv(*common, c), ConvGradWeight(*common, c, k)
    back = ConvGradInput(*common, c, s)
    dy = values(rng, forward.reference(x, weight).shape, dtype)

    def whole(a):
        n, count, h, w, c = a.type.shape
        return one(Reshape((n, count * c, h, w)), one(Transpose((0, 1, 4, 2, 3)), a))

    def blocked(a):
        n, c, h, w = a.type.shape
        split = one(Reshape((n, c // size, size, h, w)), a)
        return one(Transpose((0, 1, 3, 4, 2)), split)

    def biased(a, b, v):
        return one(Relu(), blocked(one(forward, whole(a), b)) + v)

    given = blocks_of(x, size), weight, blocks_of(bias, size)
    group = fused(biased, given)
    assert is_depthwise(group, given, target)
    check(group, given, 9, target=target)
    given = blocks_of(dy, size), weight
    group = fused(lambda a, b: blocked(one(back, whole(a), b)), given)
    assert is_depthwise(group, given, target)
    check(group, given, 9, target=target)
    given = blocks_of(x, size), blocks_of(dy, size)
    group = fused(lambda a, b: one(to_weight, whole(a), whole(b)), given)
    assert is_depthwise(group, given, target)
    check(group, given, dy.size // c, target=target)
