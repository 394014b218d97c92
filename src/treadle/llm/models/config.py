"""Readers of config.json that trust nothing: every value is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.base.errors import CheckpointError

LARGEST = 1 << 31
"""No extent of a model is that large; whatever says so is damaged."""


class Config:
    """The values of a config.json under the names that Hugging Face gives them.

    Args:
        values: as read; `None` counts as absent.
        where: the file or the part of it, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(where, "is not an object", saw=_shown(values))
        self.values = values
        self.where = where

    def has(self, name: str) -> bool:
        """Return whether there is a value other than null."""
        return self.values.get(name) is not None

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "is not a whole number")
        if not least <= value < LARGEST:
            raise self.wrong(name, f"is not from {least} to {LARGEST - 1}")
        return value

    def number(self, name: str, default: float | None = None, positive: bool = True) -> float:
        """A finite number, above zero unless `positive` is False."""
        return self.finite(name, self._value(name, default), positive)

    def finite(self, name: str, value: Any, positive: bool = True) -> float:
        """`value`, which belongs to `name`, where it is a finite number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, "is not a number")
        if not math.isfinite(value) or (positive and value <= 0):
            raise self.wrong(name, "is not a positive number" if positive else "is not finite")
        return float(value)

    def optional(self, name: str) -> float | None:
        """A positive number, or None where there is none."""
        return self.number(name) if self.has(name) else None

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "is neither true nor false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "is not text")
        return value

    def items(self, name: str, length: int) -> Sequence[Any] | None:
        """A list of `length` values, or None where there is none."""
        if not self.has(name):
            return None
        value = self.values[name]
        if not isinstance(value, (list, tuple)) or len(value) != length:
            raise self.wrong(name, f"is not a list of {length} values")
        return value

    def whole_numbers(self, name: str) -> frozenset[int]:
        """A list of whole numbers, in any order; empty where there is none."""
        values = self.values.get(name)
        values = [] if values is None else values
        if not isinstance(values, (list, tuple)) or any(type(v) is not int for v in values):
            raise self.wrong(name, "is not a list of whole numbers")
        return frozenset(values)

    def numbers(self, name: str, length: int) -> list[float]:
        """A list of `length` positive numbers."""
        values = self.items(name, length)
        if values is None:
            raise self._missing(name)
        return [self.finite(name, value) for value in values]

    def part(self, name: str) -> Config:
        """An object inside of this one; empty where there is none."""
        return Config(self.values[name] if self.has(name) else {}, f"{self.where}, {name}")

    def wrong(self, name: str, problem: str) -> CheckpointError:
        """Return the error for a value that cannot be."""
        value = _shown(self.values.get(name))
        return CheckpointError(self.where, f"{name} {problem}", saw=f"{name} = {value}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise self._missing(name)
        return default

    def _missing(self, name: str) -> CheckpointError:
        names = ", ".join(sorted(map(str, self.values))[:40])
        return CheckpointError(self.where, f"{name} is missing", saw=_shown(names))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
