"""Calls of ops to check a backend with: what the declarations offer, and corners of our own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.conformance.check import CheckFailed, require
from treadle.conformance.tolerance_table import tolerance
from treadle.ops import REGISTRY
from treadle.ops.custom import Custom, RuntimeBlob
from treadle.ops.elementwise import Copysign, Maximum, Minimum
from treadle.ops.families import Elementwise, Reduce
from treadle.ops.fused import Fused
from treadle.ops.matmul import MatrixProduct
from treadle.ops.op import Op, Sample, as_tuple
from treadle.ops.printing import PrintingOp
from treadle.ops.select import Clip

_EITHER_ZERO = (Maximum, Minimum, Clip)
"""They choose among zeros, which are equal, as IEEE 754 allows."""
_ELSEWHERE = (Custom, Fused, PrintingOp, RuntimeBlob)
"""Made from other ops or from foreign code, or run on the host by definition: they have no meaning
of their own to check."""


@dataclass(frozen=True, slots=True)
class SampleCall:
    """An op, its operands, and what they are there for."""

    op: Op
    arrays: tuple[Array, ...]
    label: str

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The operands' types."""
        return types_of(self.arrays)

    def expected(self) -> tuple[Array, ...] | None:
        """Compute the reference's results; None where it refuses the data."""
        given = [np.array(a) for a in self.arrays]
        try:
            with np.errstate(all="ignore"):
                return as_tuple(self.op.reference(*given))
        except TreadleError:
            return None

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.types))}), {self.label}"


def types_of(arrays: Sequence[Array]) -> tuple[TensorType, ...]:
    """The types of some arrays."""
    return tuple([TensorType(as_dtype(a.dtype), a.shape) for a in arrays])


def op_names() -> list[str]:
    """The ops that are checked: all of the package's own, by name."""
    return sorted(
        name
        for name, op in REGISTRY.items()
        if op.__module__.startswith("treadle.") and not issubclass(op, _ELSEWHERE)
    )


def element_types(op: type[Op]) -> list[DType]:
    """The element types that an op's samples come in."""
    found = itertools.chain.from_iterable(s.element_types() for s in op.samples())
    return list(dict.fromkeys(found))


def main_type(op: type[Op]) -> DType:
    """The element type that says most about an op: float32 where it takes that."""
    types = element_types(op)
    return dt.float32 if dt.float32 in types else types[0]


def quick_types(op: type[Op]) -> list[DType]:
    """The element types for a quick look: the main one, and integers of 8 bits, which soon
    overflow, where an op's results are exact.
    """
    small = (dt.int8, dt.uint8) if op.rounded_once or issubclass(op, Reduce) else ()
    return list(dict.fromkeys((main_type(op), *(t for t in small if t in element_types(op)))))


def calls(op: type[Op], dtype: DType, *, quick: bool = False) -> Iterator[SampleCall]:
    """Calls of an op with one element type; the most telling ones if it is to be `quick`.

    The declaration's samples, which include broadcast, one-element and empty operands; padding
    that differs before and after. For ops that work element by element also special values, ranks
    up to 7, and more elements than any vector or group of work items has.
    """
    samples = [s for s in op.samples() if dtype in s.element_types()]
    for sample in samples[: 3 if quick else None]:
        yield SampleCall(sample.op, sample.arrays(dtype), "sample")
    yield from itertools.islice(_uneven(samples, dtype), 1)
    first = op.samples()[0]
    if dtype not in first.element_types() or any(a.values is not None for a in first.args):
        return
    if issubclass(op, Elementwise) and first.args:
        yield from _corners(first, dtype, quick)
    elif issubclass(op, Reduce):
        shape, axes = (37, 65, 3), ((0, 2), (1,), (0,), (0, 1, 2))[: 2 if quick else None]
        arrays = _shaped(first, dtype, (shape,))
        yield from (SampleCall(first.op.replace(axes=a), arrays, f"axes {a}") for a in axes)
    elif issubclass(op, MatrixProduct):
        yield SampleCall(first.op, _shaped(first, dtype, ((33, 65), (65, 17))), "odd sizes")
        for flags in ((True, False), (False, True)):  # Shapes would not tell if they were ignored.
            turned = first.op.replace(transpose_x=flags[0], transpose_y=flags[1])
            yield SampleCall(
                turned, _shaped(first, dtype, ((17, 17), (17, 17))), "square, transposed"
            )


def _uneven(samples: Sequence[Sample], dtype: DType) -> Iterator[SampleCall]:
    """Samples with all of their padding behind: extents stay, so operands fit."""
    for sample in samples:
        padding = sample.op.attributes.get("padding", ())
        moved = tuple([(0, sum(pair)) for pair in padding])
        arrays = sample.arrays(dtype)
        if moved == tuple(padding) or not all(a.size for a in arrays):
            continue
        try:
            op = sample.op.replace(padding=moved)
            op.infer(*types_of(arrays))
        except TreadleError:
            continue  # The op has a limit for padding, such as its window.
        yield SampleCall(op, arrays, "uneven padding")


def _corners(sample: Sample, dtype: DType, quick: bool) -> Iterator[SampleCall]:
    op, n = sample.op, len(sample.args)
    kinds = [special_values(a.dtype or dtype) for a in sample.args]
    grid = np.meshgrid(*kinds, indexing="ij")
    yield SampleCall(op, tuple([np.ascontiguousarray(g.ravel()) for g in grid]), "special values")
    for rank in (5,) if quick else (1, 5, 6, 7):
        shape = (2, 1, 3, 1, 2, 1, 2)[7 - rank :]
        yield SampleCall(op, _shaped(sample, dtype, (shape,) * n), f"rank {rank}")
    yield SampleCall(op, _shaped(sample, dtype, ((1031, 17),) * n), "many elements")
    if n == 2:
        yield SampleCall(op, _shaped(sample, dtype, ((4, 1, 3), (5, 1))), "both broadcast")
        if not quick:
            yield SampleCall(op, _shaped(sample, dtype, ((7, 5), (5,))), "rows")


def _shaped(sample: Sample, dtype: DType, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    """Operands as the sample's, so that they stay in the op's domain, in other shapes."""
    rng = np.random.default_rng(5)
    pairs = zip(sample.args, shapes, strict=True)
    return tuple([np.asarray(replace(a, shape=s).make(dtype, rng)) for a, s in pairs])


def special_values(dtype: DType) -> Array:
    """Values at which formulas go wrong: zeros, limits, infinities, NaN, halves."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.kind == "complex":
        return np.array([0, 1, -2.5j, 1 + 2j]).astype(dtype.numpy)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        near = [v for v in (-7, -2, -1, 0, 1, 2, 3, 7, 100) if v >= limits.min]
        return np.array([*near, limits.min, limits.max], dtype.numpy)
    with np.errstate(over="ignore"):
        reals = [0.0, -0.0, 0.3, -0.3, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 30.0, -30.0, 1e4]
        return np.array([*reals, -1e4, np.inf, -np.inf, np.nan]).astype(dtype.numpy)


# -- comparing ---------------------------------------------------------------------------------


def require_close(got: Sequence[Array], expected: Sequence[Array], call: SampleCall) -> None:
    """Raise unless results have the reference's types and, but for rounding, its values."""
    require(len(got) == len(expected), f"{call}: {len(got)} results, expected {len(expected)}")
    for i, (x, y) in enumerate(zip(got, expected, strict=True)):
        found, wanted = (f"{a.dtype}{list(a.shape)}" for a in (x, y))
        require(found == wanted, f"{call}: result {i} is {found}, expected {wanted}")
        wrong = differing(x, y, tolerance(call.op.name, y.dtype.name))
        if not wrong.size and _fixes_zeros(call.op) and y.dtype.kind not in "biuc":
            wrong = np.flatnonzero(((x == 0) & (np.signbit(x) != np.signbit(y))).reshape(-1))
        if wrong.size:
            at = int(wrong[0])
            raise CheckFailed(
                f"{call}: {wrong.size} of {x.size} elements of result {i} are wrong; number {at} "
                f"is {x.reshape(-1)[at]}, expected {y.reshape(-1)[at]}"
            )


def _fixes_zeros(op: Op) -> bool:
    """Return whether the signs of zeros are promised, as of relu, which makes -0 become 0."""
    return (op.rounded_once and not isinstance(op, _EITHER_ZERO)) or isinstance(op, Copysign)


def differing(got: Array, expected: Array, allowed: float) -> Array:
    """Positions, in row-major order, at which two arrays differ by more than is allowed."""
    if not allowed:
        return np.flatnonzero(got.reshape(-1) != expected.reshape(-1))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    x, y = (a.astype(wide).reshape(-1) for a in (got, expected))
    finite = np.abs(y[np.isfinite(y)])
    scale = min(float(finite.max(initial=1.0)), 1e3)
    with np.errstate(all="ignore"):
        near = np.isclose(x, y, rtol=allowed, atol=allowed * scale, equal_nan=True)
    return np.flatnonzero(~near)
