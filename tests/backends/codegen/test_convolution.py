"""Convolutions and their gradients against the oracles."""

import numpy as np
import pytest
from tests.backends.codegen.contractions import check, fused, interpreted, lowered, values

from treadle.base import dtype as dt
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, IntConv
from treadle.ops.unary import Relu

FLOATS = (dt.float32, dt.float64, dt.bfloat16)


def label(case):
    sample, dtype = case
    return f"{type(sample.op).name}-{sample.label}-{dtype.name}"


def drawn(sample, dtype):
    rng = np.random.default_rng(1)
    return [values(rng, a.shape, a.dtype or dtype) for a in sample.args]


def cases(*ops, dtypes=()):
    return [
        (sample, dtype)
        for op in ops
        for sample in op.samples()
        for dtype in dtypes or sample.element_types()
        if all(0 not in a.shape for a in sample.args)
    ]


@pytest.mark.parametrize(
    "case", cases(Conv, ConvGradInput, ConvGradWeight, dtypes=FLOATS), ids=label
)
def test_samples(case):
    sample, dtype = case
    check(sample.op, drawn(sample, dtype), 40)


@pytest.mark.parametrize("case", cases(IntConv), ids=label)
def test_integer_samples(case):
    sample, dtype = case
    check(sample.op, drawn(sample, dtype), 40)


LAYERS = [
    ((2, 5, 13, 11), (7, 5, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    ((3, 6, 14, 9), (8, 3, 5, 2), (2, 1), ((2, 1), (0, 1)), (1, 2), 2),
    ((1, 4, 40), (4, 1, 7), (3,), ((3, 3),), (1,), 4),
    ((2, 3, 6, 7, 8), (5, 3, 2, 3, 3), (1, 2, 2), ((0, 1), (1, 1), (2, 0)), (2, 1, 1), 1),
    ((2, 16, 9, 9), (20, 16, 1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1),
    ((2, 8, 5, 5), (24, 8, 5, 5), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ((3, 32, 7, 7), (20, 16, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 2),
    ((3, 9, 7, 6), (70, 9, 3, 3), (2, 3), ((1, 1), (1, 1)), (1, 1), 1),
    ((1, 40, 12, 12), (13, 40, 3, 3), (1, 1), ((4, 4), (1, 1)), (1, 1), 1),
]


@pytest.mark.parametrize("x, w, s, p, d, groups", LAYERS, ids=lambda v: "")
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16], ids=str)
def test_layers_and_their_gradients(x, w, s, p, d, groups, dtype):
    rng = np.random.default_rng(4)
    image, weight = values(rng, x, dtype), values(rng, w, dtype)
    forward = Conv(s, p, d, groups)
    (y,) = check(forward, (image, weight), int(np.prod(w[1:])))
    dy = values(rng, y.shape, dtype)
    taps = int(np.prod(w[2:])) * w[0]
    check(ConvGradInput(s, p, d, groups, x[2:]), (dy, weight), taps)
    check(ConvGradWeight(s, p, d, groups, w[2:]), (image, dy), int(y.size / w[0]))


def test_integers_are_exact():
    rng = np.random.default_rng(5)
    weight = values(rng, (9, 40, 3, 3), dt.int8)
    for kind in (dt.int8, dt.uint8):
        x = values(rng, (2, 40, 8, 8), kind)
        check(IntConv((1, 1), ((1, 1), (1, 1)), (1, 1), 1), (x, weight), 1)


def test_bias_residual_and_relu():
    rng = np.random.default_rng(6)
    shapes = [(2, 6, 9, 10), (8, 3, 3, 3), (8, 1, 1), (2, 8, 9, 10)]
    given = [values(rng, s, dt.float32) for s in shapes]
    conv = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 2)

    def body(x, w, bias, residual):
        y = x.apply(conv, (x, w))[0] + bias + residual
        return x.apply(Relu(), (y,))[0], y

    check(fused(body, given), given, 27)


def test_small_images_share_panels():
    rng = np.random.default_rng(8)
    given = [values(rng, s, dt.float32) for s in ((5, 16, 7, 7), (20, 16, 3, 3), (20, 1, 1))]
    conv = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)

    def body(x, w, bias):
        y = x.apply(conv, (x, w))[0] + bias
        return x.apply(Relu(), (y,))[0], y > 0.0

    op = fused(body, given)
    *_, launch = lowered(op, given).launches
    assert "places" in [p.name for p in launch.kernel.parameters]
    check(op, given, 144)


@pytest.mark.parametrize("whole", [False, True])
def test_transposed_convolution_with_bias(whole):
    rng = np.random.default_rng(7)
    shapes = [(2, 6, 5, 4), (6, 4, 3, 3), (8, 1, 1), (2, 8, 10, 8)]
    given = [values(rng, s, dt.float32) for s in shapes]
    conv = ConvGradInput((2, 2), ((1, 1), (1, 1)), (1, 1), 2, (10, 8))

    def body(dy, w, bias, residual):
        x = dy.apply(conv, (dy, w))[0] + bias
        return dy.apply(Relu(), (x,))[0] + residual if whole else dy.apply(Relu(), (x,))[0]

    op = fused(body, given)
    products = [r for r in lowered(op, given).launches if r.kernel.name.startswith("contract")]
    assert len(products) == (1 if whole else 4)
    check(op, given, 54)


@pytest.mark.parametrize("op", [Conv, ConvGradWeight, ConvGradInput])
def test_every_access_stays_inside(op):
    for sample in op.samples():
        if all(0 not in a.shape for a in sample.args):
            check(sample.op, drawn(sample, dt.float32), 40, runner=interpreted)
