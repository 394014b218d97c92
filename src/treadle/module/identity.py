"""The layer that does nothing."""

from __future__ import annotations

from typing import TypeVar

from treadle.module.module import Module

T = TypeVar("T")


class Identity(Module):
    """Returns its input."""

    def forward(self, x: T) -> T:
        return x
