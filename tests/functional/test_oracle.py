"""Network functions and their gradients against PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager

torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
T = torch.nn.functional
pytestmark = pytest.mark.oracle

RNG = np.random.default_rng(21)
Case = tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]
LABEL = np.array([0, 2, 1])

CASES: dict[str, Case] = {
    "linear": (F.linear, T.linear, [(2, 5, 3), (4, 3), (4,)]),
    "conv1d": (
        lambda x, w: F.conv1d(x, w, stride=2, padding=1, dilation=2),
        lambda x, w: T.conv1d(x, w, stride=2, padding=1, dilation=2),
        [(2, 3, 9), (4, 3, 3)],
    ),
    "conv2d": (
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        lambda x, w: T.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        [(2, 3, 7, 6), (4, 3, 3, 2)],
    ),
    "conv2d of groups": (
        lambda x, w: F.conv2d(x, w.reshape(2, 3, 2, 3, 3), groups=2),
        lambda x, w: T.conv2d(x, w, groups=2),
        [(2, 4, 5, 5), (6, 2, 3, 3)],
    ),
    "conv3d": (F.conv3d, T.conv3d, [(1, 2, 4, 4, 4), (3, 2, 2, 3, 2)]),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=(0, 1)),
        lambda x, w: T.conv_transpose2d(x, w, stride=2, padding=1, output_padding=(0, 1)),
        [(2, 3, 4, 4), (3, 5, 3, 3)],
    ),
    "conv_transpose2d of groups": (
        lambda x, w: F.conv_transpose2d(x, w.reshape(2, 2, 3, 3, 3), groups=2, dilation=2),
        lambda x, w: T.conv_transpose2d(x, w, groups=2, dilation=2),
        [(2, 4, 4, 4), (4, 3, 3, 3)],
    ),
    "conv_transpose3d": (
        lambda x, w: F.conv_transpose3d(x, w, stride=2),
        lambda x, w: T.conv_transpose3d(x, w, stride=2),
        [(1, 2, 2, 3, 2), (2, 3, 2, 2, 2)],
    ),
    "max_pool2d": (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: T.max_pool2d(x, 3, 2, 1),
        [(2, 3, 7, 6)],
    ),
    "avg_pool2d": (
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: T.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        [(2, 3, 7, 6)],
    ),
    "avg_pool2d with padding": (
        lambda x: F.avg_pool2d(x, 2, 1, 1, mode="average"),
        lambda x: T.avg_pool2d(x, 2, 1, 1),
        [(2, 3, 5, 6)],
    ),
    "adaptive_avg_pool2d": (
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        lambda x: T.adaptive_avg_pool2d(x, (3, 2)),
        [(2, 3, 7, 5)],
    ),
    "adaptive_max_pool2d": (
        lambda x: F.adaptive_max_pool2d(x, (3, 2)),
        lambda x: T.adaptive_max_pool2d(x, (3, 2)),
        [(2, 3, 7, 5)],
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, weight=w, bias=b, training=True),
        lambda x, w, b: T.batch_norm(x, None, None, w, b, training=True),
        [(4, 3, 5, 2), (3,), (3,)],
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3, 4), True, w, b),
        lambda x, w, b: T.layer_norm(x, (3, 4), w, b),
        [(2, 3, 4), (3, 4), (3, 4)],
    ),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, True, w, b),
        lambda x, w, b: T.group_norm(x, 2, w, b),
        [(2, 6, 3), (6,), (6,)],
    ),
    "instance_norm": (
        lambda x: F.instance_norm(x, False),
        T.instance_norm,
        [(2, 3, 4, 4)],
    ),
    "local_response_norm": (
        lambda x: F.local_response_norm(x, 3, 1.0, 0.3, 0.75),
        lambda x: T.local_response_norm(x, 3, 0.9, 0.75, 1.0),
        [(2, 6, 3, 3)],
    ),
    "softmax": (lambda x: F.softmax(x, 1), lambda x: T.softmax(x, 1), [(2, 5, 3)]),
    "logsoftmax": (lambda x: F.logsoftmax(x, -1), lambda x: T.log_softmax(x, -1), [(2, 5)]),
    "logsumexp": (lambda x: F.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1), [(2, 5)]),
    "gelu": (F.gelu, T.gelu, [(3, 4)]),
    "silu": (F.silu, T.silu, [(3, 4)]),
    "relu6": (lambda x: F.relu6(x * 5), lambda x: T.relu6(x * 5), [(3, 4)]),
    "hswish": (lambda x: F.hswish(x * 3), lambda x: T.hardswish(x * 3), [(3, 4)]),
    "hsigmoid": (lambda x: F.hsigmoid(x * 3), lambda x: T.hardsigmoid(x * 3), [(3, 4)]),
    "softplus": (F.softplus, T.softplus, [(3, 4)]),
    "logsigmoid": (F.logsigmoid, T.logsigmoid, [(3, 4)]),
    "leaky_relu": (F.leaky_relu, T.leaky_relu, [(3, 4)]),
    "prelu": (
        lambda x, y: F.prelu(x, y.reshape(1, 4, 1)),
        T.prelu,
        [(3, 4, 2), (4,)],
    ),
    "cross_entropy": (
        lambda x: F.nn.cross_entropy(x, LABEL, label_smooth=0.1),
        lambda x: T.cross_entropy(x, torch.tensor(LABEL), label_smoothing=0.1),
        [(3, 4)],
    ),
    "binary_cross_entropy": (
        lambda x, y: F.nn.binary_cross_entropy(x, F.sigmoid(y)),
        lambda x, y: T.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
        [(3, 4), (3, 4)],
    ),
    "square_loss": (F.nn.square_loss, T.mse_loss, [(3, 4), (3, 4)]),
    "l1_loss": (F.nn.l1_loss, T.l1_loss, [(3, 4), (3, 4)]),
    "pixel_shuffle": (
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: T.pixel_shuffle(x, 2),
        [(2, 8, 3, 2)],
    ),
    "bilinear": (
        lambda x: F.nn.interpolate(x, (5, 7)),
        lambda x: T.interpolate(x, (5, 7), mode="bilinear"),
        [(2, 3, 4, 3)],
    ),
    "bilinear with corners": (
        lambda x: F.nn.interpolate(x, (5, 7), align_corners=True),
        lambda x: T.interpolate(x, (5, 7), mode="bilinear", align_corners=True),
        [(2, 3, 4, 3)],
    ),
    "bicubic": (
        lambda x: F.nn.interpolate(x, (5, 7), mode="bicubic"),
        lambda x: T.interpolate(x, (5, 7), mode="bicubic"),
        [(2, 3, 4, 3)],
    ),
    "nearest": (
        lambda x: F.nn.interpolate(x, (5, 7), mode="nearest"),
        lambda x: T.interpolate(x, (5, 7), mode="nearest"),
        [(2, 3, 4, 3)],
    ),
    "embedding": (
        lambda w: F.embedding(LABEL, w),
        lambda w: T.embedding(torch.tensor(LABEL), w),
        [(4, 3)],
    ),
    "einsum": (
        lambda x, y: F.einsum("bhqd,bhkd->bhqk", x, y),
        lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y),
        [(2, 2, 3, 4), (2, 2, 5, 4)],
    ),
    "matmul of vectors": (lambda x, y: x @ y, lambda x, y: x @ y, [(5,), (5,)]),
    "matrix times vector": (lambda x, y: x @ y, lambda x, y: x @ y, [(2, 4, 5), (5,)]),
    "vector times matrix": (lambda x, y: x @ y, lambda x, y: x @ y, [(4,), (2, 4, 5)]),
    "matrix products that broadcast": (
        lambda x, y: x @ y,
        lambda x, y: x @ y,
        [(2, 1, 3, 4), (5, 4, 2)],
    ),
    "std": (
        lambda x: F.std(x, 1),
        lambda x: torch.std(x, 1, correction=0),
        [(3, 5)],
    ),
    "norm": (lambda x: F.norm(x, 3, 1), lambda x: torch.linalg.vector_norm(x, 3, 1), [(3, 5)]),
    "normalize": (
        lambda x: F.normalize(x, axis=1),
        lambda x: T.normalize(x, dim=1),
        [(3, 5)],
    ),
    "sort": (lambda x: F.sort(x)[0], lambda x: torch.sort(x)[0], [(3, 5)]),
    "cumsum": (lambda x: F.cumsum(x, 1), lambda x: torch.cumsum(x, 1), [(3, 5)]),
    "prod": (lambda x: F.prod(x, 1), lambda x: torch.prod(x, 1), [(3, 5)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("again", [False, True], ids=["first", "known launches"])
def test_value_and_gradient(name: str, again: bool) -> None:
    ours, theirs, shapes = CASES[name]
    arrays = [RNG.standard_normal(s) for s in shapes]
    mine = [mge.tensor(a, dtype="float64") for a in arrays]
    peers = [torch.tensor(a, requires_grad=True) for a in arrays]
    if again:
        ours(*mine)
    manager = GradManager().attach(mine)
    expected = theirs(*peers)
    weight = RNG.standard_normal(tuple(expected.shape))
    with manager:
        found = ours(*mine)
        manager.backward(found, mge.tensor(weight, dtype="float64"))
    expected.backward(torch.tensor(weight))
    assert found.shape == tuple(expected.shape) and found.dtype == np.float64
    np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), 1e-9, 1e-10)
    for x, y in zip(mine, peers, strict=True):
        # Not closer: PyTorch computes the slope of hardsigmoid in float32.
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), 1e-7, 1e-8)


def test_batch_norm_statistics() -> None:
    x = RNG.standard_normal((4, 3, 5)).astype("float32")
    mean, var = torch.zeros(3), torch.ones(3)
    ours = F.zeros(3), F.ones(3)
    for _ in range(3):
        T.batch_norm(torch.tensor(x), mean, var, training=True, momentum=0.1)
        F.batch_norm(mge.tensor(x), *ours, training=True, momentum=0.9)
    for found, expected in zip(ours, (mean, var), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), 1e-5)
