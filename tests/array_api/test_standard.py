"""`treadle.array_api` against NumPy, whose main namespace follows the standard, and in programs.

The standard's own suite is a repository and not a package: `make array-api` runs it. What is here
needs nothing but NumPy.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.array_api as xp
from treadle import jit
from treadle.array_api import dtypes
from treadle.autodiff import GradManager
from treadle.base.dtype import as_dtype

RNG = np.random.default_rng(5)
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = tuple(str(d) for d in dtypes.KINDS["integral"])


def values(dtype: str, *shape: int, low: float = -3.0, high: float = 3.0) -> np.ndarray:
    if dtype == "bool":
        return RNG.random(shape) < 0.5
    if dtype in INTEGERS:
        return RNG.integers(0 if dtype[0] == "u" else -9, 9, shape).astype(dtype)
    drawn = RNG.uniform(low, high, shape)
    return (drawn + 1j * RNG.uniform(low, high, shape) if dtype in COMPLEX else drawn).astype(dtype)


def agree(found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, tuple):
        for i, (x, y) in enumerate(zip(found, expected, strict=True)):
            agree(x, y, f"{what}[{i}]")
        return
    got, want = found.numpy(), np.asarray(expected)
    assert got.dtype == want.dtype and got.shape == want.shape, (what, got.dtype, want.dtype)
    near = 2e-5 if want.dtype.name in ("float32", "complex64") else 1e-11
    np.testing.assert_allclose(got, want, near, near, err_msg=what)


UNARY = {
    **dict.fromkeys(("sin", "cos", "sinh", "cosh", "tanh", "exp", "expm1", "asinh"), (-3.0, 3.0)),
    **dict.fromkeys(("tan", "atan", "asin", "acos"), (-0.9, 0.9)),
    **dict.fromkeys(("sqrt", "log", "log1p", "log2", "log10", "reciprocal"), (0.1, 4.0)),
    "acosh": (1.1, 4.0),
    "atanh": (-0.9, 0.9),
}


@pytest.mark.parametrize("dtype", (*FLOATS, *COMPLEX))
def test_functions_of_numbers(dtype: str) -> None:
    for name, (low, high) in UNARY.items():
        x = values(dtype, 3, 4, low=low, high=high)
        agree(getattr(xp, name)(xp.asarray(x)), getattr(np, name)(x), name)
    x = values(dtype, 3, 4)
    for name in ("abs", "square", "sign", "negative", "conj", "isnan", "isfinite", "round"):
        agree(getattr(xp, name)(xp.asarray(x)), getattr(np, name)(x), name)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS, *COMPLEX))
def test_arithmetic_of_two_arrays(dtype: str) -> None:
    x, y = values(dtype, 3, 4), values(dtype, 4)
    y[y == 0] = 1
    names = ["add", "subtract", "multiply", "equal", "not_equal"]
    names += [] if dtype in INTEGERS else ["divide"]
    names += ["pow"] if dtype in COMPLEX else []
    names += [] if dtype in COMPLEX else ["floor_divide", "remainder", "maximum", "less"]
    for name in names:
        agree(getattr(xp, name)(xp.asarray(x), xp.asarray(y)), getattr(np, name)(x, y), name)
    if dtype not in COMPLEX:
        positive = np.abs(x) + np.asarray(1, dtype)
        agree(xp.asarray(positive) ** xp.asarray(np.abs(y)), positive ** np.abs(y), "**")
        agree(xp.asarray(x) % 3, np.remainder(x, np.asarray(3, dtype)), "% 3")
    assert (xp.asarray(x) + 1).dtype == dtype


def test_what_the_standard_says_nothing_about_is_refused() -> None:
    whole, real = xp.asarray([1, 2]), xp.asarray([1.0, 2.0])
    assert whole.dtype == xp.int64 and real.dtype == xp.float64
    for wrong in (
        lambda: whole + real,
        lambda: whole + 1.5,
        lambda: xp.asarray([True]) + xp.asarray([True]),
        lambda: xp.asarray([1], dtype=xp.uint64) + whole,
        lambda: xp.sin(whole),
        lambda: xp.result_type(xp.int64, xp.float32),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(OverflowError):
        xp.asarray(300, dtype=xp.uint8)
    assert float(xp.asarray(-7.0) % 3.0) == 2.0, "the divisor's sign; tensors have C's"
    assert (xp.asarray([3], dtype=xp.int8) ** 2).dtype == xp.int8, "tensors give float32"


@pytest.mark.parametrize("dtype", ("int8", "uint16", "int64", "float32", "complex128"))
def test_reductions_and_running_sums(dtype: str) -> None:
    x = values(dtype, 3, 1, 4)
    a = xp.asarray(x)
    for axis in (None, 0, (0, 2)):
        for name in ("sum", "prod"):
            agree(getattr(xp, name)(a, axis=axis), getattr(np, name)(x, axis=axis), name)
    agree(xp.cumulative_sum(a, axis=2), np.cumulative_sum(x, axis=2), "cumulative_sum")
    start = np.cumulative_prod(x, axis=0, include_initial=True)
    agree(xp.cumulative_prod(a, axis=0, include_initial=True), start, "cumulative_prod")
    agree(xp.diff(a, axis=0), np.diff(x, axis=0), "diff")
    agree(xp.count_nonzero(a, axis=0), np.count_nonzero(x, axis=0), "count_nonzero")
    if dtype in FLOATS:
        agree(xp.var(a, axis=0, correction=1.0), np.var(x, axis=0, correction=1.0), "var")


def test_sorting_sets_and_places() -> None:
    x = np.array([[3, 1, 2, 3], [0, 3, 1, 1]])
    a = xp.asarray(x)
    agree(xp.sort(a, descending=True), -np.sort(-x), "sort")
    agree(xp.argsort(a), np.argsort(x, stable=True), "argsort")
    agree(tuple(xp.unique_all(a)), tuple(np.unique_all(x)), "unique_all")
    assert xp.unique_values(xp.asarray([np.nan, 1.0, np.nan])).shape == (3,)
    agree(xp.nonzero(a), np.nonzero(x), "nonzero")
    line, wanted = np.array([0.0, 1.0, 1.0, 4.0]), np.array([[1.0, -1.0], [5.0, 2.0]])
    for side in ("left", "right"):
        found = xp.searchsorted(xp.asarray(line), xp.asarray(wanted), side=side)
        agree(found, np.searchsorted(line, wanted, side=side), side)
    agree(xp.take(a, xp.asarray([1, 0, -1]), axis=1), np.take(x, [1, 0, -1], axis=1), "take")
    agree(xp.repeat(a, xp.asarray([2, 0]), axis=0), np.repeat(x, [2, 0], axis=0), "repeat")
    agree(a[xp.asarray([1, 0]), 2], x[[1, 0], 2], "integers and arrays as indices")
    agree(a[a > 1], x[x > 1], "a mask as index")
    a[0, ...] = xp.asarray([9, 9, 9, 9])
    a[a == 3] = -1
    assert a.numpy().tolist() == [[9, 9, 9, 9], [0, -1, 1, 1]]


@pytest.mark.parametrize("dtype", (*FLOATS, *COMPLEX))
def test_linear_algebra(dtype: str) -> None:
    x = values(dtype, 2, 4, 4) + 4 * np.eye(4, dtype=dtype)
    y, a = values(dtype, 4, 3), xp.asarray(x)
    agree(a @ xp.asarray(y), x @ y, "matmul")
    np.testing.assert_allclose(xp.linalg.det(a).numpy(), np.linalg.det(x), 1e-4)
    np.testing.assert_allclose(xp.linalg.inv(a).numpy() @ x, np.eye(4)[None] + 0 * x, 0, 1e-4)
    solved = xp.linalg.solve(a, xp.asarray(y)).numpy()
    np.testing.assert_allclose(x @ solved, np.broadcast_to(y, solved.shape), 1e-3, 1e-4)
    q, r = (v.numpy() for v in xp.linalg.qr(xp.asarray(x[..., :3])))
    np.testing.assert_allclose(q @ r, x[..., :3], 1e-4, 1e-4)
    np.testing.assert_allclose(q.conj().mT @ q, np.eye(3)[None] + 0 * q[:, :3], 0, 1e-5)
    for most in (1e37, 1e-30):  # Squares of these are infinite, or 0.
        q, r = (
            v.numpy() for v in xp.linalg.qr(xp.asarray(x[..., :3] * np.real(x).dtype.type(most)))
        )
        np.testing.assert_allclose(q @ r / most, x[..., :3], 1e-4, 1e-4)
    hermitian = x @ x.conj().mT
    low = xp.linalg.cholesky(xp.asarray(hermitian)).numpy()
    np.testing.assert_allclose(low @ low.conj().mT, hermitian, 1e-4, 1e-4)
    rising = np.linalg.eigvalsh(hermitian)
    np.testing.assert_allclose(xp.linalg.eigvalsh(xp.asarray(hermitian)).numpy(), rising, 1e-3)
    np.testing.assert_allclose(xp.linalg.svdvals(a).numpy(), np.linalg.svdvals(x), 1e-4, 1e-4)
    sign, size = xp.linalg.slogdet(a)
    np.testing.assert_allclose(
        (sign * xp.exp(xp.astype(size, dtype))).numpy(), np.linalg.det(x), 1e-4
    )
    np.testing.assert_allclose(xp.linalg.pinv(a).numpy() @ x, np.eye(4)[None] + 0 * x, 0, 1e-3)
    agree(xp.linalg.matrix_power(a, 3), np.linalg.matrix_power(x, 3), "matrix_power")


def test_eigenvectors_of_symmetric_matrices() -> None:
    x = values("float64", 6, 6)
    x = x + x.T
    x[2] = x[:, 2] = 0.0  # an eigenvalue of 0
    rising, vectors = (v.numpy() for v in xp.linalg.eigh(xp.asarray(x)))
    np.testing.assert_allclose(rising, np.linalg.eigvalsh(x), 0, 1e-12)
    np.testing.assert_allclose(x @ vectors, vectors * rising, 0, 1e-12)


@pytest.mark.parametrize("n", (1, 2, 7, 30, 60, 67, 128))
def test_fourier_transforms(n: int) -> None:
    x = values("complex128", 2, n)
    for name in ("fft", "ifft", "hfft"):
        for norm in ("backward", "ortho", "forward"):
            found = getattr(xp.fft, name)(xp.asarray(x), norm=norm, n=n)
            expected = getattr(np.fft, name)(x, norm=norm, n=n)
            np.testing.assert_allclose(found.numpy(), expected, 1e-9, 1e-9, err_msg=name)
    real = x.real
    np.testing.assert_allclose(xp.fft.rfft(xp.asarray(real)).numpy(), np.fft.rfft(real), 0, 1e-10)
    half = np.fft.rfft(real)
    back = xp.fft.irfft(xp.asarray(half), n=n).numpy()
    np.testing.assert_allclose(back, real, 0, 1e-10)
    agree(xp.fft.fftfreq(n, d=0.5), np.fft.fftfreq(n, d=0.5), "fftfreq")
    square = values("float64", 4, n)
    np.testing.assert_allclose(
        xp.fft.irfftn(xp.fft.rfftn(xp.asarray(square)), s=(4, n)).numpy(), square, 0, 1e-10
    )


def test_special_values_of_complex_functions() -> None:
    inf, nan = np.inf, np.nan
    cases = {
        "exp": {(-inf, nan): (0, 0), (inf, 0.0): (inf, 0), (1.0, inf): (nan, nan)},
        "sqrt": {(-inf, 1.0): (0, inf), (inf, -1.0): (inf, -0.0), (nan, inf): (inf, inf)},
        "tanh": {(inf, 2.0): (1, 0), (800.0, nan): (nan, nan)},
        "acos": {(0.0, nan): (np.pi / 2, nan), (nan, inf): (nan, -inf)},
        "log": {(0.0, 0.0): (-inf, 0), (-inf, inf): (inf, 3 * np.pi / 4)},
        "atanh": {(1.0, 0.0): (inf, 0), (nan, inf): (0, np.pi / 2)},
    }
    for name, table in cases.items():
        for (a, b), expected in table.items():
            z = getattr(xp, name)(xp.asarray(complex(a, b)))
            got = float(xp.real(z)), float(xp.imag(z))
            np.testing.assert_allclose(got, expected, 1e-12, err_msg=f"{name}({a}, {b})")


def test_neighbors_signs_and_lengths() -> None:
    for dtype in FLOATS:
        limits = np.finfo(dtype)
        ends = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            1e-30,
            limits.max,
            limits.tiny,
            limits.smallest_subnormal,
            np.inf,
            np.nan,
            3.7,
        ]
        x, y = (a.reshape(-1) for a in np.meshgrid(np.array(ends, dtype), np.array(ends, dtype)))
        for name in ("nextafter", "copysign", "hypot"):
            with np.errstate(all="ignore"):
                agree(
                    getattr(xp, name)(xp.asarray(x), xp.asarray(y)), getattr(np, name)(x, y), name
                )
        agree(xp.signbit(xp.asarray(-x)), np.signbit(-x), "signbit")


# -- beside the rest of Treadle ----------------------------------------------------------------


def test_tensors_have_the_namespace_and_come_back() -> None:
    x = mge.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError, match=r"follows version 2024\.12"):
        x.__array_namespace__(api_version="1999.1")
    made = xp.linalg.matrix_transpose(x)
    assert isinstance(made, xp.Array) and made.tensor.tolist() == [[1, 3], [2, 4]]
    assert xp.asarray(mge.tensor([1.0]).astype("complex64")).dtype == xp.complex64
    assert xp.asarray([1 + 2j]).tensor.numpy().tolist() == [1 + 2j]


def test_functions_compile_and_differentiate() -> None:
    def loss(t: mge.Tensor) -> mge.Tensor:
        a = xp.asarray(t)
        spectrum = xp.fft.rfft(a, axis=-1)
        size = xp.sum(xp.abs(spectrum * spectrum))
        _, logarithm = xp.linalg.slogdet(xp.matmul(a, a.mT) + xp.eye(3, dtype=a.dtype))
        return (size + logarithm + xp.sum(xp.std(a, axis=0))).tensor

    x = mge.Parameter(values("float64", 3, 5), dtype="float64")
    gm = GradManager().attach([x])

    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            made = loss(x)
            gm.backward(made)
        return made

    eager = step(x)
    slope = x.grad.numpy()
    x.grad = None
    compiled = jit.compile(step)(x)
    np.testing.assert_allclose(compiled.numpy(), eager.numpy(), 1e-12)
    np.testing.assert_allclose(x.grad.numpy(), slope, 1e-9)
    moved, h = x.numpy().copy(), 1e-6
    moved[1, 2] += h
    numeric = (loss(mge.tensor(moved, dtype="float64")).item() - eager.item()) / h
    np.testing.assert_allclose(slope[1, 2], numeric, 1e-4)


def test_signatures_are_those_of_the_standard() -> None:
    """Positional arguments cannot be named, and the others must be: a sample of each kind."""
    assert str(inspect.signature(xp.sum)).startswith("(x: 'Array', /, *, axis")
    for name in (*UNARY, "abs"):
        (only,) = inspect.signature(getattr(xp, name)).parameters.values()
        assert only.kind is inspect.Parameter.POSITIONAL_ONLY, name
    info = xp.__array_namespace_info__()
    assert info.dtypes(kind="real floating") == {"float32": xp.float32, "float64": xp.float64}
    assert info.default_dtypes()["integral"] == as_dtype("int64").numpy
    assert info.default_device() in info.devices()


MISTAKES = {
    "an axis is named twice": [
        ("expand_dims", (0, 0), {}),
        ("expand_dims", (0, -4), {}),
        ("moveaxis", (0, 0), (0, 1), {}),
        ("moveaxis", (0, 1), (1, 1), {}),
        ("squeeze", {"axis": (0, -2)}),
    ],
    "an integer is needed": [
        ("expand_dims", 0.5, {}),
        ("reshape", (2.0, 3), {}),
        ("broadcast_to", (2.5, 3), {}),
        ("roll", 1.5, {}),
        ("tile", (1.5,), {}),
    ],
    "one extent may be -1": [("reshape", (-1, -1), {})],
    "do not go to": [("moveaxis", (0, 1), (0,), {})],
    "2 shifts for 1 axes": [("roll", (1, 2), {"axis": (0,)})],
    "is 0 or more": [("repeat", -1, {}), ("repeat", [1, -1, 0, 0, 0, 0], {}), ("diff", {"n": -1})],
    "are 0 or more": [("tile", (2, -1), {})],
    "counts are integers": [("repeat", [1.5, 1.0], {"axis": 0})],
    "has one axis": [("searchsorted", xp.asarray([1.0]), {})],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named_where_they_are_made(message: str) -> None:
    x = xp.asarray(values("float64", 2, 3))
    for name, *given, named in MISTAKES[message]:
        with pytest.raises((ValueError, TypeError), match=message):
            getattr(xp, name)(x, *given, **named)


def test_arrays_of_nothing_are_named() -> None:
    for name in ("concat", "stack"):
        with pytest.raises(ValueError, match=f"{name}: at least one array is needed"):
            getattr(xp, name)([])
    with pytest.raises(ValueError, match="differ"):
        xp.stack([xp.asarray([1.0]), xp.asarray([1.0, 2.0])])
    with pytest.raises(ValueError, match="step of 0"):
        xp.arange(0, 5, 0)
    with pytest.raises(ValueError, match="not a finite number of steps"):
        xp.arange(0, float("inf"))
    with pytest.raises(ValueError, match="0 or more"):
        xp.linspace(0, 1, -1)
    with pytest.raises(TypeError, match="an integer is needed"):
        xp.zeros((2.5,))
