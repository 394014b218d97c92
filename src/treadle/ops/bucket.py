"""`AllReduceBucket`: reductions of several operands that travel as one.

The engine makes it of single reductions (`engine/prepare/reductions.py`). A program that is
compiled for the host begins it when its operands are there, and waits for it only before somebody
reads the results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.collective import REDUCTIONS, Collective
from treadle.ops.op import BadSample, Sample, op


@op
class AllReduceBucket(Collective):
    """Every process gets the elementwise `kind` of each operand, as by `all_reduce`.

    It is number `number` of those of a program, whose reductions all ranks have cut alike: `series`
    names what the program is going to reduce, so that ranks need to compare it once per run.
    """

    kind: str = "sum"
    count: int = 1
    number: int = 0
    series: str = ""

    name = "all_reduce_bucket"
    operands = ("*xs",)
    dtypes = dt.REALS
    n_outputs = -1
    no_gradient = "is made after differentiation"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_outputs", self.count)

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        if len(xs) != self.count or not xs:
            raise self.error(
                f"{len(xs)} operands where count is {self.count}",
                xs,
                "pass count operands, at least one",
            )
        self.check_same_dtype(xs)
        self.check_group(xs[0])
        if self.kind not in REDUCTIONS:
            raise self.error(
                f"{self.kind!r} is not a reduction", xs, "use one of " + ", ".join(REDUCTIONS)
            )
        return xs

    def reference(self, *xs: Array) -> Any:
        flat = np.concatenate([x.reshape(-1) for x in xs])
        if self.world > 1:
            comm = self.communicator()
            comm.agree(f"{self.series} {self.kind} {flat.dtype}[{flat.size}]")
            flat = comm.all_reduce(flat, self.kind)
        ends = np.cumsum([x.size for x in xs])
        parts = np.split(flat, ends[:-1])
        made = tuple(p.reshape(x.shape).copy() for p, x in zip(parts, xs, strict=True))
        return made[0] if self.count == 1 else made

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        two = (Arg((2, 3)), Arg((4,)))
        return (
            Sample(cls(count=2), two, gradient=False),
            Sample(cls(count=2, kind="mean"), two, gradient=False),
            Sample(cls(count=3), (Arg(()), Arg((0, 3)), Arg((1,))), gradient=False),
            Sample(cls(), (Arg((5,)),), gradient=False),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(count=2), (Arg((2,)),), ShapeError, "1 operands"),
            BadSample(lambda: cls(kind="median"), (Arg((2,)),), ShapeError, "not a reduction"),
        )
