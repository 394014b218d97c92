"""Kernels that exercise the language, and data for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.backends.codegen.spelled import Builder, function, kernel

from treadle.backends.codegen.kernel.ir import KernelModule, KernelRoutine, Type, Value, pointer
from treadle.base import dtype as dt
from treadle.base.dtype import DType

ITEMS = 16
REALS = (*dt.INTEGERS, *dt.FLOATS)
Write = Callable[..., Value]


@dataclass(frozen=True)
class Sample:
    """A kernel with inputs; what it writes to `results` is compared."""

    kernel: KernelModule
    inputs: tuple[Any, ...]
    results: tuple[np.ndarray, ...]
    labels: tuple[str, ...]
    items: int = ITEMS
    name: str = field(default="")

    def arguments(self) -> list[Any]:
        """Fresh arguments: inputs, then cleared results."""
        return [*self.inputs, *(r.copy() for r in self.results)]


def values(dtype: DType, count: int, seed: int = 0) -> np.ndarray:
    """Numbers of a type, the awkward ones among them."""
    random = np.random.default_rng(seed)
    if dtype is dt.bool_:
        return random.integers(0, 2, count).astype(np.bool_)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        made = random.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
        special: list[Any] = [0, 1, 2, info.min, info.max, info.max - 1]
    else:
        with np.errstate(over="ignore"):
            scale = np.exp2(random.integers(-30, 30, count))
            made = (random.standard_normal(count) * scale).astype(dtype.numpy)
        # Subnormals, the largest numbers, ties of rint, and what is not finite.
        special = [0.0, -0.0, 0.5, 1.5, -2.5, 1e-7, -3e-40, 65504.0, 3.38e38, np.inf, -np.inf]
        special.append(np.nan)
    with np.errstate(over="ignore"):
        rare = np.array(special, dtype.numpy if dtype.is_integer else "f8").astype(dtype.numpy)
    return np.where(random.random(count) < 0.3, rare[random.integers(0, len(rare), count)], made)


def elementwise(
    name: str,
    lanes: int,
    inputs: Sequence[np.ndarray],
    dtypes: Sequence[DType],
    outputs: Mapping[str, Write],
) -> Sample:
    """A kernel that loads one vector per input and item, and stores one per output."""
    given = [pointer(d) for d in dtypes]
    made: dict[str, Value] = {}

    def write_all(b: Builder, places: Sequence[Value] | None, lo: Value, hi: Value) -> None:
        def body(item: Value) -> None:
            at = b.mul(item, lanes)
            loaded = [b.load(p, at, lanes) for p in given]
            for position, (label, write) in enumerate(outputs.items()):
                made[label] = write(b, *loaded)
                if places is not None:
                    width = made[label].lanes
                    b.store(places[position], b.mul(item, width), made[label])

        b.loop(lo, hi, 1, body)

    kernel(name, given, lambda b, lo, hi: write_all(b, None, lo, hi))  # to learn the types
    types = [made[label].type for label in outputs]
    places = [pointer(t.dtype) for t in types]
    written = kernel(name, (*given, *places), lambda b, lo, hi: write_all(b, places, lo, hi))
    results = tuple(np.zeros(ITEMS * t.lanes, t.dtype.numpy) for t in types)
    return Sample(written, tuple(inputs), results, tuple(outputs), name=name)


def _data(dtypes: Sequence[DType], lanes: int) -> list[np.ndarray]:
    return [values(d, ITEMS * lanes, seed) for seed, d in enumerate(dtypes)]


# -- tables ------------------------------------------------------------------------------------


def arithmetic(dtype: DType, lanes: int) -> Sample:
    """Everything that takes and gives one type."""
    table: dict[str, Write] = {
        code: lambda b, x, y, z, code=code: getattr(b, code)(x, y)
        for code in ("add", "sub", "mul", "min", "max")
    }
    table["neg"] = lambda b, x, y, z: b.neg(x)
    table["abs"] = lambda b, x, y, z: b.abs(x)
    table["literals"] = lambda b, x, y, z: b.max(b.add(b.mul(x, 3), 100), y)
    table["less of three"] = lambda b, x, y, z: b.select(b.compare("lt", x, y), y, z)
    for code in ("eq", "ne", "lt", "le"):
        table[code] = lambda b, x, y, z, code=code: b.compare(code, x, y)
    if dtype.is_float:
        table["div"] = lambda b, x, y, z: b.div(x, y)
        table["rem"] = lambda b, x, y, z: b.rem(x, y)
        table["copysign"] = lambda b, x, y, z: b.copysign(x, y)
        table["fma"] = lambda b, x, y, z: b.fma(x, y, z)
        for code in ("sqrt", "floor", "ceil", "trunc", "rint"):
            table[code] = lambda b, x, y, z, code=code: b.unary(code, x)
    else:
        table |= _integer_table(dtype)
    data = _data((dtype, dtype, dtype), lanes)
    if dtype.is_float:  # the sign of a NaN is nobody's business
        data[1:] = [np.where(np.isnan(v), v.dtype.type(1), v) for v in data[1:]]
    data[1][::3] = np.where(data[0] == data[0], data[0], data[1])[::3]
    return elementwise(f"{dtype.name}x{lanes}", lanes, data, (dtype,) * 3, table)


def _integer_table(dtype: DType) -> dict[str, Write]:
    last = dtype.bits - 1
    table: dict[str, Write] = {
        "div": lambda b, x, y, z: b.div(x, b.select(b.compare("eq", y, 0), 1, b.add(y, 0))),
        "rem": lambda b, x, y, z: b.rem(x, b.select(b.compare("eq", y, 0), 3, b.add(y, 0))),
        "div by 7": lambda b, x, y, z: b.div(x, 7),
        "invert": lambda b, x, y, z: b.invert(x),
        "shl": lambda b, x, y, z: b.bitwise("shl", x, b.bitwise("and", y, last)),
        "shr": lambda b, x, y, z: b.bitwise("shr", x, b.bitwise("and", y, last)),
    }
    for code in ("and", "or", "xor"):
        table[code] = lambda b, x, y, z, code=code: b.bitwise(code, x, y)
    if dtype.kind == "int":
        table["div by -1"] = lambda b, x, y, z: b.div(x, -1)
        table["rem by -1"] = lambda b, x, y, z: b.rem(x, b.sub(b.bitwise("and", y, 0), 1))
    return table


def casts(source: DType, lanes: int) -> Sample:
    """Conversions of one type to each other one, of what fits there."""

    def write(target: DType) -> Write:
        def convert(b: Builder, x: Value) -> Value:
            if source.is_float and target.is_integer:
                wide = b.cast(x, dt.float64)
                low = 0.0 if target.kind == "uint" else -float(2 ** min(target.bits - 1, 31))
                high = float(2 ** min(target.bits - 1, 31)) - 1
                fits = b.bitwise("and", b.compare("le", low, wide), b.compare("le", wide, high))
                return b.cast(b.select(fits, x, 1.0), target)
            return b.cast(x, target)

        return convert

    table = {f"to {t.name}": write(t) for t in (dt.bool_, *REALS) if t is not source}
    data = _data((source,), lanes)
    return elementwise(f"cast {source.name}x{lanes}", lanes, data, (source,), table)


def bools(lanes: int) -> Sample:
    """What bools can do."""
    table: dict[str, Write] = {
        code: lambda b, x, y, code=code: b.bitwise(code, x, y) for code in ("and", "or", "xor")
    }
    table["min"] = lambda b, x, y: b.min(x, y)
    table["max"] = lambda b, x, y: b.max(x, y)
    table["invert"] = lambda b, x, y: b.invert(x)
    table["eq"] = lambda b, x, y: b.compare("eq", x, y)
    table["lt"] = lambda b, x, y: b.compare("lt", x, y)
    table["select"] = lambda b, x, y: b.select(x, y, True)
    table["bitcast"] = lambda b, x, y: b.bitcast(b.bitcast(x, dt.uint8), dt.bool_)
    for code in ("and", "or", "min", "max"):
        table[f"all {code}"] = lambda b, x, y, code=code: b.reduce(code, x)
    data = _data((dt.bool_, dt.bool_), lanes)
    return elementwise(f"boolx{lanes}", lanes, data, (dt.bool_,) * 2, table)


def lanes_of(dtype: DType, lanes: int) -> Sample:
    """What moves or combines lanes."""
    half, backwards = lanes // 2, tuple(range(lanes - 1, -1, -1))
    table: dict[str, Write] = {
        "reverse": lambda b, x, y: b.shuffle(x, x, backwards),
        "interleave": lambda b, x, y: b.shuffle(
            x, y, [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
        ),
        "one": lambda b, x, y: b.shuffle(x, y, (lanes,)),
        "splat": lambda b, x, y: b.splat(b.extract(x, half), 2 * lanes),
        "insert": lambda b, x, y: b.insert(x, half, b.extract(y, 0)),
        "iota": lambda b, x, y: b.add(x, b.iota(dtype, lanes)),
        "two": lambda b, x, y: b.shuffle(b.extract(x, 0), b.extract(y, 0), (1, 0, 1, 0)),
        "first": lambda b, x, y: b.select(
            b.first_lanes(b.cast(b.extract(b.cast(b.abs(x), dt.int32), 0), dt.int64), lanes), x, y
        ),
    }
    for code in ("add", "mul", "min", "max", *(() if dtype.is_float else ("and", "or"))):
        table[f"reduce {code}"] = lambda b, x, y, code=code: b.reduce(code, x)
    for other in (dt.uint8, dt.int32, dt.int64):
        if lanes * dtype.bits % other.bits == 0:
            table[f"bits {other}"] = lambda b, x, y, other=other: b.bitcast(x, other)
    random = np.random.default_rng(lanes)
    numbers = random.integers(0, 100, (2, ITEMS * lanes))
    data = [n.astype(dtype.numpy) for n in (numbers / 3 if dtype.is_float else numbers)]
    return elementwise(f"lanes {dtype.name}x{lanes}", lanes, data, (dtype,) * 2, table)


def dots(lanes: int) -> Sample:
    """Products of neighbours, with values where saturation would show."""
    random = np.random.default_rng(lanes)
    count = ITEMS * lanes
    x = random.choice([255, 254, 1, 0, 128], 4 * count).astype(np.uint8)
    y = random.choice([-128, 127, -1, 5], 4 * count).astype(np.int8)
    f, g = (random.standard_normal(2 * count).astype(dt.bfloat16.numpy) for _ in range(2))
    s, t = (random.choice([-(2**15), 2**15 - 1, -1, 7], 2 * count).astype("i2") for _ in range(2))
    kinds = (dt.uint8, dt.int8, dt.bfloat16, dt.bfloat16, dt.int16, dt.int16)
    p = [pointer(d) for d in (*kinds, dt.int32, dt.float32, dt.int32, dt.int32)]

    def write(b: Builder, lo: Value, hi: Value) -> None:
        def body(item: Value) -> None:
            at = b.mul(item, lanes)
            a, c = (b.load(v, b.mul(at, 4), 4 * lanes) for v in p[:2])
            b.store(p[6], at, b.dot(b.load(p[6], at, lanes), a, c))
            low = b.bitwise("and", a, 127)
            b.store(p[9], at, b.dot(b.load(p[9], at, lanes), low, c, narrow=True))
            for first, to in ((2, p[7]), (4, p[8])):
                d, e = (b.load(v, b.mul(at, 2), 2 * lanes) for v in p[first : first + 2])
                b.store(to, at, b.dot(b.load(to, at, lanes), d, e))

        b.loop(lo, hi, 1, body)

    near, real = np.full(count, 2**31 - 9, np.int32), random.standard_normal(count).astype("f4")
    results, inputs = (near, real, near.copy(), near.copy()), (x, y, f, g, s, t)
    labels = ("bytes", "reals", "shorts", "narrow")
    return Sample(kernel(f"dot{lanes}", p, write), inputs, results, labels, name=f"dot{lanes}")


def memory(dtype: DType, lanes: int) -> Sample:
    """Masked, aligned, gathered and scattered accesses, scratch memory, copies."""
    source, where, mask_of, to, filled, spread, copied = p = [
        pointer(d) for d in (dtype, dt.int32, dt.bool_, dtype, dtype, dtype, dtype)
    ]

    def write(b: Builder, lo: Value, hi: Value) -> None:
        scratch = b.stack(dtype, 2 * lanes)
        words = b.reinterpret(scratch, dt.uint8)

        def body(item: Value) -> None:
            at = b.mul(item, lanes)
            b.prefetch(source, at)
            b.zero(words, 2 * lanes * dtype.itemsize)
            mask = b.load(mask_of, at, lanes)
            b.store(to, at, b.load(source, at, lanes, mask))
            b.store(filled, at, b.load(source, at, lanes), mask)
            indices = b.load(where, at, lanes)
            wide = b.cast(indices, dt.int64)
            b.store(scratch, lanes, b.gather(source, indices), aligned=lanes & (lanes - 1) == 0)
            b.store(scratch, 0, b.gather(source, wide, mask), aligned=True, streaming=lanes > 4)
            here = b.offset(spread, b.mul(at, 2))
            b.scatter(here, b.iota(dt.int32, lanes), b.load(scratch, lanes, lanes))
            b.scatter(here, b.bitwise("and", wide, 2 * lanes - 1), b.load(scratch, 0, lanes), mask)
            b.copy(
                b.offset(copied, b.mul(at, 2)), scratch, b.add(b.mul(b.sub(hi, hi), 2), 2 * lanes)
            )

        b.loop(lo, hi, 1, body)

    count = ITEMS * lanes
    where_data = np.random.default_rng(3).integers(0, count, count).astype(np.int32)
    inputs = values(dtype, count), where_data, values(dt.bool_, count, 5)
    empty = [np.zeros(n * count, dtype.numpy) for n in (1, 1, 2, 2)]
    return Sample(
        kernel(f"memory {dtype.name}x{lanes}", p, write),
        inputs,
        tuple(empty),
        ("masked load", "masked store", "scatter", "copy"),
        name=f"memory {dtype.name}x{lanes}",
    )


def structures() -> list[Sample]:
    """Loops in loops, branches, calls; values that cross them."""
    random = np.random.default_rng(11)
    data = random.integers(-50, 50, 8 * ITEMS).astype(np.int32)
    return [
        _sample("fibonacci", _fibonacci, data),
        _sample("nested", _nested, data),
        _sample("calls", _calls, data, _double_into()),
    ]


def _sample(name: str, write: Write, data: np.ndarray, *functions: KernelRoutine) -> Sample:
    x, y = pointer(dt.int32, "x"), pointer(dt.int32, "y")
    written = kernel(name, (x, y), lambda b, lo, hi: write(b, lo, hi, x, y, *functions), functions)
    return Sample(written, (data,), (np.zeros_like(data),), ("y",), name=name)


def _fibonacci(b: Builder, lo: Value, hi: Value, x: Value, y: Value) -> None:
    """Carried values that swap places; a loop that may not turn; an index carried along."""

    def body(item: Value) -> None:
        one = b.constant(1, dt.int32)
        turns = b.cast(b.max(b.load(x, item), -3), dt.int64)
        first, second, last = b.loop(
            0, turns, 1, lambda k, f, s, i: (s, b.add(f, s), k), (one, one, b.index(-1))
        )
        b.store(y, item, b.add(b.sub(first, b.mul(second, 2)), b.cast(last, dt.int32)))

    b.loop(lo, hi, 1, body)


def _nested(b: Builder, lo: Value, hi: Value, x: Value, y: Value) -> None:
    """Branches with and without an other side, inside loops whose bounds depend on outer ones."""
    zero = b.constant(0, dt.int32, 8)

    def inner(item: Value, k: Value, total: Value) -> Value:
        loaded = b.load(x, b.mul(b.bitwise("and", b.add(item, k), ITEMS - 1), 8), 8)
        low = b.extract(loaded, 3)
        (chosen,) = b.branch(
            b.compare("lt", low, 0),
            lambda: b.branch(
                b.compare("lt", low, -25), lambda: b.mul(loaded, 3), lambda: b.neg(loaded), [zero]
            ),
            lambda: loaded,
            [zero],
        )
        b.branch(b.compare("eq", k, 2), lambda: b.store(y, b.mul(item, 8), chosen))
        return b.add(b.mul(total, 5), chosen)

    def outer(item: Value) -> None:
        (total,) = b.loop(0, item, 2, lambda k, t: inner(item, k, t), [zero])
        (total,) = b.loop(0, 3, 1, lambda k, t: b.add(t, b.cast(b.splat(k, 8), dt.int32)), [total])
        at = b.mul(item, 8)
        b.store(y, at, b.add(total, b.load(y, at, 8)))

    b.loop(lo, hi, 1, outer)


def _double_into() -> KernelRoutine:
    target, values_ = pointer(dt.int32, "target"), Value(Type(dt.int32, 8), "values")
    return function("double", (target, values_), lambda b: b.store(target, 0, b.mul(values_, 2)))


def _calls(b: Builder, lo: Value, hi: Value, x: Value, y: Value, double: KernelRoutine) -> None:
    """A function that takes a vector and a pointer, called in a loop over pointers."""

    def body(item: Value, source: Value, target: Value) -> tuple[Value, Value]:
        b.call(double, target, b.load(source, 0, 8))
        b.call(double, b.offset(y, b.mul(item, 8)), b.constant(21, dt.int32, 8))
        b.call(double, target, b.load(source, 0, 8))
        return b.offset(source, 8), b.offset(target, 8)

    at = b.mul(lo, 8)
    b.loop(lo, hi, 1, body, (b.offset(x, at), b.offset(y, at)))


def lookups(lanes: int) -> Sample:
    """Bytes by their numbers in two tables, of more and of fewer bytes than a register has."""
    random = np.random.default_rng(lanes)
    codes = random.integers(0, 16, ITEMS * lanes).astype(np.uint8)
    tables = (tuple(range(255, -1, -17)), (0, 1, 2, 3, 4, 6, 8, 12, 255, 128, 127, 64, 9, 7, 5, 3))
    p = [pointer(dt.uint8) for _ in range(3)]

    def write(b: Builder, lo: Value, hi: Value) -> None:
        def body(item: Value) -> None:
            at = b.mul(item, lanes)
            for target, table in zip(p[1:], tables, strict=True):
                b.store(target, at, b.lookup(b.load(p[0], at, lanes), table))

        b.loop(lo, hi, 1, body)

    results = tuple(np.zeros_like(codes) for _ in tables)
    name = f"lookup{lanes}"
    return Sample(kernel(name, p, write), (codes,), results, ("first", "second"), name=name)


def all_samples() -> list[Sample]:
    """The table."""
    made = [arithmetic(d, lanes) for d in REALS for lanes in (1, 8)]
    made += [arithmetic(d, 16) for d in (dt.float32, dt.int32, dt.bfloat16, dt.uint8)]
    made += [casts(d, lanes) for d in (dt.bool_, *REALS) for lanes in (1, 8)]
    made += [bools(lanes) for lanes in (1, 8, 32)]
    made += [lanes_of(d, lanes) for d in REALS for lanes in (4, 16)]
    made += [dots(lanes) for lanes in (1, 2, 4, 8, 16)]
    made += [lookups(lanes) for lanes in (1, 4, 16, 32, 48, 64)]
    made += [memory(d, lanes) for d in (dt.bool_, *REALS) for lanes in (1, 8)]
    return made + structures()
