"""Calls of the public functions, with operands, for the tests of mixed precision.

Operands are made by the functions below. `act` is what layers hand on, and arrives in 16 bits
where layers before it computed in 16; `kept` arrives in float32 in any case: parameters, labels,
and coordinates of large pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import treadle.functional as F
import treadle.module as M
from treadle import amp
from treadle.random import seed
from treadle.tensor import Tensor

Way = Literal["low", "high", "kept", "statistics", "mean", "first", "sums"]
"""The list that a result's type follows.

"mean": kept, and float32 for operands of 16 bits; "first": the type of the first operand; "sums":
kept, made of products in 16 bits.
"""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Operand:
    """Values of an operand.

    Args:
        values: an array.
        moves: layers before may hand it on in 16 bits.
        place: a function of the list "low" leaves it as it is.
        fixed: it is taken in float32 only.
    """

    values: Array
    moves: bool = True
    place: bool = False
    fixed: bool = False


@dataclass(frozen=True)
class Case:
    """A call of a function.

    Args:
        call: takes the operands as tensors.
        operands: how they are made.
        way: the list of mixed precision whose types the results have.
        steps: how often a number is rounded on its way to a result in few bits. Beyond one, results
            may be off by that many roundings of the largest one: sums of rounded terms cancel.
        gradient: False where the function has none.
    """

    call: Callable[..., Any]
    operands: tuple[Operand, ...]
    way: Way = "kept"
    steps: int = 1
    gradient: bool = True


RNG = np.random.default_rng(18)


def act(*shape: int, low: float = -2.0, high: float = 2.0, place: bool = False) -> Operand:
    """Activations, from a uniform distribution."""
    return Operand(RNG.uniform(low, high, shape).astype("float32"), place=place)


def large(*shape: int) -> Operand:
    """Activations whose squares are beyond float16, with a mean far from zero."""
    return act(*shape, low=300, high=700)


def kept(values: Any, dtype: str = "float32") -> Operand:
    """Parameters, labels and coordinates."""
    return Operand(np.asarray(values, dtype), moves=False)


def weight(*shape: int) -> Operand:
    """Weights of a layer."""
    return kept(RNG.normal(0, 0.5, shape))


def whole(*shape: int, below: int) -> Operand:
    """Indices and labels."""
    return kept(RNG.integers(0, below, shape), "int32")


def apart(*shape: int) -> Operand:
    """Activations that stay in their order when they are rounded."""
    values = RNG.permutation(int(np.prod(shape))).reshape(shape)
    return Operand(values.astype("float32") / 8 - 1)


def case(
    call: Callable[..., Any],
    *operands: Operand,
    way: Way = "kept",
    steps: int = 1,
    gradient: bool = True,
) -> Case:
    """A case with its operands."""
    return Case(call, operands, way, steps, gradient)


POSITIVE = {"low": 0.5, "high": 3.0}
INSIDE = {"low": -0.9, "high": 0.9}
BOXES = [[0.0, 3.2, 2.1, 700.3, 600.7], [0.0, 100.6, 50.1, 900.9, 1000.2]]
CORNERS = [[3.2, 2.1, 700.3, 600.7], [100.6, 50.1, 900.9, 1000.2], [3.4, 2.0, 701.3, 600.2]]
TURN = [[[1.01, 0.02, 3.0], [-0.03, 0.98, 5.0], [1e-4, 2e-4, 1.0]]]
PICTURE = (1, 2, 40, 60)
PIXELS = kept(RNG.uniform(0, 255, (1, 5, 5, 3)))
FIRST, LAST = kept([2], "int32"), kept([5], "int32")
TURNS = Operand(RNG.uniform(-1, 1, (9, 2)).astype("float32"), moves=False, fixed=True)


def _unary(
    functions: str, way: Way, *, low: float = -2.0, high: float = 2.0, gradient: bool = True
) -> dict[str, Case]:
    return {
        name: case(getattr(F, name), act(3, 5, low=low, high=high), way=way, gradient=gradient)
        for name in functions.split()
    }


def _binary(functions: str, way: Way = "kept", *, gradient: bool = True) -> dict[str, Case]:
    return {
        name: case(getattr(F, name), act(3, 5), act(5, **POSITIVE), way=way, gradient=gradient)
        for name in functions.split()
    }


ELEMENTWISE = {
    **_unary("exp expm1 sin cos tan atan sinh cosh asinh", "high"),
    **_unary("log log1p sqrt", "high", **POSITIVE),
    **_unary("acosh", "high", low=1.5, high=9.0),
    **_unary("asin acos atanh", "high", **INSIDE),
    **_unary("softplus hsigmoid logsigmoid", "high", low=-8, high=8),
    **_unary("abs neg square tanh erf relu relu6 sigmoid silu gelu hswish leaky_relu elu", "kept"),
    **_unary("ceil floor round sign", "kept", gradient=False),
    **_unary("isfinite isinf isnan", "kept", gradient=False),
    **_binary("add sub mul maximum minimum"),
    **_binary("div atan2", "high"),
    **_binary("floor_div mod", gradient=False),
    **_binary("equal not_equal greater greater_equal less less_equal", gradient=False),
    "pow": case(F.pow, act(3, 5, **POSITIVE), act(5), way="high"),
    "square as a power": case(lambda x: F.pow(x, 2), large(3, 5), way="high"),
    "logaddexp": case(F.logaddexp, act(3, 5), act(5), way="high"),
    "clip": case(lambda x: F.clip(x, -0.5, 1.0), act(3, 5)),
    "prelu": case(F.prelu, act(3, 4, 5), weight(4, 1)),
    "where": case(lambda x, y: F.where(x > 0, x, y), act(3, 5), act(3, 5)),
    "complex": case(lambda x, y: F.real(F.complex(x, y) * 2.0), act(3, 5), act(3, 5), way="mean"),
    "imag": case(
        lambda x, y: F.imag(F.complex(x, y) * F.complex(y, x)), act(3), act(3), way="mean"
    ),
    "polar": case(lambda x, y: F.real(F.polar(x, y)), act(3, **POSITIVE), act(3), way="mean"),
}

MOVES = {
    "broadcast_to": case(lambda x: F.broadcast_to(x, (3, 5)), act(5)),
    "concat": case(lambda x, y: F.concat([x, y], 1), act(3, 5), act(3, 2)),
    "cond_take": case(lambda x: F.cond_take(x > 0, x)[0], act(7), gradient=False),
    "copy": case(F.copy, act(3)),
    "cumsum": case(lambda x: F.cumsum(x, 1), act(3, 40, low=5, high=9)),
    "diag": case(F.diag, act(3)),
    "expand_dims": case(lambda x: F.expand_dims(x, 1), act(3)),
    "flatten": case(F.flatten, act(3, 2)),
    "flip": case(F.vision.flip, act(1, 4, 5, 2)),
    "full_like": case(lambda x: F.full_like(x, 0.3), act(3), gradient=False),
    "gather": case(lambda x, i: F.gather(x, 1, i), act(3, 5), whole(3, 2, below=5)),
    "indexing_one_hot": case(F.indexing_one_hot, act(3, 5), whole(3, below=5)),
    "meshgrid": case(lambda x, y: F.concat(F.meshgrid(x, y)), act(3), act(4)),
    "non_zero": case(lambda x: F.non_zero(x > 0), act(7), gradient=False),
    "one_hot": case(lambda i: F.one_hot(i, 4), whole(5, below=4), gradient=False),
    "ones_like": case(F.ones_like, act(3), gradient=False),
    "pad": case(lambda x: F.pad(x, ((1, 0), (2, 1)), "reflect"), act(3, 5)),
    "pixel_shuffle": case(lambda x: F.pixel_shuffle(x, 2), act(1, 8, 2, 3)),
    "repeat": case(lambda x: F.repeat(x, 3, 0), act(3, 2)),
    "reshape": case(lambda x: F.reshape(x, (6,)), act(3, 2)),
    "roll": case(lambda x: F.roll(x, 1, 0), act(3, 2)),
    "rot90": case(F.vision.rot90, act(1, 4, 5, 2)),
    "scatter": case(
        lambda x, y: F.scatter(x, 1, Tensor([[0, 2], [3, 1], [4, 0]]), y), act(3, 5), act(3, 2)
    ),
    "sliding_window": case(lambda x: F.sliding_window(x, 3), act(1, 2, 5, 5)),
    "sliding_window_transpose": case(
        lambda x: F.sliding_window_transpose(F.sliding_window(x, 3), (6, 6), 3), act(1, 2, 6, 6)
    ),
    "split": case(lambda x: F.concat(F.split(x, 2, 1)), act(3, 4)),
    "squeeze": case(lambda x: F.squeeze(x, 1), act(3, 1)),
    "stack": case(lambda x, y: F.stack([x, y]), act(3), act(3)),
    "swapaxes": case(lambda x: F.swapaxes(x, 0, 1), act(3, 2)),
    "tile": case(lambda x: F.tile(x, (2, 3)), act(3, 2)),
    "transpose": case(lambda x: F.transpose(x, (1, 0)), act(3, 2)),
    "zeros_like": case(F.zeros_like, act(3), gradient=False),
}

REDUCTIONS = {
    "all": case(F.all, act(3), gradient=False),
    "any": case(F.any, act(3), gradient=False),
    "argmax": case(lambda x: F.argmax(x, 1), apart(3, 50), gradient=False),
    "argmin": case(lambda x: F.argmin(x, 1), apart(3, 50), gradient=False),
    "argsort": case(F.argsort, apart(3, 50), gradient=False),
    "max": case(lambda x: F.max(x, 1), apart(3, 50)),
    "min": case(lambda x: F.min(x, 1), apart(3, 50)),
    "sort": case(lambda x: F.sort(x)[0], apart(3, 50)),
    "topk": case(lambda x: F.topk(x, 3)[0], apart(3, 50)),
    "topk_accuracy": case(
        F.topk_accuracy, apart(3, 8), whole(3, below=8), gradient=False, way="mean"
    ),
    "sum": case(lambda x: F.sum(x, 1), act(3, 1000)),
    "mean": case(lambda x: F.mean(x, 1), large(3, 1000), way="mean"),
    "prod": case(lambda x: F.prod(x, 1), act(3, 8, **POSITIVE)),
    "var": case(lambda x: F.var(x, 1), act(3, 1000, low=299, high=301), way="mean"),
    "std": case(lambda x: F.std(x, 1), large(3, 1000), way="mean"),
    "norm": case(lambda x: F.norm(x, 2, 1), large(3, 1000), way="high"),
    "norm of three": case(lambda x: F.norm(x, 3, 1), large(3, 1000), way="high"),
    "norm of one": case(lambda x: F.norm(x, 1, 1), large(3, 80)),
    "largest norm": case(lambda x: F.norm(x, np.inf, 1), apart(3, 50)),
    "normalize": case(lambda x: F.normalize(x, 2, 1), large(3, 1000), way="high"),
    "logsumexp": case(lambda x: F.logsumexp(x, 1), act(3, 50), way="high"),
    "softmax": case(lambda x: F.softmax(x, 1), act(3, 50)),
    "softmax over two axes": case(lambda x: F.softmax(x, [1, 2]), act(3, 4, 5), way="high"),
    "logsoftmax": case(lambda x: F.logsoftmax(x, 1), act(3, 50), way="high"),
}

PRODUCTS = {
    "matmul": case(F.matmul, act(3, 40), weight(40, 5), way="low"),
    "matmul with a vector": case(F.matmul, act(3, 40), weight(40), way="low"),
    "linear": case(F.linear, act(3, 40), weight(5, 40), weight(5), way="low", steps=2),
    "conv1d": case(F.conv1d, act(1, 3, 9), weight(4, 3, 3), way="low"),
    "conv2d": case(
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        act(1, 3, 7, 7),
        weight(4, 3, 3, 3),
        weight(1, 4, 1, 1),
        way="low",
        steps=2,
    ),
    "conv3d": case(F.conv3d, act(1, 2, 4, 4, 4), weight(3, 2, 2, 2, 2), way="low"),
    "conv_transpose2d": case(F.conv_transpose2d, act(1, 3, 5, 5), weight(3, 4, 3, 3), way="low"),
    "conv_transpose3d": case(
        F.conv_transpose3d, act(1, 2, 3, 3, 3), weight(2, 3, 2, 2, 2), way="low"
    ),
    "local_conv2d": case(F.local_conv2d, act(1, 2, 4, 4), weight(1, 3, 3, 2, 2, 2, 3), way="low"),
    "region_restricted_conv": case(
        lambda x, w, i, o: F.region_restricted_conv(x, w, i, o, groups=2),
        act(1, 2, 4, 4),
        weight(2, 1, 1, 3, 3),
        kept(RNG.integers(0, 2, (1, 4, 4)), "int32"),
        kept(RNG.integers(0, 2, (1, 2, 2)), "int32"),
        way="low",
    ),
    "deformable_conv2d": case(
        F.deformable_conv2d,
        act(1, 2, 6, 600),
        weight(3, 2, 3, 3),
        act(1, 18, 4, 598, low=-3, high=3, place=True),
        act(1, 9, 4, 598, place=True),
        way="low",
        steps=2,
    ),
    "scaled_dot_product_attention": case(
        F.scaled_dot_product_attention, act(2, 6, 4), act(2, 6, 4), act(2, 6, 4), way="low"
    ),
    "multi_head_attention": case(
        lambda q, w: F.multi_head_attention(q, q, q, 8, 2, 0.0, 0.0, w, 8, 8, 8, 8)[0],
        act(2, 6, 8),
        weight(4, 8, 8),
        way="low",
        steps=4,
    ),
    "cached_attention": case(
        F.cached_attention,
        act(1, 2, 3, 4),
        act(1, 1, 6, 4),
        act(1, 1, 6, 4),
        FIRST,
        LAST,
        way="low",
        gradient=False,
    ),
    "cache_update": case(
        F.cache_update, kept(np.zeros((1, 1, 6, 4))), act(1, 1, 3, 4), FIRST, LAST, gradient=False
    ),
    "rope": case(
        F.rope, act(1, 2, 3, 4), TURNS, TURNS, FIRST, steps=2, way="first", gradient=False
    ),
    "einsum": case(
        lambda x, y: F.einsum("bij,bjk->bik", x, y), act(2, 3, 4), act(2, 4, 5), way="low"
    ),
    "dot": case(F.dot, large(1000), act(1000), way="kept"),
    "cross": case(F.cross, act(5, 3), act(5, 3), steps=3),
    "matinv": case(
        F.matinv, Operand(RNG.uniform(-2, 2, (2, 3, 3)).astype("f") + 4 * np.eye(3, dtype="f"))
    ),
    "svd": case(lambda x: F.svd(x, compute_uv=False), act(3, 4)),
    "embedding": case(F.embedding, whole(4, below=9), weight(9, 3)),
}

NORMS = {
    "batch_norm": case(
        lambda x, w, b: F.batch_norm(x, weight=w, bias=b, training=True),
        large(4, 3, 5),
        weight(3),
        weight(3),
        way="statistics",
    ),
    "batch_norm with statistics": case(
        F.batch_norm,
        act(4, 3, 5),
        kept([0.1, -0.2, 1.3]),
        kept([1.0, 2.0, 0.3]),
        weight(3),
        weight(3),
        way="statistics",
    ),
    "sync_batch_norm": case(
        lambda x, w, b: F.sync_batch_norm(x, None, None, w, b, training=True),
        large(4, 3, 5),
        weight(3),
        weight(3),
        way="statistics",
    ),
    "sync_batch_norm of a largest variance": case(
        lambda x, w, b: F.sync_batch_norm(x, None, None, w, b, training=True, eps_mode="max"),
        large(4, 3, 5),
        weight(3),
        weight(3),
        way="statistics",
    ),
    "layer_norm": case(
        lambda x, w, b: F.layer_norm(x, 50, True, w, b),
        large(3, 50),
        weight(50),
        weight(50),
        way="high",
    ),
    "general_norm": case(
        lambda x, w, b: F.general_norm(x, 0, True, w, b),
        large(50, 3),
        weight(50),
        weight(50),
        way="high",
        steps=3,
    ),
    "group_norm": case(
        lambda x, w, b: F.group_norm(x, 2, True, w, b),
        large(3, 4, 9),
        weight(4),
        weight(4),
        way="high",
    ),
    "instance_norm": case(
        lambda x, w, b: F.instance_norm(x, True, w, b),
        large(3, 4, 9),
        weight(4),
        weight(4),
        way="high",
    ),
    "local_response_norm": case(F.local_response_norm, large(1, 7, 3, 3), way="high"),
    "dropout": case(lambda x: F.dropout(x, 0.3), act(3, 40)),
}

WINDOWS = {
    "adaptive_avg_pool2d": case(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), large(*PICTURE)),
    "adaptive_max_pool2d": case(lambda x: F.adaptive_max_pool2d(x, (3, 4)), apart(1, 1, 7, 9)),
    "avg_pool2d": case(lambda x: F.avg_pool2d(x, 20), large(*PICTURE)),
    "max_pool2d": case(lambda x: F.max_pool2d(x, 2), apart(1, 1, 6, 8)),
}

LOSSES = {
    "l1_loss": case(F.loss.l1_loss, large(4, 50), act(4, 50), way="mean"),
    "sum of l1_loss": case(
        lambda x, y: F.loss.l1_loss(x, y, "sum"), large(4, 300), act(4, 300), way="high"
    ),
    "square_loss": case(F.loss.square_loss, large(4, 50), act(4, 50), way="mean"),
    "square_loss of few": case(
        lambda x, y: F.loss.square_loss(x, y, "none"), act(9), act(9), way="high"
    ),
    "cross_entropy": case(F.loss.cross_entropy, act(4, 9), whole(4, below=9), way="mean"),
    "smoothed cross_entropy": case(
        lambda x, y: F.loss.cross_entropy(x, y, label_smooth=0.1),
        act(4, 9),
        whole(4, below=9),
        way="mean",
    ),
    "cross_entropy of probabilities": case(
        lambda x, y: F.loss.cross_entropy(x, y, with_logits=False),
        act(4, 9, low=0.01, high=0.1),
        whole(4, below=9),
        way="mean",
    ),
    "binary_cross_entropy": case(
        F.loss.binary_cross_entropy, act(4, 9), kept(RNG.uniform(size=(4, 9))), way="mean"
    ),
    "binary_cross_entropy of probabilities": case(
        lambda x, y: F.loss.binary_cross_entropy(x, y, with_logits=False),
        act(4, 9, low=0.01, high=0.9),
        kept(RNG.uniform(size=(4, 9))),
        way="mean",
    ),
    "hinge_loss": case(F.loss.hinge_loss, act(4, 9), kept(RNG.choice([-1, 1], (4, 9))), way="mean"),
    "squared hinge_loss": case(
        lambda x, y: F.loss.hinge_loss(x, y, "L2"),
        large(4, 9),
        kept(RNG.choice([-1, 1], (4, 9))),
        way="mean",
    ),
    "ctc_loss": case(
        lambda x, y: F.loss.ctc_loss(x, Tensor([6, 5]), y, Tensor([2, 2])),
        act(6, 2, 4, low=0.1, high=0.9),
        kept([[1, 2], [3, 1]], "int32"),
        way="mean",
    ),
}

PLACES = {
    "remap": case(F.remap, act(1, 2, 9, 9), kept(RNG.uniform(0, 8, (1, 5, 5, 2)))),
    "warp_affine": case(
        lambda x, m: F.vision.warp_affine(x, m, (30, 50), format="NCHW"),
        act(*PICTURE),
        kept([t[:2] for t in TURN]),
    ),
    "warp_perspective": case(
        lambda x, m: F.vision.warp_perspective(x, m, (30, 50)), act(*PICTURE), kept(TURN)
    ),
    "interpolate": case(lambda x: F.vision.interpolate(x, (77, 119)), act(*PICTURE)),
    "bicubic interpolate": case(
        lambda x: F.vision.interpolate(x, (77, 119), mode="bicubic"), act(*PICTURE)
    ),
    "aligned interpolate": case(
        lambda x: F.vision.interpolate(x, (77, 119), align_corners=True), act(*PICTURE)
    ),
    "nearest interpolate": case(
        lambda x: F.vision.interpolate(x, (77, 119), mode="nearest"), act(*PICTURE)
    ),
    "resize": case(lambda x: F.vision.resize(x, (77, 33)), act(*PICTURE)),
    "resize by area": case(lambda x: F.vision.resize(x, (17, 33), imode="area"), act(*PICTURE)),
    "rotate": case(lambda x: F.vision.rotate(x, 17.0), act(*PICTURE)),
    "cvt_color": case(
        lambda x: F.vision.cvt_color(x.astype("float32"), "RGB2GRAY"), PIXELS, way="mean"
    ),
    "cvt_color to YUV": case(
        lambda x: F.vision.cvt_color(x.astype("float32"), "RGB2YUV"), PIXELS, way="mean"
    ),
    "correlation": case(
        lambda x, y: F.vision.correlation(x, y, 3, 2, pad_size=3),
        act(1, 40, 6, 6),
        act(1, 40, 6, 6),
    ),
    "correlation by differences": case(
        lambda x, y: F.vision.correlation(x, y, 3, 2, pad_size=3, is_multiply=False),
        act(1, 40, 6, 6),
        act(1, 40, 6, 6),
    ),
    "nms": case(lambda b, s: F.vision.nms(b, s, 0.5), kept(CORNERS), act(3), gradient=False),
    "roi_align": case(
        lambda x, b: F.vision.roi_align(x, b, (3, 3), spatial_scale=1 / 20),
        act(1, 2, 60, 60),
        kept(BOXES),
    ),
    "largest roi_align": case(
        lambda x, b: F.vision.roi_align(x, b, (3, 3), "max", 1 / 20),
        act(1, 2, 60, 60),
        kept(BOXES),
    ),
    "roi_pooling": case(
        lambda x, b: F.vision.roi_pooling(x, b, (3, 3), scale=1 / 20),
        act(1, 2, 60, 60),
        kept(BOXES),
    ),
    "roi_pooling by means": case(
        lambda x, b: F.vision.roi_pooling(x, b, (3, 3), "average", 1 / 20),
        act(1, 2, 60, 60),
        kept(BOXES),
    ),
    "deformable_psroi_pooling": case(
        lambda x, b, t: F.deformable_psroi_pooling(x, b, t, False, 3, 3, 3, 2, 1 / 20)[0],
        act(1, 2, 60, 60),
        kept(BOXES),
        act(2, 2, 3, 3),
    ),
}


def made(make: Callable[[], M.Module], dtype: str) -> M.Module:
    """A layer whose parameters are the same at each call, in an element type."""
    seed(18)
    layer = make()
    for tensor in (*layer.parameters(), *layer.buffers()):
        tensor._reset(tensor.astype(dtype))
    return layer


def _layer(make: Callable[[], M.Module]) -> Callable[..., Any]:
    """A call of a layer, whose parameters stay in float32 where mixed precision is on."""

    layers = {dtype: made(make, dtype) for dtype in ("float16", "bfloat16", "float32", "float64")}

    def call(*xs: Tensor) -> Any:
        out = layers["float32" if amp.enabled else xs[0].dtype.name](*xs)
        return out[0] if isinstance(out, tuple) else out

    return call


LAYERS: dict[str, Case] = {
    "layer LSTM": case(_layer(lambda: M.LSTM(4, 5)), act(6, 2, 4), way="sums", steps=8),
    "layer GRU": case(_layer(lambda: M.GRU(4, 5)), act(6, 2, 4), way="sums", steps=8),
    "layer RNN": case(_layer(lambda: M.RNN(4, 5)), act(6, 2, 4), way="low", steps=8),
    "layer MultiHeadAttention": case(
        _layer(lambda: M.MultiHeadAttention(8, 2)), *[act(2, 6, 8)] * 3, way="low", steps=8
    ),
    "layer ConvBnRelu2d": case(
        _layer(lambda: M.ConvBnRelu2d(3, 4, 3)), act(2, 3, 6, 6), way="low", steps=8
    ),
    "layer GroupNorm": case(_layer(lambda: M.GroupNorm(2, 4)), large(2, 4, 5), way="high"),
    "layer Sharpen": case(_layer(lambda: M.Sharpen(1.0, 1.0)), act(1, 3, 8, 8, low=0, high=255)),
    "layer Emboss": case(_layer(lambda: M.Emboss(1.0, 1.0)), act(1, 3, 8, 8, low=0, high=255)),
    "layer HuberLoss": case(
        _layer(lambda: M.HuberLoss("mean", 3.0)), large(4, 50), act(4, 50), way="mean"
    ),
    "layer SmoothL1Loss": case(
        _layer(lambda: M.SmoothL1Loss("none")), large(4, 50), act(4, 50), way="high"
    ),
}

CASES: dict[str, Case] = {
    **ELEMENTWISE,
    **MOVES,
    **REDUCTIONS,
    **PRODUCTS,
    **NORMS,
    **WINDOWS,
    **LOSSES,
    **PLACES,
    **LAYERS,
}
