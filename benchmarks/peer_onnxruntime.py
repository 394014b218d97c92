"""The benchmark workloads in ONNX Runtime, on models that PyTorch exported."""

from __future__ import annotations

import functools
import importlib
import tempfile
from typing import Any

import numpy as np
import onnxruntime as ort
from weights import GPT
from workloads import DECODE_FROM, Call, Task, calibration_of, data_of


def make(task: Task) -> Call:
    """The workload as a function; its first call loads the model."""
    return decode(task) if task.work.kind == "decode" else infer(task)


def version() -> str:
    return f"ONNX Runtime {ort.__version__}"


def session_of(task: Task) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = task.threads
    if not task.work.int8:
        return ort.InferenceSession(task.file, options, providers=["CPUExecutionProvider"])
    with tempfile.NamedTemporaryFile(suffix=".onnx") as made:
        quantize(task, made.name)
        return ort.InferenceSession(made.name, options, providers=["CPUExecutionProvider"])


def quantize(task: Task, path: str) -> None:
    """Write the model with 8-bit weights, per channel, and activations."""
    try:
        tools = importlib.import_module("onnxruntime.quantization")
        shapes = importlib.import_module("onnxruntime.quantization.shape_inference")
    except ModuleNotFoundError as error:
        raise RuntimeError(f"quantized models need onnx: {error}") from None
    if task.work.model == "bert":
        tools.quantize_dynamic(task.file, path, per_channel=True)
        return
    images = iter(calibration_of(task.work))

    class Reader(tools.CalibrationDataReader):  # type: ignore[name-defined, misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(images, None)
            return None if image is None else {"x": image}

    # Without VNNI, full weights would overflow 16 bits.
    settings = {"per_channel": True, "reduce_range": True}
    with tempfile.NamedTemporaryFile(suffix=".onnx") as ready:
        shapes.quant_pre_process(task.file, ready.name, skip_symbolic_shape=True)
        tools.quantize_static(ready.name, path, Reader(), **settings)


def infer(task: Task) -> Call:
    """One forward pass per call."""
    feed = {"x": data_of(task.work)[0]}
    session = functools.cache(lambda: session_of(task))
    return lambda: session().run(None, feed)[0]


def decode(task: Task) -> Call:
    """Greedy decoding; the tokens. Keys and values stay with the runtime between steps."""
    layers, dim, heads, length, _ = GPT
    tokens = data_of(task.work)[0]
    session = session_of(task)
    places = [ort.OrtValue.ortvalue_from_numpy(np.array([at])) for at in range(length)]

    def step(token: np.ndarray, at: int, keys: Any, values: Any) -> list[Any]:
        given = ort.OrtValue.ortvalue_from_numpy(token)
        feed = {"token": given, "at": places[at], "keys": keys, "values": values}
        return session.run_with_ort_values(None, feed)

    nothing = np.zeros((layers, 1, heads, 0, dim // heads), "float32")
    caches = [ort.OrtValue.ortvalue_from_numpy(nothing) for _ in "kv"]
    for at in range(DECODE_FROM):
        _, *caches = step(tokens[:, at : at + 1].copy(), at, *caches)
    first = tokens[:, DECODE_FROM : DECODE_FROM + 1].copy()

    def generate() -> list[int]:
        token, (keys, values), out = first, caches, []
        for at in range(DECODE_FROM, length):
            found, keys, values = step(token, at, keys, values)
            token = found.numpy()
            out.append(int(token[0, 0]))
        return out

    return generate
