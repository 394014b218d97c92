"""`F.quantized`: contractions on integers against float contractions of what they stand for."""

import doctest
import inspect

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import DTypeError, ShapeError
from treadle.jit import compile
from treadle.quantization.dtype import (
    get_scale,
    is_dtype_equal,
    qint8,
    qint16,
    qint32,
    quint8,
)

X, U, W, OUT = qint8(0.05), quint8(0.05, 130), qint8(0.02), qint8(0.2)


def data(seed, *shape):
    return mge.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def real(x):
    return None if x is None else x.astype("float32")


def assert_rounded(found, expected, dtype=OUT):
    """The result is the float result rounded; near a tie, either neighbor will do.

    Biases of real numbers are themselves rounded, to steps that are a hundredth of the result's.
    """
    assert is_dtype_equal(found.dtype, dtype)
    wanted = expected.astype(dtype)
    step = abs(found.numpy().astype(int) - wanted.numpy().astype(int))
    tie = expected.numpy() / get_scale(dtype) % 1
    assert step.max(initial=0) <= 1
    assert not step[abs(tie - 0.5) > 1e-2].any()


WINDOWS = {
    "plain": ((2, 4, 6, 7), (5, 4, 3, 3), {}),
    "strided": ((1, 3, 7, 8), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 2)}),
    "dilated": ((1, 2, 9, 9), (3, 2, 3, 3), {"dilation": 2, "padding": 2}),
    "grouped": ((1, 4, 5, 5), (2, 3, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((1, 3, 5, 5), (3, 1, 1, 3, 3), {"groups": 3, "padding": 1}),
    "pointwise": ((2, 3, 4, 4), (8, 3, 1, 1), {}),
    "empty batch": ((0, 3, 4, 4), (8, 3, 1, 1), {}),
}


@pytest.mark.parametrize("given", [X, U], ids=["int8", "uint8"])
@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("mode", ["identity", "relu"])
def test_convolution(given, case, mode):
    shape, kernel, window = WINDOWS[case]
    channels = kernel[0] if len(kernel) == 4 else kernel[0] * kernel[1]
    x, w = data(0, *shape).astype(given), data(1, *kernel).astype(W)
    b = data(2, 1, channels, 1, 1).astype(qint32(0.05 * 0.02))
    found = F.quantized.conv_bias_activation(x, w, b, OUT, **window, nonlinear_mode=mode)
    expected = F.conv2d(real(x), real(w), real(b), **window)
    assert_rounded(found, F.relu(expected) if mode == "relu" else expected)


@pytest.mark.parametrize("bias", ["none", "float", "qint32", "int32", "other scale"])
def test_biases(bias):
    x, w, plain = data(0, 1, 2, 5, 5).astype(X), data(1, 3, 2, 3, 3).astype(W), data(2, 1, 3, 1, 1)
    steps = qint32(0.05 * 0.02)
    given = {
        "none": None,
        "float": plain,
        "qint32": plain.astype(steps),
        "int32": mge.tensor(np.array(plain.astype(steps).numpy(), np.int32)),
        "other scale": plain.astype(qint32(1e-6)),
    }[bias]
    found = F.quantized.conv_bias_activation(x, w, given, OUT)
    assert_rounded(found, F.conv2d(real(x), real(w), None if given is None else plain))


def test_sums_are_exact():
    rng = np.random.default_rng(0)
    x = mge.tensor(rng.integers(-128, 128, (1, 64, 3, 3)), dtype=qint8(1.0))
    w = mge.tensor(rng.integers(-128, 128, (4, 64, 3, 3)), dtype=qint8(1.0))
    found = F.quantized.conv_bias_activation(x, w, None)
    assert is_dtype_equal(found.dtype, qint32(1.0))
    wanted = (x.numpy().astype(np.int64) * w.numpy().astype(np.int64)).sum(axis=(1, 2, 3))
    assert found.numpy().ravel().tolist() == wanted.tolist()


@pytest.mark.parametrize("mode", ["sigmoid", "h_swish", "relu"])
def test_activations_without_a_dtype_keep_the_scale_of_sums(mode):
    x, w = data(0, 1, 2, 4, 4).astype(X), data(1, 2, 2, 3, 3).astype(W)
    found = F.quantized.conv_bias_activation(x, w, None, nonlinear_mode=mode)
    of = {"sigmoid": F.sigmoid, "h_swish": F.hswish, "relu": F.relu}[mode]
    wanted = of(F.conv2d(real(x), real(w)))
    np.testing.assert_allclose(real(found).numpy(), wanted.numpy(), atol=1e-3)


def test_scales_per_output_channel():
    x = data(0, 2, 4, 5, 5).astype(U)
    scales = np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])
    w = data(1, 2, 3, 2, 3, 3).astype(qint8(scales.reshape(2, 3, 1, 1, 1)))
    b = data(2, 1, 6, 1, 1)
    found = F.quantized.conv_bias_activation(x, w, b, OUT, groups=2, padding=1)
    assert_rounded(found, F.conv2d(real(x), real(w), b, groups=2, padding=1))
    rows = data(3, 6, 8).astype(qint8(scales.reshape(6, 1)))
    inp = data(4, 5, 8).astype(U)
    found = F.quantized.linear_bias_activation(inp, rows, data(5, 6), OUT)
    assert_rounded(found, F.linear(real(inp), real(rows), data(5, 6)))
    wrong = data(1, 3, 4, 3, 3).astype(qint8(np.full((1, 4, 1, 1), 0.1)))
    with pytest.raises(ShapeError, match="4 scales for 3 output channels"):
        F.quantized.conv_bias_activation(x, wrong, None, OUT)


@pytest.mark.parametrize("given", [X, U], ids=["int8", "uint8"])
def test_a_weight_for_each_sample(given):
    x, w = data(0, 2, 4, 5, 5).astype(given), data(1, 2, 3, 4, 3, 3).astype(W)
    b = data(2, 1, 3, 1, 1)
    found = F.quantized.batch_conv_bias_activation(x, w, b, OUT, padding=1, nonlinear_mode="relu")
    each = [F.conv2d(real(x[i : i + 1]), real(w[i]), b, padding=1) for i in range(2)]
    assert_rounded(found, F.relu(F.concat(each)))
    plain = F.quantized.batch_conv_bias_activation(real(x), real(w), b, padding=1)
    np.testing.assert_allclose(plain.numpy(), F.concat(each).numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="one weight per sample"):
        F.quantized.batch_conv_bias_activation(x, w[:1], b, OUT)


TRANSPOSED = {
    "plain": ((2, 3, 4, 5), (3, 2, 3, 3), {}),
    "strided": ((1, 3, 4, 5), (3, 2, 3, 2), {"stride": (2, 3), "padding": 1}),
    "output padding": (
        (1, 2, 3, 3),
        (2, 2, 3, 3),
        {"stride": 2, "padding": (2, 1), "output_padding": (1, 1), "dilation": 1},
    ),
    "cropped": ((1, 2, 5, 5), (2, 1, 2, 2), {"padding": 2}),
    "grouped": ((1, 4, 3, 3), (2, 2, 3, 3, 3), {"groups": 2, "stride": 2, "dilation": 2}),
}


@pytest.mark.parametrize("given", [X, U], ids=["int8", "uint8"])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolution(given, case):
    shape, kernel, window = TRANSPOSED[case]
    channels = kernel[1] if len(kernel) == 4 else kernel[0] * kernel[2]
    x, w = data(0, *shape).astype(given), data(1, *kernel).astype(W)
    b = data(2, 1, channels, 1, 1)
    found = F.quantized.conv_transpose2d(x, w, b, OUT, **window)
    assert_rounded(found, F.conv_transpose2d(real(x), real(w), b, **window))


@pytest.mark.parametrize("given", [X, U], ids=["int8", "uint8"])
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (8,), (0, 8)])
def test_linear(given, shape):
    x, w, b = data(0, *shape).astype(given), data(1, 4, 8).astype(W), data(2, 4)
    found = F.quantized.linear_bias_activation(x, w, b, OUT, "relu")
    assert_rounded(found, F.relu(F.linear(real(x), real(w), b)))


@pytest.mark.parametrize("given", [X, U], ids=["int8", "uint8"])
def test_stacked_products(given):
    w, x, b = data(0, 3, 4, 5).astype(W), data(1, 3, 5, 6).astype(given), data(2, 4, 1)
    found = F.quantized.matmul_bias_activation(w, x, b, OUT)
    assert_rounded(found, F.matmul(real(w), real(x)) + b)


def test_sixteen_bits_are_computed_in_float():
    x, w = data(0, 1, 2, 4, 4).astype(qint16(1e-3)), data(1, 3, 2, 3, 3).astype(qint16(1e-3))
    found = F.quantized.conv_bias_activation(x, w, None, qint16(1e-3))
    assert_rounded(found, F.conv2d(real(x), real(w)), qint16(1e-3))


def test_floats_give_floats():
    x, w = data(0, 1, 2, 4, 4), data(1, 3, 2, 3, 3)
    found = F.nn.conv_bias_activation(x, w, None, nonlinear_mode="relu")
    np.testing.assert_array_equal(found.numpy(), F.relu(F.conv2d(x, w)).numpy())
    assert is_dtype_equal(F.nn.conv_bias_activation(x, w, None, OUT).dtype, OUT)
    np.testing.assert_allclose(
        F.quantized.conv_transpose2d(x, data(2, 2, 3, 2, 2)).numpy(),
        F.conv_transpose2d(x, data(2, 2, 3, 2, 2)).numpy(),
    )
    np.testing.assert_allclose(
        F.quantized.matmul_bias_activation(data(3, 2, 3), data(4, 3, 2)).numpy(),
        F.matmul(data(3, 2, 3), data(4, 3, 2)).numpy(),
    )


def test_compiled_is_eager():
    w, b = data(1, 8, 4, 3, 3).astype(W), data(2, 1, 8, 1, 1)

    def layer(x):
        return F.quantized.conv_bias_activation(x, w, b, OUT, padding=1, nonlinear_mode="relu")

    program = compile(layer)
    for given in (X, U):
        x = data(0, 2, 4, 8, 8).astype(given)
        np.testing.assert_array_equal(program(x).numpy(), layer(x).numpy())
    ops = [n.op.name for n in program.graph(data(0, 2, 4, 8, 8).astype(X)).nodes]
    assert [n for n in ops if n not in ("constant", "reshape", "quantize")] == [
        "int_conv",
        "add",
        "cast",
        "mul",
        "relu",
    ]
    assert ops[-1] == "quantize"


def test_both_operands_are_quantized_or_none():
    x, w = data(0, 1, 2, 4, 4), data(1, 3, 2, 3, 3)
    with pytest.raises(DTypeError, match="one of inp and weight is quantized") as caught:
        F.quantized.conv_bias_activation(x, w.astype(W), None, OUT)
    assert "QuantStub" in str(caught.value)
    with pytest.raises(DTypeError, match="linear_bias_activation"):
        F.quantized.linear_bias_activation(data(0, 2, 3).astype(X), data(1, 3, 3), None, OUT)


def test_bad_arguments():
    x, w = data(0, 1, 2, 4, 4).astype(X), data(1, 3, 2, 3, 3).astype(W)
    with pytest.raises(ValueError, match="unknown nonlinear_mode 'tanh'"):
        F.quantized.conv_bias_activation(x, w, None, OUT, nonlinear_mode="tanh")
    with pytest.raises(AssertionError, match="cross_correlation"):
        F.quantized.conv_bias_activation(x, w, None, OUT, conv_mode="convolution")
    with pytest.raises(ShapeError, match="of 2 groups has 5 axes"):
        F.quantized.conv_bias_activation(x, w, None, OUT, groups=2)
    with pytest.raises(ShapeError, match="of 1 groups has 4 axes"):
        F.quantized.conv_transpose2d(x, data(0, 1, 2, 3, 3, 3).astype(W))
    with pytest.raises(ShapeError, match="channels"):
        F.quantized.conv_bias_activation(x, data(1, 3, 3, 3, 3).astype(W), None, OUT)


@pytest.mark.parametrize("name", F.quantized.__all__)
def test_examples_show_what_happens(name):
    doc = inspect.getdoc(getattr(F.quantized, name))
    assert "Raises:" in doc
    names = {"F": F, "mge": mge, "np": np}
    test = doctest.DocTestParser().get_doctest(doc, names, name, None, None)
    assert doctest.DocTestRunner().run(test).failed == 0
