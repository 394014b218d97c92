"""Extents that remember which tensor they came from.

While a module is traced, `x.shape` gives these integers. Arithmetic on them is remembered, too,
and becomes expressions when a recorded call takes the result. So `x.reshape(x.shape[0], -1)` is
replayed with the batch size of the day. Where Python code looks at one in another way (a branch,
a loop, `math.sqrt`), the number of the trace is taken.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from treadle.tensor import Tensor
from treadle.traced_module.recording import SLOT


def extent(x: Tensor, axis: int) -> int:
    """The number of elements of a tensor along an axis."""
    return x.shape[axis]


class HostNumber:
    """A number of Python's that a trace can compute anew.

    Attributes:
        origin: (function, arguments) that give the number; None once the trace is over.
    """

    origin: tuple[Callable[..., Any], tuple[Any, ...]] | None = None

    def __neg__(self) -> Any:
        return traced(-plain(self), operator.neg, (self,))

    def __reduce__(self) -> Any:
        number = plain(self)
        return type(number), (number,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return plain(self)


class Extent(HostNumber, int):
    """An extent of a tensor, or an integer that was computed of extents."""


class Quotient(HostNumber, float):
    """A number that was computed of extents and is not an integer by type."""


def plain(x: Any) -> Any:
    """The number without its origin."""
    if isinstance(x, HostNumber):
        return int(x) if isinstance(x, int) else float(x)  # type: ignore[arg-type]
    return x


def traced(value: Any, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A number that a function gave for some arguments, with its origin while a trace is on."""
    over = any(isinstance(a, HostNumber) and a.origin is None for a in args)
    kind = {int: Extent, float: Quotient}.get(type(value))
    if kind is None or over or SLOT.recorder is None:
        return value
    made = kind(value)
    made.origin = func, args
    SLOT.recorder.remember(made)
    return made


def _binary(name: str, *, swap: bool) -> Callable[[Any, Any], Any]:
    func = getattr(operator, name)

    def method(self: HostNumber, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        args = (other, self) if swap else (self, other)
        return traced(func(*map(plain, args)), func, args)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _kind in (Extent, Quotient):
        setattr(_kind, f"__{_name}__", _binary(_name, swap=False))
        setattr(_kind, f"__r{_name}__", _binary(_name, swap=True))


def _never(value: HostNumber) -> bool:
    return False


def settled(value: Any, keep: Callable[[Any], bool] = _never) -> Any:
    """A nested value with plain numbers in place of those that are not to be kept."""
    if isinstance(value, HostNumber):
        return value if keep(value) else plain(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([settled(item, keep) for item in value])
    if kind is dict:
        return {key: settled(item, keep) for key, item in value.items()}
    if kind is slice:
        return slice(*(settled(v, keep) for v in (value.start, value.stop, value.step)))
    return value
