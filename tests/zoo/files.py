"""ONNX models that ship in packages, beside ONNX Runtime."""

from __future__ import annotations

import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from tests.zoo.ways import Array, Found, gap, least

import treadle as mge
from treadle.cli.models.onnx import from_onnx
from treadle.engine.package.models import write_models
from treadle.interop.onnx import load
from treadle.utils.comp_graph_tools import GraphInference

SPEECH = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
SLOW_SPEECH = SPEECH | {"input": (1, 288)}
INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "ch_PP-OCRv4_det_infer": {"x": (1, 3, 320, 480)},
    "ch_PP-OCRv4_rec_infer": {"x": (2, 3, 48, 320)},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x": (2, 3, 48, 192)},
    "ch_ppocr_mobile_v2.0_cls_mobile": {"x": (3, 3, 48, 192)},
    "PP-OCRv6_det_small": {"x": (1, 3, 320, 480)},
    "PP-OCRv6_rec_small": {"x": (2, 3, 48, 320)},
    "silero_vad": SPEECH,
    "silero_vad_16k_op15": SPEECH,
    "silero_vad_op18_ifless": SPEECH,
    "silero_vad, 8 kHz": SLOW_SPEECH,
    "silero_vad_op18_ifless, 8 kHz": SLOW_SPEECH,
    "silero_vad_half": {n: SPEECH[n] for n in ("input", "state")},
    "silero_vad_openvino_16k": {n: SPEECH[n] for n in ("input", "state")},
    "silero_vad_16k_sequence": {"input": (3, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    "standard_v3_3": {"bytes": (1, 2048)},
    "common": {"input1": (1, 1, 64, 160)},
    "common_old": {"input1": (1, 1, 64, 160)},
    "common_det": {"images": (1, 3, 416, 416)},
}
"""Shapes of inputs by the name of the file, or its folder; sounds have 16 kHz if none is said."""
OTHERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ch_PP-OCRv4_det_infer": ((1, 3, 256, 352), (2, 3, 448, 288)),
    "ch_PP-OCRv4_rec_infer": ((3, 3, 48, 200), (2, 3, 48, 333)),
    "ch_ppocr_mobile_v2.0_cls_infer": ((3, 3, 48, 160), (2, 3, 48, 231)),
    "ch_ppocr_mobile_v2.0_cls_mobile": ((5, 3, 48, 160), (2, 3, 48, 231)),
    "PP-OCRv6_det_small": ((1, 3, 256, 352), (2, 3, 448, 288)),
    "PP-OCRv6_rec_small": ((3, 3, 48, 200), (2, 3, 48, 333)),
    "common": ((1, 1, 64, 233), (1, 1, 64, 97)),
    "common_old": ((1, 1, 64, 233), (1, 1, 64, 97)),
    "standard_v3_3": ((3, 2048), (4, 2048)),
}
"""Further shapes of models whose axes are open, which share programs with the first one. Silero's
read the rate and the length of a sound as numbers.
"""


def path_of(name: str, folder: Path) -> Path:
    """The file of a model."""
    stem = name.partition(",")[0]
    found = sorted(p for p in folder.rglob("*.onnx") if named(p) == stem)
    if not found:
        raise FileNotFoundError(f"{stem}.onnx is not below {folder}")
    return found[0]


def named(path: Path) -> str:
    """What a model is called: its file, or the folder of that."""
    return path.parent.name if path.stem == "model" else path.stem


def ways_of_file(name: str, folder: Path) -> Found:
    """A file eagerly, compiled, and as our model file."""
    ort.set_default_logger_severity(4)
    path = path_of(name, folder)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rate = 8000 if name.endswith("8 kHz") else 16000
    given = {i.name: sample(i, INPUTS[name], rate) for i in session.get_inputs()}
    expected = session.run(None, given)
    network = load(path)
    network.eval()
    tensors = {n: mge.tensor(a, dtype=a.dtype) for n, a in given.items()}
    program = mge.jit.compile(lambda **named: network(**named))
    gaps = {"eager": gap(network(**tensors), expected)}
    gaps["compiled"] = gap(program(**tensors), expected)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "model.tm"
        write_models(file, [from_onnx(path, {n: a.shape for n, a in given.items()}, (), 0)], "zoo")
        results = tuple(GraphInference(str(file)).run(inp_dict=given).values())
    gaps["file"] = gap(results, expected)
    if name in OTHERS:
        gaps["sizes"] = _at_other_sizes(name, network, session)
    times = least(lambda: program(**tensors), lambda: session.run(None, given))
    return {"gaps": gaps, **times, "megabytes": path.stat().st_size / 1e6}


def _at_other_sizes(name: str, network: Any, session: Any) -> float:
    """The largest difference of the programs for many sizes.

    Raises:
        AssertionError: sizes have programs of their own.
    """
    program = mge.jit.compile(dynamic=True)(network)
    (described,) = session.get_inputs()
    worst = 0.0
    for shape in (*INPUTS[name].values(), *OTHERS[name]):
        given = sample(described, {described.name: shape}, 0)
        found = program(mge.tensor(given, dtype=given.dtype))
        worst = max(worst, gap(found, session.run(None, {described.name: given})))
    for family in chain.from_iterable(program._captures.families.values()):
        is_open = any(not t.is_static for t in family.captured.graph.input_types)
        assert not (is_open and family.alone), family.alone
    return worst


def sample(described: Any, shapes: dict[str, tuple[int, ...]], rate: int) -> Array:
    """Random numbers for an input."""
    shape = shapes.get(described.name) or ()
    if not shape and described.name != "sr":
        shape = next(iter(shapes.values()))
    rng = np.random.default_rng(0)
    if described.name == "sr":
        return np.array(rate, np.int64)
    if described.name in ("state", "h", "c"):
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)
    if described.type == "tensor(float)":
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)
    return rng.integers(0, 256, shape).astype(np.int32)
