"""Ops that order the elements along one axis."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.guards import require
from treadle.base.shape import normalize_axis
from treadle.base.symbol import Dim, less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.bounds import Range, Ranges
from treadle.ops.families import NUMBERS
from treadle.ops.gather_along import AddAlongAxis
from treadle.ops.op import BadSample, Op, Pullback, Sample, Types, V, family, op
from treadle.ops.precision import widen_array


@family
class Ordering(Op):
    """Elements of x in some order along `axis`, and where they came from as int32."""

    work = "data"
    n_outputs = 2
    dtypes = NUMBERS
    axis: int

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        return (0, types[0].shape[self.axis]) if output == 1 else of[0]

    def ordered(self, x: TensorType, extent: Dim) -> tuple[TensorType, ...]:
        """Types of both results."""
        axis = normalize_axis(self.axis, x.ndim, self.name)
        self.check_positions(x, (axis,))
        values = x.with_shape((*x.shape[:axis], extent, *x.shape[axis + 1 :]))
        return values, values.with_dtype(dt.int32)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        zeros = at.dy.constant(0.0).broadcast_to(at.inputs[0].type.shape)
        return (AddAlongAxis(self.axis)(zeros, at.outputs[1], at.dy),)


def stable_order(x: Array, axis: int, descending: bool) -> Array:
    """Indices that sort x; equal elements keep their order, NaN counts as the greatest."""
    x = widen_array(x)  # NumPy knows of no NaN in bfloat16
    if not descending:
        return np.argsort(x, axis, kind="stable")
    # Reversing before and after keeps the order of equal elements.
    backward = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - backward)


@op
class Sort(Ordering):
    """(values, indices) in ascending or descending order along `axis`.

    The sort is stable; NaN counts as greater than every number.
    """

    descending: bool = False

    name = "sort"
    torch = "torch.sort(x, dim=op.axis, descending=op.descending, stable=True)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        axis = normalize_axis(self.axis, x.ndim, self.name)
        return self.ordered(x, x.shape[axis])

    def reference(self, x: Array) -> tuple[Array, Array]:
        order = stable_order(x, self.axis, self.descending)
        return np.take_along_axis(x, order, self.axis), order.astype(np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        ties = Arg((2, 4), values=((1, 0, 1, 0), (2, 2, 1, 2)))
        return (
            Sample(cls(1), (Arg((3, 4), distinct=True),)),
            Sample(cls(0, True), (Arg((4, 2), distinct=True),)),
            Sample(cls(1), (ties,), gradient=False),
            Sample(cls(1, True), (ties,), gradient=False),
            Sample(cls(1), (Arg((0, 3)),)),
            Sample(cls(0), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0), (Arg(()),), ShapeError, "axis 0 is out of range"),
            BadSample(lambda: cls(0), (Arg((2,)),), DTypeError, "does not take bool", dt.bool_),
        )


@op
class TopK(Ordering):
    """(values, indices) of the `k` greatest (or least) elements along `axis`.

    With `sorted` they come in order, equal elements in that of x; else in any order, the same
    set. NaN counts as greater than every number.
    """

    k: Dim
    largest: bool = True
    sorted: bool = True

    name = "top_k"
    torch = "torch.topk(x, op.k, dim=op.axis, largest=op.largest, sorted=op.sorted)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        axis = normalize_axis(self.axis, x.ndim, self.name)
        for relation in (less_equal(0, self.k), less_equal(self.k, x.shape[axis])):
            require(
                relation,
                lambda: self.error(
                    f"cannot choose {self.k} of {x.shape[axis]} elements",
                    (x,),
                    "k is from 0 to the extent of the axis",
                ),
            )
        return self.ordered(x, self.k)

    def reference(self, x: Array) -> tuple[Array, Array]:
        order = stable_order(x, self.axis, self.largest)
        chosen = np.take(order, range(int(self.k)), self.axis)
        return np.take_along_axis(x, chosen, self.axis), chosen.astype(np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(1, 2), (Arg((3, 4), distinct=True),)),
            Sample(cls(0, 3, largest=False), (Arg((4, 2), distinct=True),)),
            Sample(cls(1, 0), (Arg((2, 3), distinct=True),)),
            Sample(cls(0, 3), (Arg((3,), distinct=True),)),
            Sample(cls(1, 2), (Arg((0, 3)),)),
            Sample(cls(0, 1), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0, 4), (Arg((3,)),), ShapeError, "cannot choose 4 of 3"),
            BadSample(lambda: cls(0, -1), (Arg((3,)),), ShapeError, "cannot choose -1 of 3"),
            BadSample(lambda: cls(0, 1), (Arg(()),), ShapeError, "axis 0 is out of range"),
        )
