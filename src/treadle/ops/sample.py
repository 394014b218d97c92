"""Samples: example calls of ops, from which tests, docs and benchmarks are generated."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from treadle.base.dtype import DType, float32
from treadle.base.errors import TreadleError

if TYPE_CHECKING:
    from treadle.ops.op import Op

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Arg:
    """Recipe of one input array.

    Attributes:
        shape: extents.
        dtype: element type; None means the type under test (the op's element type).
        low, high: values are uniform in [low, high); integers are drawn from the same range.
        avoid: points (kinks, poles) that no value comes closer to than 0.1.
        distinct: all values differ by at least 0.05, for maxima and sorting.
        values: exact contents as nested tuples, instead of random ones.
    """

    shape: tuple[int, ...] = ()
    dtype: DType | None = None
    low: float = -2.0
    high: float = 2.0
    avoid: tuple[float, ...] = ()
    distinct: bool = False
    values: Any = None

    def make(self, dtype: DType, rng: np.random.Generator) -> Array:
        """The array, of this argument's own type or else of `dtype`."""
        kind = self.dtype or dtype
        if self.values is not None:
            return np.asarray(self.values).astype(kind.numpy)
        if kind.kind == "bool":
            return rng.random(self.shape) < 0.5
        if kind.kind == "complex":
            both = rng.uniform(self.low, self.high, (2, *self.shape))
            return np.asarray(both[0] + 1j * both[1]).astype(kind.numpy)
        if kind.is_integer:
            return self._integers(kind, rng)
        return np.asarray(self._reals(rng)).astype(kind.numpy)

    def _integers(self, kind: DType, rng: np.random.Generator) -> Array:
        low = max(int(np.ceil(self.low)), 0 if kind.kind == "uint" else int(np.ceil(self.low)))
        high = max(int(np.ceil(self.high)), low + 1)
        if self.distinct:
            size = int(np.prod(self.shape))
            return (rng.permutation(size) + low).reshape(self.shape).astype(kind.numpy)
        drawn = rng.integers(low, high, self.shape)
        for point in self.avoid:
            drawn = np.where(drawn == point, drawn + 1, drawn)
        return np.asarray(drawn).astype(kind.numpy)

    def _reals(self, rng: np.random.Generator) -> Array:
        if self.distinct:
            size = int(np.prod(self.shape))
            steps = np.linspace(self.low, self.high, size) if size else np.zeros(0)
            return np.asarray(rng.permutation(steps).reshape(self.shape))
        drawn = np.asarray(rng.uniform(self.low, self.high, self.shape))
        for point in self.avoid:
            near = np.abs(drawn - point) < 0.1
            drawn = np.where(near, point + np.where(drawn >= point, 0.2, -0.2), drawn)
        return drawn


@dataclass(frozen=True, slots=True)
class Sample:
    """One example call: an op and how to make its inputs.

    `dtypes` narrows the element types the sample is tried with (default: all of the op's);
    `gradient` False leaves it out of gradient checks (for example where the result is random).
    """

    op: Op
    args: tuple[Arg, ...]
    dtypes: tuple[DType, ...] = ()
    gradient: bool = True
    label: str = ""

    def element_types(self) -> tuple[DType, ...]:
        """The element types this sample is tried with."""
        if all(a.dtype is not None for a in self.args):
            return (self.args[0].dtype or float32,) if self.args else (float32,)
        return self.dtypes or self.op.dtypes

    def arrays(self, dtype: DType) -> tuple[Array, ...]:
        """Deterministic input arrays for the element type `dtype`."""
        seed = zlib.crc32(f"{self.op}/{dtype.name}/{self.args}".encode())
        rng = np.random.default_rng(seed)
        return tuple(arg.make(dtype, rng) for arg in self.args)

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, a.shape)) or "0d" for a in self.args)
        return self.label or f"{self.op}({shapes})"


@dataclass(frozen=True, slots=True)
class BadSample:
    """A call that must raise: how to make the op, its inputs, the class and part of the message."""

    make: Callable[[], Op]
    args: tuple[Arg, ...]
    error: type[TreadleError]
    message: str
    dtype: DType = field(default=float32)
