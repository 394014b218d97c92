"""Treadle as a backend of ONNX's own test suite, and of whatever else speaks its interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from treadle.interop.onnx.model import OnnxModel
from treadle.interop.onnx.reader import load
from treadle.tensor import Tensor

ROOM = 1 << 33
"""Bytes for a model: those of the test suite make their weights of extents alone."""


class TreadleRep(BackendRep):  # type: ignore[misc, unused-ignore]  # onnx may be missing
    """A model that is ready to run."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Results as NumPy arrays, lists of them, or None."""
        given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        made = self.model(*given)
        results = made if isinstance(made, tuple) else (made,)
        return tuple(_exported(r) for r in results)


def _exported(value: Any) -> Any:
    if isinstance(value, Tensor):
        return np.array(value.numpy())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_exported(v) for v in value]
    return value


class TreadleBackend(Backend):  # type: ignore[misc, unused-ignore]  # onnx may be missing
    """See `onnx.backend.base.Backend`."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TreadleRep:
        """Read a model."""
        return TreadleRep(load(model, limit=ROOM))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device of ONNX's list is there: the CPU."""
        return device == "CPU"
