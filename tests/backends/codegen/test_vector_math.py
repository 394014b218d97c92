"""Elementary functions, run natively, against wider arithmetic over their whole domain."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import RUNNABLE, Native, compiled, object_code, same
from tests.backends.codegen.spelled import Builder, kernel

from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.kernel.ir import KernelError, KernelModule, Value, pointer
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.scalars.vector_math import BOUNDS, FUNCTIONS
from treadle.backends.codegen.target import AVX512, GENERIC, NEON, Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType

TARGET = next((t for t in RUNNABLE if t.fma), RUNNABLE[0])
BOTH = pytest.mark.parametrize(
    "target", [TARGET, *(t for t in RUNNABLE if not t.fma)], ids=lambda t: t.name
)
# Elsewhere fma is split where nothing hangs on it, which costs up to half a last place.
SPLIT = 0.5
needs_fma = pytest.mark.skipif(not TARGET.fma, reason="this processor has no fused multiply-add")
BINARY = ("pow", "atan2")
LANES = 8
WIDE = {dt.float32: np.dtype(np.float64), dt.float64: np.dtype(np.longdouble)}
# Where long double is no wider than double, the reference is as uncertain as a good libm.
SLACK = {dt.float32: 0.0, dt.float64: 0.0 if np.finfo(np.longdouble).nmant > 52 else 1.0}
Array = np.ndarray


@cache
def kernel_of(name: str, dtype: DType, lanes: int = LANES) -> KernelModule:
    count = 2 if name in BINARY else 1
    inputs = [pointer(dtype, f"x{i}") for i in range(count)]
    out = pointer(dtype, "out")

    def write(b: Builder, lo: Value, hi: Value) -> None:
        def body(i: Value) -> None:
            values = [load_value(p, i, lanes) for p in inputs]
            store_value(out, i, FUNCTIONS[name](*values))

        b.loop(lo, hi, lanes, body)

    return kernel(f"{name}_{dtype.name}_{lanes}", [*inputs, out], write)


@cache
def native(target: Target) -> Native:
    kernels = [kernel_of(name, d) for name in FUNCTIONS for d in (dt.float32, dt.float64)]
    return compiled(kernels, target)


def computed(name: str, *args: Array, target: Target = TARGET) -> Array:
    dtype = dt.as_dtype(args[0].dtype)
    padded = [np.resize(a, -(-a.size // LANES) * LANES) for a in args]
    out = np.empty_like(padded[0])
    native(target)(kernel_of(name, dtype), [*padded, out], 0, out.size)
    return out[: args[0].size]


REFERENCE: dict[str, Callable[..., Any]] = {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "pow": np.power,
}


def expected(name: str, *args: Array) -> Array:
    """The function in a wider type; erf in float64, where libm has it."""
    if name == "erf":
        return np.frompyfunc(math.erf, 1, 1)(args[0].astype(np.float64)).astype(np.float64)
    with np.errstate(all="ignore"):
        wide = [a.astype(WIDE[dt.as_dtype(a.dtype)]) for a in args]
        return np.asarray(REFERENCE.get(name, getattr(np, name, None))(*wide))


def errors(found: Array, exact: Array) -> Array:
    """In units in the last place of the exact result; infinite where a special value is wrong."""
    info = np.finfo(found.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        exponent = np.frexp(np.where(np.isfinite(exact), exact, 1))[1] - 1
        unit = np.ldexp(exact.dtype.type(1), np.maximum(exponent, info.minexp) - info.nmant)
        error = np.abs(found.astype(exact.dtype) - exact) / unit
    special = ~np.isfinite(rounded) | (rounded == 0) & (found == 0)
    agrees = same(rounded, found)
    return np.where(special, np.where(agrees, 0, np.inf), np.where(np.isnan(error), np.inf, error))


def around(centers: Array, reach: int = 24) -> Array:
    """Every number within so many steps of each center."""
    bits = np.dtype(f"i{centers.dtype.itemsize}")
    near = centers.view(bits)[:, None] + np.arange(-reach, reach + 1, dtype=bits)
    return near.reshape(-1).view(centers.dtype)


def special(dtype: DType) -> Array:
    info = np.finfo(dtype.numpy)
    values = [0.0, 1.0, 0.5, 2.0, 3.0, 1e4, np.inf, info.max, info.tiny, info.smallest_subnormal]
    return np.array([*values, *(-v for v in values), np.nan], dtype.numpy)


@cache
def arguments(dtype: DType) -> Array:
    """All exponents evenly, the usual range, thresholds of the algorithms, special values."""
    count = 1 << 20 if dtype is dt.float32 else 1 << 14
    rng = np.random.default_rng(7)
    bits = np.dtype(f"u{dtype.itemsize}")
    every = rng.integers(0, np.iinfo(bits).max, count, bits, endpoint=True)
    quiet = np.asarray(1, bits) << (np.finfo(dtype.numpy).nmant - 1)
    every = np.where(np.isnan(every.view(dtype.numpy)), every | quiet, every).view(dtype.numpy)
    usual = np.concatenate([rng.uniform(-w, w, count // 8) for w in (1.2, 12.0, 110.0, 760.0)])
    angles = np.arange(1, count // 16, dtype=WIDE[dtype]) * (2 * np.arctan(WIDE[dtype].type(1)))
    marks = [1.0, 0.5, math.sqrt(0.5), math.log(2) / 2, math.pi / 4, math.tan(math.pi / 8)]
    marks += [math.tan(3 * math.pi / 8), 3.925, 6.0, 9.0, 20.0, 88.722839, 89.415987, 103.97]
    marks += [709.78271289, 710.475860, 745.133, 2.0**16, 2.0**30, 2.0**26, 2.0**55]
    centers = np.array([*marks, *(-m for m in marks)], dtype.numpy)
    parts = (every, usual, angles, around(centers), special(dtype))
    return np.concatenate([p.astype(dtype.numpy) for p in parts])


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Arguments beside other ones, and every special value beside every other."""
    rng = np.random.default_rng(8)
    x = arguments(dtype)[::3]
    y = rng.permutation(x)
    # Powers of ordinary numbers, so that not nearly all of them overflow.
    base, exponent = rng.uniform(0, 9, x.size), rng.uniform(-80, 80, x.size)
    first, second = np.meshgrid(special(dtype), special(dtype))
    kind = dtype.numpy
    return (
        np.concatenate([x, np.concatenate([base, first.reshape(-1)]).astype(kind)]),
        np.concatenate([y, np.concatenate([exponent, second.reshape(-1)]).astype(kind)]),
    )


def inputs(name: str, dtype: DType) -> tuple[Array, ...]:
    return pairs(dtype) if name in BINARY else (arguments(dtype),)


@BOTH
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_within_the_bound(name: str, dtype: DType, target: Target) -> None:
    args = inputs(name, dtype)
    error = errors(computed(name, *args, target=target), expected(name, *args))
    worst = int(np.argmax(error))
    slack = 0.5 if name == "erf" and dtype is dt.float64 else SLACK[dtype]
    slack += 0 if target.fma else SPLIT
    assert error[worst] <= BOUNDS[name][dtype] + slack, [a[worst] for a in args]


@BOTH
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_that_lie_closest_to_multiples_of_a_right_angle(name: str, target: Target) -> None:
    # Found by Kahan's search; known from the test suites of libms.
    double = np.array([6381956970095103 * 2.0**797, 5319372648326541 * 2.0**165], np.float64)
    single = np.array([16367173 * 2.0**72, 13885591 * 2.0**103], np.float32)
    for x in (double, single):
        x = np.concatenate([around(x, 3), around(-x, 3)])
        error = errors(computed(name, x, target=target), expected(name, x))
        dtype = dt.as_dtype(x.dtype)
        assert error.max() <= BOUNDS[name][dtype] + SLACK[dtype]


@needs_fma
@BOTH
def test_powers_that_are_numbers_of_the_type_are_exact(target: Target) -> None:
    """2^11 is 2048, not the number before it, which an integer would take for 2047."""
    bases = [*range(2, 200), 1000, 1024, 0.5, 0.375, 1.5]
    pairs = [(x, y) for b in bases for x in (float(b), -float(b)) for y in range(-53, 54)]
    pairs = [(x, y) for x, y in pairs if Fraction(x) ** y == Fraction(x**y)]
    x, y = np.array(pairs, np.float64).T
    exact = np.array([a**b for a, b in pairs])
    assert len(x) > 1000
    powers = computed("pow", x, y, target=target)
    assert np.array_equal(powers, exact), [(x[i], y[i]) for i in np.flatnonzero(powers != exact)]


def test_functions_never_leave_their_ranges() -> None:
    x = arguments(dt.float32)
    x = x[np.isfinite(x)]
    for name in ("tanh", "erf", "sin", "cos"):
        assert np.abs(computed(name, x)).max() <= 1, name
    assert computed("exp", x).min() >= 0
    assert computed("cosh", x).min() >= 1


@needs_fma
@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "erf", "log", "asinh", "atan", "sinh"])
def test_monotone_across_the_seams(name: str) -> None:
    """The pieces of a function meet to within its error."""
    seams = np.array([1.0, 0.34657359, 0.41421356, 2.41421356, 1.41421356], np.float32)
    x = np.sort(around(seams, 400))
    y = computed(name, x)
    assert (np.diff(y) >= -2 * np.spacing(np.abs(y[1:]))).all()


@needs_fma
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_interpreter_finds_the_same_bits(name: str, dtype: DType) -> None:
    args = [np.resize(a[::4099], 24) for a in inputs(name, dtype)]
    args[0][-8:] = np.resize(special(dtype), 8)
    out = np.empty_like(args[0])
    run(kernel_of(name, dtype), [*args, out], 0, out.size)
    assert same(computed(name, *args), out).all()


@needs_fma
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_lanes_make_no_difference(lanes: int) -> None:
    x = arguments(dt.float32)[-64:]
    names = ["exp", "sin", "log1p", "erf", "acosh"]
    run_them = compiled([kernel_of(n, dt.float32, lanes) for n in names], TARGET)
    for name in names:
        out = np.empty_like(x)
        run_them(kernel_of(name, dt.float32, lanes), [x, out], 0, x.size)
        assert same(computed(name, x), out).all(), name


@pytest.mark.parametrize("target", [AVX512, NEON, GENERIC], ids=lambda t: t.name)
def test_other_processors_have_code(target: Target) -> None:
    kernels = [kernel_of(n, dt.float32, target.lanes(dt.float32)) for n in ("exp", "sin", "log1p")]
    kernels += [kernel_of(n, dt.float64, target.lanes(dt.float64)) for n in ("pow", "tan", "erf")]
    assert object_code(kernels, target)


def test_hot_functions_stay_short() -> None:
    """Instructions per vector, which speed depends on; a bitcast is none."""
    limits = {"exp": 20, "tanh": 25, "erf": 34, "log": 32, "sin": 26}
    for name, limit in limits.items():
        (loop,) = kernel_of(name, dt.float32).entry.body.statements
        codes = [getattr(s, "code", "branch") for s in loop.body.statements]
        assert sum(c not in ("bitcast", "load", "store") for c in codes) <= limit, name


def test_every_function_has_bounds() -> None:
    assert BOUNDS.keys() == FUNCTIONS.keys()


def test_other_types_are_refused() -> None:
    b = Builder()
    with pytest.raises(KernelError, match="int32"):
        FUNCTIONS["exp"](b.constant(1, dt.int32))
