"""Lists of ops that mixed precision runs in few bits or in many, and the rule that casts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from treadle.backends import registry
from treadle.backends.api import LowPrecision
from treadle.base.dtype import DType, as_dtype, float64
from treadle.base.errors import DeviceError, DTypeError
from treadle.base.process import RUNTIME
from treadle.ops.op import REGISTRY, Op
from treadle.tensor import Tensor


class Precision:
    """Casts the operands of an op by `Op.amp`; see `base.modes.Casting`.

    The lists of the backend whose device the operands are on come first (`LowPrecision`).

    Args:
        low: the type of few bits.
        high: the type of many.
    """

    __slots__ = ("_wanted", "high", "key", "low")

    def __init__(self, low: DType, high: DType) -> None:
        self.low = low
        self.high = high
        self.key = (low.name, high.name)
        self._wanted: dict[str, Callable[[int], DType] | None] = {
            "": None,
            "low": lambda i: low,
            "high": lambda i: high,
            "statistics": lambda i: high if i else low,
        }

    def __call__(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[Tensor, ...]:
        """The operands, cast where the op asks for it; integers and float64 stay as they are."""
        way: str = op.amp
        if inputs and not inputs[0]._kind.device.on_host:
            way = _added(inputs[0]._kind.device.kind).get(type(op), way)
        wanted = self._wanted[way]
        if wanted is None or any(x._kind.dtype is float64 for x in inputs):
            return inputs
        return tuple([_cast(x, wanted(i)) for i, x in enumerate(inputs)])

    def wanted(self, op: Op, index: int) -> DType | None:
        """The type that an op of the host wants an operand in; None where any will do."""
        wanted = self._wanted[op.amp]
        return None if wanted is None else wanted(index)


def _cast(x: Tensor, wanted: DType) -> Tensor:
    mine = x._kind.dtype
    return x.astype(wanted) if mine.is_float and mine is not wanted else x


@RUNTIME.cached("backends")
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


@functools.lru_cache(maxsize=16)
def precision(low: Any, high: Any) -> Precision:
    """The one rule for two element types.

    Raises:
        DTypeError: `low` is not a float of 16 bits, or `high` not wider.
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
