"""Complex numbers from two real parts, and back.

A gradient with respect to a complex number x + i y is dL/dx + i dL/dy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, op


@op
class MakeComplex(Op):
    """real + i imag of two float32 operands of one shape: complex64."""

    name = "make_complex"
    operands = ("real", "imag")
    dtypes = (dt.float32,)
    torch = "torch.complex(real, imag)"

    def infer(self, real: TensorType, imag: TensorType) -> tuple[TensorType, ...]:
        types = real, imag
        self.check_dtype(types)
        self.check_same_dtype(types)

        def differ() -> ShapeError:
            return self.error("the parts differ in shape", types, "broadcast one of them")

        if real.ndim != imag.ndim:
            raise differ()
        for x, y in zip(real.shape, imag.shape, strict=True):
            require_equal(x, y, differ)
        return (real.with_dtype(dt.complex64),)

    def reference(self, real: Array, imag: Array) -> Array:
        made = np.empty(real.shape, np.complex64)
        made.real, made.imag = real, imag
        return made

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        parts = RealPart(), ImagPart()
        return tuple(p(at.dy) if need else None for p, need in zip(parts, at.needs, strict=True))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        shapes = ((2, 3), (), (0, 2), (1, 1))
        return tuple(Sample(cls(), (Arg(s), Arg(s)), gradient=False) for s in shapes)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(cls, (Arg((2,)), Arg((3,))), ShapeError, "the parts differ in shape"),
            BadSample(cls, (Arg((2,)), Arg(())), ShapeError, "the parts differ in shape"),
            BadSample(cls, (Arg((2,)), Arg((2,), dt.float64)), DTypeError, "operands differ"),
        )


class _Part(Op):
    """One of the two parts of complex numbers."""

    dtypes = (dt.complex64,)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        return (x.with_dtype(dt.float32),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        shapes = ((2, 3), (), (0, 2), (1, 1))
        return tuple(Sample(cls(), (Arg(s),), gradient=False) for s in shapes)


@op
class RealPart(_Part):
    """The real part of complex64 numbers: float32."""

    name = "real_part"
    torch = "torch.real(x)"

    def reference(self, x: Array) -> Array:
        return np.array(x.real)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (MakeComplex()(at.dy, at.dy * 0.0),)


@op
class ImagPart(_Part):
    """The imaginary part of complex64 numbers: float32."""

    name = "imag_part"
    torch = "torch.imag(x)"

    def reference(self, x: Array) -> Array:
        return np.array(x.imag)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (MakeComplex()(at.dy * 0.0, at.dy),)


def _split(x: V) -> tuple[V, V]:
    return RealPart()(x), ImagPart()(x)


def _add(x: V, y: V) -> V:
    (a, b), (c, d) = _split(x), _split(y)
    return MakeComplex()(a + c, b + d)


def _sub(x: V, y: V) -> V:
    (a, b), (c, d) = _split(x), _split(y)
    return MakeComplex()(a - c, b - d)


def _mul(x: V, y: V) -> V:
    (a, b), (c, d) = _split(x), _split(y)
    return MakeComplex()(a * c - b * d, a * d + b * c)


def _div(x: V, y: V) -> V:
    (a, b), (c, d) = _split(x), _split(y)
    size = c * c + d * d
    return MakeComplex()((a * c + b * d) / size, (b * c - a * d) / size)


BY_PARTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
}
"""Arithmetic of two complex operands, by the name of the op on real ones: kernels and gradients
are those of the real parts."""
