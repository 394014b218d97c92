"""`RNG`: a stream of random numbers, and the module-level one."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from treadle.base.dtype import DType, as_dtype, float32, uint32
from treadle.base.modes import capturing
from treadle.engine.devices import CompNode, default_device, resolve
from treadle.engine.dispatch import eager_type
from treadle.ops import distribution
from treadle.ops import random as ops
from treadle.tensor import Tensor

_MASK = 0xFFFFFFFF
Size = int | tuple[int, ...] | list[int] | None


class RNG:
    """A stream of random numbers: Philox4x32-10 under a 64-bit key, with a counter.

    Args:
        seed: the key; taken from the operating system if left out.
        device: where tensors are made; the default device if left out.
    """

    def __init__(self, seed: int | None = None, device: str | None = None) -> None:
        self._lock = threading.Lock()
        self._device: CompNode | None = None if device is None else resolve(device)
        self._key = 0
        self._counter = 0
        self.seed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def seed(self, seed: int) -> None:
        """Restart the stream under another key."""
        with self._lock:
            self._key = int(seed) & 0xFFFFFFFFFFFFFFFF
            self._counter = 0

    def get_state(self) -> tuple[int, int]:
        """(key, counter): all there is to save."""
        return self._key, self._counter

    def set_state(self, state: tuple[int, int]) -> None:
        """Continue where `get_state` was called."""
        with self._lock:
            self._key, self._counter = int(state[0]), int(state[1])

    def draw(self, op: ops.RandomBits | distribution.Draw) -> Tensor:
        """Run a random op on the next part of the stream."""
        where = self._device or default_device()
        capture = capturing()
        if capture is not None:
            kind = eager_type(uint32, where)
            state: Tensor = capture.host_value(object(), lambda: self._reserve(op), kind, (4,))
            return op(state)
        return op(Tensor(self._reserve(op), dtype=uint32, device=where))

    def _reserve(self, op: ops.RandomBits | distribution.Draw) -> np.ndarray[Any, Any]:
        """The state a random op starts from; the stream moves on past what the op will use."""
        with self._lock:
            counter = self._counter
            self._counter += int(ops.blocks_used(op))
        words = (self._key, self._key >> 32, counter, counter >> 32)
        return np.array([w & _MASK for w in words], np.uint32)

    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, size: Size = None, dtype: Any = "float32"
    ) -> Tensor:
        """Uniform numbers in [low, high), up to rounding; `size` None gives shape (1,).

        Raises:
            AssertionError: `low` is not below `high`.
            TypeError: `size` is an int; pass a tuple.
        """
        if not low < high:
            raise AssertionError(f"uniform needs low < high, got {low} and {high}")
        unit = self.draw(distribution.RandomUniform(_shape(size), _floating(dtype)))
        return unit if (low, high) == (0, 1) else unit * (high - low) + low

    def normal(
        self, mean: Any = 0.0, std: Any = 1.0, size: Size = None, dtype: Any = "float32"
    ) -> Tensor:
        """Normal numbers; `size` None gives shape (1,).

        Raises:
            TypeError: `size` is an int; pass a tuple.
        """
        standard = self.draw(distribution.RandomNormal(_shape(size), _floating(dtype)))
        return standard if (mean, std) == (0, 1) else standard * std + mean

    def permutation(self, n: Any, *, dtype: Any = "int32") -> Tensor:
        """The numbers 0 to n - 1 in random order, or a tensor's rows in random order."""
        if isinstance(n, Tensor):
            return n[self.permutation(len(n))]
        if int(n) < 0:
            raise ValueError(f"permutation needs a length of at least 0, got {n}")
        keys = self.draw(ops.RandomBits((int(n), 2))).numpy().astype(np.uint64)
        order = np.argsort(keys[:, 0] << np.uint64(32) | keys[:, 1], kind="stable")
        where = self._device or default_device()
        return Tensor(order.astype(np.int32), dtype=as_dtype(dtype), device=where)

    def shuffle(self, inp: Tensor) -> None:
        """Put a tensor's rows in random order, in place."""
        if inp.size:
            inp._reset(inp[self.permutation(len(inp)).to(inp.device)])


def _shape(size: Size) -> tuple[int, ...]:
    if size is None:
        return (1,)
    if isinstance(size, (int, np.integer)):
        raise TypeError(f"size must be a tuple, for example ({size},)")
    return tuple(int(s) for s in size)


def _floating(dtype: Any) -> DType:
    found = as_dtype(dtype)
    return found if found.is_float else float32


class _Default:
    """The process-wide generator, made when first used."""

    rng: RNG | None = None


_LOCK = threading.Lock()


def default_generator() -> RNG:
    """The generator behind the module-level functions."""
    with _LOCK:
        if _Default.rng is None:
            _Default.rng = RNG()
        return _Default.rng


def seed(seed: int) -> None:
    """Restart the process-wide stream: the same seed gives the same numbers on every device."""
    default_generator().seed(seed)


def uniform(low: Any = 0.0, high: Any = 1.0, size: Size = None) -> Tensor:
    """Uniform float32 numbers in [low, high); `size` None gives shape (1,)."""
    return default_generator().uniform(low, high, size)


def normal(mean: Any = 0.0, std: Any = 1.0, size: Size = None) -> Tensor:
    """Normal float32 numbers; `size` None gives shape (1,)."""
    return default_generator().normal(mean, std, size)


def permutation(n: Any, *, dtype: Any = "int32") -> Tensor:
    """The numbers 0 to n - 1 in random order, or a tensor's rows in random order."""
    return default_generator().permutation(n, dtype=dtype)


def shuffle(inp: Tensor) -> None:
    """Put a tensor's rows in random order, in place."""
    default_generator().shuffle(inp)
