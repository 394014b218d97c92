"""Elementwise choice: by a mask, or by bounds."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.bounds import Range, Ranges, greatest, hull, least
from treadle.ops.families import Elementwise, Unary, oracle
from treadle.ops.op import BadSample, Onnx, Pullback, Sample, Types, V, op
from treadle.ops.scalar import Scalar, call, maximum, minimum
from treadle.ops.scalar import select as choose


@op
class Where(Elementwise):
    """x where the mask is True, else y; all three are broadcast against one another.

    The branch that is not taken gets an exact zero as its gradient.
    """

    name = "where"
    operands = ("mask", "x", "y")
    dtypes = dt.ALL
    onnx = Onnx("Where", since=9)
    torch = "torch.where(mask, x, y)"
    reference = oracle(np.where)
    selects = "any"
    rounded_once = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        return hull(of[1:])

    def infer(self, mask: TensorType, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        types = (mask, x, y)
        if mask.dtype is not dt.bool_:
            raise DTypeError(
                self.name,
                f"the mask is {mask.dtype.name}, not bool",
                saw=self.saw(types),
                hint="compare, for example mask != 0",
            )
        if x.dtype is not y.dtype:
            raise DTypeError(
                self.name,
                "x and y differ in element type",
                saw=self.saw(types),
                hint="cast one of them with astype()",
            )
        return (TensorType(x.dtype, self.broadcast(types)),)

    def scalar(self, mask: Scalar, x: Scalar, y: Scalar) -> Scalar:
        return choose(mask, x, y)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        mask, x, y = at.inputs
        zero = at.dy.constant(0.0)
        dx = self(mask, at.dy, zero).sum_to(x.type.shape) if at.needs[1] else None
        dy = self(mask, zero, at.dy).sum_to(y.type.shape) if at.needs[2] else None
        return None, dx, dy

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        shapes: tuple[tuple[tuple[int, ...], ...], ...] = (
            ((3, 4), (3, 4), (3, 4)),
            ((), (), ()),
            ((0, 3), (1, 3), (3,)),
            ((4,), (2, 1, 4), (3, 1)),
            ((2, 3), (), (3,)),
            ((1, 1), (1,), ()),
        )
        return tuple(Sample(cls(), (Arg(m, dt.bool_), Arg(x), Arg(y))) for m, x, y in shapes)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, mask = Arg((2, 3)), Arg((2, 3), dt.bool_)
        return (
            BadSample(cls, (x, x, x), DTypeError, "mask is float32, not bool"),
            BadSample(cls, (mask, x, Arg((3,), dt.int32)), DTypeError, "x and y differ"),
            BadSample(cls, (mask, x, Arg((4,))), ShapeError, "axis -1: 3 against 4"),
            BadSample(cls, (Arg((2,), dt.bool_), x, x), ShapeError, "axis -1: 2 against 3"),
        )


@op
class Clip(Unary):
    """min(max(x, low), high); a bound that is None does not limit.

    NaN stays NaN, and where low > high the result is high. The gradient passes where
    low <= x <= high, both bounds included. Bounds must be values of x's element type.
    """

    low: float | None = None
    high: float | None = None

    name = "clip"
    torch = "torch.clamp(x, op.low, op.high) if op.attributes != {'low': None, 'high': None} else x"
    rounded_once = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        low, high = of[0][0], of[0][1] - 1
        first = low if self.low is None else greatest((low, int(self.low)))
        last = high if self.high is None else least((greatest((high, first)), int(self.high)))
        return least((first, last)), last + 1

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        for bound in (self.low, self.high):
            if bound is not None and not _holds(x.dtype, bound):
                raise DTypeError(
                    self.name,
                    f"the bound {bound!r} is not a value of {x.dtype.name}",
                    saw=self.saw((x,)),
                    hint="cast x to a type that holds the bounds, or change the bounds",
                )
        return (x,)

    def reference(self, x: Array) -> Array:
        if self.low is not None:
            x = maximum(x, x.dtype.type(self.low))
        if self.high is not None:
            x = minimum(x, x.dtype.type(self.high))
        return x

    def scalar(self, x: Scalar) -> Scalar:
        if self.low is not None:
            x = call("max", x, self.low)
        if self.high is not None:
            x = call("min", x, self.high)
        return x

    def grad(self, dy: V, x: V, y: V) -> V:
        zero = dy.constant(0.0)
        if self.low is not None:
            dy = Where()(x >= self.low, dy, zero)
        if self.high is not None:
            dy = Where()(x <= self.high, dy, zero)
        return dy

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        arg = Arg((3, 4), avoid=(-1.0, 1.0), low=-3.0, high=3.0)
        signed = (*(d for d in dt.INTEGERS if d.kind == "int"), *dt.FLOATS)
        return (
            Sample(cls(-1, 1), (arg,), dtypes=signed),
            Sample(cls(low=1), (arg,)),
            Sample(cls(high=1), (arg,)),
            Sample(cls(), (arg,)),
            Sample(cls(-0.5, 1.0), (Arg((), avoid=(-0.5, 1.0)),), dtypes=dt.FLOATS),
            Sample(cls(0, 1), (Arg((0, 3)),)),
            Sample(cls(0, 1), (Arg((1, 1), values=((0.25,),)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x = (Arg((2,)),)
        return (
            BadSample(lambda: cls(low=0.5), x, DTypeError, "0.5 is not a value of int32", dt.int32),
            BadSample(lambda: cls(-1, 1), x, DTypeError, "-1 is not a value of uint8", dt.uint8),
        )


def _holds(dtype: DType, value: float) -> bool:
    """Return whether an element type can express a bound (up to rounding, for floats)."""
    if not dtype.is_integer:
        return True
    limits = np.iinfo(dtype.numpy)
    return value == int(value) and limits.min <= value <= limits.max
