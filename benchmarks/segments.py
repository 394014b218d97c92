"""Segments: how long partitioning takes, and what the engine `openvino` adds to OpenVINO.

    python benchmarks/segments.py [I1 I2 ...] [--seconds 5] [--nodes 5000]

Needs the extras openvino and onnx. A model runs in three ways, in turns and in one process: on the
CPU engine, on segments that OpenVINO compiles, and in OpenVINO alone, from our ONNX export.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import openvino as ov
import peer_own
from workloads import WORKLOADS, Task, data_of

import treadle as mge
from treadle import functional as F
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.inspect import Inspected
from treadle.interop.onnx import export
from treadle.jit.capture import capture

ENGINES = ("openvino", "cpu")


def partitioned(nodes: int) -> float:
    """Seconds for the partition stage of a graph of so many nodes, two engines taking part."""

    def chain(x: mge.Tensor, w: mge.Tensor) -> mge.Tensor:
        for i in range(nodes // 5):
            y = F.relu(F.matmul(x, w) + x)
            x = F.sort(y)[0] if i % 20 == 19 else F.exp(y * 0.01)  # sorting is not OpenVINO's
        return x

    operands = (mge.tensor(np.eye(32, dtype=np.float32)), mge.tensor(np.eye(32, dtype=np.float32)))
    graph = capture(chain, operands, {}, "chain").graph
    program = Inspected(Stages(graph, options=Options(engines=ENGINES, fusion=False)))
    program.lower()
    print(f"{len(graph.nodes)} nodes captured, {len(program.prepared.nodes)} prepared")
    return program.report.seconds["partition"]


def alone(key: str) -> Callable[[], np.ndarray]:
    """OpenVINO on the model as we export it."""
    work = WORKLOADS[key]
    model = peer_own.load(work.model)
    model.eval()
    x = data_of(work)[0]
    exported = export(model, mge.tensor(x, dtype=x.dtype))
    read = ov.Core().read_model(exported.SerializeToString())
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(read, "CPU", settings).create_infer_request()
    request.set_input_tensor(ov.Tensor(x, shared_memory=True))

    def run(_borrowed: np.ndarray = x) -> np.ndarray:
        request.infer()
        return request.get_output_tensor(0).data.copy()

    return run


def compare(key: str, seconds: float) -> None:
    """Print medians of one workload, and their ratios to OpenVINO alone."""
    print(f"{key} {WORKLOADS[key].title}")
    calls = {
        "OpenVINO alone": alone(key),
        "Treadle, engine cpu": peer_own.make(Task(key, "compile", 0)),
    }
    with mge.jit.engines(*ENGINES):
        calls["Treadle, engine openvino"] = peer_own.make(Task(key, "compile", 0))
        found = {name: np.asarray(call()) for name, call in calls.items()}
    expected = found["OpenVINO alone"]
    for value in found.values():
        np.testing.assert_allclose(value, expected, rtol=1e-2, atol=1e-3)
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    base = np.median(times["OpenVINO alone"])
    for name, measured in times.items():
        middle, low = np.median(measured) * 1e3, np.quantile(measured, 0.2) * 1e3
        share = middle / base / 1e3
        print(f"  {name:<26} median {middle:8.3f} ms, p20 {low:8.3f}, of alone {share:.2f}")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("keys", nargs="*", default=["I1", "I2"])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--nodes", type=int, default=5000)
    asked = parser.parse_args()
    mge.set_default_device("cpux")
    if asked.nodes:
        print(f"partition: {partitioned(asked.nodes):.2f} s")
    for key in asked.keys:
        compare(key, asked.seconds)


if __name__ == "__main__":
    main()
