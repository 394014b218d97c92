"""Marks in a float model: where quantization begins and ends."""

from __future__ import annotations

from typing import TypeVar

from treadle.module.module import Module

T = TypeVar("T")


class QuantStub(Module):
    """Returns its input; quantization puts the conversion to integers here."""

    def forward(self, inp: T) -> T:
        return inp


class DequantStub(Module):
    """Returns its input; quantization puts the conversion back to floats here."""

    def forward(self, inp: T) -> T:
        return inp
