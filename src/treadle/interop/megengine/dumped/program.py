"""Dumped models as programs: what `Network`, `GraphInference`, Lite and the tools run."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.files.source import SizedStream
from treadle.engine.package.models import Model
from treadle.interop.megengine.dumped.model import DumpedModel, model_in
from treadle.jit import trace
from treadle.jit.dump import Ends
from treadle.tensor import Tensor

__all__ = ["as_model", "models_in"]


def as_model(dumped: DumpedModel) -> Model:
    """A model of the engine, for the sizes that it was dumped at and those it can be at.

    Raises:
        UnsupportedOp: an operator has no counterpart.
        CheckpointError: the file is damaged.
    """

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(dumped(*inputs))

    traced = trace(run, capture_as_const=True, record_only=True)
    traced(*[_like(dumped.inputs[name], dumped.types[name]) for name in dumped.inputs])
    return traced.model(Ends(list(dumped.inputs), dumped.outputs))


def _like(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A tensor of this shape and element type."""
    if isinstance(dtype, np.dtype):
        return Tensor(np.zeros(shape, dtype))
    return Tensor(np.zeros(shape), dtype=dtype)


def models_in(source: SizedStream) -> list[Model]:
    """The models in an open file, as `engine.package.models.models_in` gives those of Treadle."""
    return [as_model(model_in(source.read(0, source.size), source.where))]
