"""Scalar code of every elementwise op, run natively, against the op's own reference."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.backends.codegen.execution import RUNNABLE, compiled, same
from tests.backends.codegen.spelled import Builder, kernel

from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.kernel.ir import (
    Instruction,
    KernelError,
    KernelModule,
    Value,
    pointer,
)
from treadle.backends.codegen.scalars.code import (
    apply,
    compute_dtype,
    convert,
    emit,
    load_value,
    store_value,
)
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.ops.elementwise import Cast
from treadle.ops.families import Elementwise
from treadle.ops.op import REGISTRY
from treadle.ops.scalar import INTRINSICS, Scalar, call, cast, const, evaluate, select

TARGET = next((t for t in RUNNABLE if t.fma), RUNNABLE[0])
# Elsewhere the printers split fma where nothing hangs on it.
needs_fma = pytest.mark.skipif(not TARGET.fma, reason="this processor has no fused multiply-add")
LANES = 8
Array = np.ndarray
Function = Callable[..., Value]


def elementwise(
    name: str, sources: Sequence[DType], target: DType, function: Function, lanes: int = LANES
) -> KernelModule:
    """out[i] = function(b, x0[i], x1[i], ...)."""
    inputs = [pointer(d, f"x{i}") for i, d in enumerate(sources)]
    out = pointer(target, "out")

    def write(b: Builder, lo: Value, hi: Value) -> None:
        def body(i: Value) -> None:
            values = [load_value(p, i, lanes) for p in inputs]
            store_value(out, i, function(b, *values))

        b.loop(lo, hi, lanes, body)

    return kernel(name, [*inputs, out], write)


def computed(
    made: KernelModule, arrays: Sequence[Array], dtype: DType, target: Target = TARGET
) -> Array:
    """The kernel's result; the arrays have a multiple of LANES elements."""
    out = np.empty(arrays[0].size, dtype.numpy)
    compiled([made], target)(made, [*arrays, out], 0, out.size)
    return out


def padded(arrays: Sequence[Array]) -> list[Array]:
    size = -(-arrays[0].size // LANES) * LANES
    return [np.resize(a, size) for a in arrays]


def special(dtype: DType) -> Array:
    """Values at which types and functions end, and ordinary ones."""
    if dtype is dt.bool_:
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        near = [-65, -64, -33, -32, -8, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 16, 31, 32, 63, 64]
        ends = [info.min, info.min + 1, info.max - 1, info.max]
        return np.array([*ends, *(v for v in near if info.min <= v <= info.max)], dtype.numpy)
    limits = ml_dtypes.finfo(dtype.numpy)
    sizes = [0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.25, 88.0, 300.0, 3e9, 1e19, 1e25, np.inf]
    ends = [limits.max, limits.tiny, limits.smallest_subnormal]
    with np.errstate(over="ignore"):
        values = np.array([*sizes, *(float(e) for e in ends)]).astype(dtype.numpy)
    return np.concatenate([values, -values, np.array([np.nan], dtype.numpy)])


# -- every op ----------------------------------------------------------------------------------

NAMES = sorted(n for n, o in REGISTRY.items() if issubclass(o, Elementwise))
Case = tuple[Any, tuple[DType, ...], DType, list[Array]]


def cases(name: str) -> list[Case]:
    """Op, element types and data: its samples, and all combinations of special values."""
    found: dict[Any, Case] = {}
    for sample in REGISTRY[name].samples():
        op: Any = sample.op
        for dtype in sample.element_types():
            arrays = np.broadcast_arrays(*sample.arrays(dtype))
            types = tuple(dt.as_dtype(a.dtype) for a in arrays)
            (result,) = op.infer(*(TensorType(t, ()) for t in types))
            if dt.complex64 in (*types, result.dtype) or (op, types) in found:
                continue
            grid = np.meshgrid(*(special(t) for t in types))
            both = [
                np.concatenate([a.ravel(), g.ravel()]) for a, g in zip(arrays, grid, strict=True)
            ]
            found[op, types] = (op, types, result.dtype, padded(both))
    return list(found.values())


def reference(op: Any, data: Sequence[Array], result: DType) -> Array:
    """The oracle; 16-bit floats are computed in float32, as kernels do."""
    if not isinstance(op, Cast):
        data = [a.astype(compute_dtype(dt.as_dtype(a.dtype)).numpy) for a in data]
    with np.errstate(all="ignore"):
        return np.asarray(op.reference(*data)).astype(result.numpy)


def close(op: Any, data: Sequence[Array], found: Array, expected: Array) -> Array:
    """Equal, or within a few units in the last place."""
    if found.dtype.kind in "biu":
        return np.asarray(found == expected)
    info = ml_dtypes.finfo(found.dtype)
    x, y = found.astype(np.float64), expected.astype(np.float64)
    size = np.maximum(np.abs(y), float(info.tiny))
    if op.name == "gelu":  # 1 + tanh(x) or 1 + erf(x) cancels for negative x
        size = np.maximum(size, np.minimum(np.abs(data[0].astype(np.float64)), 1))
    with np.errstate(invalid="ignore"):
        within = np.abs(x - y) <= 4 * float(info.eps) * size
    return within | (x == y) | (np.isnan(x) & np.isnan(y))


def kernels_of(name: str, made: Sequence[Case]) -> list[KernelModule]:
    return [
        elementwise(f"{name}{i}", types, out, lambda b, *v, op=op, out=out: apply(op, v, out))
        for i, (op, types, out, _) in enumerate(made)
    ]


@needs_fma
@pytest.mark.parametrize("name", NAMES)
def test_op_equals_its_reference(name: str) -> None:
    made = cases(name)
    kernels = kernels_of(name, made)
    native = compiled(kernels, TARGET)
    for one, (op, _, result, data) in zip(kernels, made, strict=True):
        out = np.empty(data[0].size, result.numpy)
        native(one, [*data, out], 0, out.size)
        wrong = np.flatnonzero(~close(op, data, out, reference(op, data, result)))[:3]
        assert not wrong.size, (str(op), [a[wrong] for a in data], out[wrong])


@pytest.mark.parametrize("name", ["floor_div", "mod", "shift_right", "maximum", "where", "sign"])
def test_interpreter_finds_the_same_bits(name: str) -> None:
    made = cases(name)
    kernels = kernels_of(name, made)
    native = compiled(kernels, TARGET)
    for one, (op, types, out, data) in zip(kernels, made, strict=True):
        few = [np.resize(a[::-37], LANES) for a in data]
        expected, found = np.empty(LANES, out.numpy), np.empty(LANES, out.numpy)
        run(one, [*few, expected], 0, LANES, fused=TARGET.fma)
        native(one, [*few, found], 0, LANES)
        assert same(found, expected).all(), (str(op), types)


# -- conversions -------------------------------------------------------------------------------

REALS = (dt.bool_, *dt.INTEGERS, *dt.FLOATS)


def convertible(source: DType, target: DType) -> Array:
    """Values of every size, but only what fits where NumPy leaves the rest to the compiler."""
    rng = np.random.default_rng(3)
    values = special(source)
    if source.is_float:
        wide = rng.uniform(-1, 1, 512) * 2.0 ** rng.integers(-30, 70, 512)
        halves = np.arange(-64, 64) + 0.5
        with np.errstate(over="ignore"):
            values = np.concatenate([values, np.append(wide, halves).astype(source.numpy)])
        defined = platform.machine() in ("x86_64", "AMD64")
        if target.is_integer and (not defined or target in (dt.uint32, dt.uint64)):
            low, high = (-(2.0**31), 2.0**32) if target.kind == "uint" else (-(2.0**31), 2.0**31)
            number = values.astype(np.float64)
            values = values[(number > low) & (number < high)]
    return padded([values])[0]


@pytest.mark.parametrize("source", REALS, ids=str)
def test_casts_equal_the_reference(source: DType) -> None:
    kernels = [
        elementwise(f"to_{t.name}", [source], t, lambda b, x, t=t: apply(Cast(t), [x], t))
        for t in REALS
    ]
    native = compiled(kernels, TARGET)
    for target, one in zip(REALS, kernels, strict=True):
        x = convertible(source, target)
        out = np.empty(x.size, target.numpy)
        native(one, [x, out], 0, x.size)
        with np.errstate(all="ignore"):
            expected = Cast(target).reference(x)
        wrong = np.flatnonzero(~same(out, expected))[:3]
        assert not wrong.size, (target, x[wrong], out[wrong], expected[wrong])


@pytest.mark.parametrize("target", [dt.float16, dt.bfloat16], ids=str)
def test_doubles_are_rounded_once(target: DType) -> None:
    """Just off the middle between two 16-bit numbers, float32 would be the middle."""
    halves = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-9])
    x = padded([np.concatenate([halves, halves + 2**-40, halves - 2**-40])])[0]
    x = np.concatenate([x, -x, x * 2**-16, x * 1000])
    made = elementwise("narrow", [dt.float64], target, lambda b, v: convert(v, target))
    exact = np.array([_rounded(v, target) for v in x], target.numpy)
    assert same(computed(made, [x], target), exact).all()


def _rounded(value: float, target: DType) -> Any:
    """To nearest, ties to even, by comparing with the neighbors."""
    near = np.asarray(value).astype(np.float32).astype(target.numpy)
    bits = int(near.view(np.uint16))
    around = np.array([bits - 1, bits, bits + 1], np.uint16).view(target.numpy)
    distance = [abs(float(a) - value) for a in around]
    best = [i for i in range(3) if distance[i] == min(distance)]
    return next(
        (around[i] for i in best if int(around[i].view(np.uint16)) % 2 == 0), around[best[0]]
    )


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16], ids=str)
def test_store_rounds_to_nearest_even(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 1 << 32, 1 << 14, np.uint32).view(np.float32)
    x = np.where(np.isnan(x), np.float32(np.nan), x)
    made = kernel(
        "narrow",
        [source := pointer(dt.float32), out := pointer(dtype)],
        lambda b, lo, hi: b.loop(lo, hi, 8, lambda i: store_value(out, i, b.load(source, i, 8))),
    )
    with np.errstate(all="ignore"):
        assert same(computed(made, [x], dtype), x.astype(dtype.numpy)).all()


def test_masked_access_leaves_the_rest_alone() -> None:
    def write(b: Builder, lo: Value, hi: Value) -> None:
        mask = b.first_lanes(5, 8)
        store_value(out, lo, b.add(load_value(x, lo, 8, mask), 1.0), mask)

    x, out = pointer(dt.bfloat16), pointer(dt.float16)
    data = np.arange(5).astype(ml_dtypes.bfloat16)
    result = np.full(8, -1, np.float16)
    run(kernel("masked", [x, out], write), [data, result], 0, 1)
    assert result.tolist() == [1, 2, 3, 4, 5, -1, -1, -1]


def test_complex_numbers_are_refused() -> None:
    b = Builder()
    with pytest.raises(KernelError, match="complex"):
        convert(b.constant(1.0, dt.float32), dt.complex64)


def test_stores_want_the_compute_type() -> None:
    b = Builder()
    with pytest.raises(KernelError, match="float64"):
        store_value(b.adopt(pointer(dt.float16)), 0, b.constant(1.0, dt.float64))


# -- expressions -------------------------------------------------------------------------------

X, Y, MASK = Scalar("input"), Scalar("input"), Scalar("input")
EXPRESSIONS: dict[str, tuple[Scalar, tuple[Scalar, ...]]] = {
    "constants": (select(X > 1, -const(2) * X, select(Y < 0, 3, X + Y)), (X, Y)),
    "mask": (select(MASK, X * 2 + Y, const(7)) - 1, (MASK, X, Y)),
    "logic": ((X < Y) & ~(X.equals(2)) | (call("ne", X, Y) ^ (Y >= 0)), (X, Y)),
    "cast": (cast(X < Y, dt.int32), (X, Y)),
    "clamp": (call("min", call("max", X, Y), 5), (X, Y)),
    "constant": (const(2) + const(1), (X,)),
}


@pytest.mark.parametrize("dtype", [dt.int8, dt.int64, dt.float32, dt.float64], ids=str)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_emit_equals_evaluate(name: str, dtype: DType) -> None:
    expr, inputs = EXPRESSIONS[name]
    values = np.array(list(itertools.product((-3, -1, 0, 1, 2, 6, 100), repeat=2)) * 8, np.int64)
    data = {
        node: values[:, i % 2] > 0 if node is MASK else values[:, i % 2].astype(dtype.numpy)
        for i, node in enumerate(inputs)
    }
    data = dict(zip(data, padded([np.ascontiguousarray(a) for a in data.values()]), strict=True))
    expected = np.broadcast_to(evaluate(expr, data), next(iter(data.values())).shape)
    result = dt.as_dtype(expected.dtype)
    types = [dt.as_dtype(a.dtype) for a in data.values()]

    def write(b: Builder, *v: Value) -> Value:
        return b.splat(emit(expr, dict(zip(inputs, v, strict=True))), LANES)

    made = elementwise(name, types, result, write)
    assert (computed(made, list(data.values()), result) == expected).all()


def test_scalars_beside_vectors() -> None:
    def write(b: Builder, lo: Value, hi: Value) -> None:
        one, many = load_value(x, 0), load_value(x, lo, 8)
        store_value(out, lo, emit(X * Y + X, {X: one, Y: many}))

    x, out = pointer(dt.float32), pointer(dt.float32)
    data, result = np.arange(2, 10, dtype=np.float32), np.zeros(8, np.float32)
    run(kernel("mixed", [x, out], write), [data, result], 0, 1)
    assert result.tolist() == (2 * data + 2).tolist()


@needs_fma
@pytest.mark.parametrize("exponent", [-1, 0, 0.5, 1, 2, 3, 4.5])
def test_powers_by_a_constant(exponent: float) -> None:
    x = padded([special(dt.float64), np.linspace(0.1, 9, 40)][:1])[0]
    expr = call("pow", X, exponent)
    made = elementwise("pow", [dt.float64], dt.float64, lambda b, v: emit(expr, {X: v}))
    with np.errstate(all="ignore"):
        expected = np.power(x, np.full_like(x, exponent))
    np.testing.assert_allclose(computed(made, [x], dt.float64), expected, rtol=1e-15)


@pytest.mark.parametrize("number, wanted", [(1, ["max"]), (0, ["le", "select"])])
def test_max_with_a_constant_is_short(number: int, wanted: list[str]) -> None:
    """One instruction; two where it has to say which zero."""
    b = Builder()
    emit(call("max", X, number), {X: b.load(b.adopt(pointer(dt.float32)), 0, 8)})
    codes = [s.code for s in b.block.statements if isinstance(s, Instruction)]
    assert codes == ["load", *wanted]


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_rounding_is_exact_around_halves(dtype: DType) -> None:
    kind = dtype.numpy.type
    halves = np.arange(-9, 10, dtype=kind) + kind(0.5)
    big = kind(2) ** np.arange(20, 60, dtype=kind)
    near = np.concatenate([halves, -big, big, big + kind(0.5), special(dtype)])
    made = elementwise("round", [dtype], dtype, lambda b, v: emit(call("round", X), {X: v}))
    with np.errstate(all="ignore"):
        up, down = np.nextafter(near, kind(np.inf)), np.nextafter(near, kind(-np.inf))
        x = padded([np.concatenate([near, up, down])])[0]
        whole = np.trunc(x)
        expected = np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)
    np.testing.assert_array_equal(computed(made, [x], dtype), expected.astype(kind))


def test_limits_leave_the_cast_nothing_to_check() -> None:
    b = Builder()
    emit(
        cast(call("clamp", X, -8.0, 7.0), dt.int8), {X: b.load(b.adopt(pointer(dt.float32)), 0, 8)}
    )
    codes = [s.code for s in b.block.statements if isinstance(s, Instruction)]
    assert codes == ["load", "max", "min", "cast"]
    emit(
        cast(call("clamp", X, -8.0, 300.0), dt.int8),
        {X: b.load(b.adopt(pointer(dt.float32)), 0, 8)},
    )
    assert len(b.block.statements) > 9


def test_every_intrinsic_has_code() -> None:
    b = Builder()
    for code in INTRINSICS:
        dtype = dt.int32 if code in ("and", "or", "xor", "not", "shl", "shr") else dt.float32
        x = b.load(b.adopt(pointer(dtype)), 0, 4)
        if code == "select":
            assert emit(select(X < 0, X, 1), {X: x}).lanes == 4
            continue
        if code == "clamp":
            assert emit(call(code, X, -1, 1), {X: x}).lanes == 4
            continue
        function = INTRINSICS[code]
        pairs = ("mod", "pow", "min", "max")
        binary = getattr(function, "nin", 2 if code in pairs else 1) == 2
        assert emit(call(code, X, X) if binary else call(code, X), {X: x}).lanes == 4


@pytest.mark.parametrize("expr", [call("exp", X), X / X, call("sqrt", X)], ids=lambda e: e.code)
def test_real_functions_of_integers_are_refused(expr: Scalar) -> None:
    b = Builder()
    with pytest.raises(KernelError, match="int32"):
        emit(expr, {X: b.load(b.adopt(pointer(dt.int32)), 0, 4)})


@pytest.mark.parametrize(
    "target", [TARGET, *(t for t in RUNNABLE if not t.fma)], ids=lambda t: t.name
)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_remainders_are_exact_at_any_distance(dtype: DType, target: Target) -> None:
    rng = np.random.default_rng(1)
    bits = np.dtype(f"u{dtype.itemsize}")
    x, y = rng.integers(0, np.iinfo(bits).max, (2, 1 << 13), bits).view(dtype.numpy)
    expr = call("mod", X, Y)
    made = elementwise("mod", [dtype] * 2, dtype, lambda b, x, y: emit(expr, {X: x, Y: y}))
    with np.errstate(all="ignore"):
        assert same(computed(made, [x, y], dtype, target), np.fmod(x, y)).all()
