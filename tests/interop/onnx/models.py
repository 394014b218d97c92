"""Small ONNX models, and what they compute."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET = 21


def array(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    """An initializer of random numbers."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int | str, ...]],
    outputs: dict[str, tuple[int | str, ...] | None],
    initializers: list[onnx.TensorProto] | None = None,
    *,
    opset: int = OPSET,
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model whose inputs and outputs have one element type."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, dtype, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, dtype, s) for n, s in outputs.items()],
        initializers or [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def small_cnn() -> onnx.ModelProto:
    """Convolution, norm, pooling and a classifier over [N, 3, 8, 8]."""
    nodes = [
        helper.make_node(
            "Conv", ["x", "conv.weight", "conv.bias"], ["c"], name="stem", pads=[1] * 4
        ),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["p"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["p", "target"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["y"], name="fc", transB=1),
    ]
    weights = [
        array("conv.weight", 4, 3, 3, 3),
        array("conv.bias", 4, seed=1),
        array("scale", 4, seed=2),
        array("shift", 4, seed=3),
        array("mean", 4, seed=4),
        numpy_helper.from_array(np.ones(4, np.float32), "var"),
        numpy_helper.from_array(np.array(0), "zero"),
        numpy_helper.from_array(np.array([0]), "first"),
        numpy_helper.from_array(np.array([-1]), "rest"),
        array("fc.weight", 5, 64, seed=5),
        array("fc.bias", 5, seed=6),
    ]
    return model(nodes, {"x": ("n", 3, 8, 8)}, {"y": ("n", 5)}, weights)
