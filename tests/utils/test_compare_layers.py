"""Layers of a network on a device beside the same layers on the host."""

from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import elementwise, kernel
from tests.utils.test_check_ops import wrong_toy

import treadle as mge
import treadle.module as M
from treadle.base.errors import EngineError
from treadle.utils.compare_layers import compare_layers

__all__ = ["plugins"]


def test_the_first_layer_at_fault_and_the_op_in_it(plugins: Plugins) -> None:
    net = wrong_toy(plugins)
    x = mge.tensor(np.ones((2, 2)), device="toy0")
    with mge.fallback("silent"):
        found = compare_layers(net, x)
    assert [(row.path, row.kind) for row in found.layers] == [("0", "Linear"), ("1.0", "ReLU")]
    assert not found.agrees and found.first is found.layers[-1]
    assert found.first.difference.first == (1, 1) and found.first.output == "0: float32[2, 3]"
    assert found.op is not None and found.op.op == "relu" and found.op.layer == "ReLU"
    text = str(found)
    assert text.startswith("toy0:0 against cpux: 2 outputs of layers; the first that differs: 1.0")
    assert "1 of 6 differ, first at [1, 1]" in text and "found" in text and "by its op relu" in text


def test_layers_are_isolated_or_errors_add_up(plugins: Plugins) -> None:
    net = wrong_toy(plugins)
    x = mge.tensor(np.ones((2, 2)), device="toy0")
    with mge.fallback("silent"):
        alone = compare_layers(net, x, stop=False)
        whole = compare_layers(net, x, stop=False, accumulate=True)
    paths = ["0", "1.0", "1.1", "1", ""]
    assert [row.path for row in alone.layers] == [row.path for row in whole.layers] == paths
    assert [row.difference.differs for row in alone.layers] == [False, True, False, True, True]
    assert [row.difference.differs for row in whole.layers] == [False, True, True, True, True]


def test_a_sound_device_agrees(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    net = M.Sequential(M.Conv2d(1, 2, 3), M.BatchNorm2d(2), M.ReLU()).to("toy0")
    x = mge.tensor(np.random.default_rng(0).random((2, 1, 5, 5), "float32"), device="toy0")
    with mge.fallback("silent"):
        found = compare_layers(net, x)
    assert found.agrees and found.op is None and len(found.layers) == 4
    assert "all agree" in str(found)
    assert net[1].running_mean.numpy().any(), "the network was called as usual"


def test_layers_that_are_called_with_keywords_are_compared_as_a_whole() -> None:
    class Scale(M.Module):
        def forward(self, x: Any, *, by: float) -> Any:
            return x * by

    class Net(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Scale()

        def forward(self, x: Any) -> Any:
            return self.scale(x, by=2.0)

    x = mge.tensor([1.0], device="cpux")
    with pytest.raises(TypeError, match=r"scale is called with keywords.*accumulate=True"):
        compare_layers(Net(), x, against="cpu1")
    assert compare_layers(Net(), x, against="cpu1", accumulate=True).agrees


def test_hooks_are_gone_afterwards(plugins: Plugins) -> None:
    net = wrong_toy(plugins)
    x = mge.tensor(np.ones((2, 2)), device="toy0")
    with mge.fallback("silent"):
        compare_layers(net, x)
        compare_layers(net, x, accumulate=True)
    assert all(not m._forward_hooks for _, m in net.named_modules())


# -- compiled functions on a device ------------------------------------------------------------


def test_programs_on_a_device_are_compared_where_they_live(plugins: Plugins) -> None:
    kernels = [k for k in elementwise() if k.op != "relu"]
    plugins.toy(kernels=[*kernels, kernel("relu", lambda x: x + np.float32(1))])
    net = M.Sequential(M.Linear(2, 3), M.ReLU()).to("toy0")
    x = mge.tensor([[1.0, 2.0]], device="toy0")
    with mge.fallback("silent"):
        found = mge.jit.compare(net.forward, x)
    assert found.first is not None and found.first.op == "relu"
    assert found.first.difference.count == 3 and "differ, first at [0, 0]" in str(found)
    assert "found" in str(found) and "in 1 (ReLU)" not in str(found), "`forward` is no call"
    other = mge.tensor([[1.0, 2.0]], device="cpux")
    refused = pytest.raises(EngineError, match="compare: the function uses several devices")
    with mge.fallback("silent"), refused:
        mge.jit.compare(lambda x, y: x + y.to("toy0") * 2, x, other * 1)
