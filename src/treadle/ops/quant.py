"""Quantization: integers that stand for `scale * (q - zero_point)`.

`axis` None means one scale and zero point for the whole tensor (0-d), else one per index of that
axis (1-d). Rounding is half away from zero, as in MegEngine (ONNX and PyTorch round half to even).
Scales may be float32 beside 16-bit tensors, which are computed in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import Shape, require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.families import Unary
from treadle.ops.logic import LogicalAnd
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.precision import compute_type
from treadle.ops.scalar import Scalar, call, cast
from treadle.ops.select import Clip
from treadle.ops.unary import Round, RoundEven

STORED: tuple[DType, ...] = (dt.int8, dt.uint8, dt.int16, dt.int32)
"""Element types that hold quantized values."""


def limits_of(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


@family
class Affine(Composite):
    """Ops over (x, scale, zero_point)."""

    operands = ("x", "scale", "zero_point")

    def check_grid(self, axis: int | None, types: tuple[TensorType, ...]) -> None:
        """Raise unless scale and zero point are 0-d, or match axis `axis` of x."""
        x, scale, zero = types
        if not scale.dtype.is_float:
            raise DTypeError(
                self.name,
                f"the scale is a real number, not {scale.dtype.name}",
                saw=self.saw(types),
                hint="cast the scale to float32",
            )
        for t in (scale, zero):
            self._check_extent(axis, t, types)
        if axis is not None and not 0 <= axis < x.ndim:
            raise self.error(f"x has no axis {axis}", types, "name an axis of x, or None")

    def _check_extent(self, axis: int | None, t: TensorType, types: tuple[TensorType, ...]) -> None:
        x = types[0]

        def mismatch() -> ShapeError:
            wanted = "0-d" if axis is None else f"1-d, one entry per index of axis {axis}"
            return self.error(f"scale and zero point must be {wanted}", types, "reshape them")

        if t.ndim != (0 if axis is None else 1):
            raise mismatch()
        if axis is not None and 0 <= axis < x.ndim:
            require_equal(t.shape[0], x.shape[axis], mismatch)


def _along(grid: Any, axis: int | None, ndim: int) -> Any:
    """A scale or zero point (operand or array) in a shape that broadcasts along `axis`."""
    if axis is None:
        return grid
    shape: Shape = tuple(grid.shape[0] if i == axis else 1 for i in range(ndim))
    return grid.reshape(shape)


def round_half_away(x: Array) -> Array:
    """x to the nearest integer, halves away from zero; exact for every float."""
    whole = np.trunc(x)
    return np.asarray(whole + np.copysign(np.abs(x - whole) >= 0.5, x))


@op
class Saturate(Unary):
    """x as integers of type `dtype` between two limits, which x is cut to; NaN becomes `low`."""

    dtype: DType = dt.int8
    low: int = -128
    high: int = 127

    name = "saturate"
    dtypes = dt.FLOATS
    no_gradient = "yields integers"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        check_limits(self, self.dtype, (self.low, self.high), (x,))
        return (TensorType(self.dtype, x.shape),)

    def reference(self, x: Array) -> Array:
        low, high = (x.dtype.type(limit) for limit in (self.low, self.high))
        # fmax and fmin prefer the number to the NaN.
        return np.asarray(np.fmin(np.fmax(x, low), high)).astype(self.dtype.numpy)

    def scalar(self, x: Scalar) -> Scalar:
        return cast(call("clamp", x, float(self.low), float(self.high)), self.dtype)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        far, nan = Arg((2, 9), low=-400, high=400), Arg((2,), values=(float("nan"), 3.7))
        cases = (cls(), cls(dt.uint8, 0, 255), cls(dt.int16, -7, 7), cls(dt.int8, 0, 127))
        made = [Sample(op, (x,)) for op in cases for x in (far, nan)]
        return (*made, *(Sample(cls(), (Arg(s),)) for s in ((), (0, 2), (1, 1))))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(dt.int8, 0, 255), (Arg((2,)),), DTypeError, "0 to 255 as int8"),
            BadSample(cls, (Arg((2,), dt.int32),), DTypeError, "does not take", dt.int32),
        )


def check_limits(
    op: Op, dtype: DType, limits: tuple[int, int], types: tuple[TensorType, ...]
) -> None:
    """Raise unless an integer type can store what lies between two limits."""
    low, high = limits_of(dtype) if dtype in STORED else (0, -1)
    if not low <= limits[0] <= limits[1] <= high:
        raise DTypeError(
            op.name,
            f"cannot store {limits[0]} to {limits[1]} as {dtype.name}",
            saw=op.saw(types),
            hint="use int8, uint8, int16 or int32 and limits inside it",
        )


@op
class Quantize(Affine):
    """clamp(round(x / scale) + zero_point, qmin, qmax) as integers of type `dtype`.

    The zero point is int32; NaN becomes qmin. With `even` halves are rounded to even levels, as
    ONNX and PyTorch have it, else away from zero, as MegEngine has it.
    """

    dtype: DType = dt.int8
    qmin: int = -128
    qmax: int = 127
    axis: int | None = None
    even: bool = False

    name = "quantize"
    converts = True
    dtypes = dt.FLOATS
    no_gradient = "yields integers; fake_quantize passes gradients straight through"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        self.check_grid(self.axis, types)
        check_limits(self, self.dtype, (self.qmin, self.qmax), types)
        if types[2].dtype is not dt.int32:
            raise DTypeError(
                self.name,
                f"the zero point is int32, not {types[2].dtype.name}",
                saw=self.saw(types),
                hint="cast it with astype('int32')",
            )
        return (TensorType(self.dtype, types[0].shape),)

    def _wide(self, x: DType) -> DType:
        # float32 cannot hold every int32.
        return dt.float64 if self.dtype is dt.int32 else compute_type(x)

    def body(self, x: Any, scale: Any, zero_point: Any) -> Any:
        kind, ndim = self._wide(x.type.dtype), x.type.ndim
        scale, zero = (_along(g.astype(kind), self.axis, ndim) for g in (scale, zero_point))
        nearest: Op = RoundEven() if self.even else Round()
        level = nearest(x.astype(kind) / scale) + zero
        return Saturate(self.dtype, self.qmin, self.qmax)(level)

    def reference(self, x: Array, scale: Array, zero_point: Array) -> Array:
        kind = self._wide(dt.as_dtype(x.dtype)).numpy
        scale, zero = (_along(g.astype(kind), self.axis, x.ndim) for g in (scale, zero_point))
        nearest = np.rint if self.even else round_half_away
        level = nearest(x.astype(kind) / scale) + zero
        # fmax and fmin prefer the number to the NaN.
        level = np.fmin(np.fmax(level, kind.type(self.qmin)), kind.type(self.qmax))
        return np.asarray(level).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        one, zero = Arg((), dt.float32, low=0.01, high=0.1), Arg((), dt.int32, values=3)
        each = Arg((3,), dt.float32, low=0.01, high=0.1)
        zeros = Arg((3,), dt.int32, low=0, high=9)
        halves = Arg((4,), values=(-1.5, -0.5, 0.5, 2.5))
        return (
            Sample(cls(), (Arg((2, 3)), one, zero)),
            Sample(cls(dt.uint8, 0, 255, 1), (Arg((2, 3)), each, zeros)),
            Sample(cls(dt.int32, -(2**31), 2**31 - 1, 0), (Arg((3, 2)), each, zeros)),
            Sample(cls(dt.int16, -7, 7), (Arg(()), one, zero)),
            Sample(cls(), (Arg((0, 2)), one, zero)),
            Sample(cls(), (Arg((1, 1)), one, zero)),
            Sample(cls(even=True), (halves, Arg((), dt.float32, values=1.0), zero)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, one, zero = Arg((2, 3)), Arg(()), Arg((), dt.int32)
        return (
            BadSample(lambda: cls(dt.int8, 0, 255), (x, one, zero), DTypeError, "0 to 255 as int8"),
            BadSample(lambda: cls(dt.int64, 0, 1), (x, one, zero), DTypeError, "as int64"),
            BadSample(cls, (x, one, one), DTypeError, "zero point is int32"),
            BadSample(cls, (x, zero, zero), DTypeError, "scale is a real number"),
            BadSample(cls, (x, Arg((3,)), zero), ShapeError, "must be 0-d"),
            BadSample(
                lambda: cls(axis=1), (x, Arg((2,)), Arg((2,), dt.int32)), ShapeError, "axis 1"
            ),
            BadSample(
                lambda: cls(axis=2), (x, Arg((2,)), Arg((2,), dt.int32)), ShapeError, "no axis"
            ),
        )


@op
class Dequantize(Affine):
    """scale * (x - zero_point) in the element type of the scale; the zero point is int32."""

    axis: int | None = None

    name = "dequantize"
    converts = True
    dtypes = STORED

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        self.check_grid(self.axis, types)
        if types[2].dtype is not dt.int32:
            raise DTypeError(
                self.name,
                f"the zero point is int32, not {types[2].dtype.name}",
                saw=self.saw(types),
                hint="cast it with astype('int32')",
            )
        return (TensorType(types[1].dtype, types[0].shape),)

    def body(self, x: Any, scale: Any, zero_point: Any) -> Any:
        out, kind, ndim = scale.type.dtype, compute_type(scale.type.dtype), x.type.ndim
        level = x.astype(dt.int32) - _along(zero_point, self.axis, ndim)
        return (level.astype(kind) * _along(scale.astype(kind), self.axis, ndim)).astype(out)

    def reference(self, x: Array, scale: Array, zero_point: Array) -> Array:
        kind = compute_type(dt.as_dtype(scale.dtype)).numpy
        level = x.astype(np.int32) - _along(zero_point, self.axis, x.ndim)
        real = np.asarray(level).astype(kind) * _along(scale.astype(kind), self.axis, x.ndim)
        return np.asarray(real).astype(scale.dtype)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        zero, zeros = Arg((), dt.int32, values=3), Arg((3,), dt.int32, low=-2, high=9)
        x = Arg((2, 3), low=-100, high=100)
        return (
            Sample(cls(), (x, Arg((), dt.float64, low=0.1, high=0.2), zero)),
            Sample(cls(1), (x, Arg((3,), dt.float32, low=0.1, high=0.2), zeros)),
            Sample(cls(), (Arg(()), Arg((), dt.bfloat16, low=0.1, high=0.2), zero)),
            Sample(cls(), (Arg((0, 2)), Arg((), dt.float32), zero)),
            Sample(cls(0), (Arg((1, 1)), Arg((1,), dt.float16), Arg((1,), dt.int32))),
            # The scale is what gradients flow to.
            Sample(
                cls(1), (Arg((2, 3), dt.int8, low=-9, high=9), Arg((3,)), zeros), dtypes=dt.FLOATS
            ),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, one, zero = Arg((2, 3), dt.int8), Arg(()), Arg((), dt.int32)
        return (
            BadSample(cls, (x, one, one), DTypeError, "zero point is int32"),
            BadSample(cls, (x, Arg((1,)), zero), ShapeError, "must be 0-d"),
        )


@op
class FakeQuantize(Affine):
    """x rounded to the grid that `Quantize` and `Dequantize` would give, as floats.

    All operands have one element type. The gradient passes straight through where round(x / scale)
    + zero_point lies inside the limits and is 0 elsewhere; scale and zero point are held constant
    (Bengio, Leonard and Courville 2013, arXiv:1308.3432).
    """

    qmin: int = -128
    qmax: int = 127
    axis: int | None = None

    name = "fake_quantize"
    dtypes = dt.FLOATS

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        self.check_grid(self.axis, types)
        self.check_same_dtype(types)
        if self.qmin > self.qmax:
            raise self.error(
                f"the limits {self.qmin} to {self.qmax} hold nothing", types, "swap them"
            )
        return (TensorType(types[0].dtype, types[0].shape),)

    def _level(self, x: Any, scale: Any, zero_point: Any) -> tuple[Any, Any, Any]:
        kind, ndim = compute_type(x.type.dtype), x.type.ndim
        scale, zero = (_along(g.astype(kind), self.axis, ndim) for g in (scale, zero_point))
        return Round()(x.astype(kind) / scale) + zero, scale, zero

    def body(self, x: Any, scale: Any, zero_point: Any) -> Any:
        level, scale, zero = self._level(x, scale, zero_point)
        level = Clip(float(self.qmin), float(self.qmax))(level)
        return ((level - zero) * scale).astype(x.type.dtype)

    def reference(self, x: Array, scale: Array, zero_point: Array) -> Array:
        kind = compute_type(dt.as_dtype(x.dtype)).numpy
        scale, zero = (_along(g.astype(kind), self.axis, x.ndim) for g in (scale, zero_point))
        level = np.asarray(round_half_away(x.astype(kind) / scale) + zero)
        np.clip(level, kind.type(self.qmin), kind.type(self.qmax), out=level)
        return np.asarray((level - zero) * scale).astype(x.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        if not at.needs[0]:
            return (None, None, None)
        level = self._level(*at.inputs)[0]
        inside = LogicalAnd()(level >= float(self.qmin), level <= float(self.qmax))
        return (at.dy * inside.astype(at.dy.type.dtype), None, None)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        one, zero = Arg((), low=0.1, high=0.2), Arg((), values=3.0)
        each, zeros = Arg((3,), low=0.1, high=0.2), Arg((3,), values=(0.0, 2.0, -3.0))
        cases = (
            (cls(), (Arg((2, 3)), one, zero)),
            (cls(-7, 7, 1), (Arg((2, 3)), each, zeros)),
            (cls(0, 255, 0), (Arg((3, 2)), each, zeros)),
            (cls(), (Arg(()), one, zero)),
            (cls(), (Arg((0, 2)), one, zero)),
            (cls(), (Arg((1, 1)), one, zero)),
        )
        # The straight-through gradient is not the derivative of a staircase.
        return tuple(Sample(o, a, gradient=False) for o, a in cases)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, one = Arg((2, 3)), Arg(())
        return (
            BadSample(lambda: cls(3, 2), (x, one, one), ShapeError, "hold nothing"),
            BadSample(cls, (x, one, Arg((), dt.float16)), DTypeError, "differ in element type"),
        )
