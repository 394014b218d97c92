"""ONNX models as modules, and modules as ONNX models.

    model = treadle.interop.onnx.load("model.onnx")
    y = model(x)

Needs the extra `onnx`.
"""

from treadle.interop.onnx.model import OnnxModel
from treadle.interop.onnx.reader import load
from treadle.interop.onnx.registry import converts

__all__ = ["OnnxModel", "converts", "load"]
