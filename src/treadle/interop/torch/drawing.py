"""Random numbers of ATen: Treadle's generator, under keys that PyTorch's generator gives.

A program draws one key for each of its calls from PyTorch's generator of the CPU, so what
`torch.manual_seed` restarts gives the same numbers again; they are not those of PyTorch's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import part
from treadle.interop.torch.table import Lower, OperatorCall, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary
from treadle.ops.cumulative import CumSum
from treadle.ops.distribution import RandomNormal, RandomPermutation, RandomUniform
from treadle.ops.random import RandomBits
from treadle.ops.sampling import RandomGamma, RandomPoisson, Sampler
from treadle.ops.select import Where
from treadle.ops.sort import Sort

V = GraphOperand

DRAWING: set[str] = set()
"""Names of the operators that draw random numbers."""
APART = ("cauchy", "exponential", "log_normal")
"""Those that PyTorch takes apart into uniform numbers."""


def _draws(*names: str) -> Callable[[Lower], Lower]:
    DRAWING.update(names)
    return lowers(*names)


def keys(count: int, generator: torch.Generator | None = None) -> list[Array]:
    """States for so many random ops: streams of their own under one key of PyTorch's generator."""
    drawn = torch.empty(1, dtype=torch.int64, device="cpu")
    key = drawn.random_(-(2**63), None, generator=generator).numpy().view(np.uint32)
    states = np.zeros((count, 4), np.uint32)
    states[:, :2] = key
    states[:, 3] = np.arange(count)
    return list(states)


def _uniform(call: OperatorCall, shape: Sequence[int], dtype: DType) -> V:
    """Numbers in [0, 1)."""
    return call.draw(RandomUniform(tuple(shape), dtype))


def _plain(call: OperatorCall, generator: Any) -> None:
    if generator is not None:
        raise NotImplementedError("it has a generator of its own")


@_draws("rand.default", "rand_like.default")
def _rand(call: OperatorCall, *args: Any, **kwargs: Any) -> V:
    return _uniform(call, call.shape, call.dtype)


@_draws("uniform.default")
def _between(
    call: OperatorCall, x: V, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> V:
    _plain(call, generator)
    return _uniform(call, call.shape, call.dtype) * (high - low) + low


@_draws("randn.default", "randn_like.default")
def _randn(call: OperatorCall, *args: Any, **kwargs: Any) -> V:
    return call.draw(RandomNormal(call.shape, call.dtype))


@_draws(
    "normal_functional.default",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
    "normal.float_float",
)
def _normal(call: OperatorCall, first: Any, *args: Any, generator: Any = None, **kwargs: Any) -> V:
    _plain(call, generator)
    filled = call.name.startswith("normal_functional")
    given = list(args) if filled else [first, *args]
    mean = kwargs.get("mean", given[0] if given else 0.0)
    std = kwargs.get("std", given[1] if len(given) > 1 else 1.0)
    drawn = call.draw(RandomNormal(call.shape, call.dtype))
    scaled = drawn * call.operand(std, call.dtype, drawn)
    return scaled + call.operand(mean, call.dtype, drawn)


# -- truths ------------------------------------------------------------------------------------


def _below(call: OperatorCall, p: float, shape: tuple[int, ...]) -> V:
    """True with a probability."""
    drawn = _uniform(call, shape, dt.float32)
    return logic.Less()(drawn, drawn.constant(p))


@_draws("bernoulli.p")
def _bernoulli(call: OperatorCall, x: V, p: float = 0.5, *, generator: Any = None) -> V:
    _plain(call, generator)
    return _below(call, p, call.shape).astype(call.dtype)


@_draws("bernoulli.default", "bernoulli.Tensor")
def _bernoulli_each(call: OperatorCall, x: V, p: V | None = None, *, generator: Any = None) -> V:
    _plain(call, generator)
    chance = x if p is None else p
    drawn = _uniform(call, call.shape, chance.type.dtype)
    return logic.Less()(drawn, chance).astype(call.dtype)


@_draws("geometric.default")
def _geometric(call: OperatorCall, x: V, p: float, *, generator: Any = None) -> V:
    """Trials up to a success; PyTorch's own parts draw in x's type, which may be an integer."""
    _plain(call, generator)
    wide = dt.float64 if call.dtype.itemsize == 8 else dt.float32
    drawn = unary.Log1p()(-_uniform(call, call.shape, wide))
    return (unary.Floor()(drawn * (1 / math.log1p(-p))) + 1.0).astype(call.dtype)


@_draws("native_dropout.default")
def _dropout(call: OperatorCall, x: V, p: float, train: bool | None) -> tuple[V, V]:
    shape = x.type.shape
    if train is False or p == 0:
        return x, x.builder.constant(np.True_).broadcast_to(shape)
    if p == 1:
        return x * 0.0, x.builder.constant(np.False_).broadcast_to(shape)
    kept = _below(call, 1 - p, call.shape)
    return x * kept.astype(x.type.dtype) * (1 / (1 - p)), kept


@_draws("rrelu_with_noise_functional.default")
def _rrelu(
    call: OperatorCall,
    x: V,
    noise: V,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[V, V]:
    _plain(call, generator)
    if not training:
        slope = x * ((lower + upper) / 2)
        return Where()(logic.Less()(x, x.constant(0)), slope, x), noise
    drawn = _uniform(call, call.shape, call.dtype) * (upper - lower) + lower
    factor = Where()(logic.LessEqual()(x, x.constant(0)), drawn, drawn.constant(1))
    return x * factor, factor


# -- whole numbers -----------------------------------------------------------------------------


@_draws("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def _randint(call: OperatorCall, *args: Any, **kwargs: Any) -> V:
    bounds = [a for a in args if isinstance(a, int)]
    low, high = (0, bounds[0]) if len(bounds) == 1 else bounds
    span = high - low
    if not 0 < span < 2**62:
        raise NotImplementedError("a range of integers that is empty or of 62 bits")
    # 64 random bits modulo the span: what is uneven is below 2**-32 for spans of 32 bits.
    words = call.draw(RandomBits((*call.shape, 2))).astype(dt.uint64)
    places = words.constant(np.array([1, 2**32], np.uint64))
    line: V = reduce.Sum((len(call.shape),), False)(words * places)
    rest = ew.Mod()(line, line.constant(np.uint64(span))).astype(dt.int64)
    return (rest + rest.constant(low)).astype(call.dtype)


@_draws("randperm.default")
def _randperm(call: OperatorCall, n: int, **kwargs: Any) -> V:
    return call.draw(RandomPermutation(n)).astype(call.dtype)


# -- distributions with a tensor ---------------------------------------------------------------


@_draws("poisson.default", "_standard_gamma.default")
def _sampled(call: OperatorCall, x: V, generator: Any = None) -> V:
    _plain(call, generator)
    op: Sampler = RandomPoisson(()) if call.name.startswith("poisson") else RandomGamma(())
    return call.draw(op, x.astype(dt.float32)).astype(call.dtype)


@_draws("multinomial.default")
def _multinomial(
    call: OperatorCall, x: V, count: int, replacement: bool = False, *, generator: Any = None
) -> V:
    _plain(call, generator)
    shape, axis = call.inputs[0].shape, x.type.ndim - 1
    if not replacement:
        # The earliest events of processes with these rates are a sample without replacement.
        drawn = _uniform(call, shape, dt.float32)
        times = -unary.Log()(1 - drawn) / x.astype(dt.float32)
        return part(Sort(axis).outputs(times)[1], axis, 0, count).astype(call.dtype)
    sums = CumSum(axis)(x.astype(dt.float32))
    drawn = _uniform(call, (*shape[:-1], count, 1), dt.float32)
    wide = sums.reshape((*shape[:-1], 1, shape[-1]))
    ends: V = reduce.Max((axis + 1,), True)(wide)
    passed = logic.GreaterEqual()(drawn * ends, wide).astype(dt.int64)
    found: V = reduce.Sum((axis + 1,), False)(passed)
    # Rounding may reach the total: the last class that has a weight stands there.
    places = x.constant(np.arange(shape[-1]), dt.int64)
    some = logic.Greater()(x, x.constant(0)).astype(dt.int64)
    last: V = reduce.Max((axis,), True)(some * places)
    return ew.Minimum()(found, last.broadcast_to(call.shape)).astype(call.dtype)
