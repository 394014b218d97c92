"""Ops without operands: they make arrays from their attributes.

They have no input to be called on; apply them with `like.apply(Full(...), ())`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, OutOfMemory, ShapeError
from treadle.base.shape import Shape, format_shape, size_of
from treadle.base.symbol import Dim, Expr
from treadle.base.types import TensorType
from treadle.ops.bounds import Range, Ranges, greatest, least
from treadle.ops.op import BadSample, Op, Permuted, Sample, Types, family, op
from treadle.ops.orders import Orders, placed
from treadle.runtime.host import TOO_MANY_BYTES


def allocate(op: Op, shape: Shape, dtype: DType) -> Array:
    """An uninitialized array; raises `OutOfMemory` with shape and bytes where it cannot be had."""
    extents = tuple(int(d) for d in shape)
    nbytes = size_of(extents) * dtype.itemsize
    try:
        if nbytes < TOO_MANY_BYTES:
            return np.empty(extents, dtype.numpy)
    except MemoryError:
        pass
    raise OutOfMemory(
        op.name,
        f"cannot allocate {nbytes} bytes for {dtype.name}{format_shape(extents)}",
        saw=str(op),
        hint="ask for a smaller shape",
    )


def check_value(op: Op, value: complex | Expr, dtype: DType) -> None:
    """Raise `DTypeError` where an attribute cannot become an element of `dtype`."""
    if isinstance(value, Expr):
        return
    if np.iscomplexobj(value) and dtype.kind != "complex":
        problem = f"{value} is complex, {dtype.name} is not"
    elif dtype.is_integer and not _is_finite(value):
        problem = f"{value} is not a value of {dtype.name}"
    else:
        return
    raise DTypeError(op.name, problem, saw=str(op), hint="use a floating or complex dtype")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def as_element(value: complex, dtype: DType) -> Array:
    """A Python scalar converted as `Cast` does: floats truncate, integers wrap."""
    if isinstance(value, int) and dtype.is_integer:
        # NumPy refuses out-of-range Python integers; tensors wrap them.
        value &= 2**dtype.bits - 1
        return np.asarray(value, f"uint{dtype.bits}").astype(dtype.numpy)
    return np.asarray(value).astype(dtype.numpy)


@family
class Creation(Op):
    """An op without operands."""

    work = "data"
    operands = ()
    no_gradient = "has no operands"

    def made(self, shape: Shape, dtype: DType) -> tuple[TensorType, ...]:
        """The result type; a negative extent raises `ShapeError`."""
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise ShapeError(
                self.name,
                f"the shape {format_shape(shape)} has a negative extent",
                saw=str(self),
                hint="extents are 0 or more",
            )
        if dtype not in self.dtypes:
            raise DTypeError(
                self.name,
                f"does not make {dtype.name}",
                saw=str(self),
                hint="use one of " + ", ".join(d.name for d in self.dtypes),
            )
        return (TensorType(dtype, shape),)


@op
class Full(Creation):
    """An array of `shape` that holds `value` everywhere."""

    shape: Shape
    value: complex = 0.0
    dtype: DType = dt.float32

    name = "full"
    incidental = True
    dtypes = dt.ALL
    torch = "torch.full(op.shape, op.value, dtype=getattr(torch, op.dtype.name))"

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        value = int(as_element(self.value, self.dtype))
        return value, value + 1

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        rank = len(self.shape)
        made = self.replace(shape=placed(self.shape, orders(rank)))
        return Permuted(made, ())

    def infer(self) -> tuple[TensorType, ...]:
        check_value(self, self.value, self.dtype)
        return self.made(self.shape, self.dtype)

    def reference(self) -> Array:
        if self.value == 0 and math.copysign(1.0, self.value.real) > 0:
            return self._zeros()
        result = allocate(self, self.shape, self.dtype)
        result[...] = as_element(self.value, self.dtype)
        return result

    def _zeros(self) -> Array:
        # Fresh pages are zero already, which np.zeros knows and a fill does not.
        if size_of(self.shape) * self.dtype.itemsize >= TOO_MANY_BYTES:
            return allocate(self, self.shape, self.dtype)
        try:
            return np.zeros(tuple(int(d) for d in self.shape), self.dtype.numpy)
        except MemoryError:
            return allocate(self, self.shape, self.dtype)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        every = tuple(Sample(cls((2, 3), 1, d), ()) for d in dt.ALL)
        return (
            *every,
            Sample(cls((), 2.5), ()),
            Sample(cls((0, 3), -1.0, dt.float64), ()),
            Sample(cls((1, 1), 0.0, dt.float16), ()),
            Sample(cls((2,), -1, dt.int32), ()),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((2, -1)), (), ShapeError, "[2,-1] has a negative extent"),
            BadSample(lambda: cls((2**40,)), (), OutOfMemory, "4398046511104 bytes"),
            BadSample(lambda: cls((2**40,), 1.0), (), OutOfMemory, "float32[1099511627776]"),
            BadSample(lambda: cls((2,), math.inf, dt.int32), (), DTypeError, "inf is not a value"),
        )


@op
class Extent(Creation):
    """An extent as a 0-d array, which a program computes with where it is known only at a call."""

    extent: Dim
    dtype: DType = dt.float32

    name = "extent"
    dtypes = dt.REALS
    torch = "torch.tensor(op.extent, dtype=getattr(torch, op.dtype.name))"

    def infer(self) -> tuple[TensorType, ...]:
        return self.made((), self.dtype)

    def reference(self) -> Array:
        return as_element(int(self.extent), self.dtype)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        every = tuple(Sample(cls(3, d), ()) for d in cls.dtypes)
        return (*every, Sample(cls(0), ()), Sample(cls(2**40, dt.int64), ()))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(1, dt.bool_), (), DTypeError, "does not make bool"),)


@op
class Iota(Creation):
    """start, start + step, ...: `n` evenly spaced numbers.

    Computed as start + i * step, in float64 for floating types and in int64 for integers. Where
    one of the two is symbolic, both are integers.
    """

    start: float | Expr
    step: float | Expr
    n: Dim
    dtype: DType = dt.float32

    name = "iota"
    dtypes = dt.REALS
    torch = (
        "(torch.arange(op.n, dtype=torch.float64) * op.step + op.start)"
        ".to(getattr(torch, op.dtype.name))"
    )

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        if not any(isinstance(v, Expr) for v in (self.start, self.step, self.n)):
            made = self.reference()
            return (int(made.min()), int(made.max()) + 1) if made.size else None
        if not (isinstance(self.start, int | Expr) and isinstance(self.step, int | Expr)):
            return None
        ends = self.start, self.start + (self.n - 1) * self.step
        return least(ends), greatest(ends) + 1

    def infer(self) -> tuple[TensorType, ...]:
        check_value(self, self.start, self.dtype)
        check_value(self, self.step, self.dtype)
        return self.made((self.n,), self.dtype)

    def reference(self) -> Array:
        wide = dt.float64
        if isinstance(self.start, int) and isinstance(self.step, int) and self.dtype.is_integer:
            wide = dt.int64
        allocate(self, (self.n,), wide)
        numbers = np.arange(int(self.n), dtype=np.int64).astype(wide.numpy, copy=False)
        start, step = (int(v) if isinstance(v, Expr) else v for v in (self.start, self.step))
        numbers = as_element(start, wide) + numbers * as_element(step, wide)
        return np.asarray(numbers).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        every = tuple(Sample(cls(2, 3, 4, d), ()) for d in cls.dtypes)
        return (
            *every,
            Sample(cls(1.0, -0.25, 5), ()),
            Sample(cls(0.5, 1.5, 3, dt.int32), ()),
            Sample(cls(0, 1, 0), ()),
            Sample(cls(7, 1, 1, dt.int32), ()),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0, 1, -1), (), ShapeError, "[-1] has a negative extent"),
            BadSample(lambda: cls(0, 1, 2**40), (), OutOfMemory, "[1099511627776]"),
            BadSample(lambda: cls(0, 1, 3, dt.bool_), (), DTypeError, "does not make bool"),
        )


@op
class Eye(Creation):
    """n rows and m columns, 1 on diagonal `k` (0 the main one, positive above it), 0 elsewhere."""

    n: Dim
    m: Dim
    k: int = 0
    dtype: DType = dt.float32

    name = "eye"
    dtypes = dt.ALL
    torch = "torch.ones(op.n, op.m).tril(op.k).triu(op.k).to(getattr(torch, op.dtype.name))"

    def infer(self) -> tuple[TensorType, ...]:
        return self.made((self.n, self.m), self.dtype)

    def reference(self) -> Array:
        n, m = int(self.n), int(self.m)
        result = allocate(self, (n, m), self.dtype)
        result[...] = 0
        rows = np.arange(max(0, -self.k), max(min(n, m - self.k), 0))
        result[rows, rows + self.k] = 1
        return result

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        every = tuple(Sample(cls(2, 3, 0, d), ()) for d in dt.ALL)
        return (
            *every,
            Sample(cls(3, 3, 1), ()),
            Sample(cls(4, 2, -2), ()),
            Sample(cls(2, 2, 5), ()),
            Sample(cls(0, 3), ()),
            Sample(cls(1, 1), ()),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(2, -3), (), ShapeError, "[2,-3] has a negative extent"),
            BadSample(lambda: cls(2**20, 2**20), (), OutOfMemory, "[1048576,1048576]"),
        )
