"""`RNG`: a stream of random numbers, and the module-level one."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from treadle.base.dtype import DType, as_dtype, float32, int32, uint32
from treadle.base.errors import ShapeError
from treadle.base.modes import capturing
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, Expr
from treadle.engine.devices.names import CompNode, default_device, resolve
from treadle.engine.eager.dispatch import eager_type
from treadle.ops import random as ops
from treadle.ops.cumulative import CumSum
from treadle.ops.distribution import Draw, RandomNormal, RandomPermutation, RandomUniform
from treadle.ops.elementwise import Minimum
from treadle.ops.methods import as_shape
from treadle.ops.sampling import RandomGamma, RandomPoisson, Sampler
from treadle.ops.sort import Sort
from treadle.ops.unary import Log
from treadle.random.parameters import Size, class_weights, parameters
from treadle.runtime.array import to_host
from treadle.tensor import Tensor

_MASK = 0xFFFFFFFF


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
        self._left: Any = None
        self.seed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def seed(self, seed: int) -> None:
        """Restart the stream under another key."""
        self.set_state((int(seed) & 0xFFFFFFFFFFFFFFFF, 0))

    def get_state(self) -> tuple[int, int]:
        """(key, counter): all there is to save."""
        with self._lock:
            return self._key, self._now()

    def set_state(self, state: tuple[int, int]) -> None:
        """Continue where `get_state` was called."""
        with self._lock:
            self._key, self._counter, self._left = int(state[0]), int(state[1]), None

    def draw(self, op: ops.RandomBits | Draw | RandomPermutation) -> Tensor:
        """Run a random op on the next part of the stream."""
        return op(self._state(ops.blocks_used(op)))

    def sample(self, op: Sampler, x: Tensor) -> Tensor:
        """Run an op whose distribution depends on a tensor on the next part of the stream."""
        blocks = (op.words(x.type) + 3) // 4
        return op(self._state(blocks).to(x.device), x.detach())

    def _state(self, blocks: Dim) -> Tensor:
        """The state a random op starts from, read anew at each call of a compiled function."""
        where = self._place()
        capture = capturing()
        if capture is not None:
            state: Tensor = capture.random_state(self, blocks, eager_type(uint32, where))
            return state
        return Tensor(self.reserve(int(blocks)), dtype=uint32, device=where)

    def reserve(self, blocks: int) -> np.ndarray[Any, Any]:
        """Return a state, uint32[4]; the stream moves on past the `blocks` that an op will use."""
        with self._lock:
            counter = self._now()
            self._counter += blocks
        words = (self._key, self._key >> 32, counter, counter >> 32)
        return np.array([w & _MASK for w in words], np.uint32)

    def leave(self, state: Any) -> None:
        """Go on from the payload of a state, uint32[4], that a program has moved on itself."""
        with self._lock:
            self._now()
            self._left = state

    def _now(self) -> int:
        """The counter. Where a program left it, it is read when somebody asks."""
        if self._left is not None:
            words, self._left = to_host(self._left).tolist(), None
            if words[0] | words[1] << 32 == self._key:
                # Not less than what others took while the program ran.
                self._counter = max(self._counter, words[2] | words[3] << 32)
        return self._counter

    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, size: Size = None, dtype: Any = "float32"
    ) -> Tensor:
        """Uniform numbers in [low, high), up to rounding; `size` None gives shape (1,).

        Args:
            low, high: numbers, or tensors that broadcast to `size`, which are taken as they are.
            size: extents, a tuple.
            dtype: a floating element type.

        Raises:
            AssertionError: `low` is not below `high`.
            TypeError: `size` is an int; pass a tuple.
            ShapeError: a tensor does not broadcast to `size`.
        """
        plain = not isinstance(low, Tensor) and not isinstance(high, Tensor)
        if plain and not low < high:
            raise AssertionError(f"uniform needs low < high, got {low} and {high}")
        unit = self.draw(RandomUniform(_shape(size), _floating(dtype)))
        if plain and (low, high) == (0, 1):
            return unit
        return _of_size("uniform", unit * (high - low) + low, unit)

    def normal(
        self, mean: Any = 0.0, std: Any = 1.0, size: Size = None, dtype: Any = "float32"
    ) -> Tensor:
        """Normally distributed numbers; `size` None gives shape (1,).

        Args:
            mean, std: numbers, or tensors that broadcast to `size`.
            size: extents, a tuple.
            dtype: a floating element type.

        Raises:
            TypeError: `size` is an int; pass a tuple.
            ShapeError: a tensor does not broadcast to `size`.
        """
        standard = self.draw(RandomNormal(_shape(size), _floating(dtype)))
        plain = not isinstance(mean, Tensor) and not isinstance(std, Tensor)
        if plain and (mean, std) == (0, 1):
            return standard
        return _of_size("normal", standard * std + mean, standard)

    def gamma(self, shape: Any, scale: Any = 1, size: Size = None) -> Tensor:
        """Gamma variates; see `treadle.random.gamma`."""
        (alpha, theta), lead = parameters(size, self._place(), shape=shape, scale=scale)
        return self.sample(RandomGamma(lead), alpha) * theta

    def beta(self, alpha: Any, beta: Any, size: Size = None) -> Tensor:
        """Beta variates; see `treadle.random.beta`."""
        (a, b), lead = parameters(size, self._place(), alpha=alpha, beta=beta)
        first, second = (self.sample(RandomGamma(lead), x) for x in (a, b))
        return first / (first + second)

    def poisson(self, lam: Any, size: Size = None) -> Tensor:
        """Poisson variates; see `treadle.random.poisson`."""
        (mean,), lead = parameters(size, self._place(), lam=lam)
        return self.sample(RandomPoisson(lead), mean)

    def exponential(self, rate: Any = 1.0, size: Size = None) -> Tensor:
        """Exponential variates; see `treadle.random.exponential`."""
        (rates,), lead = parameters(size, self._place(), rate=rate)
        return self._waits((*lead, *rates.shape), rates.device) / rates

    def multinomial(self, input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
        """Numbers of classes; see `treadle.random.multinomial`."""
        weights, count = class_weights(input, num_samples, replacement), int(num_samples)
        *rows, classes = weights.shape
        axis = len(rows)
        if not replacement:
            # The earliest events of processes with these rates are a sample without replacement.
            times = self._waits(weights.shape, weights.device) / weights
            return Sort(axis).outputs(times)[1][..., :count]
        draws = self.draw(RandomUniform((*rows, count, 1), float32)).to(weights.device)
        sums = CumSum(axis)(weights).reshape(*rows, 1, classes)
        passed = (draws * sums[..., -1:] >= sums).astype(int32).sum(axis + 1)
        # Rounding may reach the total: the last class that has a weight stands there.
        places = weights.constant(np.arange(classes, dtype=np.int32), int32)
        last = ((weights > 0).astype(int32) * places).max(axis, keepdims=True)
        return Minimum()(passed, last.broadcast_to(*rows, count))

    def _waits(self, shape: tuple[int, ...], device: CompNode) -> Tensor:
        """Exponential variates of rate 1."""
        return -Log()(1 - self.draw(RandomUniform(shape, float32)).to(device))

    def _place(self) -> CompNode:
        return self._device or default_device()

    def permutation(self, n: Any, *, dtype: Any = "int32") -> Tensor:
        """The numbers 0 to n - 1 in random order, or a tensor's rows in random order.

        A tensor keeps its type; one without axes has one row.
        """
        if isinstance(n, Tensor):
            rows = n if n.ndim else n.reshape(1)
            return rows[self.permutation(rows.shape[0]).to(n.device)]
        count: Dim = n if isinstance(n, Expr) else int(n)
        if count < 0:
            raise ValueError(f"permutation needs a length of at least 0, got {n}")
        return self.draw(RandomPermutation(count)).astype(dtype)

    def shuffle(self, inp: Tensor) -> None:
        """Put a tensor's rows in random order, in place."""
        if inp.size and inp.ndim:
            inp._reset(inp[self.permutation(inp.shape[0]).to(inp.device)])


def _shape(size: Any) -> Shape:
    if size is None:
        return (1,)
    if isinstance(size, (int, float, np.number, Expr)):
        raise TypeError(f"size must be a tuple, for example ({size},)")
    if isinstance(size, Tensor) and not size.ndim:
        return (int(size),)
    return as_shape(size)


def _of_size(name: str, made: Tensor, drawn: Tensor) -> Tensor:
    """Numbers on a scale of their own, unless that gave one draw to several places."""
    if made.shape != drawn.shape:
        raise ShapeError(
            name,
            "its parameters have more extents than the result",
            saw=f"size {tuple(drawn.shape)}, numbers {tuple(made.shape)}",
            hint="pass the size of the result",
        )
    return made


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
    """Normally distributed float32 numbers; `size` None gives shape (1,)."""
    return default_generator().normal(mean, std, size)


def permutation(n: Any, *, dtype: Any = "int32") -> Tensor:
    """The numbers 0 to n - 1 in random order, or a tensor's rows in random order."""
    return default_generator().permutation(n, dtype=dtype)


def shuffle(inp: Tensor) -> None:
    """Put a tensor's rows in random order, in place."""
    default_generator().shuffle(inp)


def gamma(shape: Any, scale: Any = 1, size: Size = None) -> Tensor:
    """float32 gamma variates: density x^(shape - 1) exp(-x / scale) up to a factor.

    Args:
        shape, scale: positive numbers or tensors, which broadcast.
        size: axes in front of those of the parameters, an int or a tuple. Numbers without a size
            give shape (1,).

    Raises:
        NumericError: a shape is not above 0, or not finite.
    """
    return default_generator().gamma(shape, scale, size)


def beta(alpha: Any, beta: Any, size: Size = None) -> Tensor:
    """float32 beta variates: density x^(alpha - 1) (1 - x)^(beta - 1) up to a factor.

    Parameters, `size` and errors are as for `gamma`.
    """
    return default_generator().beta(alpha, beta, size)


def poisson(lam: Any, size: Size = None) -> Tensor:
    """Poisson variates of mean `lam`, whole numbers in float32.

    `lam` is not negative; it and `size` are as for `gamma`.

    Raises:
        NumericError: a mean is negative or not finite.
    """
    return default_generator().poisson(lam, size)


def exponential(rate: Any = 1.0, size: Size = None) -> Tensor:
    """float32 exponential variates: density rate exp(-rate x), mean 1 / rate.

    `rate` and `size` are as for `gamma`.
    """
    return default_generator().exponential(rate, size)


def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Indices of classes drawn by their weights, int32.

    Args:
        input: (C,) or (N, C), weights that are not negative and need not sum to 1.
        num_samples: draws per row.
        replacement: whether a class may be drawn again.

    Returns:
        (num_samples,) or (N, num_samples).

    Raises:
        ShapeError: another number of axes.
        ValueError: a weight is negative or not finite, a row has fewer classes with a weight than
            are drawn without replacement, or none at all.
    """
    return default_generator().multinomial(input, num_samples, replacement)
