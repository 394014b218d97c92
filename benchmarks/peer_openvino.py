"""The benchmark workloads in OpenVINO, on models that PyTorch exported."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import openvino as ov
from workloads import Call, Task, data_of


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
        made = ov.Core().compile_model(task.file, "CPU", settings).create_infer_request()
        made.set_input_tensor(ov.Tensor(x, shared_memory=True))
        return made

    def run() -> np.ndarray:
        made = request()
        made.infer()
        return made.get_output_tensor(0).data.copy()

    return run


def version() -> str:
    return f"OpenVINO {ov.__version__.partition('-')[0]}"
