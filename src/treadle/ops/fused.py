"""A fused group: ops that an engine runs as one kernel, held as one op.

The optimize stage makes them. A fused op is a graph's node like any other: it prints, parses,
runs with its oracle and can be expanded again.
"""

from __future__ import annotations

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.control import FunctionRegion, Region, match_types
from treadle.ops.op import BadSample, Op, Sample, op

HOST = "host."
"""Prefix of the kinds of groups that return to Python for one op."""
SEGMENT = "segment."
"""Prefix of the kinds of groups that another engine compiles as a whole."""


@op
class Fused(Op):
    """The results of `body` on the operands; `kind` names what the group was built around.

    Kinds: "loop" (elementwise ops, movement, reductions of one domain), "contraction" (a matrix
    product or convolution and what is applied to its result), "attention", "window" (pooling
    between transposes); "host." and the name of an engine for one op that this engine runs,
    whatever the others of the program run on; "segment." and the name of an engine for a part of
    the program that it compiles by itself.
    """

    kind: str
    body: Region

    name = "fused"
    operands = ("*xs",)
    dtypes = dt.ALL
    n_outputs = -1
    no_gradient = "is made after differentiation"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_outputs", len(self.body.output_types))

    @property
    def engine(self) -> str:
        """The engine that runs the group in place of the program's own, `""` for that one."""
        for prefix in (HOST, SEGMENT):
            if self.kind.startswith(prefix):
                return self.kind.removeprefix(prefix)
        return ""

    @property
    def is_segment(self) -> bool:
        """True if another engine compiles the group as a whole."""
        return self.kind.startswith(SEGMENT)

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        match_types(self.name, "the body", self.body.input_types, xs)
        return tuple(TensorType(t.dtype, t.shape) for t in self.body.output_types)

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return self.body.evaluate(arrays)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        body = FunctionRegion("affine", (_X, _X), lambda x, y: (x * y + x, x - y))
        xs = (Arg((2, 3), dt.float32), Arg((2, 3), dt.float32))
        return (Sample(cls("loop", body), xs, gradient=False, label="fused(affine)"),)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        body = FunctionRegion("double", (_X,), lambda x: x + x)
        return (
            BadSample(lambda: cls("loop", body), (Arg((3, 2)),), ShapeError, "value 0"),
            BadSample(lambda: cls("loop", body), (), ShapeError, "expected 1 values"),
        )


_X = TensorType(dt.float32, (2, 3))
