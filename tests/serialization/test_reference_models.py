"""Models of every common kind: traced, run, saved and read back, with equal outputs."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from tests.native.models import CASES

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.serialization import load_program, save_program
from treadle.traced_module import TracedModule, trace_module
from treadle.utils.comp_graph_tools import GraphInference

REFERENCE = "mlp", "lenet", "residual", "lstm", "gpt", "bert", "detector"


@pytest.mark.parametrize("name", REFERENCE)
def test_a_traced_model_is_the_same_after_saving(name: str) -> None:
    case = CASES[name]
    mge.random.seed(2)
    model = case.model()
    model.eval()
    data, _ = case.draw(np.random.default_rng(0))
    other, _ = case.draw(np.random.default_rng(1))
    traced = mge.jit.trace(model, capture_as_const=True)
    expected = traced(mge.tensor(data)).numpy()
    np.testing.assert_allclose(expected, model(mge.tensor(data)).numpy(), rtol=1e-4, atol=1e-5)

    program = io.BytesIO()
    save_program(traced, program, mge.tensor(data))
    loaded = load_program(io.BytesIO(program.getvalue()))
    for batch in (data, other):
        np.testing.assert_array_equal(loaded(batch).numpy(), traced(mge.tensor(batch)).numpy())

    file = io.BytesIO()
    traced.dump(file, arg_names=["x"], output_names=["y"])
    run = GraphInference(io.BytesIO(file.getvalue()), outputs=["y"]).run
    # A model file is for inference: batch norms are folded into weights there.
    np.testing.assert_allclose(run(inp_dict={"x": data})["y"], expected, rtol=1e-4, atol=1e-6)


class Boxes(M.Module):
    """Boxes and scores of places; those that no better one covers, as many as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.score = M.Linear(6, 4), M.Linear(6, 1)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        places, scores = self.box(x), F.sigmoid(self.score(x))[:, 0]
        corner, size = places[:, :2], F.exp(places[:, 2:])
        boxes = F.concat([corner, corner + size], 1)
        kept = F.vision.nms(boxes, scores, 0.3)
        return F.concat([boxes[kept], F.expand_dims(scores[kept], 1)], 1)


def test_a_detector_whose_number_of_results_depends_on_data(tmp_path: Any) -> None:
    mge.random.seed(4)
    model = Boxes()
    rng = np.random.default_rng(0)
    batches = [mge.tensor(rng.standard_normal((12, 6)).astype("float32")) for _ in range(3)]
    traced = trace_module(model, batches[0])
    mge.save(traced, tmp_path / "boxes.tm")
    loaded = mge.load(tmp_path / "boxes.tm")
    assert type(loaded) is TracedModule
    counts = set()
    for x in batches:
        expected = model(x).numpy()
        np.testing.assert_array_equal(traced(x).numpy(), expected)
        np.testing.assert_array_equal(loaded(x).numpy(), expected)
        counts.add(len(expected))
    assert len(counts) > 1
