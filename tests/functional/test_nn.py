"""Layers as functions: values from their formulas, MegEngine's defaults, errors."""

import math
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.base.errors import DTypeError, IndexRangeError, OutOfMemory, ShapeError

RNG = np.random.default_rng(11)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def close(found: mge.Tensor, expected: Any, rtol: float = 1e-4) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found.numpy(), expected, rtol, 1e-5)


# -- linear maps and convolution ---------------------------------------------------------------


def test_linear() -> None:
    x, w, b = normal(2, 5, 3), normal(4, 3), normal(4)
    close(F.linear(mge.tensor(x), mge.tensor(w), mge.tensor(b)), x @ w.T + b)
    close(F.linear(mge.tensor(x), mge.tensor(w)), x @ w.T)


def naive_conv2d(
    x: Any, w: Any, stride: tuple[int, int], pad: tuple[int, int], dilation: tuple[int, int]
) -> Any:
    """x (C, H, W), w (O, C, KH, KW)."""
    x = np.pad(x, ((0, 0), (pad[0],) * 2, (pad[1],) * 2))
    span = [dilation[i] * (w.shape[2 + i] - 1) + 1 for i in (0, 1)]
    size = [(x.shape[1 + i] - span[i]) // stride[i] + 1 for i in (0, 1)]
    out = np.zeros((w.shape[0], *size), np.float32)
    for i in range(size[0]):
        for j in range(size[1]):
            top, left = i * stride[0], j * stride[1]
            rows = slice(top, top + span[0], dilation[0])
            columns = slice(left, left + span[1], dilation[1])
            out[:, i, j] = np.einsum("chw,ochw->o", x[:, rows, columns], w)
    return out


@pytest.mark.parametrize(
    ("stride", "padding", "dilation"),
    [(1, 0, 1), (2, 1, 1), (1, 2, 2), ((1, 2), (2, 0), (2, 1)), ((3, 1), (0, 1), 1)],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d(stride: Any, padding: Any, dilation: Any, groups: int) -> None:
    def both(v: Any) -> tuple[int, int]:
        return v if isinstance(v, tuple) else (v, v)

    x, w = normal(2, 4, 7, 6), normal(groups, 6 // groups, 4 // groups, 3, 2)
    bias = normal(1, 6, 1, 1)
    parts = np.split(x, groups, 1)
    expected = np.stack(
        [
            np.concatenate(
                [
                    naive_conv2d(p[n], w[g], both(stride), both(padding), both(dilation))
                    for g, p in enumerate(parts)
                ]
            )
            for n in range(2)
        ]
    )
    weight = mge.tensor(w if groups > 1 else w[0])
    found = F.conv2d(mge.tensor(x), weight, mge.tensor(bias), stride, padding, dilation, groups)
    close(found, expected + bias)


def test_conv_of_other_ranks_agree_with_conv2d() -> None:
    x, w = normal(2, 3, 8), normal(4, 3, 3)
    wide = F.conv2d(mge.tensor(x[:, :, None]), mge.tensor(w[:, :, None]), padding=(0, 1))
    close(F.conv1d(mge.tensor(x), mge.tensor(w), padding=1), wide.numpy()[:, :, 0])
    deep = F.conv3d(mge.tensor(x[:, :, None, None]), mge.tensor(w[:, :, None, None]))
    close(deep, F.conv1d(mge.tensor(x), mge.tensor(w)).numpy()[:, :, None, None])
    grouped = F.conv1d(mge.tensor(x), mge.tensor(normal(3, 2, 1, 3)), groups=3)
    assert grouped.shape == (2, 6, 6)


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose_is_the_adjoint_of_conv(groups: int) -> None:
    x, y = mge.tensor(normal(2, 6, 4, 3)), mge.tensor(normal(2, 4, 9, 7))
    shape = (groups, 6 // groups, 4 // groups, 3, 3) if groups > 1 else (6, 4, 3, 3)
    w = mge.tensor(normal(*shape))
    how = {"stride": 2, "padding": (1, 0), "groups": groups}
    up = F.conv_transpose2d(x, w, output_padding=(1, 0), **how)
    assert up.shape == (2, 4, 8, 7)
    down = F.conv2d(y[:, :, :8], w, **how)
    np.testing.assert_allclose((up * y[:, :, :8]).sum().item(), (down * x).sum().item(), 1e-3)
    cube = F.conv_transpose3d(
        mge.tensor(normal(1, 2, 2, 2, 2)), mge.tensor(normal(2, 3, 2, 2, 2)), stride=2
    )
    assert cube.shape == (1, 3, 4, 4, 4)


def test_local_conv2d_is_conv2d_with_a_kernel_per_place() -> None:
    x, kernel = mge.tensor(normal(2, 4, 5, 5)), normal(2, 3, 2, 3, 3)
    everywhere = np.broadcast_to(
        kernel.transpose(0, 2, 3, 4, 1)[:, None, None], (2, 3, 3, 2, 3, 3, 3)
    )
    found = F.local_conv2d(x, mge.tensor(everywhere), stride=2, padding=1)
    close(found, F.conv2d(x, mge.tensor(kernel), stride=2, padding=1, groups=2).numpy())
    with pytest.raises(ValueError, match="does not fit"):
        F.local_conv2d(x, mge.tensor(everywhere), padding=1)


def test_convolution_errors() -> None:
    x = mge.tensor(normal(1, 4, 5, 5))
    for weight, groups in (((6, 3, 3, 3), 1), ((5, 2, 3, 3), 2), ((3, 2, 2, 3, 3), 2)):
        with pytest.raises(ValueError, match=r"conv"):
            F.conv2d(x, mge.tensor(normal(*weight)), groups=groups)
    with pytest.raises(ValueError):
        F.conv2d(x, mge.tensor(normal(2, 4, 7, 7)))
    with pytest.raises(ValueError):
        F.conv2d(x[0], mge.tensor(normal(2, 4, 3, 3)))
    with pytest.raises(AssertionError, match="cross_correlation"):
        F.conv2d(x, mge.tensor(normal(2, 4, 3, 3)), conv_mode="convolution")
    with pytest.raises(ValueError, match="one number or 2"):
        F.conv2d(x, mge.tensor(normal(2, 4, 3, 3)), stride=(1, 1, 1))


def test_wrong_operands_are_explained() -> None:
    image = F.zeros((2, 4, 5, 5))
    with pytest.raises(ValueError, match="conv2d: x has 3 axes and weight 4"):
        F.conv2d(image[0], F.zeros((8, 4, 3, 3)))
    with pytest.raises(TypeError, match="a sequence of ints, got 'same'"):
        F.conv2d(image, F.zeros((8, 4, 3, 3)), padding="same")
    for training in (False, True):
        with pytest.raises(ValueError, match="x has 4 channels, running_mean has 3"):
            F.batch_norm(image, F.zeros(3), F.ones(3), training=training)
    with pytest.raises(ValueError, match="x has 4 channels, bias has 5"):
        F.batch_norm(image, bias=F.zeros(5), training=True)
    with pytest.raises(ValueError, match="linear: the last axes of x and weight, the features"):
        F.linear(F.zeros((2, 3)), F.zeros((5, 4)))
    with pytest.raises(TypeError, match="embedding: does not take float32 indices"):
        F.embedding(F.zeros((2, 3)), F.zeros((10, 4)))


def test_mixed_types_promote() -> None:
    x, w = mge.tensor(normal(1, 1, 3, 3)), mge.tensor(normal(1, 1, 2, 2))
    assert F.conv2d(x.astype("float16"), w).dtype == np.float32
    assert F.conv2d(x.astype("float16"), w.astype("float16")).dtype == np.float16
    assert F.conv2d(x.astype("int8"), w).dtype == np.float32


# -- windows -----------------------------------------------------------------------------------


def test_pooling() -> None:
    x = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)
    t = mge.tensor(x)
    blocks = x.reshape(1, 1, 2, 2, 3, 2)
    close(F.max_pool2d(t, 2), blocks.max((3, 5)))
    close(F.avg_pool2d(t, 2), blocks.mean((3, 5)))
    assert F.max_pool2d(t, 3).shape == (1, 1, 1, 2), "windows that do not fit are dropped"
    assert F.max_pool2d(t, (2, 3), stride=1).shape == (1, 1, 3, 4)
    negative = F.max_pool2d(-t - 1, 3, 2, 1)
    assert negative.max().item() < 0, "padding never wins"
    ones = F.ones((1, 1, 3, 3))
    assert F.avg_pool2d(ones, 3, 1, 1).tolist() == np.ones((1, 1, 3, 3)).tolist()
    counted = F.avg_pool2d(ones, 3, 1, 1, mode="average")
    np.testing.assert_allclose(counted[0, 0, 0].numpy(), [4 / 9, 6 / 9, 4 / 9], 1e-6)
    with pytest.raises(ValueError, match="unknown mode"):
        F.avg_pool2d(t, 2, mode="other")
    with pytest.raises(ValueError):
        F.max_pool2d(t, 7)
    close(F.adaptive_avg_pool2d(t, (2, 3)), blocks.mean((3, 5)))
    close(F.adaptive_max_pool2d(t, 1), [[[[23]]]])


def test_sliding_windows_and_their_adjoint() -> None:
    x = mge.tensor(normal(2, 3, 5, 6))
    patches = F.sliding_window(x, (2, 3), padding=1, stride=2, dilation=1)
    assert patches.shape == (2, 3, 3, 3, 2, 3)
    back = F.sliding_window_transpose(patches, (5, 6), (2, 3), padding=1, stride=2)
    np.testing.assert_allclose((back * x).sum().item(), (patches * patches).sum().item(), 1e-4)


def test_pad() -> None:
    x = normal(2, 3, 4)
    widths = ((1, 0), (2, 1))
    for mode, known in (("edge", "edge"), ("replicate", "edge"), ("constant", "constant")):
        found = F.pad(mge.tensor(x), widths, mode)
        close(found, np.pad(x, (*widths, (0, 0)), known))
    close(
        F.pad(mge.tensor(x), ((0, 0), (2, 2)), "reflect"),
        np.pad(x, ((0, 0), (2, 2), (0, 0)), "reflect"),
    )
    assert F.pad(mge.tensor(x), ((1, 1),), constant_value=7.0)[0, 0, 0].item() == 7
    for widths_, mode in ((((-1, 0),), "constant"), (((0, 3),), "reflect"), (((1, 1),), "wrap")):
        with pytest.raises(ValueError):
            F.pad(mge.tensor(x), widths_, mode)
    with pytest.raises(ValueError, match="does not fit 3 axes"):
        F.pad(mge.tensor(x), ((0, 0),) * 4)


# -- normalization -----------------------------------------------------------------------------


def test_batch_norm_training_updates_with_megengines_momentum() -> None:
    x = normal(4, 3, 5)
    mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    running = [F.zeros((1, 3, 1)), F.ones((1, 3, 1))]
    w, b = normal(1, 3, 1), normal(3)
    out = F.batch_norm(
        mge.tensor(x), *running, mge.tensor(w), mge.tensor(b), training=True, momentum=0.8
    )
    close(out, (x - mean) / np.sqrt(var + 1e-5) * w + b[None, :, None])
    close(running[0], 0.2 * mean)
    close(running[1], 0.8 + 0.2 * var * 20 / 19)


def test_batch_norm_inference_and_copies() -> None:
    x, mean, var = normal(4, 3), normal(3), np.abs(normal(3)) + 0.5
    t, m, v = mge.tensor(x), mge.tensor(mean), mge.tensor(var)
    close(F.batch_norm(t, m, v), (x - mean) / np.sqrt(var + 1e-5))
    out, new_mean, new_var = F.batch_norm(t, m, v, training=True, inplace=False)
    assert m.tolist() == mean.tolist() and new_mean.shape == (3,)
    close(new_mean, 0.9 * mean + 0.1 * x.mean(0))
    close(new_var, 0.9 * var + 0.1 * x.var(0, ddof=1))
    close(F.batch_norm(t, training=True), out.numpy())
    with pytest.raises(AssertionError, match="running_mean"):
        F.batch_norm(t)
    image = F.batch_norm(mge.tensor(normal(2, 3, 2, 2, 2)), m, v, bias=m)
    assert image.shape == (2, 3, 2, 2, 2)


def test_other_norms() -> None:
    x = normal(2, 6, 4, 4)
    w, b = normal(6), normal(6)

    def standard(v: Any, axes: Any) -> Any:
        return (v - v.mean(axes, keepdims=True)) / np.sqrt(v.var(axes, keepdims=True) + 1e-5)

    t = mge.tensor(x)
    affine = w[None, :, None, None], b[None, :, None, None]
    close(F.layer_norm(t, (4, 4), False), standard(x, (2, 3)))
    weight = normal(4)
    close(F.layer_norm(t, 4, True, mge.tensor(weight), F.zeros(4)), standard(x, 3) * weight)
    groups = standard(x.reshape(2, 3, 2, 4, 4), (2, 3, 4)).reshape(x.shape)
    close(F.group_norm(t, 3, False), groups)
    close(F.group_norm(t, 3, True, mge.tensor(w), mge.tensor(b)), groups * affine[0] + affine[1])
    close(F.instance_norm(t, False), standard(x, (2, 3)))
    close(
        F.general_norm(t, 1, True, mge.tensor(w), mge.tensor(b)),
        standard(x, 1) * affine[0] + affine[1],
    )
    for broken in (
        lambda: F.layer_norm(t, (4, 5), False),
        lambda: F.group_norm(t, 4, False),
        lambda: F.general_norm(t, 4, False),
    ):
        with pytest.raises(ValueError):
            broken()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("parameters", ["float16", "float32", "float64"])
def test_norms_take_every_pair_of_types(dtype: str, parameters: str) -> None:
    x = mge.tensor(np.arange(24).reshape(2, 3, 4)).astype(dtype)
    w = F.ones(3, dtype=parameters)
    expected = "float32" if dtype == "int32" else dtype
    for out in (
        F.batch_norm(x, weight=w, training=True),
        F.batch_norm(x, F.zeros(3), F.ones(3), w, w),
        F.group_norm(x, 3, True, w, w),
        F.layer_norm(x.transpose(0, 2, 1), 3, True, w, w),
    ):
        assert out.dtype.name == expected and np.isfinite(out.numpy().astype("float32")).all()


def test_local_response_norm() -> None:
    x = normal(1, 6, 2, 2)
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = sum(squares[:, i : i + 6] for i in range(3))
    found = F.local_response_norm(mge.tensor(x), 3, 1.5, 0.1, 0.5)
    close(found, x / (1.5 + 0.1 * total) ** 0.5)


# -- activations -------------------------------------------------------------------------------

X = np.array([-4.0, -3.0, -1.0, 0.0, 0.5, 3.0, 7.0], np.float32)
SIGMOID = 1 / (1 + np.exp(-X))
ACTIVATIONS = {
    "relu": np.maximum(X, 0),
    "relu6": np.clip(X, 0, 6),
    "sigmoid": SIGMOID,
    "hsigmoid": np.clip(X + 3, 0, 6) / 6,
    "hswish": X * np.clip(X + 3, 0, 6) / 6,
    "silu": X * SIGMOID,
    "gelu": X * 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2))),
    "leaky_relu": np.where(X >= 0, X, 0.01 * X),
    "softplus": np.log1p(np.exp(X)),
    "logsigmoid": np.log(SIGMOID),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    function = getattr(F, name)
    close(function(mge.tensor(X)), ACTIVATIONS[name], 1e-5)
    big = function(mge.tensor([-200.0, 200.0])).numpy()
    assert np.isfinite(big).all(), "no overflow"
    if name in ("sigmoid", "gelu"):
        with pytest.raises(TypeError, match="does not take int32"):
            function(mge.tensor([1]))
    else:
        assert np.isfinite(function(mge.tensor([1])).item())


def test_prelu() -> None:
    x = normal(2, 3, 2)
    slope = np.array([0.1, 0.2, 0.3], np.float32).reshape(1, 3, 1)
    close(F.prelu(mge.tensor(x), mge.tensor(slope)), np.where(x > 0, x, slope * x))


def test_softmax_and_its_default_axis() -> None:
    def softmax(v: Any, axis: Any) -> Any:
        e = np.exp(v - v.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    for shape, axis in (((3,), 0), ((2, 3), 1), ((2, 3, 2), 0), ((2, 3, 2, 2), 1)):
        x = normal(*shape)
        close(F.softmax(mge.tensor(x)), softmax(x, axis))
    x = normal(2, 3, 4)
    close(F.softmax(mge.tensor(x), -1), softmax(x, -1))
    close(F.softmax(mge.tensor(x), [1, 2]), softmax(x, (1, 2)))
    close(F.logsoftmax(mge.tensor(x), 2), np.log(softmax(x, 2)))
    close(F.logsumexp(mge.tensor(x), (0, 1)), np.log(np.exp(x).sum((0, 1))))
    close(
        F.logsumexp(mge.tensor(x + 1000), 1, True), np.log(np.exp(x).sum(1, keepdims=True)) + 1000
    )
    assert F.softmax(mge.tensor(3.0)).item() == 1
    with pytest.raises(ValueError, match="axis 3"):
        F.softmax(mge.tensor(x), 3)


# -- picking and chance ------------------------------------------------------------------------


def test_embedding_and_one_hot() -> None:
    w = normal(5, 3)
    index = mge.tensor([[0, 4], [2, 2]])
    close(F.embedding(index, mge.tensor(w)), w[index.numpy()])
    close(F.embedding(np.array([1]), mge.tensor(w)), w[[1]])
    with pytest.raises(IndexError, match="index 5 is out of range"):
        F.embedding(mge.tensor([5]), mge.tensor(w))
    with pytest.raises(ValueError, match="not supported"):
        F.embedding(index, mge.tensor(w), padding_idx=0)
    hot = F.one_hot(mge.tensor([1, 0]), 3)
    assert hot.tolist() == [[0, 1, 0], [1, 0, 0]] and hot.dtype == np.int32
    with pytest.raises(IndexError):
        F.one_hot(mge.tensor([3]), 3)
    with pytest.raises(TypeError, match="float32"):
        F.one_hot(mge.tensor([1.0]), 3)
    x = mge.tensor(w)
    picked = F.indexing_one_hot(x, mge.tensor([0, 1, 2, 0, 1]))
    close(picked, w[np.arange(5), [0, 1, 2, 0, 1]])
    assert F.indexing_one_hot(x, mge.tensor([4, 0, 1]), 0, True).shape == (1, 3)


def test_dropout() -> None:
    mge.random.seed(3)
    x = F.ones((100, 100))
    y = F.dropout(x, 0.25).numpy()
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert F.dropout(x, 0.25, training=False).tolist() == x.tolist()
    assert F.dropout(x, 0.0).tolist() == x.tolist()
    mge.random.seed(3)
    np.testing.assert_array_equal(F.dropout(x, 0.25).numpy(), y)
    for p in (1.0, -0.1, 2):
        with pytest.raises(ValueError, match="drop_prob"):
            F.dropout(x, p)
    manager = GradManager().attach(x)
    with manager:
        z = F.dropout(x, 0.5)
        manager.backward(z.sum())
    np.testing.assert_array_equal(x.grad.numpy(), z.numpy())


def test_pixel_shuffle() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2)
    found = F.pixel_shuffle(mge.tensor(x), 2)
    assert found.tolist() == [[[[0, 4, 1, 5], [8, 12, 9, 13], [2, 6, 3, 7], [10, 14, 11, 15]]]]
    with pytest.raises(ValueError, match="not a multiple of 9"):
        F.pixel_shuffle(mge.tensor(x), 3)


# -- losses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction: str) -> None:
    reduce = {"mean": np.mean, "sum": np.sum, "none": np.asarray}[reduction]
    p, y = normal(3, 4), normal(3, 4)
    a, b = mge.tensor(p), mge.tensor(y)
    close(F.nn.l1_loss(a, b, reduction=reduction), reduce(np.abs(p - y)))
    close(F.nn.square_loss(a, b, reduction=reduction), reduce((p - y) ** 2))
    t = (y > 0).astype(np.float32)
    s = 1 / (1 + np.exp(-p))
    each = -(t * np.log(s) + (1 - t) * np.log(1 - s))
    close(F.nn.binary_cross_entropy(a, mge.tensor(t), reduction=reduction), reduce(each))
    found = F.nn.binary_cross_entropy(
        mge.tensor(s), mge.tensor(t), with_logits=False, reduction=reduction
    )
    close(found, reduce(each))
    margin = np.maximum(0, 1 - p * np.sign(y))
    signs = mge.tensor(np.sign(y))
    close(F.nn.hinge_loss(a, signs, reduction=reduction), reduce(margin.sum(1)))
    close(F.nn.hinge_loss(a, signs, norm="L2", reduction=reduction), reduce((margin**2).sum(1)))


def test_cross_entropy() -> None:
    x = normal(3, 4)
    label = np.array([0, 3, 2])
    log = x - np.log(np.exp(x).sum(1, keepdims=True))
    each = -log[np.arange(3), label]
    t = mge.tensor(x)
    close(F.nn.cross_entropy(t, mge.tensor(label)), each.mean())
    close(F.nn.cross_entropy(t, label.tolist(), reduction="none"), each)
    close(F.nn.cross_entropy(t, mge.tensor(label.astype("float32")), reduction="sum"), each.sum())
    close(F.nn.cross_entropy(t.T, label, axis=0), each.mean())
    close(F.nn.cross_entropy(F.softmax(t), label, with_logits=False), each.mean())
    smooth = 0.9 * each - 0.1 * log.mean(1)
    close(F.nn.cross_entropy(t, label, label_smooth=0.1), smooth.mean())
    dense = F.nn.cross_entropy(mge.tensor(normal(2, 4, 1)), np.zeros((2, 1)), reduction="none")
    assert dense.shape == (2, 1), "size-1 axes stay"
    with pytest.raises(AssertionError, match="one less"):
        F.nn.cross_entropy(t, t)
    for outside in ([0, 4, 0], [0, -1, 0]):
        with pytest.raises(IndexError, match="none of 4 classes"):
            F.nn.cross_entropy(t, outside)


def test_reduction_is_checked() -> None:
    a = mge.tensor([1.0, 2.0])
    with pytest.raises(ValueError, match="reduction"):
        F.nn.l1_loss(a, a, reduction="max")
    assert F.nn.l1_loss(a, a + 1, "sum").item() == 2.0
    with pytest.raises(AssertionError, match="L1"):
        F.nn.hinge_loss(a.reshape(1, 2), a.reshape(1, 2), norm="L3")


# -- images ------------------------------------------------------------------------------------


def test_interpolate() -> None:
    x = mge.tensor(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
    found = F.nn.interpolate(x, scale_factor=2)
    assert found[0, 0, 0].tolist() == [0, 0.25, 0.75, 1]
    corners = F.nn.interpolate(x, (2, 3), align_corners=True)
    assert corners.tolist() == [[[[0, 0.5, 1], [2, 2.5, 3]]]]
    assert F.nn.interpolate(x, 4).shape == (1, 1, 4, 1), "an int is the height"
    assert F.nn.interpolate(x, (3, 4), mode="nearest")[0, 0, 0].tolist() == [0, 0, 1, 1]
    assert F.nn.interpolate(x, scale_factor=(1.6, 2.9)).shape == (1, 1, 3, 5)
    line = F.nn.interpolate(mge.tensor([[[0.0, 1.0]]]), 4, mode="linear")
    assert line.tolist() == [[[0, 0.25, 0.75, 1]]]
    assert F.nn.interpolate(F.zeros((1, 1, 2, 2, 2)), scale_factor=2, mode="trilinear").ndim == 5
    assert F.nn.interpolate(x, (4, 4), mode="bicubic").shape == (1, 1, 4, 4)
    for wrong in (
        {}, {"size": 2, "scale_factor": 2}, {"size": (2, 2), "mode": "area"},
        {"size": (2, 2), "mode": "nearest", "align_corners": True},
        {"scale_factor": (1, 2, 3)},
        {"size": (0, 2)}, {"size": (-1, 2)},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            F.nn.interpolate(x, **wrong)
    with pytest.raises(AssertionError, match="takes 3 axes"):  # MegEngine's class
        F.nn.interpolate(x, size=(2, 2), mode="linear")


def test_remap_and_flip() -> None:
    x = mge.tensor(np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3))
    places = mge.tensor([[[[0.0, 0.0], [1.5, 0.5], [9.0, 0.0]]]])
    assert F.remap(x, places).tolist() == [[[[0, 3, 2]]]]
    outside = F.remap(x, places, border_mode="constant", scalar=-1.0, interp_mode="nearest")
    assert outside[0, 0, 0, 2].item() == -1
    with pytest.raises(ValueError, match="'quintic' is unknown"):
        F.remap(x, places, interp_mode="quintic")
    image = F.transpose(x, (0, 2, 3, 1))[..., 0]
    assert F.vision.flip(image[0]).tolist() == [[5, 4, 3], [2, 1, 0]]
    assert F.vision.flip(image[0], vertical=False).tolist() == [[2, 1, 0], [5, 4, 3]]
    assert F.vision.flip(x, False, False).tolist() == x.tolist()


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
def test_a_padding_beyond_all_memory_is_our_error(function: Any) -> None:
    with pytest.raises((OutOfMemory, ShapeError), match=f"^{function.__name__}: ") as caught:
        function(F.ones((1, 1, 4, 4)), F.ones((1, 1, 3, 3)), padding=2**40)
    assert "arr.size" not in str(caught.value)


@pytest.mark.parametrize("function", [F.max_pool2d, F.avg_pool2d])
def test_a_pool_beyond_all_memory_is_our_error(function: Any) -> None:
    with pytest.raises(OutOfMemory, match=f"^{function.__name__}: not enough memory"):
        function(F.ones((1, 1, 4, 4)), 2, padding=2**40)


@pytest.mark.timeout(60)
def test_a_pool_whose_window_is_mostly_padding_ends() -> None:
    x, k = mge.tensor(np.arange(16, dtype="float32").reshape(1, 1, 4, 4)), 2**31
    assert F.max_pool2d(x, k, stride=k, padding=k // 2).tolist() == [[[[15.0]]]]
    padded = F.avg_pool2d(x, k, stride=k, padding=k // 2, mode="average_count_exclude_padding")
    assert padded.tolist() == [[[[7.5]]]]


@pytest.mark.parametrize("function", [F.adaptive_max_pool2d, F.adaptive_avg_pool2d])
def test_an_adaptive_pool_is_called_by_its_name(function: Any) -> None:
    with pytest.raises(ShapeError, match=f"^{function.__name__}: "):
        function(F.ones(4), 2)


def test_layer_norm_says_what_does_not_fit() -> None:
    x, wide = F.ones((2, 3)), F.ones(4)
    with pytest.raises(ShapeError, match=r"layer_norm: the last axes of x are not \[4\]"):
        F.layer_norm(x, 4, affine=False)
    with pytest.raises(ShapeError, match="layer_norm: the weight does not fit") as caught:
        F.layer_norm(x, 3, True, wide, None)
    assert caught.value.hint == "give a weight of shape [3]"
    with pytest.raises(ShapeError, match="layer_norm: the bias does not fit"):
        F.layer_norm(x, 3, True, None, wide)


def test_float_labels_are_whole_numbers() -> None:
    scores = F.eye(2)
    whole = F.nn.cross_entropy(scores, mge.tensor([1.0, 0.0]))
    assert whole.item() == F.nn.cross_entropy(scores, mge.tensor([1, 0])).item()
    for wrong in (0.5, float("nan")):
        with pytest.raises(DTypeError, match=f"cross_entropy: {wrong} is not a whole number"):
            F.nn.cross_entropy(scores, mge.tensor([0.0, wrong]))
    with pytest.raises(IndexRangeError, match="cross_entropy: the label 9"):
        F.nn.cross_entropy(scores, mge.tensor([0, 9]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("eps_mode", ["additive", "max"])
def test_sync_batch_norm_is_batch_norm_in_one_process(training: bool, eps_mode: str) -> None:
    x = mge.tensor(normal(4, 3, 2))
    weight, bias = mge.tensor(normal(3)), mge.tensor(normal(3))
    ours = mge.tensor(np.zeros(3, np.float32)), mge.tensor(np.ones(3, np.float32))
    theirs = mge.tensor(np.zeros(3, np.float32)), mge.tensor(np.ones(3, np.float32))
    found = F.sync_batch_norm(x, *ours, weight, bias, training, eps=1e-7, eps_mode=eps_mode)
    wanted = F.batch_norm(x, *theirs, weight, bias, training=training, eps=1e-7)
    close(found, wanted.numpy())
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other.numpy())


def test_sync_batch_norm_limits_the_variance_for_max() -> None:
    x = mge.tensor([[0.0], [2.0]])  # variance 1
    found = F.nn.sync_batch_norm(x, None, None, training=True, eps=4.0, eps_mode="max")
    assert found.tolist() == [[-0.5], [0.5]]
    with pytest.raises(AssertionError, match="eps_mode must be"):
        F.sync_batch_norm(x, None, None, training=True, eps_mode="min")
    with pytest.raises(AssertionError, match="running_mean"):
        F.sync_batch_norm(x, None, None, eps_mode="max")


def test_adaptive_pools_keep_the_extent_for_none() -> None:
    x = mge.tensor(normal(1, 2, 6, 5))
    for function, module in (
        (F.adaptive_avg_pool2d, M.AdaptiveAvgPool2d),
        (F.adaptive_max_pool2d, M.AdaptiveMaxPool2d),
    ):
        wanted = function(x, (3, 5)).numpy()
        close(function(x, (3, None)), wanted)
        close(module((3, None))(x), wanted)
        close(function(x, None), x.numpy())
        close(module(None)(x), x.numpy())


def test_grouped_weights_of_other_frameworks_are_taken() -> None:
    x, w = mge.tensor(normal(2, 4, 6, 6)), normal(2, 3, 2, 3, 3)
    flat = mge.tensor(w.reshape(6, 2, 3, 3))
    close(F.conv2d(x, flat, groups=2), F.conv2d(x, mge.tensor(w), groups=2).numpy())
    back = normal(2, 2, 3, 3, 3)
    both = mge.tensor(back), mge.tensor(back.reshape(4, 3, 3, 3))
    wanted, found = (F.conv_transpose2d(x, w, groups=2) for w in both)
    close(found, wanted.numpy())
    with pytest.raises(ShapeError):
        F.conv2d(x, mge.tensor(normal(5, 2, 3, 3)), groups=2)
    with pytest.raises(ShapeError):
        F.conv2d(x, mge.tensor(normal(6, 4, 3, 3)), groups=2)
