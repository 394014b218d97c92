"""Matrix products as cuBLASLt sees them: matrices by columns, one stride from one to the next.

A row-major matrix is its transpose by columns, so x y is computed as (y^T x^T)^T: the library's
first operand is y, its second one is x. Operands may be views, of heads of attention for example:
what the library asks is that elements follow one another along rows or along columns.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.backends.api import Support, no
from treadle.base import dtype as dt
from treadle.base.dtype import DType, as_dtype

TYPES = (dt.float32, dt.float64, dt.float16, dt.bfloat16)
LEAST = 1 << 15
"""Multiplications from which on a call of the library is worth its overhead."""
MOST = (1 << 31) - 1
"""The largest extent that is passed."""
ALIGNED = 64
"""Bytes that memory starts at a multiple of."""
PREFIX = "cublasLt "


@dataclass(frozen=True, slots=True)
class View:
    """A stack of matrices: elements between rows, columns, and along each batch axis."""

    offset: int
    row: int
    column: int
    batch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """A stack of matrices by columns: extents, elements between columns and between matrices.

    `aligned` is what their addresses are multiples of, in bytes.
    """

    rows: int
    columns: int
    pitch: int
    step: int
    transposed: bool
    aligned: int


@dataclass(frozen=True, slots=True)
class GemmProduct:
    """d = op(first) op(second), for `count` matrices; all of the type `dtype`."""

    dtype: str
    first: MatrixLayout
    second: MatrixLayout
    result: MatrixLayout
    count: int

    @property
    def type(self) -> DType:
        """Element type of all matrices."""
        return as_dtype(self.dtype)

    @property
    def inner(self) -> int:
        """Terms of every sum."""
        return self.first.rows if self.first.transposed else self.first.columns

    @property
    def products(self) -> int:
        """Multiplications in all."""
        return self.count * self.result.rows * self.result.columns * self.inner

    @property
    def name(self) -> str:
        """Name of the product in reports and profiles."""
        m, n, k = self.result.columns, self.result.rows, self.inner
        stack = f"{self.count}x" if self.count > 1 else ""
        return f"{PREFIX}{stack}{m}x{k}x{n} {self.dtype}"

    @property
    def symbol(self) -> str:
        """All of it as text, from which `parsed` makes it again."""
        return PREFIX + json.dumps(dataclasses.astuple(self))


def parsed(symbol: str) -> GemmProduct:
    """The product of a symbol."""
    dtype, first, second, result, count = json.loads(symbol.removeprefix(PREFIX))
    return GemmProduct(
        dtype, MatrixLayout(*first), MatrixLayout(*second), MatrixLayout(*result), count
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """x [*batch, m, k] times y [*batch, k, n]."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...]

    @property
    def products(self) -> int:
        """Multiplications in all."""
        return math.prod((*self.batch, self.m, self.n, self.k))


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A product, and where its operands and its result begin, in elements."""

    product: GemmProduct
    x: int
    y: int
    result: int


def calls_of(dtype: DType, sizes: Sizes, x: View, y: View) -> tuple[ProductCall, ...] | Support:
    """The library's calls for a product with a dense result, or why it is not asked.

    One call computes a stack with one stride; there is a call for each place along the axes that
    make it more than one.
    """
    if dtype not in TYPES:
        return no("dtype", f"cuBLASLt is not used for {dtype.name}")
    if min(sizes.m, sizes.n, sizes.k) < 1 or max(sizes.m, sizes.n, sizes.k) > MOST:
        return no("shape", "an operand is empty or too large")
    if sizes.products < LEAST:
        return no("size-limit", f"{sizes.products} multiplications are too few")
    sizes, x = _flattened(sizes, x, y)
    inner = _inner(sizes, (x, y))
    outer = sizes.batch[: len(sizes.batch) - inner]
    if math.prod(outer) > MOST_CALLS:
        return no("layout", f"stacks of {math.prod(outer)} parts with strides of their own")
    first = _layout(dtype, sizes.n, sizes.k, (y.column, y.row), _step(sizes, y, inner), y)
    second = _layout(dtype, sizes.k, sizes.m, (x.column, x.row), _step(sizes, x, inner), x)
    if first is None or second is None:
        return no("layout", "an operand has neither rows nor columns without gaps")
    size = sizes.m * sizes.n
    aligned = _alignment(dtype, (size,))
    result = MatrixLayout(sizes.n, sizes.m, sizes.n, size, False, aligned)
    count = math.prod(sizes.batch[len(outer) :])
    made = GemmProduct(dtype.name, first, second, result, count)
    return tuple(
        ProductCall(made, x.offset + _at(place, x), y.offset + _at(place, y), number * count * size)
        for number, place in enumerate(_places(outer))
    )


MOST_CALLS = 32


def _flattened(sizes: Sizes, x: View, y: View) -> tuple[Sizes, View]:
    """One product of more rows, where y is the same for the whole stack and x's rows go on."""
    steps, rows = (*x.batch, x.row), (*sizes.batch, sizes.m)
    goes_on = all(steps[i] == steps[i + 1] * rows[i + 1] for i in range(len(rows) - 1))
    if not sizes.batch or any(y.batch) or not goes_on:
        return sizes, x
    return (
        dataclasses.replace(sizes, m=math.prod(rows), batch=()),
        dataclasses.replace(x, batch=()),
    )


def _inner(sizes: Sizes, views: Sequence[View]) -> int:
    """Return how many of the last batch axes both operands pass through with one stride."""
    found = 0
    for axis in reversed(range(len(sizes.batch))):
        later = sizes.batch[axis + 1 :]
        if found and any(v.batch[axis] != v.batch[axis + 1] * later[0] for v in views):
            break
        found += 1
    return found


def _step(sizes: Sizes, view: View, inner: int) -> int:
    """Elements from one matrix of a call to the next."""
    return view.batch[-1] if inner and math.prod(sizes.batch[-inner:]) > 1 else 0


def _layout(
    dtype: DType, rows: int, columns: int, steps: tuple[int, int], step: int, view: View
) -> MatrixLayout | None:
    """op(stored) is `rows` by `columns`; `steps` are elements along a column, and along a row."""
    down, along = steps
    places = (view.offset, step, *view.batch)
    if step < 0 or min(down, along) < 0:
        return None
    # A pitch must not be less than a column is long, also where there is one column only.
    if (down == 1 or rows == 1) and (along >= rows or columns == 1):
        pitch = max(along, rows) if columns > 1 else rows
        return MatrixLayout(rows, columns, pitch, step, False, _alignment(dtype, (*places, pitch)))
    if (along == 1 or columns == 1) and (down >= columns or rows == 1):
        pitch = max(down, columns) if rows > 1 else columns
        return MatrixLayout(columns, rows, pitch, step, True, _alignment(dtype, (*places, pitch)))
    return None


def _alignment(dtype: DType, places: Sequence[int]) -> int:
    """A power of two, in bytes, that divides all places."""
    return math.gcd(ALIGNED, *(place * dtype.itemsize for place in places))


def _places(extents: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for extent in extents:
        found = [(*place, i) for place in found for i in range(extent)]
    return found


def _at(place: tuple[int, ...], view: View) -> int:
    return sum(i * step for i, step in zip(place, view.batch, strict=False))
