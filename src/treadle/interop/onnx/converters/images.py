"""Images as operators, decoded by OpenCV (the extra `vision`)."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.interop.onnx.nodes import OnnxNode, Value, known
from treadle.interop.onnx.registry import converts


@converts("ImageDecoder", since=20, host=(-1,))
def _image_decoder(node: OnnxNode, data: Array) -> Value:
    try:
        cv2: Any = importlib.import_module("cv2")
    except ImportError as error:
        raise node.refuse("decoding images needs OpenCV", "pip install treadle[vision]") from error
    order = node.attr("pixel_format", "RGB")
    flag = cv2.IMREAD_GRAYSCALE if order == "Grayscale" else cv2.IMREAD_COLOR
    image = cv2.imdecode(np.ascontiguousarray(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise node.refuse("the bytes are not an image that OpenCV knows", "check the data")
    if order == "Grayscale":
        return known(image[:, :, None])
    return known(np.ascontiguousarray(image[:, :, ::-1]) if order == "RGB" else image)
