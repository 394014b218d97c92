"""Contractions of quantized tensors on integers: `F.quantized.*`.

Products and their sums are exact in int32; then one chain of elementwise ops follows, which
compiled programs run inside the contraction's kernel:

    int8 or uint8 x, int8 weight -> int32 sums, + int32 bias, to float32, * scale, activation,
    to the integers of the result's type.

The zero point z of an unsigned x enters as a bias: sum (x - z) w = sum x w - z sum w, with x
padded by z. Element types that the integer kernels do not take are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.dtype import float32, int8, int32, uint8
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.quantized import BUILTIN, QuantizedType, quantized_type
from treadle.engine.eager.dispatch import eager_type
from treadle.functional.activation import hswish, relu, sigmoid
from treadle.functional.arguments import both_sides, check_conv_mode, pair, stored
from treadle.functional.conv import conv2d as float_conv2d
from treadle.functional.conv import conv_transpose2d as float_conv_transpose2d
from treadle.functional.conv import linear as float_linear
from treadle.functional.math import matmul as float_matmul
from treadle.functional.windows import pad
from treadle.ops.conv import IntConv
from treadle.ops.integer_products import MOST_TERMS, dynamic_sums
from treadle.ops.matmul import IntMatmul
from treadle.ops.requantize import quantized
from treadle.tensor import Tensor

__all__ = [
    "batch_conv_bias_activation",
    "conv_bias_activation",
    "conv_transpose2d",
    "dynamic_linear",
    "linear_bias_activation",
    "matmul_bias_activation",
]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": relu,
    "sigmoid": sigmoid,
    "h_swish": hswish,
    "hswish": hswish,
}


def conv_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    nonlinear_mode: str = "identity",
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """activation(conv2d(inp, weight) + bias) of quantized tensors, as integers of type `dtype`.

    Args:
        inp: (N, C, H, W), quantized.
        weight: (O, C, KH, KW), or with groups (groups, O/groups, C/groups, KH, KW), of a signed
            quantized type; scales may differ by output channel.
        bias: (1, O, 1, 1): a `qint32` tensor of scale inp * weight, real numbers, which are
            rounded to that, plain int32, which is taken for it, or None.
        dtype: quantized type of the result; None for the sums, as `qint32`.
        stride, padding, dilation, groups: as those of `conv2d`; what is padded stands for 0.0.
        nonlinear_mode: "identity", "relu", "sigmoid" or "h_swish".
        conv_mode: only "cross_correlation".
        compute_mode: accepted for MegEngine's signature.

    Returns:
        (N, O, OH, OW). Float tensors give the float convolution.

    Raises:
        DTypeError: only one of inp and weight is quantized.
        ShapeError: channels, groups or sizes do not fit.
        ValueError: the activation is unknown.

    Example:
        >>> from treadle.quantization.dtype import qint8
        >>> x = mge.tensor([[[[1., 2., 4.]]]]).astype(qint8(0.1))
        >>> w = mge.tensor([[[[1., -0.5]]]]).astype(qint8(0.01))
        >>> F.quantized.conv_bias_activation(x, w, None, qint8(0.5), nonlinear_mode="relu")
        Tensor([[[[0 0]]]], dtype=qint8(0.5), device=xpux:0)
    """
    activation = _activation("conv_bias_activation", nonlinear_mode)
    check_conv_mode(conv_mode)
    kinds = _kinds("conv_bias_activation", inp, weight)
    if kinds is None or not _on_integers(*kinds):
        window = (stride, padding, dilation, groups)
        out = float_conv2d(_real(inp), _real(weight), _real(bias), *window)
        return _rounded(activation(out), dtype)
    x, w = stored(inp), _ungrouped(stored(weight), groups)
    pads, zero = both_sides(padding, 2), kinds[0].zero_point
    if zero:
        x, pads = _padded(x, pads, zero), ((0, 0), (0, 0))
    sums = IntConv(pair(stride), pads, pair(dilation), groups)(x, w)
    steps, excess = _steps(kinds, w.shape[0], (1, -1, 1, 1)), _over_taps(w, zero)
    return _Sums(sums, steps, excess).finish(bias, dtype, activation)


def batch_conv_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    nonlinear_mode: str = "identity",
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """`conv_bias_activation` with a weight of its own for each sample of the batch.

    The weight is (N, O, C, KH, KW), or with groups (N, groups, O/groups, C/groups, KH, KW), with
    one scale; the rest is as there.

    Raises:
        DTypeError: only one of inp and weight is quantized.
        ShapeError: channels, groups or sizes do not fit.
        ValueError: the activation is unknown.
    """
    n, channels, *spatial = inp.shape
    if weight.ndim != (5 if groups == 1 else 6) or weight.shape[0] != n:
        raise ShapeError(
            "batch_conv_bias_activation",
            "there is one weight per sample",
            saw=f"inp {inp.type}, weight {weight.type}, groups {groups}",
            hint="shape the weight (N, O, C, KH, KW), or (N, groups, O/groups, C/groups, KH, KW)",
        )
    lead = (n * groups, *weight.shape[-4:])
    each = weight.reshape(lead if n * groups > 1 else lead[1:])
    joined = inp.reshape((1, n * channels, *spatial))
    total = n * groups
    sums = conv_bias_activation(joined, each, None, None, stride, padding, dilation, total)
    sums = sums.reshape((n, sums.shape[1] // n, *sums.shape[2:]))
    activation = _activation("batch_conv_bias_activation", nonlinear_mode)
    kind = sums._kind.quantized
    if kind is None:
        out = sums if bias is None else sums + _real(bias)
        return _rounded(activation(out), dtype)
    return _Sums(stored(sums), float(kind.scale), None).finish(bias, dtype, activation)


def conv_transpose2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    dtype: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
    nonlinear_mode: str = "identity",
) -> Tensor:
    """The transposed convolution of quantized tensors, as integers of type `dtype`.

    Args:
        inp: (N, C, H, W), quantized.
        weight: (C, O, KH, KW), or with groups (groups, C/groups, O/groups, KH, KW), of a signed
            quantized type with one scale.
        bias, dtype, nonlinear_mode: as those of `conv_bias_activation`.
        stride, padding, output_padding, dilation, groups: as those of `F.conv_transpose2d`.

    Returns:
        (N, O, OH, OW). Float tensors give the float result.

    Raises:
        DTypeError: only one of inp and weight is quantized.
        ShapeError: channels, groups or sizes do not fit.
        ValueError: the activation is unknown.
    """
    activation = _activation("conv_transpose2d", nonlinear_mode)
    check_conv_mode(conv_mode)
    kinds = _kinds("conv_transpose2d", inp, weight)
    if kinds is None or not _on_integers(*kinds) or kinds[1].is_per_channel:
        window = (stride, padding, output_padding, dilation, groups)
        out = float_conv_transpose2d(_real(inp), _real(weight), _real(bias), *window)
        return _rounded(activation(out), dtype)
    zero = kinds[0].zero_point
    spread, w = pair(dilation), _turned(stored(weight), groups)
    reach = tuple(d * (k - 1) for d, k in zip(spread, w.shape[2:], strict=True))
    pads = [
        (r - p, r - p + extra)
        for r, p, extra in zip(reach, pair(padding), pair(output_padding), strict=True)
    ]
    x = _padded(_stuffed(stored(inp), pair(stride), zero), pads, zero)
    sums = IntConv((1, 1), ((0, 0), (0, 0)), spread, groups)(x, w)
    steps, excess = _steps(kinds, 1, ()), _over_taps(w, zero)
    return _Sums(sums, steps, excess).finish(bias, dtype, activation)


def linear_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    dtype: Any = None,
    nonlinear_mode: str = "identity",
) -> Tensor:
    """activation(inp weight^T + bias) of quantized tensors, as integers of type `dtype`.

    Args:
        inp: (..., in), quantized.
        weight: (out, in) of a signed quantized type; scales may differ by row.
        bias: (out,); see `conv_bias_activation`.
        dtype, nonlinear_mode: as those of `conv_bias_activation`.

    Returns:
        (..., out). Float tensors give the float result.

    Raises:
        DTypeError: only one of inp and weight is quantized.
        ShapeError: the numbers of features differ.
        ValueError: the activation is unknown.

    Example:
        >>> from treadle.quantization.dtype import qint8
        >>> x = mge.tensor([[1., 2.]]).astype(qint8(0.1))
        >>> w = mge.tensor([[1., -0.25]]).astype(qint8(0.01))
        >>> F.quantized.linear_bias_activation(x, w, dtype=qint8(0.25))
        Tensor([[2]], dtype=qint8(0.25), device=xpux:0)
    """
    activation = _activation("linear_bias_activation", nonlinear_mode)
    kinds = _kinds("linear_bias_activation", inp, weight)
    if kinds is None or not _on_integers(*kinds):
        return _rounded(activation(float_linear(_real(inp), _real(weight), _real(bias))), dtype)
    x, w = stored(inp), stored(weight)
    rows = x.reshape((1, -1)) if x.ndim == 1 else x
    sums = IntMatmul(False, True)(rows, w)
    if x.ndim == 1:
        sums = sums.reshape((-1,))
    steps, excess = _steps(kinds, w.shape[0], (-1,)), _excess(w, kinds[0].zero_point, 1)
    return _Sums(sums, steps, excess).finish(bias, dtype, activation)


def dynamic_linear(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    nonlinear_mode: str = "identity",
    scales: str = "token",
) -> Tensor:
    """activation(inp weight^T + bias) of real numbers, multiplied as 8-bit integers.

    The numbers of `inp` become levels from -127 to 127 of a scale that is found on them, halves to
    even levels. The sums are exact; scales, bias and activation are applied in float32.

    Args:
        inp: (..., in), real numbers.
        weight: (out, in), `qint8` or `qint8_narrow`; scales may differ by row.
        bias: (out,), real numbers.
        nonlinear_mode: "identity", "relu", "sigmoid" or "h_swish".
        scales: "token" for a scale for each row of `inp`, "tensor" for one in all.

    Returns:
        (..., out), of inp's element type. What shares a scale with NaN or an infinity is NaN.

    Raises:
        DTypeError: inp is not a real number, or weight not quantized as above.
        ShapeError: the numbers of features differ, or there are more than 131,071.
        ValueError: the activation or `scales` is unknown.

    Example:
        >>> from treadle.quantization.dtype import qint8
        >>> w = mge.tensor([[1., -0.25]]).astype(qint8(0.01))
        >>> F.quantized.dynamic_linear(mge.tensor([[1., 2.]]), w)
        Tensor([[0.5079]], device=xpux:0)
    """
    activation = _activation("dynamic_linear", nonlinear_mode)
    if scales not in ("token", "tensor"):
        raise ValueError(f"dynamic_linear: unknown scales {scales!r}; use 'token' or 'tensor'")
    kind = weight._kind.quantized
    if not inp._kind.dtype.is_float or kind is None or kind.stored is not int8 or weight.ndim != 2:
        raise DTypeError(
            "dynamic_linear",
            "it multiplies real numbers by a matrix of qint8",
            saw=f"inp {inp._kind.dtype.name}, weight {kind or weight._kind.dtype.name}",
            hint="weight.astype(qint8(scale)), or quantization.quantize_dynamic for a network",
        )
    if 0 in inp.shape:  # There are no products.
        nothing = inp.constant(np.zeros(weight.shape), float32)
        made = float_linear(inp.astype(float32), nothing, _real(bias))
        return activation(made).astype(inp.dtype)
    if weight.shape[1] > MOST_TERMS:
        raise ShapeError(
            "dynamic_linear",
            f"32 bits hold sums of {MOST_TERMS} products of bytes",
            saw=str(weight.type),
            hint="split the features, or multiply real numbers",
        )
    rows = inp.reshape((1, -1)) if inp.ndim == 1 else inp
    steps = weight.constant(kind.scale.reshape(-1), float32)
    made = dynamic_sums(
        IntMatmul(False, True), rows, stored(weight), steps, whole=scales == "tensor"
    )
    if inp.ndim == 1:
        made = made.reshape((-1,))
    return activation(made if bias is None else made + bias.astype(float32)).astype(inp.dtype)


def matmul_bias_activation(
    weight: Tensor,
    inp: Tensor,
    bias: Tensor | None = None,
    dtype: Any = None,
    nonlinear_mode: str = "identity",
) -> Tensor:
    """activation(weight inp + bias) of stacks of quantized matrices, as integers of `dtype`.

    Args:
        weight: (..., M, K) of a signed quantized type with one scale.
        inp: (..., K, N), quantized.
        bias: broadcasts against the result; see `conv_bias_activation`.
        dtype, nonlinear_mode: as those of `conv_bias_activation`.

    Returns:
        (..., M, N). Float tensors give the float result.

    Raises:
        DTypeError: only one of inp and weight is quantized.
        ShapeError: the inner extents differ.
        ValueError: the activation is unknown.
    """
    activation = _activation("matmul_bias_activation", nonlinear_mode)
    kinds = _kinds("matmul_bias_activation", inp, weight)
    if kinds is None or not _on_integers(*kinds) or kinds[1].is_per_channel:
        out = float_matmul(_real(weight), _real(inp))
        return _rounded(activation(out if bias is None else out + _real(bias)), dtype)
    w = stored(weight)
    sums = IntMatmul()(w, stored(inp))
    excess = _excess(w, kinds[0].zero_point, -1, keepdims=True)
    return _Sums(sums, _steps(kinds, 1, ()), excess).finish(bias, dtype, activation)


# -- after the contraction ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Sums:
    """int32 sums of products, which stand for `steps` times what they exceed `excess` by."""

    sums: Tensor
    steps: Any
    excess: Tensor | None

    def finish(
        self, bias: Tensor | None, dtype: Any, activation: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Bias, activation, and the integers of the result's type."""
        shift = None if bias is None else self._bias(bias)
        if self.excess is not None:
            shift = -self.excess if shift is None else shift - self.excess
        sums = self.sums if shift is None else self.sums + shift
        if dtype is None:
            kind = quantized_type(BUILTIN["qint32"], self.steps)
            if activation is not _ACTIVATIONS["identity"]:
                return activation(self._real(sums)).astype(kind.numpy)
            made = sums.reshape(sums.shape)
            made._kind = eager_type(int32, sums._kind.device, kind)
            return made
        return activation(self._real(sums)).astype(dtype)

    def _real(self, sums: Tensor) -> Tensor:
        return sums.astype(float32) * sums.constant(self.steps, float32)

    def _bias(self, bias: Tensor) -> Tensor:
        kind = quantized_type(BUILTIN["qint32"], self.steps)
        mine = bias._kind.quantized
        if mine is not None and mine.stored is int32 and np.allclose(mine.scale, kind.scale, 1e-6):
            return stored(bias)
        if mine is None and bias._kind.dtype is int32:
            return bias
        made: Tensor = quantized(_real(bias), kind)
        return made


def _steps(kinds: tuple[QuantizedType, QuantizedType], channels: int, shape: Any) -> Any:
    """Return the value of a sum of 1: a number, or one per output channel, in a shape to multiply
    by.

    float64, so that the product of two scales is not rounded twice.
    """
    x, w = (k.scale.astype(np.float64) for k in kinds)
    if w.ndim == 0:
        return float(x * w)
    if w.size != channels:
        raise ShapeError(
            "quantize",
            f"the weight has {w.size} scales for {channels} output channels",
            hint="give the weight one scale, or one per output channel",
        )
    return (x * w).reshape(shape)


def _activation(where: str, name: str) -> Callable[[Tensor], Tensor]:
    found = _ACTIVATIONS.get(str(name).lower())
    if found is None:
        raise ValueError(f"{where}: unknown nonlinear_mode {name!r}; use {', '.join(_ACTIVATIONS)}")
    return found


# -- operands ----------------------------------------------------------------------------------


def _kinds(where: str, x: Tensor, w: Tensor) -> tuple[QuantizedType, QuantizedType] | None:
    """Return the quantized types of both operands; None for two plain operands."""
    mine, theirs = x._kind.quantized, w._kind.quantized
    if (mine is None) != (theirs is None):
        raise DTypeError(
            where,
            "one of inp and weight is quantized, and the other is not",
            saw=f"inp {mine or x._kind.dtype.name}, weight {theirs or w._kind.dtype.name}",
            hint="put a QuantStub before quantized layers, or inp.astype(qint8(scale))",
        )
    return None if mine is None or theirs is None else (mine, theirs)


def _on_integers(x: QuantizedType, w: QuantizedType) -> bool:
    """Return whether the integer kernels take operands of these types."""
    return (
        x.stored in (int8, uint8) and w.stored is int8 and not w.zero_point and not x.is_per_channel
    )


def _real(x: Any) -> Any:
    """Real numbers of a tensor, which may be None."""
    return x if x is None or x._kind.dtype.is_float else x.astype(float32)


def _rounded(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else x.astype(dtype)


def _ungrouped(w: Tensor, groups: int) -> Tensor:
    """Weights with MegEngine's leading group axis as (O, C/groups, KH, KW)."""
    if w.ndim == 4 and (groups == 1 or w.shape[0] % groups == 0):
        return w
    if w.ndim != 5 or w.shape[0] != groups:
        raise ShapeError(
            "conv_bias_activation",
            f"the weight of {groups} groups has 5 axes, the first of size {groups}",
            saw=str(w.type),
            hint="shape it (groups, out/groups, in/groups, KH, KW)",
        )
    return w.reshape((groups * w.shape[1], *w.shape[2:]))


def _excess(w: Tensor, zero: int, axis: Any, keepdims: bool = False) -> Tensor | None:
    """Return the share of the input's zero point in sums of products; None for 0."""
    return w.astype(int32).sum(axis=axis, keepdims=keepdims) * zero if zero else None


def _over_taps(w: Tensor, zero: int) -> Tensor | None:
    """`_excess` of weights (O, C, KH, KW), as (1, O, 1, 1)."""
    found = _excess(w, zero, (1, 2, 3))
    return None if found is None else found.reshape((1, -1, 1, 1))


def _turned(w: Tensor, groups: int) -> Tensor:
    """Weights (C, O, KH, KW) of a transposed convolution as those of the plain one, (O, C, ...)."""
    if w.ndim != (4 if groups == 1 else 5):
        raise ShapeError(
            "conv_transpose2d",
            f"the weight of {groups} groups has {4 if groups == 1 else 5} axes",
            saw=str(w.type),
            hint="shape it (in, out, KH, KW), or (groups, in/groups, out/groups, KH, KW)",
        )
    n = w.ndim
    swapped = w.transpose((*range(n - 4), n - 3, n - 4, n - 2, n - 1))
    return swapped.reshape((-1, *swapped.shape[-3:]))[:, :, ::-1, ::-1]


def _padded(x: Tensor, pads: Any, value: int) -> Tensor:
    """x with rows and columns of a value added, or cut off where the number is negative."""
    kept = [(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pads, x.shape[2:], strict=True)]
    if any(a < 0 or b < 0 for a, b in pads):
        (top, bottom), (left, right) = kept
        x = x[:, :, top:bottom, left:right]
    more = [(max(0, a), max(0, b)) for a, b in pads]
    if not any(a or b for a, b in more):
        return x
    return pad(x, ((0, 0), (0, 0), *more), constant_value=value)


def _stuffed(x: Tensor, strides: tuple[int, ...], value: int) -> Tensor:
    """x with `stride - 1` cells of a value between neighbors of each spatial axis."""
    if strides == (1, 1):
        return x
    n, c, height, width = x.shape
    spread = x.reshape((n, c, height, 1, width, 1))
    gaps = ((0, 0), (0, 0), (0, 0), (0, strides[0] - 1), (0, 0), (0, strides[1] - 1))
    filled = pad(spread, gaps, constant_value=value)
    whole = filled.reshape((n, c, height * strides[0], width * strides[1]))
    return whole[:, :, : (height - 1) * strides[0] + 1, : (width - 1) * strides[1] + 1]
