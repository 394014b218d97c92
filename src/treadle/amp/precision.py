"""Which ops mixed precision runs in few bits and which in many, and the rule that casts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from treadle.backends import registry
from treadle.backends.api import LowPrecision
from treadle.base.dtype import DType, as_dtype, float64
from treadle.base.errors import DeviceError, DTypeError
from treadle.ops import activation as act
from treadle.ops import attention, batch_norm, conv, loss, matmul, norm, softmax
from treadle.ops import elementwise as ew
from treadle.ops import unary as un
from treadle.ops.op import REGISTRY, Op
from treadle.tensor import Tensor

LOW: frozenset[type[Op]] = frozenset(
    {matmul.Matmul, conv.Conv, conv.ConvGradInput, attention.Attention}
)
"""Contractions: they gain the most, and accumulate in float32 whatever their operands are."""

HIGH: frozenset[type[Op]] = frozenset(
    {
        *(un.Exp, un.Expm1, un.Log, un.Log1p, un.Sqrt, un.Rsqrt, un.Reciprocal, un.Softplus),
        *(un.Sin, un.Cos, un.Tan, un.Asin, un.Acos, un.Atan),
        *(un.Sinh, un.Cosh, un.Asinh, un.Acosh, un.Atanh),
        *(ew.Div, ew.Pow, ew.Atan2, act.HSigmoid, act.LogSigmoid),
        *(softmax.LogSumExp, softmax.LogSoftmax),
        *(loss.SoftmaxCrossEntropy, loss.BinaryCrossEntropyWithLogits),
        *(norm.LayerNorm, norm.GroupNorm, norm.RmsNorm, norm.Standardize),
    }
)
"""Functions whose range or slope needs more bits than 16, and normalizations over one sample."""

BATCH_NORM: frozenset[type[Op]] = frozenset({batch_norm.BatchNormTrain, batch_norm.BatchNormInfer})
"""The image in few bits, statistics and parameters in many."""


class Precision:
    """Casts the operands of an op by the lists above; see `base.modes.Casting`.

    The lists of the backend whose device the operands are on come first (`LowPrecision`).

    Args:
        low: the type of few bits.
        high: the type of many.
    """

    __slots__ = ("_added", "_wanted", "high", "key", "low")

    def __init__(self, low: DType, high: DType) -> None:
        self.low = low
        self.high = high
        self.key = (low.name, high.name)
        ways: list[tuple[frozenset[type[Op]], Callable[[int], DType]]] = [
            (LOW, lambda i: low),
            (HIGH, lambda i: high),
            (BATCH_NORM, lambda i: high if i else low),
        ]
        self._wanted = {op: wanted for ops, wanted in ways for op in ops}
        self._added = {"low": ways[0][1], "high": ways[1][1]}

    def __call__(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[Tensor, ...]:
        """The operands, cast where the op asks for it; integers and float64 stay as they are."""
        wanted = self._wanted.get(type(op))
        if inputs and not inputs[0]._kind.device.on_host:
            way = _added(inputs[0]._kind.device.kind).get(type(op))
            wanted = wanted if way is None else self._added[way]
        if wanted is None or any(x._kind.dtype is float64 for x in inputs):
            return inputs
        return tuple([_cast(x, wanted(i)) for i, x in enumerate(inputs)])

    def wanted(self, op: Op, index: int) -> DType | None:
        """The type that an op of the host wants an operand in; None where any will do."""
        wanted = self._wanted.get(type(op))
        return None if wanted is None else wanted(index)


def _cast(x: Tensor, wanted: DType) -> Tensor:
    mine = x._kind.dtype
    return x.astype(wanted) if mine.is_float and mine is not wanted else x


@functools.cache
def _added(kind: str) -> dict[type[Op], str]:
    """Ops that the backend of a device kind lists, with the list that each is in.

    Raises:
        DeviceError: an op or a list is unknown, or an op is in both.
    """
    entry = registry.for_kind(kind)
    if entry is None or not isinstance(entry.backend, LowPrecision):
        return {}
    found: dict[type[Op], str] = {}
    for way, names in entry.backend.amp.items():
        wrong = [name for name in names if name not in REGISTRY or REGISTRY[name] in found]
        if way not in ("low", "high") or wrong:
            raise DeviceError(
                f"backend {entry.name}",
                f"its lists for mixed precision are wrong: {way}: {', '.join(wrong)}",
                hint="lists are 'low' and 'high'; an op exists, and is in one of them",
            )
        found |= {REGISTRY[name]: way for name in names}
    return found


registry.on_rescan(_added.cache_clear)


@functools.lru_cache(maxsize=16)
def precision(low: Any, high: Any) -> Precision:
    """The one rule for two element types.

    Raises:
        DTypeError: `low` is no float of 16 bits, or `high` no wider one.
    """
    few, many = as_dtype(low), as_dtype(high)
    if not (few.is_float and many.is_float and few.itemsize == 2 and many.itemsize > 2):
        raise DTypeError(
            "amp",
            "mixed precision needs a float of 16 bits and a wider one",
            saw=f"low_prec_dtype={few.name}, high_prec_dtype={many.name}",
            hint="pass low_prec_dtype='bfloat16' or 'float16', high_prec_dtype='float32'",
        )
    return Precision(few, many)
