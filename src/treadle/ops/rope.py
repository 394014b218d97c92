"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.guards import require
from treadle.base.shape import require_equal
from treadle.base.symbol import less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.creation import Iota
from treadle.ops.gather import Take, check_index
from treadle.ops.index_numpy import check_indices
from treadle.ops.movement import Concat
from treadle.ops.op import BadSample, IndexRange, Sample, op
from treadle.ops.precision import compute_type, widen, widen_array
from treadle.ops.slicing import along


@op
class Rope(Composite):
    """x [B, H, T, D] with pairs of features rotated by the angles of positions starts[b] + t.

    `cos` and `sin` [P, d/2] hold the angles by position; d is at most D, and features from d on
    pass. Pairs are (i, i + d/2), or with `interleaved` (2i, 2i + 1). Angles are float32, or of the
    type that x is computed in.
    """

    interleaved: bool = False

    name = "rope"
    operands = ("x", "cos", "sin", "starts")
    dtypes = dt.FLOATS

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if len(types) != 4:
            raise self.error("takes x, cos, sin and starts", types, "pass both tables")
        x, cos, sin, starts = types
        self.check_dtype(types)
        for i, ndim in ((0, 4), (1, 2), (2, 2), (3, 1)):
            self.check_ndim(types, i, ndim)
        check_index(self, types, 3)
        if cos.dtype is not sin.dtype or cos.dtype not in (dt.float32, compute_type(x.dtype)):
            raise DTypeError(
                self.name,
                f"tables are {cos.dtype.name} and {sin.dtype.name}",
                saw=self.saw(types),
                hint="make both float32",
            )

        def mismatch() -> ShapeError:
            problem = "tables are [P, d/2] with d of at most D, P of at least T, and starts is [B]"
            return self.error(problem, types, "cut the tables to half of the rotated features")

        for a, b in zip(cos.shape, sin.shape, strict=True):
            require_equal(a, b, mismatch)
        require_equal(starts.shape[0], x.shape[0], mismatch)
        for relation in (
            less_equal(2 * cos.shape[1], x.shape[3]),
            less_equal(x.shape[2], cos.shape[0]),
        ):
            require(relation, mismatch)
        return (x.with_shape(x.shape),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        return ((3, 0, types[1].shape[0] - types[0].shape[2] + 1),)

    def body(self, x: Any, cos: Any, sin: Any, starts: Any) -> Any:
        batch, heads, time, features = x.shape
        half = cos.shape[1]
        (steps,) = x.apply(Iota(0, 1, time, starts.type.dtype), ())
        places = starts.reshape((batch, 1)) + steps.reshape((1, time))
        wide = widen(x)
        c, s = (
            Take(0)(table, places).reshape((batch, 1, time, half)).astype(wide.type.dtype)
            for table in (cos, sin)
        )
        turned = along(wide, 3, 0, 2 * half)
        if self.interleaved:
            pairs = turned.reshape((batch, heads, time, half, 2))
            one, two = (
                along(pairs, 4, i, i + 1).reshape((batch, heads, time, half)) for i in (0, 1)
            )
            made = [
                part.reshape((batch, heads, time, half, 1))
                for part in (one * c - two * s, two * c + one * s)
            ]
            y = Concat(4)(*made).reshape((batch, heads, time, 2 * half))
        else:
            one, two = along(wide, 3, 0, half), along(wide, 3, half, 2 * half)
            y = Concat(3)(one * c - two * s, two * c + one * s)
        return Concat(3)(y, along(wide, 3, 2 * half, features)).astype(x.type.dtype)

    def reference(self, x: Array, cos: Array, sin: Array, starts: Array) -> Array:
        check_indices(self, (x, cos, sin, starts))
        half = cos.shape[1]
        places = starts[:, None] + np.arange(x.shape[2])
        y = np.array(widen_array(x))
        c, s = (table[places][:, None].astype(y.dtype) for table in (cos, sin))
        if self.interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        one, two = y[..., first].copy(), y[..., second].copy()
        y[..., first], y[..., second] = one * c - two * s, two * c + one * s
        return y.astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        cos, sin = (Arg((5, 2), dt.float32) for _ in range(2))
        starts = Arg((2,), dt.int32, values=(2, 0))
        wide = Arg((6, 1), dt.float32)
        return (
            Sample(cls(), (Arg((2, 2, 3, 4)), cos, sin, starts)),
            Sample(cls(True), (Arg((2, 1, 3, 6)), cos, sin, starts)),
            Sample(cls(), (Arg((1, 1, 1, 3)), wide, wide, Arg((1,), dt.int64, values=(5,)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, table = Arg((2, 1, 3, 4)), Arg((5, 2), dt.float32)
        starts = Arg((2,), dt.int32, values=(2, 0))
        late, wide = Arg((2,), dt.int32, values=(0, 3)), Arg((5, 3), dt.float32)
        whole = Arg((5, 2), dt.int32)
        return (
            BadSample(cls, (x, table, table, late), IndexRangeError, "3"),
            BadSample(cls, (x, wide, wide, starts), ShapeError, "tables are [P, d/2]"),
            BadSample(cls, (x, table, wide, starts), ShapeError, "tables are [P, d/2]"),
            BadSample(cls, (x, whole, whole, starts), DTypeError, "tables are int32"),
            BadSample(cls, (x, table, table, Arg((2,))), DTypeError, "an index is float32"),
            BadSample(cls, (x, table, table), ShapeError, "takes x, cos, sin"),
        )
