"""Ops that combine the elements along axes."""

from __future__ import annotations

import numpy as np

from treadle.ops.families import Reduce
from treadle.ops.op import Array, Pullback, op
from treadle.ops.operand import V
from treadle.ops.sample import Arg, Sample


@op
class Sum(Reduce):
    """Sum over `axes`; integers wrap, float16 and bfloat16 accumulate in float32."""

    name = "sum"
    torch = "torch.sum(x, op.axes, op.keepdims, dtype=x.dtype) if op.axes else x"

    def reference(self, x: Array) -> Array:
        wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x.dtype
        total = np.sum(x, axis=self.axes, keepdims=self.keepdims, dtype=wide)
        return np.asarray(total).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x = at.inputs[0].type
        return (at.dy.reshape(self.kept_shape(x)).broadcast_to(x.shape),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1,)), (Arg((3, 4)),)),
            Sample(cls((0, 2), True), (Arg((2, 3, 2)),)),
            Sample(cls(()), (Arg(()),)),
            Sample(cls((0,)), (Arg((0, 3)),)),
            Sample(cls((0, 1)), (Arg((1, 1)),)),
        )
