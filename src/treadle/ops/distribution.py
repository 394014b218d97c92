"""Random numbers of named distributions, made from the words of `RandomBits`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import Shape, product, size_of
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.composite import Composite
from treadle.ops.logic import ShiftRight
from treadle.ops.op import BadSample, Sample, family, op
from treadle.ops.precision import compute_type
from treadle.ops.random import (
    NOT_DIFFERENTIABLE,
    STATE,
    RandomBits,
    bad_draws,
    check_extents,
    check_state,
    random_words,
)
from treadle.ops.slicing import Slice
from treadle.ops.sort import Sort
from treadle.ops.unary import Cos, Log, Sin, Sqrt

_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24}
"""Bits of significand: what a word is cut to, so that rounding never reaches 1."""


@family
class Draw(Composite):
    """Real random numbers of one distribution, made from `RandomBits`."""

    operands = ("state",)
    dtypes = (dt.uint32,)
    no_gradient = NOT_DIFFERENTIABLE
    shape: Shape
    dtype: DType = dt.float32

    @property
    def words(self) -> Dim:
        """Number of 32-bit words taken from the stream."""
        raise NotImplementedError(f"{self.name} does not say how many words it takes")

    def infer(self, state: TensorType) -> tuple[TensorType, ...]:
        check_state(self, state)
        check_extents(self, self.shape, state)
        if not self.dtype.is_float:
            raise DTypeError(
                self.name,
                f"draws real numbers, not {self.dtype.name}",
                saw=self.saw((state,)),
                hint="use a floating dtype, or draw random_bits",
            )
        return (TensorType(self.dtype, self.shape, state.device),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        cases: tuple[tuple[Shape, DType], ...] = (
            ((3, 5), dt.float32),
            ((3, 3), dt.float64),
            ((7,), dt.float16),
            ((2, 2), dt.bfloat16),
            ((), dt.float32),
            ((0, 3), dt.float32),
            ((1, 1), dt.float64),
        )
        return tuple(Sample(cls(s, d), (STATE,), gradient=False) for s, d in cases)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        whole = BadSample(lambda: cls((2,), dt.int32), (STATE,), DTypeError, "real numbers")
        return (whole, *bad_draws(cls((2,)), cls((-1,))))


def _unit(words: Any, dtype: DType) -> Any:
    """Reals in [0, 1) from words [..., k]: one word each, or the last axis of two for float64.

    The top bits become the significand, so every value is a multiple of its spacing below 1.
    """
    if dtype is not dt.float64:
        digits = _DIGITS[dtype.name]
        top = ShiftRight()(words, words.constant(32 - digits))
        return top.astype(dtype) * 2.0**-digits
    parts = ShiftRight()(words, words.constant(np.array([6, 5], np.uint32))).astype(dtype)
    return (parts * parts.constant(_PLACES)).sum((parts.type.ndim - 1,))


_PLACES = np.array([2.0**-53, 2.0**-27])
"""Values of the low 26 and of the high 27 bits of a float64 in [0, 1)."""


def _unit_array(words: Array, dtype: DType) -> Array:
    """Compute `_unit` for arrays."""
    if dtype is not dt.float64:
        digits = _DIGITS[dtype.name]
        top = np.right_shift(words, np.uint32(32 - digits))
        wide = top.astype(compute_type(dtype).numpy)
        wide *= wide.dtype.type(2.0**-digits)
        return wide.astype(dtype.numpy, copy=False)
    low, high = words[..., 0] >> np.uint32(6), words[..., 1] >> np.uint32(5)
    return np.asarray(low * _PLACES[0] + high * _PLACES[1])


def _words_each(dtype: DType) -> int:
    return 2 if dtype is dt.float64 else 1


@op
class RandomUniform(Draw):
    """Uniform reals in [0, 1), with 24 random bits (float32), 53 (float64), 11 or 8 (16 bits).

    Element i is made of word i, for float64 of words 2 i (low) and 2 i + 1 (high).
    """

    name = "random_uniform"

    @property
    def words(self) -> Dim:
        return product(self.shape) * _words_each(self.dtype)

    def body(self, state: Any) -> Any:
        pair = (2,) if self.dtype is dt.float64 else ()
        return _unit(RandomBits((*self.shape, *pair))(state), self.dtype)

    def reference(self, state: Array) -> Array:
        n, each = size_of(self.shape), _words_each(self.dtype)
        words = random_words(self, state, n * each)
        values = _unit_array(words.reshape(n, 2) if each == 2 else words, self.dtype)
        fixed: Any = self.shape
        return values.reshape(fixed)


@op
class RandomNormal(Draw):
    """Standard normal reals by the method of Box and Muller (1958).

    Elements 2 i and 2 i + 1 are r cos(a) and r sin(a), with r = sqrt(-2 log(u)) and a = 2 pi v;
    u in (0, 1] is made of word 2 i (float64: words 4 i and 4 i + 1), v in [0, 1) of the next. In
    float32 u is (word + 1/2) / 2^32, so values reach 6.7; 16-bit types round those of float32.
    """

    name = "random_normal"

    @property
    def words(self) -> Dim:
        return self._pairs * (2 * _words_each(self.dtype))

    @property
    def _pairs(self) -> Dim:
        return (product(self.shape) + 1) // 2

    def body(self, state: Any) -> Any:
        kind, pairs = compute_type(self.dtype), self._pairs
        each = (2,) if kind is dt.float64 else ()
        words = RandomBits((pairs, 2, *each))(state)
        first, second = (self._column(words, i) for i in (0, 1))
        if kind is dt.float64:
            u = 1.0 - _unit(first, kind)
        else:
            u = first.astype(kind) * 2.0**-32 + 2.0**-33
        radius = Sqrt()(Log()(u) * -2.0).reshape((pairs, 1))
        angle = (_unit(second, kind) * (2 * math.pi)).reshape((pairs, 1))
        both = words.constant(np.array([1, 0]), kind), words.constant(np.array([0, 1]), kind)
        turned = Cos()(angle) * both[0] + Sin()(angle) * both[1]
        n = product(self.shape)
        line = (radius * turned).reshape((pairs * 2,))
        return Slice((0,), (n,), (1,))(line).reshape(self.shape).astype(self.dtype)

    def _column(self, words: Any, i: int) -> Any:
        shape = words.shape
        low, high = [0] * len(shape), list(shape)
        low[1], high[1] = i, i + 1
        part = Slice(tuple(low), tuple(high), (1,) * len(shape))(words)
        return part.reshape((shape[0], *shape[2:]))

    def reference(self, state: Array) -> Array:
        n, kind = size_of(self.shape), compute_type(self.dtype)
        pairs = (n + 1) // 2
        words = random_words(self, state, int(self.words)).reshape(pairs, 2, _words_each(kind))
        if kind is dt.float64:
            u, v = 1.0 - _unit_array(words[:, 0], kind), _unit_array(words[:, 1], kind)
        else:
            u = words[:, 0, 0].astype(np.float32)
            u *= np.float32(2.0**-32)
            u += np.float32(2.0**-33)
            v = _unit_array(words[:, 1, 0], kind)
        radius = np.sqrt(np.log(u) * u.dtype.type(-2))
        v *= v.dtype.type(2 * math.pi)
        both = np.empty((pairs, 2), kind.numpy)
        np.multiply(radius, np.cos(v), out=both[:, 0])
        np.multiply(radius, np.sin(v), out=both[:, 1])
        fixed: Any = self.shape
        return both.reshape(-1)[:n].reshape(fixed).astype(self.dtype.numpy, copy=False)


@op
class RandomPermutation(Composite):
    """The numbers 0 to n - 1 in random order, int32: the order of n random 64-bit keys.

    Key i is word 2 i (low) and word 2 i + 1 (high); equal keys keep their order.
    """

    n: Dim

    name = "random_permutation"
    operands = ("state",)
    dtypes = (dt.uint32,)
    no_gradient = "yields indices"

    @property
    def words(self) -> Dim:
        """Number of 32-bit words taken from the stream."""
        return self.n * 2

    def infer(self, state: TensorType) -> tuple[TensorType, ...]:
        check_state(self, state)
        check_extents(self, (self.n,), state)
        if isinstance(self.n, int) and self.n > 2**31:
            raise self.error(f"{self.n} numbers do not fit int32", (state,), "permute in parts")
        return (TensorType(dt.int32, (self.n,), state.device),)

    def body(self, state: Any) -> Any:
        words = RandomBits((self.n, 2))(state).astype(dt.uint64)
        places = words.constant(np.array([1, 2**32], np.uint64))
        keys = (words * places).sum((1,))
        return Sort(0).outputs(keys)[1]

    def reference(self, state: Array) -> Array:
        n = size_of((self.n,))
        words = random_words(self, state, 2 * n).astype(np.uint64).reshape(n, 2)
        keys = words[:, 1] << np.uint64(32) | words[:, 0]
        return np.argsort(keys, kind="stable").astype(np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(n), (STATE,), gradient=False) for n in (7, 1, 0))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        huge = BadSample(lambda: cls(2**40), (STATE,), ShapeError, "do not fit int32")
        return (huge, *bad_draws(cls(2), cls(-1)))
