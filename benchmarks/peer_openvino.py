"""The benchmark workloads in OpenVINO, on models that PyTorch exported."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from workloads import Call, Task, calibration_of, data_of


def make(task: Task) -> Call:
    """One forward pass per call; the first one compiles the model."""
    x = data_of(task.work)[0]  # The request borrows it.
    # Products of 8-bit weights are fastest in bfloat16 here, faster than on integers.
    dynamic = task.work.int8 and task.work.model == "bert"

    @functools.cache
    def request() -> Any:
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": task.threads,
            "INFERENCE_PRECISION_HINT": "bf16" if task.work.bfloat16 or dynamic else "f32",
        }
        model = quantized(task) if task.work.int8 else task.file
        made = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
        made.set_input_tensor(ov.Tensor(x, shared_memory=True))
        return made

    def run() -> np.ndarray:
        made = request()
        made.infer()
        return made.get_output_tensor(0).data.copy()

    return run


def quantized(task: Task) -> Any:
    """The model with 8-bit weights, per channel, and activations, as NNCF makes it."""
    if task.work.model == "bert":
        return with_compressed_weights(ov.Core().read_model(task.file))
    try:
        nncf = importlib.import_module("nncf")
    except ModuleNotFoundError as error:
        raise RuntimeError(f"quantized models need NNCF: {error}") from None
    images = calibration_of(task.work)
    model = ov.Core().read_model(task.file)
    return nncf.quantize(model, nncf.Dataset(images), subset_size=len(images))


def with_compressed_weights(model: Any) -> Any:
    """Constant factors of products as NNCF's `compress_weights` writes them, in INT8_SYM."""
    for product in [op for op in model.get_ordered_ops() if op.get_type_name() == "MatMul"]:
        weight = product.input_value(1).get_node()
        if weight.get_type_name() != "Constant":
            continue
        turned = product.get_attributes()["transpose_b"]
        values = weight.get_data() if turned else weight.get_data().T
        scale = np.abs(values).max(1, keepdims=True) / 127
        levels = ops.constant(np.rint(values / scale).astype(np.int8))
        numbers = ops.multiply(ops.convert(levels, "f32"), ops.constant(scale))
        made = ops.matmul(product.input_value(0), numbers, False, True)
        product.output(0).replace(made.output(0))
    model.validate_nodes_and_infer_types()
    return model


def version() -> str:
    return f"OpenVINO {ov.__version__.partition('-')[0]}"
