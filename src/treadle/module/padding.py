"""Padding as a layer."""

from __future__ import annotations

from collections.abc import Sequence

import treadle.functional as F
from treadle.module.module import Module
from treadle.tensor import Tensor


class Pad(Module):
    """Adds cells around the input.

    Args:
        pad_width: (before, after) for every axis, as in `numpy.pad`.
        mode: "constant", "edge", "replicate" or "reflect".
        constant_val: what "constant" fills with.
    """

    def __init__(
        self,
        pad_width: Sequence[Sequence[int]],
        mode: str = "constant",
        constant_val: float = 0.0,
    ) -> None:
        super().__init__()
        self.pad_width = tuple((int(before), int(after)) for before, after in pad_width)
        self.mode = mode
        self.pad_val = constant_val

    def forward(self, src: Tensor) -> Tensor:
        return F.pad(src, self.pad_width, self.mode, self.pad_val)

    def _module_info_string(self) -> str:
        return f"pad_width={self.pad_width}, mode={self.mode}, constant_val={self.pad_val}"
