"""Layouts in native programs: every kernel they ask for gives the numbers of the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.conv_graphs import forward, training
from tests.engine.workloads import arrays

from treadle.engine.optimize import layout_offers, layout_problem
from treadle.engine.optimize.layout import ROW_MAJOR
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph


def check_native(graph: Graph, seed: int) -> str:
    """Run natively with layouts; what the report says about them."""
    stages = Stages(graph, options=Options(check=True))
    given = arrays(graph, seed)
    for x, y in zip(evaluate(graph, given), stages.compile().run(given), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype.kind == "f":  # Places of equal maxima may differ by how numbers were rounded.
            np.testing.assert_allclose(x, y, 2e-3, 2e-3)
    stages.lower()
    return next((d.outcome for d in stages.report.decisions if d.subject == "layout"), "")


@pytest.fixture
def liked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices by which even small maps are held channels-last wherever that is possible."""
    monkeypatch.setattr(layout_problem, "conversion", lambda value: 1e-12)
    monkeypatch.setattr(layout_offers, "seconds", lambda node, sides: sides.count(ROW_MAJOR))


@pytest.mark.parametrize("spatial", [(8, 7), (9,), (4, 5, 4)])
@pytest.mark.parametrize("seed", [1, 4])
def test_networks(seed: int, spatial: tuple[int, ...], liked: Any) -> None:
    check_native(forward(seed, 8, spatial), seed)


@pytest.mark.parametrize("seed", [3, 5, 6, 9])
def test_training_steps(seed: int, liked: Any) -> None:
    assert check_native(training(seed), seed).startswith("channels-last")
