"""Operators that draw: new numbers at each call, the same ones compiled, fixed in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")

from onnx import parser  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402
from treadle.utils.comp_graph_tools import GraphInference  # noqa: E402

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[n] y, float[n] z, float[n] b, float[n] d, bool[n] m) {
   zero = Constant<value = float {0.0}>()
   half = Constant<value = float {0.5}>()
   yes = Constant<value = bool {1}>()
   s = ReduceSum<keepdims=0>(x)
   c = Greater(s, zero)
   y = If (c) <
       then_branch = t () => (float[n] a) { r = RandomNormalLike(x)  a = Add(x, r) },
       else_branch = e () => (float[n] a) { q = RandomUniformLike<low=2.0, high=3.0>(x)
                                            a = Add(x, q) }>
   z = RandomUniformLike<seed=3.0>(x)
   p = Sigmoid(x)
   b = Bernoulli(p)
   d, m = Dropout(x, half, yes)
}"""
X = np.array([1.0, -2.0, 3.0, 4.0, 5.0, -7.0], "float32")


def results(run: Any) -> list[list[Any]]:
    mge.random.seed(4)
    return [[t.numpy() for t in run(mge.tensor(X * sign))] for sign in (1, -1, 1)]


def test_compiled_models_draw_what_eager_ones_draw(tmp_path: Path) -> None:
    network = load(parser.parse_model(TEXT))
    want = results(network)
    for program in (mge.jit.compile(network), mge.jit.compile(network, dynamic=True)):
        for ours, theirs in zip(results(program), want, strict=True):
            for got, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-6)
    for (y, z, b, d, kept), sign in zip(want, (1, -1, 1), strict=True):
        x = X * sign
        assert sign == 1 or ((y - x >= 2) & (y - x <= 3)).all()
        assert set(b.tolist()) <= {0.0, 1.0}
        np.testing.assert_array_equal(z, want[0][1])
        np.testing.assert_array_equal(d, np.where(kept, x * 2, 0))
    assert (want[0][0] != want[2][0]).all()

    traced = mge.jit.trace(lambda x: network(x), capture_as_const=True)
    first = traced(mge.tensor(X))
    traced.dump(str(tmp_path / "drawn.mge"))
    again = GraphInference(str(tmp_path / "drawn.mge")).run(X)
    assert np.isfinite(next(iter(again.values()))).all() and len(again) == len(first)
