"""Converters by family; importing them registers them."""

from treadle.interop.onnx.converters import (
    arithmetic,
    control,
    images,
    indexing,
    layers,
    preview,
    quantized,
    quantized_ops,
    recurrent,
    reductions,
    resampling,
    runtime_ops,
    shapes,
    signal,
    strings,
    windows,
)

__all__ = [
    "arithmetic",
    "control",
    "images",
    "indexing",
    "layers",
    "preview",
    "quantized",
    "quantized_ops",
    "recurrent",
    "reductions",
    "resampling",
    "runtime_ops",
    "shapes",
    "signal",
    "strings",
    "windows",
]
