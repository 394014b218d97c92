"""How ops are written as ONNX, by family; importing them registers them."""

from treadle.interop.onnx.exporters import control, elementwise, indexing, shapes, windows

__all__ = ["control", "elementwise", "indexing", "shapes", "windows"]
