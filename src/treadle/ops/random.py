"""Counter-based random numbers: the same stream on every backend.

The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy
as 1, 2, 3", SC 2011. A random op is a pure function of its `state`, uint32[4]: two key words, then
the low and high word of the number of its first block (four words of 32 bits each). Whoever
applies the op advances the counter by `blocks_used(op)`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, OutOfMemory, ShapeError
from treadle.base.shape import Shape, format_shape, product, require_equal, size_of
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.creation import allocate
from treadle.ops.op import BadSample, Op, Sample, op

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.arange(10, dtype=np.uint64)[:, None] * np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
"""Increments of the key in each of the ten rounds."""
_WORD = np.uint64(32)
_MASK = np.uint64(0xFFFFFFFF)
_CHUNK = 16384  # Blocks per pass: the work arrays stay in the second-level cache.

NOT_DIFFERENTIABLE = "draws random bits, which do not depend on any differentiable value"
STATE = Arg((4,), dt.uint32, values=(17, 42, 5, 0))


def philox4x32(counter: Array, key: tuple[int, int]) -> Array:
    """Ten rounds of Philox4x32.

    Args:
        counter: uint64 [4, n], each element one 32-bit word of the n counters; not modified.
        key: two 32-bit words.

    Returns:
        uint64 [4, n], each element one 32-bit word of the n results.
    """
    even, odd = counter[0::2].copy(), counter[1::2].copy()
    products, high = np.empty_like(even), np.empty_like(even)
    for round_key in (np.array(key, np.uint64) + _WEYL & _MASK)[:, :, None]:
        np.multiply(even, _MULTIPLIERS, out=products)
        np.right_shift(products, _WORD, out=high)
        np.bitwise_xor(high[::-1], odd, out=even)
        np.bitwise_xor(even, round_key, out=even)
        np.bitwise_and(products[::-1], _MASK, out=odd)
    words = np.empty_like(counter)
    words[0::2], words[1::2] = even, odd
    return words


def random_words(op: Op, state: Array, n: int) -> Array:
    """The first n words, uint32[n], of the stream that starts at `state`, drawn for `op`."""
    blocks = -(-n // 4)
    out = allocate(op, (blocks, 4), dt.uint32)
    key = int(state[0]), int(state[1])
    start = np.uint64(int(state[2]) | int(state[3]) << 32)
    for first in range(0, blocks, _CHUNK):
        part = out[first : first + _CHUNK]
        numbers = np.arange(first, first + len(part), dtype=np.uint64) + start
        counter = np.zeros((4, len(part)), dtype=np.uint64)
        np.bitwise_and(numbers, _MASK, out=counter[0])
        np.right_shift(numbers, _WORD, out=counter[1])
        part[...] = philox4x32(counter, key).T
    return out.reshape(-1)[:n]


class Draws(Protocol):
    """An op that takes a known number of words from a generator's stream."""

    @property
    def words(self) -> Dim:
        """Number of 32-bit words, counted from the state's block."""
        ...


def blocks_used(op: Draws) -> Dim:
    """Return how far the counter of a random op's state must move before the next op may use it."""
    return (op.words + 3) // 4


@op
class RandomBits(Op):
    """Uniform random words: element i is word i % 4 of block number counter + i // 4."""

    shape: Shape

    name = "random_bits"
    operands = ("state",)
    dtypes = (dt.uint32,)
    no_gradient = NOT_DIFFERENTIABLE

    @property
    def words(self) -> Dim:
        """Number of 32-bit words taken from the stream."""
        return product(self.shape)

    def infer(self, state: TensorType) -> tuple[TensorType, ...]:
        check_state(self, state)
        check_extents(self, self.shape, state)
        return (TensorType(dt.uint32, self.shape, state.device),)

    def reference(self, state: Array) -> Array:
        fixed: Any = self.shape
        return random_words(self, state, size_of(self.shape)).reshape(fixed)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        shapes: tuple[Shape, ...] = ((3, 5), (), (0, 2), (1, 1))
        return tuple(Sample(cls(s), (STATE,), gradient=False) for s in shapes)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        huge = BadSample(lambda: cls((2**40,)), (STATE,), OutOfMemory, "4398046511104 bytes")
        return (huge, *bad_draws(cls((2,)), cls((-1,))))


def check_state(op: Op, state: TensorType) -> None:
    """Raise unless the operand is a generator state, uint32[4]."""
    op.check_dtype((state,))

    def wrong() -> ShapeError:
        problem = f"a generator state has shape [4], not {format_shape(state.shape)}"
        return op.error(problem, (state,), "pass (key0, key1, counter_low, counter_high)")

    if state.ndim != 1:
        raise wrong()
    require_equal(state.shape[0], 4, wrong)


def check_extents(op: Op, shape: Shape, state: TensorType) -> None:
    """Raise where an extent of the wanted shape is negative."""
    if any(isinstance(d, int) and d < 0 for d in shape):
        problem = f"the shape {format_shape(shape)} has a negative extent"
        raise op.error(problem, (state,), "extents are 0 or more")


def bad_draws(good: Op, negative: Op) -> tuple[BadSample, ...]:
    """Error samples that all random ops share."""
    return (
        BadSample(lambda: good, (Arg((3,), dt.uint32),), ShapeError, "has shape [4]"),
        BadSample(lambda: good, (Arg((4,), dt.int32),), DTypeError, "does not take int32"),
        BadSample(lambda: negative, (STATE,), ShapeError, "negative extent"),
    )
