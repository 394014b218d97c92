"""Python's operators on arrays, as the functions of the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.array_api import elementwise as ew
from treadle.array_api import products
from treadle.array_api.array import Array
from treadle.tensor import Tensor

_BINARY: dict[str, Callable[[Any, Any], Array]] = {
    "add": ew.add,
    "sub": ew.subtract,
    "mul": ew.multiply,
    "truediv": ew.divide,
    "floordiv": ew.floor_divide,
    "mod": ew.remainder,
    "pow": ew.pow,
    "matmul": products.matmul,
    "and": ew.bitwise_and,
    "or": ew.bitwise_or,
    "xor": ew.bitwise_xor,
    "lshift": ew.bitwise_left_shift,
    "rshift": ew.bitwise_right_shift,
}
_COMPARE: dict[str, Callable[[Any, Any], Array]] = {
    "eq": ew.equal,
    "ne": ew.not_equal,
    "lt": ew.less,
    "le": ew.less_equal,
    "gt": ew.greater,
    "ge": ew.greater_equal,
}
_UNARY: dict[str, Callable[[Any], Array]] = {
    "abs": ew.abs,
    "neg": ew.negative,
    "pos": ew.positive,
    "invert": ew.bitwise_invert,
}


def _known(other: Any) -> bool:
    return isinstance(other, (Array, Tensor, bool, int, float, complex))


def _operator(name: str, function: Callable[[Any, Any], Array], swap: bool = False) -> Any:
    def method(self: Array, other: Any, /) -> Any:
        if not _known(other):
            return NotImplemented
        return function(other, self) if swap else function(self, other)

    method.__name__ = name
    return method


def _rebinding(name: str, function: Callable[[Any, Any], Array]) -> Any:
    def method(self: Array, other: Any, /) -> Any:
        if not _known(other):
            return NotImplemented
        made = function(self, other)
        if made.dtype != self.dtype or made.shape != self.shape:
            raise TypeError(f"{name} would make {self.dtype}{self.shape} {made.dtype}{made.shape}")
        self.real_part, self.imag_part = made.real_part, made.imag_part
        return self

    method.__name__ = name
    return method


def _one(name: str, function: Callable[[Any], Array]) -> Any:
    def method(self: Array, /) -> Array:
        return function(self)

    method.__name__ = name
    return method


for _name, _function in _BINARY.items():
    setattr(Array, f"__{_name}__", _operator(f"__{_name}__", _function))
    setattr(Array, f"__r{_name}__", _operator(f"__r{_name}__", _function, True))
    setattr(Array, f"__i{_name}__", _rebinding(f"__i{_name}__", _function))
for _name, _function in _COMPARE.items():
    setattr(Array, f"__{_name}__", _operator(f"__{_name}__", _function))
for _name, _single in _UNARY.items():
    setattr(Array, f"__{_name}__", _one(f"__{_name}__", _single))
