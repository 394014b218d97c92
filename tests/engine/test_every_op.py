"""Every op, with every sample, through prepare and optimize."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.random_graphs import close
from tests.engine.structural_compiler import StructuralCompiler
from tests.graph.samples import graph_of

from treadle.base.errors import TreadleError
from treadle.engine.optimize import optimize
from treadle.engine.options import Options
from treadle.engine.prepare import prepare
from treadle.engine.report import CompileReport
from treadle.graph.evaluate import evaluate
from treadle.graph.verify import verify
from treadle.ops import REGISTRY
from treadle.ops.collective import Collective
from treadle.ops.custom import Custom
from treadle.ops.fused import Fused

ELSEWHERE = (Collective, Custom, Fused)
"""Ops that need other processes, foreign code, or are made by the stage itself."""
NAMES = sorted(n for n, op in REGISTRY.items() if not issubclass(op, ELSEWHERE))


@pytest.mark.parametrize("name", NAMES)
def test_samples_stay(name: str) -> None:
    for sample in REGISTRY[name].samples():
        graph = graph_of(sample)
        arrays = sample.arrays(sample.element_types()[0])
        try:
            with np.errstate(all="ignore"):
                expected = evaluate(graph, arrays)
        except TreadleError:
            continue  # The oracle refuses the data itself.
        options, compiler = Options(), StructuralCompiler()
        after = prepare(graph, options, CompileReport(), compiler)
        after = optimize(after, compiler, options, CompileReport())
        verify(after)
        with np.errstate(all="ignore"):
            results = evaluate(after, arrays)
        for x, y in zip(expected, results, strict=True):
            assert close(widened(x), widened(y)), (str(sample.op), x, y)


def widened(array: np.ndarray) -> np.ndarray:
    """float32 in place of types that NumPy does not compare within tolerances."""
    kind = array.dtype.kind
    return array.astype(np.float32) if kind == "V" or array.dtype.name == "bfloat16" else array
