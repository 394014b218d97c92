"""Checks that programs carry with them."""

from __future__ import annotations

import logging

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import IndexRangeError, NumericError, ShapeError, out_of_range
from treadle.base.shape import require_equal
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.index_numpy import outside, typed
from treadle.ops.op import BadSample, IndexRange, Op, Pullback, Sample, V, op

_LOG = logging.getLogger("treadle")


class ValuesDiffer(NumericError, RuntimeError):
    """Raised by `AssertEqual`; a RuntimeError as in MegEngine."""


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


@op
class CheckIndices(Op):
    """Check that the indices of op `of` in a program are in low <= i < high.

    Where nobody reads the result, the program stops there, and whoever runs it raises
    `IndexRangeError`, as the oracle does. The result, int64 [2], is for devices whose programs
    nobody waits for: 0, or 2 `number` + 1 and an index. `number` tells which of the captured
    program's indices these are (see `graph/index_ranges.py`).
    """

    of: str
    low: Dim
    high: Dim
    number: int = 0

    name = "check_indices"
    operands = ("index",)
    dtypes = dt.INTEGERS
    no_gradient = "is made after differentiation"

    def infer(self, index: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((index,))
        return (TensorType(dt.int64, (2,), index.device),)

    def reference(self, index: Array) -> Array:
        low, high = int(self.low), int(self.high)
        found = outside(index, low, high)
        if found is not None:
            saw = self.saw(typed((index,)))
            raise out_of_range(self.of, found, low, high, saw)
        return np.zeros(2, np.int64)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        check, shapes = cls("take", -4, 4), ((2, 3), (5000,), (1, 1))
        return (
            *(Sample(check, (Arg(s, dt.int32, low=-4, high=4),)) for s in shapes),
            Sample(cls("one_hot", 0, 7), (Arg((9, 1000), dt.int64, low=0, high=7),)),
            Sample(cls("one_hot", 0, 7), (Arg((40,), dt.uint8, low=0, high=7),)),
            Sample(check, (Arg((), dt.int32, values=-4),)),
            Sample(check, (Arg((0, 3), dt.int32),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        high, low = Arg((2,), dt.int32, values=(0, 3)), Arg((1,), dt.int32, values=(-4,))
        none = Arg((1,), dt.int32, values=(0,))
        three, empty = cls(cls.name, -3, 3), cls(cls.name, 0, 0)
        return (
            BadSample(lambda: three, (high,), IndexRangeError, "index 3 is out of range"),
            BadSample(lambda: three, (low,), IndexRangeError, "index -4 is out of range"),
            BadSample(lambda: empty, (none,), IndexRangeError, "for an extent of 0"),
        )


@op
class InRange(Op):
    """Integers that lie in low <= i < high: indices of op `of`, which does not count from the end.

    Compiling leaves a `CheckIndices` of it (see `graph/index_ranges.py`).
    """

    of: str
    low: Dim
    high: Dim

    work = "data"
    name = "in_range"
    rearranges = True
    operands = ("index",)
    dtypes = dt.INTEGERS
    strided = True
    selects = "first"
    is_view = True
    no_gradient = "holds integers"

    def infer(self, index: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((index,))
        return (index,)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        return ((0, self.low, self.high),)

    def reference(self, index: Array) -> Array:
        low, high = int(self.low), int(self.high)
        found = outside(index, low, high)
        if found is not None:
            raise out_of_range(self.of, found, low, high, self.saw(typed((index,))))
        return np.array(index)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        some, byte = Arg((2, 3), dt.int32, low=0, high=9), Arg((9,), dt.uint8, low=0, high=9)
        none = Arg((0, 3), dt.int64)
        return tuple(Sample(cls("take", 0, 9), (arg,)) for arg in (some, byte, none))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        low, high = Arg((1,), dt.int32, values=(-1,)), Arg((2,), dt.int64, values=(0, 3))
        three = cls(cls.name, 0, 3)
        return (
            BadSample(lambda: three, (low,), IndexRangeError, "index -1 is out of range"),
            BadSample(lambda: three, (high,), IndexRangeError, "index 3 is out of range"),
        )
