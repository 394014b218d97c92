"""Means and squared deviations of blocks of rows, as contractions leave them beside results."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Sample, op


@op
class ColumnMoments(Op):
    """Per column (last axis) of x: statistics of every `rows` rows, the last block may be shorter.

    Results [blocks, columns]: the mean of a block, and the sum of squared deviations from it. They
    are joined as Chan, Golub and LeVeque do (Algorithms for computing the sample variance, 1983).
    Blocks depend on nothing but the shape, so nor do the results.
    """

    rows: int = 96

    work = "reduction"
    name = "column_moments"
    operands = ("x",)
    n_outputs = 2
    dtypes = (dt.float32, dt.float64)
    no_gradient = "is made after differentiation"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        if self.rows < 1 or x.ndim < 2 or not x.is_static or size_of(x.shape) == 0:
            hint = "reshape x to [rows, columns]"
            raise self.error("takes rows of columns in blocks of one or more", (x,), hint)
        blocks = -(-size_of(x.shape[:-1]) // self.rows)
        made = TensorType(x.dtype, (blocks, x.shape[-1]))
        return made, made

    def reference(self, x: Array) -> tuple[Array, ...]:
        matrix = x.reshape(-1, x.shape[-1])
        blocks = [matrix[i : i + self.rows] for i in range(0, len(matrix), self.rows)]
        means = np.stack([b.mean(axis=0, dtype=x.dtype) for b in blocks])
        squares = [np.square(b - m).sum(axis=0) for b, m in zip(blocks, means, strict=True)]
        return means, np.stack(squares)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(4), (Arg((9, 3)),), gradient=False),
            Sample(cls(4), (Arg((2, 2, 2, 5)),), gradient=False),
            Sample(cls(), (Arg((7, 1)),), gradient=False),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(cls, (Arg((3,)),), ShapeError, "rows of columns"),
            BadSample(lambda: cls(0), (Arg((3, 2)),), ShapeError, "one or more"),
        )
