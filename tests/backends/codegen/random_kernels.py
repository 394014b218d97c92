"""Random kernels of the language, for tests that compare two ways of running them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from tests.backends.codegen.spelled import Builder, kernel

from treadle.backends.codegen.kernel.ir import KernelModule, Type, Value, pointer, size
from treadle.base import dtype as dt

COUNT = 256
"""Elements behind each pointer."""
_TYPES = (dt.float32, dt.float64, dt.float16, dt.bfloat16, dt.int32, dt.int64, dt.uint8, dt.int16)
_Pool = list[Value]


class Generator:
    """Writes one kernel; equal seeds give equal kernels."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._lanes = self._random.choice((1, 2, 4, 8, 16))
        self._inputs = [pointer(d) for d in _TYPES]
        self._outputs = [pointer(d) for d in _TYPES]
        self._extent = size("n")

    def kernel(self) -> KernelModule:
        """The kernel: it reads and writes whole vectors inside of `COUNT` elements."""
        parameters = (*self._inputs, *self._outputs, self._extent)
        return kernel(f"random{self._seed}", parameters, self._entry)

    def arguments(self) -> list[np.ndarray | int]:
        """Inputs (finite, moderate), cleared outputs, and an extent."""
        numbers = np.random.default_rng(self._seed)
        made: list[np.ndarray | int] = []
        for dtype in _TYPES:
            low = 0 if dtype.kind == "uint" else -100
            data = numbers.integers(low, 100, COUNT)
            made.append((data / 7 if dtype.is_float else data).astype(dtype.numpy))
        made += [np.zeros(COUNT, d.numpy) for d in _TYPES]
        return [*made, 5]

    def _entry(self, b: Builder, lo: Value, hi: Value) -> None:
        def body(item: Value) -> None:
            at = b.mul(item, self._lanes)
            pool = [b.load(p, at, self._lanes) for p in self._inputs]
            self._statements(b, pool, at, 2)
            for dtype, place in zip(_TYPES, self._outputs, strict=True):
                last = next(v for v in reversed(pool) if v.dtype is dtype)
                b.store(place, at, last)

        b.loop(lo, hi, 1, body)

    def _statements(self, b: Builder, pool: _Pool, at: Value, depth: int) -> None:
        for _ in range(self._random.randint(3, 10)):
            kind = self._random.random()
            if depth and kind < 0.12:
                self._loop(b, pool, at, depth)
            elif depth and kind < 0.24:
                self._branch(b, pool, at, depth)
            else:
                pool.append(self._value(b, pool, at))

    def _loop(self, b: Builder, pool: _Pool, at: Value, depth: int) -> None:
        initial = self._random.sample(pool, 2)

        def body(index: Value, *carried: Value) -> tuple[Value, ...]:
            inner = [*pool, *carried, b.splat(index, self._lanes)]
            self._statements(b, inner, at, depth - 1)
            return tuple(self._like(b, inner, v.type) for v in initial)

        stop = self._random.choice((self._extent, 0, 1, 3))
        pool += b.loop(self._random.randint(0, 2), stop, self._random.randint(1, 3), body, initial)

    def _branch(self, b: Builder, pool: _Pool, at: Value, depth: int) -> None:
        like = self._random.sample(pool, 2)

        def side() -> tuple[Value, ...]:
            inner = list(pool)
            self._statements(b, inner, at, depth - 1)
            return tuple(self._like(b, inner, v.type) for v in like)

        x, y = b.extract(self._pick(pool, dt.int64), 0), b.extract(self._pick(pool, dt.int64), 0)
        pool += b.branch(b.compare("lt", x, y), side, side, like)

    def _like(self, b: Builder, pool: _Pool, type_: Type) -> Value:
        """The latest value of a type."""
        return next(v for v in reversed(pool) if v.type == type_)

    def _pick(self, pool: _Pool, *dtypes: object) -> Value:
        return self._random.choice([v for v in pool if not dtypes or v.dtype in dtypes])

    def _value(self, b: Builder, pool: _Pool, at: Value) -> Value:
        """A value made of those there are."""
        x = self._pick(pool)
        y, z = self._pick(pool, x.dtype), self._pick(pool, x.dtype)
        makers: list[Callable[[], Value]] = [
            lambda: b.add(x, y),
            lambda: b.sub(x, y),
            lambda: b.mul(x, y),
            lambda: b.min(x, y),
            lambda: b.max(x, 3),
            lambda: b.select(b.compare(self._random.choice(("lt", "le", "eq")), x, y), z, y),
            lambda: b.abs(x),
            lambda: b.neg(x),
            lambda: self._convert(b, x),
            lambda: b.splat(b.reduce(self._random.choice(("add", "min", "max")), x), self._lanes),
            lambda: b.shuffle(x, y, self._random.choices(range(2 * self._lanes), k=self._lanes)),
            lambda: self._masked(b, x, at),
        ]
        if x.dtype.is_float:
            makers += [
                lambda: b.fma(x, y, z),
                lambda: b.div(x, y),
                lambda: b.unary(self._random.choice(("floor", "ceil", "trunc", "rint")), x),
                lambda: b.sqrt(b.abs(x)),
            ]
        else:
            makers += [
                lambda: b.div(x, b.bitwise("or", y, 1)),
                lambda: b.rem(x, b.bitwise("or", y, 1)),
                lambda: b.bitwise(self._random.choice(("and", "or", "xor")), x, y),
                lambda: b.bitwise("shl", x, b.bitwise("and", y, x.dtype.bits - 1)),
                lambda: b.bitwise("shr", x, b.bitwise("and", y, x.dtype.bits - 1)),
            ]
        return self._random.choice(makers)()

    def _convert(self, b: Builder, x: Value) -> Value:
        """A conversion that is defined for every value."""
        target = self._random.choice(_TYPES)
        if x.dtype.is_float and target.is_integer:
            # One that compares false with everything, NaN, becomes 0.
            inside = b.bitwise("and", b.compare("le", 0, x), b.compare("le", x, 100))
            return b.cast(b.select(inside, x, 0), target)
        return b.cast(x, target)

    def _masked(self, b: Builder, x: Value, at: Value) -> Value:
        place = self._inputs[_TYPES.index(x.dtype)]
        mask = b.first_lanes(self._random.randint(0, self._lanes + 1), self._lanes)
        if self._random.random() < 0.5:
            mask = b.invert(mask)
        return b.load(place, at, self._lanes, mask)
