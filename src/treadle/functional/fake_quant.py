"""Rounding to a quantized grid within real numbers, with gradients: what is trained through.

Users find these functions in `treadle.quantization.utils`, where MegEngine has them.
"""

from __future__ import annotations

import math
from typing import Any

from treadle.autodiff import Function
from treadle.base.dtype import DType
from treadle.base.errors import ShapeError
from treadle.base.qparams import QParams, QuantMode, create_qparams
from treadle.functional.arguments import as_tensor
from treadle.functional.elemwise import clip, floor
from treadle.functional.elemwise import round as rounded
from treadle.functional.logic import logical_and
from treadle.functional.tensor import broadcast_to, where, zeros_like
from treadle.ops.quant import FakeQuantize
from treadle.tensor import Tensor

__all__ = ["Round", "fake_quant_bias", "fake_quant_tensor", "lsq_forward", "tqt_forward"]


class Round(Function):
    """Rounding, halves away from zero, whose gradient is that of the identity."""

    def forward(self, x: Tensor) -> Tensor:
        """The nearest integers."""
        return rounded(x)

    def backward(self, output_grads: Tensor) -> Tensor:
        """The gradient of the result itself."""
        return output_grads


def fake_quant_tensor(inp: Tensor, qparams: QParams) -> Tensor:
    """inp rounded to the values that integers of `qparams` represent, as real numbers.

    (clip(round(inp / scale) + zero_point, qmin, qmax) - zero_point) * scale. The gradient passes
    straight through within the limits and is 0 beyond; scale and zero point get none (Bengio,
    Leonard and Courville 2013, arXiv:1308.3432). NaN stays NaN.

    Args:
        inp: of a floating type.
        qparams: with `dtype_meta` and `scale`; scale and zero point are numbers or tensors of one
            element, or have the number of axes of inp and one extent per channel.

    Raises:
        AssertionError: the scale or the family of dtypes is missing.
        ShapeError: scales per channel do not fit inp.
    """
    meta = qparams.dtype_meta
    if meta is None or qparams.scale is None:
        raise AssertionError(f"fake_quant_tensor needs a dtype_meta and a scale, got {qparams}")
    x = as_tensor(inp)
    kind = x._kind.dtype
    scale = as_tensor(qparams.scale, x)
    zero = as_tensor(0.0 if qparams.zero_point is None else qparams.zero_point, x)
    if scale.size == 1:
        op = FakeQuantize(meta.qmin, meta.qmax)
        return op(x, _cast(scale.reshape(()), kind), _cast(zero.reshape(()), kind))
    first, last = _channels(scale, x)
    merged = x.reshape((*x.shape[:first], scale.size, *x.shape[last + 1 :]))
    zeros = zero.reshape((-1,)) if zero.size > 1 else broadcast_to(zero.reshape(()), (scale.size,))
    op = FakeQuantize(meta.qmin, meta.qmax, first)
    return op(merged, _cast(scale.reshape((-1,)), kind), _cast(zeros, kind)).reshape(x.shape)


def _cast(x: Tensor, kind: DType) -> Tensor:
    return x if x._kind.dtype is kind else x.astype(kind)


def _channels(scale: Tensor, x: Tensor) -> tuple[int, int]:
    """The first and the last of the axes that have scales of their own."""
    own = [i for i, n in enumerate(scale.shape) if n > 1]
    span = range(own[0], own[-1] + 1)
    if scale.ndim != x.ndim or any(scale.shape[i] != x.shape[i] for i in span):
        raise ShapeError(
            "fake_quant_tensor",
            "scales per channel do not fit the tensor",
            saw=f"scale {scale.type}, inp {x.type}",
            hint="give scales an extent of 1 on every axis but neighboring channel axes",
        )
    return own[0], own[-1]


def fake_quant_bias(bias: Tensor | None, inp: Tensor, w_qat: Tensor) -> Tensor | None:
    """A bias rounded as the integer layer will: to multiples of input scale * weight scale.

    Args:
        bias: of a layer; None is returned as it is.
        inp, w_qat: the layer's input and weight, whose `qparams` tell their scales.

    Returns:
        The bias itself unless both are rounded symmetrically to 8 bits.
    """
    if bias is None:
        return None
    x, w = inp.qparams, w_qat.qparams
    if x.scale is None or w.scale is None or not (_is_int8(x) and _is_int8(w)):
        return bias
    steps = as_tensor(w.scale, bias) * as_tensor(x.scale, bias).reshape(())
    if steps.size > 1:
        steps = steps.reshape(tuple(steps.size if n == steps.size else 1 for n in bias.shape))
    params = create_qparams(QuantMode.SYMMERTIC, "qint32", steps)
    result = fake_quant_tensor(bias, params)
    result.qparams.update(params)
    return result


def _is_int8(params: QParams) -> bool:
    family = params.dtype_meta
    return params.mode is QuantMode.SYMMERTIC and (
        family is None or (family.np_dtype_str == "int8" and not family.is_unsigned)
    )


def tqt_forward(qmin: float, qmax: float, inp: Tensor, scale: Tensor) -> Tensor:
    """inp rounded to multiples of 2 ** scale between qmin and qmax, with a gradient of `scale`.

    Trained quantization thresholds (Jain et al. 2020, arXiv:1903.08066): the scale learns the
    range, as gradients of clipped values pull at it.

    Args:
        qmin, qmax: limits of the integers.
        inp: of a floating type.
        scale: the logarithm to base 2 of the step; broadcasts against inp.
    """
    return _of_function(_TQT(qmin, qmax), inp, scale)


class _TQT(Function):
    def __init__(self, qmin: float, qmax: float) -> None:
        self.qmin, self.qmax = qmin, qmax
        self.saved: Any = None

    def forward(self, inp: Tensor, scale: Tensor) -> Tensor:
        step = 2.0**scale
        level = inp / step
        nearest = rounded(clip(level, self.qmin, self.qmax))
        self.saved = level, nearest, step
        return nearest * step

    def backward(self, dy: Tensor) -> tuple[Tensor, Tensor]:
        level, nearest, step = self.saved
        inside = logical_and(level >= self.qmin - 0.5, level <= self.qmax + 0.5)
        pull = dy * where(inside, nearest - level, nearest)
        down = pull.sum_to(step.shape) * step * math.log(2)
        return where(inside, dy, zeros_like(dy)), down


def lsq_forward(
    qmin: float,
    qmax: float,
    inp: Tensor,
    step_size: Tensor,
    zero_point: Tensor | None = None,
    scale_grad: Tensor | None = None,
) -> Tensor:
    """inp rounded to multiples of `step_size` between qmin and qmax, with a gradient for the step.

    Learned step size quantization (Esser et al. 2020, arXiv:1902.08153).

    Args:
        qmin, qmax: limits of the integers.
        inp: of a floating type.
        step_size: the positive step; broadcasts against inp.
        zero_point: the integer that stands for 0.0; 0 if left out.
        scale_grad: what the gradient of the step is multiplied by; 1 if left out.
    """
    zero = as_tensor(0.0 if zero_point is None else zero_point, inp)
    factor = as_tensor(1.0 if scale_grad is None else scale_grad, inp)
    return _of_function(_LSQ(qmin, qmax), inp, step_size, zero, factor)


class _LSQ(Function):
    def __init__(self, qmin: float, qmax: float) -> None:
        self.qmin, self.qmax = qmin, qmax
        self.saved: Any = None

    def forward(self, inp: Tensor, step: Tensor, zero: Tensor, factor: Tensor) -> Tensor:
        level = inp / step + zero
        nearest = floor(clip(level, self.qmin, self.qmax) + 0.5)
        self.saved = level, nearest, step, factor
        return (nearest - zero) * step

    def backward(self, dy: Tensor) -> tuple[Tensor, Tensor]:
        level, nearest, step, factor = self.saved
        inside = logical_and(level >= self.qmin, level <= self.qmax)
        # Beyond the limits `nearest` is the limit itself.
        pull = where(inside, nearest - level, nearest) * factor * dy
        return where(inside, dy, zeros_like(dy)), pull.sum_to(step.shape)


def _of_function(function: Function, *inputs: Tensor) -> Tensor:
    result: Tensor = function(*inputs)
    return result
