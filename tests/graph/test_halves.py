"""Graphs that store their values in 16 bits."""

from __future__ import annotations

import io

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.engine.package.models import read_models
from treadle.jit import trace
from treadle.ops.constant import Constant
from treadle.utils.comp_graph_tools import GraphInference
from treadle.utils.network import Network


def dumped(option: str) -> io.BytesIO:
    mge.random.seed(3)
    net = M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU(), M.AdaptiveAvgPool2d(1))
    net.eval()
    traced = trace(lambda x: (F.exp(net(x)), x.shape[0] * F.argmax(x, 1)), capture_as_const=True)
    traced(F.ones((2, 3, 8, 8)))
    file = io.BytesIO()
    traced.dump(file, **({option: True} if option else {}))
    file.seek(0)
    return file


@pytest.mark.parametrize("option", ["enable_io16xc32", "enable_ioc16"])
def test_weights_and_values_are_stored_in_halves(option: str) -> None:
    file = dumped(option)
    [model] = read_models(file)
    assert all(
        v.type.dtype.name == "float32" for v in (*model.graph.inputs, model.graph.outputs[0])
    )
    weights = [n for n in model.graph.nodes if isinstance(n.op, Constant)]
    assert weights and not any(n.outputs[0].type.dtype.name == "float32" for n in weights)
    products = [n for n in model.graph.nodes if n.op.name == "conv"]
    wide = option == "enable_io16xc32"
    assert products[0].outputs[0].type.dtype.name == ("float32" if wide else "float16")
    whole = dumped("")
    for rows in (2, 5):
        x = np.random.RandomState(rows).rand(rows, 3, 9, 8).astype("float32")
        file.seek(0)
        whole.seek(0)
        found, exact = (list(GraphInference(f).run(x).values()) for f in (file, whole))
        assert 0 < np.abs(found[0] - exact[0]).max() < 5e-3 and found[0].dtype == np.float32
        # Numbers of equal scores in 16 bits may differ from those in 32.
        assert found[1].shape == exact[1].shape and (found[1] == exact[1]).mean() > 0.99


def test_networks_and_files_of_half_the_size() -> None:
    net = M.Linear(64, 500)
    traced = trace(net, capture_as_const=True)
    traced(F.ones((1, 64)))
    whole, half = io.BytesIO(), io.BytesIO()
    traced.dump(whole)
    whole.seek(0)
    loaded = Network.load(whole)
    loaded.dump(half, enable_io16xc32=True)
    assert len(half.getvalue()) < 0.6 * len(whole.getvalue())
    half.seek(0)
    last = Network.load(half).output_vars[0].owner
    assert last.type == "TypeCvt" and last.inputs[0].dtype == np.float16
