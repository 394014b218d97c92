"""A check that programs carry with them."""

from __future__ import annotations

import logging

import numpy as np

from treadle.base import dtype as dt
from treadle.base.errors import NumericError, ShapeError
from treadle.base.shape import require_equal
from treadle.base.types import TensorType
from treadle.ops.index_numpy import typed
from treadle.ops.op import Array, Op, Pullback, op
from treadle.ops.operand import V
from treadle.ops.sample import Arg, BadSample, Sample

_LOG = logging.getLogger("treadle")


class ValuesDiffer(NumericError, RuntimeError):
    """What `AssertEqual` raises; MegEngine's is a RuntimeError."""


@op
class AssertEqual(Op):
    """`expect`, after a check that no element of `actual` is further away than `most`.

    Distances count relative to the smaller magnitude where that is above 1; NaN is far from
    everything. With `verbose` the largest distance is logged.
    """

    most: float
    verbose: bool = False

    name = "assert_equal"
    operands = ("expect", "actual")
    dtypes = dt.REALS

    def infer(self, expect: TensorType, actual: TensorType) -> tuple[TensorType, ...]:
        types = expect, actual
        self.check_dtype(types)
        self.check_same_dtype(types)

        def differ() -> ShapeError:
            return self.error("the shapes differ", types, "compare values of one shape")

        if expect.ndim != actual.ndim:
            raise differ()
        for x, y in zip(expect.shape, actual.shape, strict=True):
            require_equal(x, y, differ)
        return (expect,)

    def reference(self, expect: Array, actual: Array) -> Array:
        x, y = expect.astype(np.float64), actual.astype(np.float64)
        with np.errstate(invalid="ignore"):
            far = np.abs(x - y) / np.maximum(np.minimum(np.abs(x), np.abs(y)), 1)
        largest = float(np.max(far, initial=0.0))
        if self.verbose:
            _LOG.info("assert_equal: the largest distance is %g", largest)
        if not largest <= self.most:
            raise ValuesDiffer(
                self.name,
                f"values differ by {largest:g}, more than {self.most:g}",
                saw=self.saw(typed((expect, actual))),
                hint="print both, or raise maxerr",
            )
        return expect

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return at.dy if at.needs[0] else None, None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        shapes = ((2, 3), (), (0, 2), (1, 1))
        return tuple(Sample(cls(1e6), (Arg(s), Arg(s))) for s in shapes)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        one, two = Arg((2,), values=(1.0, 2.0)), Arg((2,), values=(1.0, 5.0))
        nan = Arg((2,), values=(1.0, np.nan))
        return (
            BadSample(lambda: cls(0.1), (one, two), ValuesDiffer, "values differ by 1.5"),
            BadSample(lambda: cls(0.1), (one, nan), ValuesDiffer, "values differ by nan"),
            BadSample(lambda: cls(0.1), (one, Arg((3,))), ShapeError, "the shapes differ"),
        )
