"""Gather and scatter along one axis, with an index of the same number of axes.

Result and index have one shape; its extents besides `axis` may be smaller than those of x.
Negative indices count from the end; one that is out of range raises `IndexRangeError`.
"""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.guards import require
from treadle.base.shape import format_shape, normalize_axis, require_equal
from treadle.base.symbol import less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.families import NUMBERS
from treadle.ops.gather import check_index, last_writes
from treadle.ops.index_numpy import accumulating, add_rows, check_bounds, linear_along, writable
from treadle.ops.op import BadSample, IndexRange, Onnx, Op, Pullback, Sample, V, family, op
from treadle.ops.select import Where


@family
class Along(Op):
    """An op on the elements x[..., index[..., k, ...], ...], index standing at `axis`."""

    work = "data"
    dtypes = dt.ALL
    axis: int

    def check_along(self, x: TensorType, types: tuple[TensorType, ...]) -> None:
        """Raise unless the index, operand 1, fits x."""
        check_index(self, types, 1)
        index = types[1]
        self.check_ndim(types, 1, x.ndim)
        axis = normalize_axis(self.axis, x.ndim, self.name)

        def otherwise() -> ShapeError:
            return self.error(
                f"the index {format_shape(index.shape)} exceeds {format_shape(x.shape)} "
                f"besides axis {axis}",
                types,
                "cut the index to the extents of x",
            )

        for i, (mine, theirs) in enumerate(zip(x.shape, index.shape, strict=True)):
            if i != axis:
                require(less_equal(theirs, mine), otherwise)

    def check_update(
        self, x: TensorType, index: TensorType, v: TensorType
    ) -> tuple[TensorType, ...]:
        """The type rule of updates: v has the shape of the index."""
        types = (x, index, v)
        self.check_same_dtype((x, v))
        self.check_along(x, types)

        def otherwise() -> ShapeError:
            return self.error(
                f"values {format_shape(v.shape)} for indices {format_shape(index.shape)}",
                types,
                "broadcast the values to the shape of the index",
            )

        if v.ndim != index.ndim:
            raise otherwise()
        for mine, theirs in zip(index.shape, v.shape, strict=True):
            require_equal(mine, theirs, otherwise)
        return (x.with_shape(x.shape),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        extent = types[0].shape[self.axis]
        return ((1, -extent, extent),)

    def linear(self, *arrays: Array) -> Array:
        """Positions of the indexed elements in a dense x, after a check of bounds."""
        x, index = arrays[:2]
        extent = x.shape[self.axis]
        check_bounds(self, arrays, index, self.axis, extent, -extent)
        return linear_along(index, self.axis, x.shape).reshape(-1)


@op
class TakeAlongAxis(Along):
    """result[i, j, k] = x[i, index[i, j, k], k] for the middle one of three axes."""

    name = "take_along_axis"
    operands = ("x", "index")
    onnx = Onnx("GatherElements", since=11, attributes=(("axis", "axis"),))
    torch = "torch.gather(x, op.axis, index.long())"
    selects = "first"

    def infer(self, x: TensorType, index: TensorType) -> tuple[TensorType, ...]:
        self.check_along(x, (x, index))
        return (x.with_shape(index.shape),)

    def reference(self, x: Array, index: Array) -> Array:
        positions = self.linear(x, index)
        return np.asarray(np.take(x.reshape(-1), positions)).reshape(index.shape)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, index = at.inputs
        zeros = at.dy.constant(0.0).broadcast_to(x.type.shape)
        return AddAlongAxis(self.axis)(zeros, index, at.dy), None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axis), (x, index)) for axis, x, index in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return _bad_samples(cls, updates=False)


@op
class AddAlongAxis(Along):
    """x with v added at the indexed elements; where indices repeat, all of them count.

    float16 and bfloat16 accumulate in float32.
    """

    name = "add_along_axis"
    operands = ("x", "index", "v")
    dtypes = NUMBERS
    torch = "torch.scatter_add(x, op.axis, index.long(), v)"

    def infer(self, x: TensorType, index: TensorType, v: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, index, v))
        return self.check_update(x, index, v)

    def reference(self, x: Array, index: Array, v: Array) -> Array:
        positions = self.linear(x, index, v)
        result = accumulating(x)
        values = v.reshape(-1, 1).astype(result.dtype, copy=False)
        add_rows(result.reshape(-1, 1), positions, values)
        return result.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        dv = TakeAlongAxis(self.axis)(at.dy, at.inputs[1]) if at.needs[2] else None
        return at.dy if at.needs[0] else None, None, dv

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(a), (x, i, Arg(i.shape))) for a, x, i in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return _bad_samples(cls, updates=True)


@op
class ScatterAlongAxis(Along):
    """x with the indexed elements replaced by v; where indices repeat, the last write stays.

    A value that was overwritten gets no gradient.
    """

    name = "scatter_along_axis"
    operands = ("x", "index", "v")
    onnx = Onnx("ScatterElements", since=11, attributes=(("axis", "axis"),))

    def infer(self, x: TensorType, index: TensorType, v: TensorType) -> tuple[TensorType, ...]:
        return self.check_update(x, index, v)

    def reference(self, x: Array, index: Array, v: Array) -> Array:
        positions = self.linear(x, index, v)
        result = writable(x)
        result.reshape(-1)[positions] = v.reshape(-1)
        return result

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, index, v = at.inputs
        zero, dx, dv = at.dy.constant(0.0), None, None
        if at.needs[0]:
            dx = self(at.dy, index, zero.broadcast_to(v.type.shape))
        if at.needs[2]:
            take = TakeAlongAxis(self.axis)
            stays = last_writes(
                v,
                x.type.shape,
                lambda marks, order: self(marks, index, order),
                lambda marks: take(marks, index),
            )
            dv = Where()(stays, take(at.dy, index), zero)
        return dx, None, dv

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(a), (x, i, Arg(i.shape))) for a, x, i in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return _bad_samples(cls, updates=True)


# Axis, x, index.
_CASES: tuple[tuple[int, Arg, Arg], ...] = (
    (1, Arg((3, 4)), Arg((3, 2), dt.int32, values=((0, 3), (2, 2), (1, 0)))),
    (0, Arg((3, 2, 2)), Arg((4, 2, 1), dt.int64, low=0, high=3)),
    (0, Arg((3,)), Arg((0,), dt.int32)),
    (1, Arg((0, 3)), Arg((0, 2), dt.int32)),
    (0, Arg((1, 1)), Arg((1, 1), dt.int32, values=((0,),))),
)


def _bad_samples(cls: type[Along], *, updates: bool) -> tuple[BadSample, ...]:
    def bad(
        x: Arg,
        index: Arg,
        error: type[DTypeError | IndexRangeError | ShapeError],
        text: str,
        axis: int = 1,
    ) -> BadSample:
        value = (Arg(index.shape),) if updates else ()
        return BadSample(lambda: cls(axis), (x, index, *value), error, text)

    x = Arg((2, 3))
    high, low = (Arg((1, 1), dt.int32, values=((i,),)) for i in (3, -4))
    return (
        bad(x, high, IndexRangeError, "index 3 is out of range for axis 1"),
        bad(x, low, IndexRangeError, "index -4 is out of range for axis 1"),
        bad(x, Arg((2, 1)), DTypeError, "an index is float32"),
        bad(x, Arg((3, 1), dt.int32), ShapeError, "the index [3,1] exceeds [2,3]"),
        bad(x, Arg((2,), dt.int32), ShapeError, "expects 2 axes for index"),
        bad(x, high, ShapeError, "axis 2 is out of range", axis=2),
        *(
            (BadSample(lambda: cls(1), (x, high, Arg((1, 2))), ShapeError, "values [1,2] for"),)
            if updates
            else ()
        ),
    )
