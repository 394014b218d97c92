"""Arithmetic on elements: the binary operators and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.symbol import always, less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.bounds import Range, Ranges, greatest, least
from treadle.ops.families import Binary, Elementwise, Unary, oracle
from treadle.ops.logic import Equal, LogicalAnd
from treadle.ops.op import Onnx, Pullback, Sample, Types, V, op
from treadle.ops.scalar import Scalar, call, cast, maximum, minimum, power, truncated
from treadle.ops.select import Where
from treadle.ops.unary import Log, Round


@op
class Add(Binary):
    """x + y; integers wrap."""

    name = "add"
    onnx = Onnx("Add")
    torch = "x + y"
    reference = oracle(np.add)
    commutative = True
    rounded_once = True
    homogeneous = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        (a, b), (c, d) = of
        return a + c, b + d - 1

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x + y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return dy


@op
class Sub(Binary):
    """x - y; integers wrap."""

    name = "sub"
    onnx = Onnx("Sub")
    torch = "x - y"
    reference = oracle(np.subtract)
    rounded_once = True
    homogeneous = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        (a, b), (c, d) = of
        return a - d + 1, b - c

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x - y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return -dy


@op
class Mul(Binary):
    """x * y; integers wrap."""

    name = "mul"
    onnx = Onnx("Mul")
    torch = "x * y"
    reference = oracle(np.multiply)
    commutative = True
    rounded_once = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        ends = [x * y for x in (of[0][0], of[0][1] - 1) for y in (of[1][0], of[1][1] - 1)]
        return least(ends), greatest(ends) + 1

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x * y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * y

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * x


@op
class Div(Binary):
    """x / y, real division; integers are cast to float32 before they get here."""

    name = "div"
    dtypes = dt.FLOATS
    domains = (Arg((3, 4)), Arg((3, 4), low=-3.0, high=3.0, avoid=(0.0,)))
    onnx = Onnx("Div")
    torch = "x / y"
    reference = oracle(np.divide)
    rounded_once = True
    amp = "high"

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x / y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy / y

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return -(dy * out) / y


@op
class FloorDiv(Binary):
    """The largest whole number not above x / y; an integer divided by 0 gives 0."""

    name = "floor_div"
    domains = (Arg((3, 4), low=-9, high=9), Arg((3, 4), low=1.2, high=3.2))
    no_gradient = "is piecewise constant: nothing flows back through it"
    torch = "torch.floor_divide(x, y)"
    reference = oracle(np.floor_divide)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("floor_div", x, y)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return None, None


@op
class Mod(Binary):
    """The remainder of x / y: with y's sign for integers, with x's for floats (C's fmod).

    An integer modulo 0 gives 0. For floats the pair with `FloorDiv` is therefore consistent only
    where x and y have one sign.
    """

    name = "mod"
    # Between 2 and 3 times y: away from the multiples, where the remainder jumps.
    domains = (Arg((3, 4), low=4.9, high=5.9), Arg((3, 4), low=2.0, high=2.4))
    torch = "torch.fmod(x, y) if x.is_floating_point() else torch.remainder(x, y)"

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        low, beyond = of[1]
        return (0, beyond - 1) if always(less_equal(1, low)) else None

    def reference(self, x: Array, y: Array) -> Array:
        return np.remainder(x, y) if x.dtype.kind in "iu" else np.fmod(x, y)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("mod", x, y)

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return -(dy * Round()((x - out) / y))


@op
class Pow(Binary):
    """x to the power y; NaN for a negative x with a fractional y, 1 for y = 0.

    Integers are exact and wrap; a negative power of an integer is cut off: 0, or 1 or -1 where x
    is one of these. Integers that MegEngine has are cast to float32 before they get here.
    The gradient by y is 0 where x <= 0; the gradient by x is 0 at x = y = 0.
    """

    name = "pow"
    dtypes = (dt.uint32, dt.int64, dt.uint64, *dt.FLOATS)
    domains = (Arg((3, 4), low=0.2, high=2.0), Arg((3, 4)))
    onnx = Onnx("Pow")
    torch = "torch.pow(x, y)"
    amp = "high"
    costly = True

    def reference(self, x: Array, y: Array) -> Array:
        return power(x, y)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("pow", x, y)

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        # 0 ** (0 - 1) is infinite and would turn the zero in front of it into NaN.
        both_zero = LogicalAnd()(Equal()(x, x.constant(0.0)), Equal()(y, y.constant(0.0)))
        exponent = Where()(both_zero, y.constant(0.0), y - 1.0)
        return dy * y * self(x, exponent)

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * out * Log()(Where()(x > 0, x, x.constant(1.0)))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        wide = (dt.int64, dt.uint64)
        bases = Arg((7,), values=(7, -7, 2, -1, 1, 0, 3))
        exponents = Arg((7,), values=(19, 22, 64, 5, -3, 0, 40))
        return (
            *super().samples(),
            Sample(cls(), (bases, exponents), dtypes=wide, gradient=False),
            Sample(cls(), (bases, Arg((2, 1), values=((-1,), (-2,)))), dtypes=(dt.int64,)),
        )


@op
class Maximum(Binary):
    """The larger of x and y, NaN if either is; where they are equal x gets the gradient.

    Of two zeros it is y, whatever their signs.
    """

    name = "maximum"
    domains = (Arg((3, 4), low=-2.0, high=0.4), Arg((3, 4), low=0.6, high=2.0))
    onnx = Onnx("Max", since=12)
    torch = "torch.maximum(x, y)"
    reference = oracle(maximum)
    selects = "any"
    rounded_once = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        return greatest(low for low, _ in of), greatest(beyond for _, beyond in of)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("max", x, y)

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return Where()(x >= y, dy, dy.constant(0.0))

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return Where()(x >= y, dy.constant(0.0), dy)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (*super().samples(), *_either_side(cls()))


@op
class Minimum(Binary):
    """The smaller of x and y, NaN if either is; where they are equal x gets the gradient.

    Of two zeros it is y, whatever their signs.
    """

    name = "minimum"
    domains = (Arg((3, 4), low=-2.0, high=0.4), Arg((3, 4), low=0.6, high=2.0))
    onnx = Onnx("Min", since=12)
    torch = "torch.minimum(x, y)"
    reference = oracle(minimum)
    selects = "any"
    rounded_once = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        return least(low for low, _ in of), least(beyond for _, beyond in of)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("min", x, y)

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return Where()(x <= y, dy, dy.constant(0.0))

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return Where()(x <= y, dy.constant(0.0), dy)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (*super().samples(), *_either_side(cls()))


def _either_side(op: Binary) -> tuple[Sample, ...]:
    """Values of which sometimes the first and sometimes the second is larger, never equal."""
    kinds = tuple(d for d in op.dtypes if d.kind != "uint")
    x, y = Arg((4,), values=(-2.0, 3.0, 1.0, 0.0)), Arg((4,), values=(1.0, -1.0, 2.0, -3.0))
    return (Sample(op, (x, y), dtypes=kinds),)


@op
class Atan2(Binary):
    """Angle in (-pi, pi] of the point with ordinate y (the first operand) and abscissa x."""

    name = "atan2"
    operands = ("y", "x")
    dtypes = dt.FLOATS
    domains = (Arg((3, 4), avoid=(0.0,)), Arg((3, 4), avoid=(0.0,)))
    torch = "torch.atan2(y, x)"
    reference = oracle(np.arctan2)
    amp = "high"

    def scalar(self, y: Scalar, x: Scalar) -> Scalar:
        return call("atan2", y, x)

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        # The family's x and y are this op's first (ordinate) and second (abscissa) operand.
        return dy * y / (x * x + y * y)

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return -(dy * x) / (x * x + y * y)


@op
class Copysign(Binary):
    """|x| with the sign of y, which -0 and NaN have as well."""

    name = "copysign"
    dtypes = dt.FLOATS
    domains = (Arg((3, 4), avoid=(0.0,)), Arg((3, 4), avoid=(0.0,)))
    torch = "torch.copysign(x, y)"
    reference = oracle(np.copysign)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("copysign", x, y)

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * self(x.constant(1.0), x) * self(y.constant(1.0), y)

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * 0.0


@op
class Neg(Unary):
    """-x; integers wrap, as in NumPy."""

    name = "neg"
    onnx = Onnx("Neg", since=6)
    torch = "-x"
    reference = oracle(np.negative)
    rounded_once = True
    homogeneous = True
    by_sign = True

    def scalar(self, x: Scalar) -> Scalar:
        return -x

    def grad(self, dy: V, x: V, y: V) -> V:
        return -dy


@op
class Cast(Elementwise):
    """x converted to another element type.

    Floats become integers by truncation, anything non-zero becomes True, complex numbers lose
    their imaginary part. What no integer of the type can hold is converted as x86 does, on every
    machine: what no int32 or int64 can hold, NaN included, becomes the smallest one, of which
    narrower types keep the low bits; uint32 has those of an int64.
    """

    dtype: DType

    name = "cast"
    converts = True
    dtypes = dt.ALL
    torch = "x.to(getattr(torch, op.dtype.name))"
    rounded_once = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        return of[0] if types[0].dtype.is_integer or types[0].dtype is dt.bool_ else None

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (TensorType(self.dtype, x.shape),)

    def reference(self, x: Array) -> Array:
        kept = x.real if x.dtype.kind == "c" and self.dtype.kind not in ("bool", "complex") else x
        if self.dtype.is_integer and kept.dtype.kind not in "biu":
            return truncated(kept, self.dtype)
        return kept.astype(self.dtype.numpy)

    def scalar(self, x: Scalar) -> Scalar:
        return cast(x, self.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        source = at.inputs[0].type.dtype
        if not (source.is_float and self.dtype.is_float):
            return (None,)
        return (at.dy.astype(source),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        targets: tuple[Any, ...] = (dt.float32, dt.int32, dt.float64, dt.bool_, dt.bfloat16)
        real = tuple(d for d in dt.ALL if d.kind != "complex" and d.kind != "uint")
        every = tuple(Sample(cls(t), (Arg((2, 3)),), dtypes=real) for t in targets)
        shapes: tuple[tuple[int, ...], ...] = ((), (0, 3), (1, 1))
        more = tuple(Sample(cls(dt.float32), (Arg(s),), dtypes=real) for s in shapes)
        unsigned = Sample(cls(dt.uint8), (Arg((2, 3), low=0, high=9),), dtypes=dt.INTEGERS)
        return (*every, *more, unsigned, Sample(cls(dt.complex64), (Arg((2, 3)),)))
