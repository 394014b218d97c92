"""Checks: a name, a function that raises where the backend is wrong, and its tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

Measured = Mapping[str, float | str]
"""Figures that a check found on its way: shown and recorded, never a reason to fail."""


class CheckFailed(Exception):
    """The backend does not keep a promise; the message is for its author."""


class NotOffered(Exception):
    """The backend has no such part, or the machine nothing to check it with."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and how it is checked.

    Attributes:
        group: where it belongs, such as "Movement".
        name: what is promised, in a few words joined by underscores or slashes.
        run: raises `CheckFailed` (any other exception counts as well), or `NotOffered`; what it
            returns is recorded.
        tier: the least tier of backends that the promise is for.
    """

    group: str
    name: str
    run: Callable[[], Measured | None]
    tier: int = 0

    @property
    def id(self) -> str:
        """Group and name in lower case, as files of known failures name it."""
        return f"{self.group.lower().replace(' ', '-')}/{self.name}"


S = TypeVar("S")


def from_functions(
    group: str, subject: S, functions: Sequence[Callable[[S], Measured | None]], tier: int = 0
) -> Iterator[Check]:
    """A check for each function of the backend under test, called as the function is."""
    for function in functions:
        yield Check(group, function.__name__, partial(function, subject), tier)


def require(fine: bool, message: str) -> None:
    """Raise `CheckFailed` with the message unless all is fine."""
    if not fine:
        raise CheckFailed(message)


def require_bytes(got: Any, expected: Any, what: str) -> None:
    """Raise unless two pieces of memory are equal; the message has the first difference."""
    x, y = (np.frombuffer(memoryview(v).cast("B"), np.uint8) for v in (got, expected))
    require(x.size == y.size, f"{what}: {x.size} bytes, expected {y.size}")
    wrong = np.flatnonzero(x != y)
    if wrong.size:
        at = int(wrong[0])
        raise CheckFailed(
            f"{what}: {wrong.size} of {x.size} bytes are wrong, the first one is number {at}: "
            f"0x{x[at]:02x} where 0x{y[at]:02x} belongs"
        )
