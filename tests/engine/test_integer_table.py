"""What integers give at the ends of their range: one table, and every way to compute it.

The table is that of docs/design/061-integers.md. Every row, and every pair of special values in
every type, gives the same bits in eager mode by NumPy and by generated kernels, in compiled
functions with and without rewrites, on every target that runs here, and in the interpreter of
kernels.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import RUNNABLE, same
from tests.backends.codegen.irregular import interpreted, run

import treadle as mge
import treadle.functional as F
from treadle.base import dtype as dt
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.graph.builder import trace_body
from treadle.ops import elementwise as ew
from treadle.ops.fused import Fused
from treadle.ops.operators import product_of
from treadle.ops.reduce import Prod, Sum
from treadle.ops.scalar import fitting, truncated
from treadle.ops.unary import Abs, Square

LEVELS = 0, 2
"""As it stands; with every rewrite, those of level 1 among them. Level 3 only spends more time."""
PAGE = Path(__file__).parents[2] / "docs" / "design" / "061-integers.md"
Array = np.ndarray

BINARY: dict[str, Callable[..., Any]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x // y": lambda x, y: x // y,
    "x % y": lambda x, y: x % y,
    "x << y": lambda x, y: x << y,
    "x >> y": lambda x, y: x >> y,
    "max(x, y)": lambda x, y: ew.Maximum()(x, y),
    "min(x, y)": lambda x, y: ew.Minimum()(x, y),
    "x / y": lambda x, y: x / y,
}
UNARY: dict[str, Callable[..., Any]] = {
    "-x": lambda x: -x,
    "~x": lambda x: ~x,
    "abs(x)": lambda x: Abs()(x),
    "square(x)": lambda x: Square()(x),
}
POWER = {"x ** y": lambda x, y: x**y}


def special(dtype: DType) -> Array:
    info = np.iinfo(dtype.numpy)
    near = [-65, -64, -33, -32, -9, -8, -7, -2, -1, 0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 65]
    ends = [info.min, info.min + 1, info.max // 2, info.max - 1, info.max]
    return np.array([*ends, *(v for v in near if info.min <= v <= info.max)], dtype.numpy)


def special_floats(dtype: DType) -> Array:
    ends = [f for b in (7, 8, 15, 16, 31, 32, 63, 64) for f in (2.0**b, -(2.0**b))]
    near = [f + d for f in ends for d in (-1.0, -0.5, 0.5, 1.0)]
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1.5, -1.5, 1e30, -1e30]
    with np.errstate(all="ignore"):
        return np.array([*ends, *near, *odd]).astype(dtype.numpy)


def ways(function: Callable[..., Any], *arrays: Array) -> dict[str, list[Array]]:
    """The results of a function of operands (a tuple), in every way that there is."""
    found: dict[str, list[Array]] = {}
    tensors = [mge.tensor(a, dtype=a.dtype) for a in arrays]
    found["eager"] = [r.numpy() for r in function(*tensors)]
    times = -(-40_000 // arrays[0].size)
    large = function(*(mge.tensor(np.tile(a, times), dtype=a.dtype) for a in arrays))
    found["eager, large"] = [r.numpy() for r in large]
    for level in LEVELS:
        made = mge.jit.compile(function, options=Options(level=level))
        found[f"level {level}"] = [r.numpy() for r in made(*tensors)]
    body = trace_body(function, [TensorType(as_dtype(a.dtype), a.shape) for a in arrays])
    for target in RUNNABLE:
        found[target.name] = list(run(Fused("loop", body), arrays, target=target))
    found["interpreter"] = list(run(Fused("loop", body), arrays, interpreted))
    return found


def agree(function: Callable[..., Any], names: list[str], *arrays: Array) -> list[Array]:
    """Run every way; all give the bits of the first, which are returned."""
    (_, expected), *others = ways(function, *arrays).items()
    for way, results in others:
        for name, want, got in zip(names, expected, results, strict=True):
            assert got.dtype == want.dtype, (way, name)
            rows = got.reshape(-1, want.size)
            differ = ~same(rows, np.tile(want.reshape(-1), (len(rows), 1)))
            places = np.nonzero(differ.any(0))[0]
            at = [(*(a.reshape(-1)[i] for a in arrays if a.size == want.size),) for i in places]
            assert not at, f"{name}, {way}: {at}: {want.reshape(-1)[places]}, {rows[:, places]}"
    return expected


@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=str)
def test_arithmetic_is_alike_everywhere(dtype: DType) -> None:
    values = special(dtype)
    x, y = (a.reshape(-1).copy() for a in np.meshgrid(values, values))
    binary = BINARY | (POWER if dtype in ew.Pow.dtypes else {})

    def everything(x: Any, y: Any) -> tuple[Any, ...]:
        return (*(f(x, y) for f in binary.values()), *(f(x) for f in UNARY.values()))

    agree(everything, [*binary, *UNARY], x, y)


@pytest.mark.parametrize("dtype", (*dt.INTEGERS, *dt.FLOATS), ids=str)
def test_casts_are_alike_everywhere(dtype: DType) -> None:
    values = special(dtype) if dtype.is_integer else special_floats(dtype)
    targets = [d for d in dt.REALS if d is not dtype]
    agree(lambda x: tuple(x.astype(d) for d in targets), [d.name for d in targets], values)


@pytest.mark.parametrize("dtype", (dt.int8, dt.uint32, dt.int64), ids=str)
def test_numbers_in_programs_are_operands_like_any_other(dtype: DType) -> None:
    """Rewrites and kernels know them, and may compute otherwise, but nothing else.

    Each number is a kernel of its own. Ends and what rules look for are numbers in all types; of
    the others int64 takes all, the narrow types those at their own width.
    """
    x, values = special(dtype), special(dtype).tolist()
    if dtype is not dt.int64:
        bits = 8 * dtype.itemsize
        near = [v for v in values[5:] if -2 <= v <= 3 or bits - 2 < abs(v) < bits + 2]
        values = [*values[:5], *near]
    exact = dtype in ew.Pow.dtypes
    powers = [v for v in values if exact and v >= 0]

    def everything(x: Any) -> tuple[Any, ...]:
        made = [f(x, v) for f in list(BINARY.values())[:7] for v in values]
        made += [f(v, x) for f in list(BINARY.values())[:5] for v in values]
        return (*made, *(x**v for v in powers))

    tensor = mge.tensor(x, dtype=x.dtype)
    expected = [r.numpy() for r in everything(tensor)]
    made = mge.jit.compile(everything)
    for i, (want, got) in enumerate(zip(expected, made(tensor), strict=True)):
        np.testing.assert_array_equal(got.numpy(), want, f"result {i}")


@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=str)
def test_sums_and_products_wrap_alike(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    info = np.iinfo(dtype.numpy)
    x = rng.integers(info.min, info.max, (37, 19), dtype.numpy, endpoint=True)
    y = rng.integers(info.min, info.max, (19, 23), dtype.numpy, endpoint=True)

    def everything(x: Any, y: Any) -> tuple[Any, ...]:
        product = product_of(dtype)(x, y)
        return (
            *(product, product_of(dtype, True, True)(y, x) + 1),
            *(op(axes)(x) for op in (Sum, Prod) for axes in ((0,), (1,), (0, 1))),
        )

    tensors = [mge.tensor(a, dtype=a.dtype) for a in (x, y)]
    eager = [r.numpy() for r in everything(*tensors)]
    np.testing.assert_array_equal(eager[0], x @ y)
    np.testing.assert_array_equal(eager[4], x.sum(dtype=x.dtype))
    for level in LEVELS:
        made = mge.jit.compile(everything, options=Options(level=level))
        for i, (want, got) in enumerate(zip(eager, made(*tensors), strict=True)):
            np.testing.assert_array_equal(got.numpy(), want, f"result {i} at level {level}")
    for target in RUNNABLE:
        np.testing.assert_array_equal(run(product_of(dtype), (x, y), target=target)[0], x @ y)
    large = mge.tensor(np.tile(x, (9, 1)), dtype=x.dtype)
    np.testing.assert_array_equal((large @ tensors[1]).numpy(), np.tile(x @ y, (9, 1)))


@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=str)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_casts_of_what_does_not_fit_do_not_depend_on_the_machine(dtype: DType, source: str) -> None:
    x = special_floats(as_dtype(source))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(fitting(x, dtype), truncated(x, dtype))


# -- the table ---------------------------------------------------------------------------------


def rows() -> list[tuple[str, str, str, str, str]]:
    """(expression, type, x, y, result) of every row of the page."""
    lines = [r.strip("|").split("|") for r in PAGE.read_text().splitlines() if r.startswith("| `")]
    found = []
    for cells in lines:
        expression, type_, x, y, result = (c.strip().strip("`") for c in cells[:5])
        found.append((expression, type_, x, y, result))
    return found


def test_the_page_says_what_is_so() -> None:
    table = rows()
    assert len(table) > 40
    space = {"F": F, "max": F.maximum, "min": F.minimum, "sum": F.sum, "mean": F.mean}
    for expression, type_, x, y, result in table:
        given = [_value(v, type_) for v in (x, y) if v]
        code = eval(f"lambda x, y=None: {expression}", space)
        for way in (code, mge.jit.compile(code)):
            got = way(*given)
            dtype, _, value = result.partition(" ")
            assert got.dtype == dtype, (expression, type_, got.dtype)
            want = np.array(ast.literal_eval(value) if "n" not in value else float(value))
            np.testing.assert_array_equal(got.numpy(), want.astype(dtype), str((expression, type_)))


def _value(text: str, type_: str) -> Any:
    value = float(text) if text in ("nan", "inf", "-inf") else ast.literal_eval(text)
    return mge.tensor(np.array(value, as_dtype(type_).numpy), dtype=type_)
