"""ONNX models as modules, and modules as ONNX models.

    model = treadle.interop.onnx.load("model.onnx")
    y = model(x)
    treadle.interop.onnx.export(model, x, path="again.onnx")

Needs the extra `onnx`.
"""

from treadle.interop.onnx.export import export
from treadle.interop.onnx.model import OnnxModel
from treadle.interop.onnx.reader import load
from treadle.interop.onnx.registry import converts
from treadle.interop.onnx.writer import exports

__all__ = ["OnnxModel", "converts", "export", "exports", "load"]
