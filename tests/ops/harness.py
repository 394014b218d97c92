"""What the generated op tests check: one function per claim a declaration makes."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import ShapeError, TreadleError
from treadle.base.guards import recording_guards
from treadle.base.symbol import Dim, bounds, symbol
from treadle.base.symbol import evaluate as evaluate_dim
from treadle.base.types import TensorType
from treadle.conformance.samples import special_values
from treadle.ops import REGISTRY
from treadle.ops.abstract import constant_array
from treadle.ops.op import Op, Pullback, Sample, as_tuple
from treadle.ops.operators import Operators
from treadle.ops.reverse import TapeEntry, backpropagate
from treadle.ops.scalar import Scalar, evaluate

# Other test modules declare ops of their own; only the package's are held to these claims.
OPS = tuple(sorted(n for n, c in REGISTRY.items() if c.__module__.startswith("treadle.")))

TOLERANCE = {
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float32": 4e-6,
    "complex64": 4e-6,
    "float64": 1e-12,
}
STEP = 1e-5
"""Of central differences; their error is about STEP**2, so gradients agree to 1e-6."""


def types_of(arrays: Sequence[Array]) -> tuple[TensorType, ...]:
    return tuple(TensorType(as_dtype(a.dtype), a.shape) for a in arrays)


def run(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The oracle on inputs it cannot write to; IEEE results come without NumPy's warnings."""
    arrays = [np.array(a) for a in arrays]
    for array in arrays:
        array.setflags(write=False)
    with np.errstate(all="ignore"):
        return as_tuple(op.reference(*arrays))


def assert_close(got: Array, expected: Array, dtype: DType, what: str) -> None:
    """Equal but for the rounding of `dtype`; integers and truth values must be identical."""
    wide: Any = np.complex128 if dtype.kind == "complex" else np.float64
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    if dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    tolerance = TOLERANCE[dtype.name]
    np.testing.assert_allclose(
        got.astype(wide), expected.astype(wide), tolerance, tolerance, err_msg=what
    )


# ── types ─────────────────────────────────────────────────────────────────────────────────────


def check_types(sample: Sample, dtype: DType) -> None:
    """`infer` tells the shapes and element types that `reference` returns."""
    arrays = sample.arrays(dtype)
    inferred = sample.op.infer(*types_of(arrays))
    assert len(inferred) == sample.op.n_outputs
    found = types_of(run(sample.op, arrays))
    assert fits(inferred, found), f"{sample} with {dtype}: inferred {inferred}, found {found}"


def fits(declared: Sequence[TensorType], found: Sequence[TensorType]) -> bool:
    """Whether concrete types are what was declared; extents that data decides lie in bounds."""
    if len(declared) != len(found):
        return False
    return all(
        t.dtype is u.dtype
        and t.ndim == u.ndim
        and all(_dim_fits(d, e) for d, e in zip(t.shape, u.shape, strict=True))
        for t, u in zip(declared, found, strict=True)
    )


def _dim_fits(declared: Dim, found: Dim) -> bool:
    if isinstance(declared, int):
        return declared == found
    low, high = bounds(declared)
    return low <= int(found) <= high


def symbolic_refusal(sample: Sample, dtype: DType) -> str:
    """Why `infer` refuses symbolic extents, "" where it takes them.

    Every extent above 1 becomes a symbol (equal extents the same one); the result must evaluate
    to the concrete type, and all recorded guards must hold for the concrete extents.
    """
    types = types_of(sample.arrays(dtype))
    extents = {d for t in types for d in t.shape if d > 1}
    symbols = {d: symbol(f"n{d}") for d in extents}
    values = {f"n{d}": int(d) for d in extents}
    asked = [t.with_shape(tuple(symbols.get(d, d) for d in t.shape)) for t in types]
    with recording_guards() as guards:
        try:
            results = sample.op.infer(*asked)
        except TreadleError as error:
            return f"{sample}: {error.problem}"
    for guard in guards:
        assert guard.holds(values), f"{sample}: the guard {guard} fails for {values}"
    found = [t.with_shape(tuple(_bind(d, values) for d in t.shape)) for t in results]
    concrete = run(sample.op, sample.arrays(dtype))
    assert fits(found, types_of(concrete)), f"{sample} with symbolic extents: {found}"
    return ""


def _bind(dim: Dim, values: dict[str, int]) -> Dim:
    """The extent's value; an extent that only data decides stays as it is."""
    try:
        return evaluate_dim(dim, values)
    except ShapeError:
        return dim


# ── scalar code ───────────────────────────────────────────────────────────────────────────────


def check_scalar(op: Any, arrays: Sequence[Array], what: str) -> None:
    """The scalar code, interpreted, gives what the oracle gives."""
    inputs = [Scalar("input") for _ in arrays]
    (expected,) = run(op, arrays)
    got = evaluate(op.scalar(*inputs), dict(zip(inputs, arrays, strict=True)))
    dtype = as_dtype(expected.dtype)
    if dtype is not dt.bfloat16:  # which evaluate computes in float32
        assert got.dtype == expected.dtype, f"{what}: scalar code gives {got.dtype}"
    got = np.broadcast_to(got, expected.shape)  # a constant result has no shape
    assert_close(got, expected, dtype, what)


def special_arrays(sample: Sample, dtype: DType) -> tuple[Array, ...] | None:
    """Every combination of special values, as inputs like those of `sample`."""
    kinds = [special_values(a.dtype or dtype) for a in sample.args]
    if not kinds:
        return None
    return tuple(np.ascontiguousarray(g.ravel()) for g in np.meshgrid(*kinds, indexing="ij"))


# ── gradients ─────────────────────────────────────────────────────────────────────────────────


class TapeOperand(Operators):
    """An array whose every use is written down, so that a function of it can be differentiated."""

    __slots__ = ("array", "tape")

    def __init__(self, array: Array, tape: list[TapeEntry[Any]]) -> None:
        self.array = array
        self.tape = tape

    @property
    def type(self) -> TensorType:
        return TensorType(as_dtype(self.array.dtype), self.array.shape)

    def apply(self, op: Op, inputs: tuple[Any, ...], /) -> tuple[Any, ...]:
        declared = op.infer(*(x.type for x in inputs))
        arrays = run(op, [x.array for x in inputs])
        assert fits(declared, types_of(arrays)), f"{op} in a gradient rule: {declared}"
        results = tuple(TapeOperand(r, self.tape) for r in arrays)
        keys = tuple(map(id, inputs)), tuple(map(id, results))
        # The closure keeps the operands alive, so that their ids stay unique.
        self.tape.append(TapeEntry(op, *keys, lambda: (inputs, results)))
        return results

    def constant(self, value: Any, dtype: DType | None = None) -> "TapeOperand":
        return TapeOperand(constant_array(value, dtype, self.type.dtype), self.tape)


Function = Callable[[list[TapeOperand]], list[TapeOperand | None]]


def gradients(f: Function, arrays: Sequence[Array], seeds: Sequence[Array]) -> list[Array]:
    """Gradients of sum_i <seeds_i, f_i> by reverse mode, zero where nothing depends."""
    tape: list[TapeEntry[Any]] = []
    inputs = [TapeOperand(a, tape) for a in arrays]
    cotangents: dict[Any, Any] = {}
    for out, seed in zip(f(inputs), seeds, strict=True):
        if out is not None:
            before = cotangents.get(id(out))
            dy = TapeOperand(seed, tape)
            cotangents[id(out)] = dy if before is None else before + dy
    wanted = [id(x) for x in inputs if _is_real(x.array)]
    found = backpropagate(list(tape), cotangents, wanted)
    return [found[id(x)].array if id(x) in found else np.zeros_like(x.array) for x in inputs]


def check_rounded_once(sample: Sample, dtype: DType) -> None:
    """In 16 bits the oracle gives what it gives in float32, rounded."""
    arrays = [*sample.arrays(dtype)]
    short = [a for a in arrays if a.dtype == dtype.numpy]
    if len(short) == 1 and short[0].size:  # More numbers, of all sizes and signs.
        spread = np.linspace(-9, 9, 999).astype(dtype.numpy)
        arrays = [spread if a is short[0] else a for a in arrays] if len(arrays) == 1 else arrays
    got = run(sample.op, arrays)
    wide = [a.astype("float32") if a.dtype == dtype.numpy else a for a in arrays]
    for made, exact in zip(got, run(sample.op, wide), strict=True):
        if made.dtype != dtype.numpy:
            np.testing.assert_array_equal(made, exact, err_msg=f"{sample} with {dtype}")
            continue
        with np.errstate(all="ignore"):  # Two functions of float32 may differ in its last place.
            ends = [(exact * (1 + s)).astype(dtype.numpy).astype("f") for s in (-3e-7, 0, 3e-7)]
        right = [(made.astype("f") == e) | (np.isnan(e) & (made != made)) for e in ends]
        wrong = ~np.any(right, axis=0)
        assert not wrong.any(), f"{sample} with {dtype}: {int(wrong.sum())} of {wrong.size}"


def check_against_differences(f: Function, arrays: Sequence[Array], what: str) -> None:
    """Reverse mode agrees with central differences of f along random directions, in float64."""
    rng = np.random.default_rng(7)
    outputs = [None if y is None else y.array for y in _call(f, arrays)]
    seeds = [None if y is None else rng.normal(size=y.shape) for y in outputs]
    got = gradients(f, arrays, [np.zeros(0) if s is None else s for s in seeds])
    assert all(g.shape == a.shape for g, a in zip(got, arrays, strict=True) if _is_real(a)), what
    if not any(a.size for a in arrays if _is_real(a)):
        return  # nothing can be moved; a mean of nothing is NaN however it is asked
    for _ in range(2):
        ways = [rng.normal(size=a.shape) if _is_real(a) else np.zeros(()) for a in arrays]
        exact = sum(float(np.sum(g * w)) for g, w in zip(got, ways, strict=True) if w.size)
        ends = []
        for sign in (1, -1):
            moved = [
                a + sign * STEP * w if _is_real(a) else a for a, w in zip(arrays, ways, strict=True)
            ]
            ends.append(_project(_call(f, moved), seeds))
        difference = (ends[0] - ends[1]) / (2 * STEP)
        np.testing.assert_allclose(exact, difference, 1e-5, 1e-6, err_msg=what)


def _call(f: Function, arrays: Sequence[Array]) -> list[TapeOperand | None]:
    return f([TapeOperand(np.asarray(a), []) for a in arrays])


def _project(outputs: Sequence[TapeOperand | None], seeds: Sequence[Array | None]) -> float:
    pairs = zip(outputs, seeds, strict=True)
    return sum(float(np.sum(y.array * s)) for y, s in pairs if y is not None and s is not None)


def _is_real(array: Array) -> bool:
    return array.dtype == np.float64


def is_differentiable(sample: Sample) -> bool:
    """Whether the sample has a gradient that float64 can check."""
    if sample.op.no_gradient or not sample.gradient or dt.float64 not in sample.element_types():
        return False
    arrays = sample.arrays(dt.float64)
    results = sample.op.infer(*types_of(arrays))
    reals = [t.dtype for t in results if t.dtype.is_float]
    return bool(reals) and set(reals) == {dt.float64} and any(_is_real(a) for a in arrays)


def cotangent_patterns(op: Op, arrays: Sequence[Array]) -> list[tuple[int, ...]]:
    """Which outputs are differentiated: all real ones at once, then each alone."""
    reals = [i for i, t in enumerate(op.infer(*types_of(arrays))) if t.dtype.is_float]
    return [tuple(reals), *((i,) for i in reals)] if len(reals) > 1 else [tuple(reals)]


def check_gradient(sample: Sample) -> None:
    """First and second order against central differences, for every pattern of cotangents."""
    op, arrays = sample.op, sample.arrays(dt.float64)
    needs = tuple(_is_real(a) for a in arrays)
    for chosen in cotangent_patterns(op, arrays):

        def forward(
            xs: list[TapeOperand], at: tuple[int, ...] = chosen
        ) -> list[TapeOperand | None]:
            outputs = op.outputs(*xs)
            return [outputs[i] for i in at]

        def pull_back(
            values: list[TapeOperand], at: tuple[int, ...] = chosen
        ) -> list[TapeOperand | None]:
            xs, dys = (
                tuple(values[: len(arrays)]),
                dict(zip(at, values[len(arrays) :], strict=True)),
            )
            outputs = op.outputs(*xs)
            cotangents = tuple(dys.get(i) for i in range(len(outputs)))
            return list(op.vjp(Pullback(cotangents, xs, outputs, needs)))

        check_against_differences(forward, arrays, f"{sample}: first order")
        rng = np.random.default_rng(3)
        dys = [rng.normal(size=y.array.shape) for y in _call(forward, arrays) if y is not None]
        check_against_differences(pull_back, [*arrays, *dys], f"{sample}: second order")


def check_gradient_contract(sample: Sample, dtype: DType) -> None:
    """Gradients have the inputs' types, and only those that are needed are returned."""
    op, arrays = sample.op, sample.arrays(dtype)
    xs = tuple(TapeOperand(a, []) for a in arrays)
    outputs = op.outputs(*xs)
    dys = tuple(
        x.constant(np.ones_like(x.array)) if x.type.dtype.is_float else None for x in outputs
    )
    real = tuple(x.type.dtype.is_float for x in xs)
    full = op.vjp(Pullback(dys, xs, outputs, real))
    for i, wanted in enumerate(real):
        if not wanted:
            continue
        only = op.vjp(Pullback(dys, xs, outputs, tuple(j == i for j in range(len(xs)))))
        others = [j for j, g in enumerate(only) if g is not None and j != i]
        assert not others, f"{sample}: gradients {others} were computed though not needed"
        mine, all_at_once = only[i], full[i]
        assert (mine is None) == (all_at_once is None), f"{sample}: gradient {i}"
        if mine is not None and all_at_once is not None:
            assert mine.type == xs[i].type, f"{sample}: gradient {i} is {mine.type}"
            np.testing.assert_array_equal(mine.array, all_at_once.array)


# ── bad input ─────────────────────────────────────────────────────────────────────────────────


def wrong_dtype_calls(cls: type[Op]) -> list[tuple[Op, tuple[TensorType, ...]]]:
    """Types of the first sample, with element types the op does not take."""
    for sample in cls.samples():
        if any(a.dtype is None for a in sample.args):
            break
    else:
        return []
    wrong = [d for d in dt.ALL if d not in cls.dtypes]
    return [
        (sample.op, tuple(TensorType(a.dtype or d, a.shape) for a in sample.args)) for d in wrong
    ]


def all_pairs(cls: type[Op]) -> list[tuple[Sample, DType]]:
    """Every sample with every element type it is tried with."""
    pairs = (itertools.product([s], s.element_types()) for s in cls.samples())
    return list(itertools.chain.from_iterable(pairs))
