"""Exporters of ops to ONNX, by family; importing them registers them."""

from treadle.interop.onnx.exporters import control, custom, elementwise, indexing, shapes, windows

__all__ = ["control", "custom", "elementwise", "indexing", "shapes", "windows"]
