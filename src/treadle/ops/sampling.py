"""Random numbers by rejection, which take a number of random words that nobody knows ahead.

NumPy's samplers run under Philox4x64-10 with the same key. Its 256-bit counter starts at
(0, 0, block, 1) for the block that the state names, so no two ops share a number, whatever a
sampler rejects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import NumericError, ShapeError
from treadle.base.shape import Shape, product
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.index_numpy import typed
from treadle.ops.op import BadSample, Op, Sample, family, op
from treadle.ops.random import NOT_DIFFERENTIABLE, STATE, check_extents, check_state

_BELOW_ZERO = -1e-38
"""The lower bound of means, which may be 0: no float32 lies between."""


@family
class Sampler(Op):
    """Numbers whose distribution depends on the elements of an operand.

    The result has the axes `size` in front of those of the operand.
    """

    operands = ("state", "x")
    dtypes = (dt.uint32,)
    no_gradient = NOT_DIFFERENTIABLE
    size: Shape = ()

    def infer(self, state: TensorType, x: TensorType) -> tuple[TensorType, ...]:
        check_state(self, state)
        check_extents(self, self.size, state)
        if x.dtype is not dt.float32:
            raise self.error(f"the parameter is {x.dtype.name}", (state, x), "cast it to float32")
        return (x.with_shape((*self.size, *x.shape)),)

    def words(self, x: TensorType) -> Dim:
        """Return by how many words the stream moves on: one for each number, and at least one."""
        return product((*self.size, *x.shape)) + 1

    def generator(self, state: Array) -> np.random.Generator:
        """NumPy's generator at the place that the state names."""
        key, block = (int(state[i]) | int(state[i + 1]) << 32 for i in (0, 2))
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, block, 1]))

    def checked(self, state: Array, x: Array, low: float) -> Array:
        """The parameter in float64; `NumericError` unless all of it is finite and above `low`."""
        if not (np.isfinite(x) & (x > low)).all():
            broken = x[~(np.isfinite(x) & (x > low))].flat[0]
            raise NumericError(
                self.name,
                f"the parameter {broken:g} has no distribution",
                saw=self.saw(typed((state, x))),
                hint="parameters are finite and not negative; shapes of gamma are above 0",
            )
        return x.astype(np.float64)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        cases: tuple[tuple[Shape, tuple[int, ...]], ...] = (
            ((3,), (2, 2)),
            ((), (3,)),
            ((2,), ()),
            ((0, 2), (2,)),
            ((1,), (1,)),
        )
        return tuple(
            Sample(cls(size), (STATE, Arg(shape, dt.float32, low=0.5, high=9.0)), gradient=False)
            for size, shape in cases
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        good, nan = Arg((2,), dt.float32, low=1), Arg((1,), dt.float32, values=(np.nan,))
        return (
            BadSample(cls, (STATE, nan), NumericError, "the parameter nan has no distribution"),
            BadSample(cls, (Arg((3,), dt.uint32), good), ShapeError, "has shape [4]"),
            BadSample(lambda: cls((-1,)), (STATE, good), ShapeError, "negative extent"),
            BadSample(cls, (STATE, Arg((2,), dt.int32)), ShapeError, "the parameter is int32"),
        )


@op
class RandomGamma(Sampler):
    """Gamma variates of scale 1 with the shapes x, float32.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
    """

    name = "random_gamma"

    def reference(self, state: Array, x: Array) -> Array:
        shapes = self.checked(state, x, 0.0)
        fixed: Any = (*self.size, *x.shape)
        drawn = self.generator(state).standard_gamma(shapes, fixed)
        return np.asarray(drawn).astype(np.float32)


@op
class RandomPoisson(Sampler):
    """Poisson variates with the means x, whole numbers in float32.

    Source: Hormann, "The transformed rejection method for generating Poisson random variables",
    1993; by multiplication of uniforms below a mean of 10.
    """

    name = "random_poisson"

    def reference(self, state: Array, x: Array) -> Array:
        means = self.checked(state, x, _BELOW_ZERO)
        fixed: Any = (*self.size, *x.shape)
        drawn = self.generator(state).poisson(means, fixed)
        return np.asarray(drawn).astype(np.float32)
