"""The benchmark workloads in OpenVINO, on models that PyTorch exported."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import openvino as ov
from workloads import Call, Task, calibration_of, data_of


def make(task: Task) -> Call:
    """One forward pass per call; the first one compiles the model."""
    x = data_of(task.work)[0]  # The request borrows it.

    @functools.cache
    def request() -> Any:
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": task.threads,
            "INFERENCE_PRECISION_HINT": "bf16" if task.work.bfloat16 else "f32",
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
    try:
        nncf = importlib.import_module("nncf")
    except ModuleNotFoundError as error:
        raise RuntimeError(f"quantized models need NNCF: {error}") from None
    images = calibration_of(task.work)
    model = ov.Core().read_model(task.file)
    return nncf.quantize(model, nncf.Dataset(images), subset_size=len(images))


def version() -> str:
    return f"OpenVINO {ov.__version__.partition('-')[0]}"
