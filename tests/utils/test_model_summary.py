"""`summary`: rows and sums, a table of 80 columns, and a model that is left as it was."""

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.module as M
from treadle.utils.module_stats import module_stats


class Block(M.Module):
    """Layers that are called twice or never, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a_convolution_with_a_name_that_is_long = M.Conv2d(64, 64, 3, padding=1)
        self.norm = M.BatchNorm2d(64)
        self.scale = mge.Parameter(np.ones(5, "float32"))
        self.unused = M.Linear(4000, 1000)

    def forward(self, x: Any) -> Any:
        conv = self.a_convolution_with_a_name_that_is_long
        return self.norm(conv(conv(x))) * self.scale[0]


def test_rows_are_calls_and_sums_are_those_of_module_stats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = M.Sequential(Block(), M.ReLU())
    found = mge.summary(net, input_shapes=(128, 64, 32, 16))
    assert [(x.kind, x.parameters) for x in found.layers] == [
        *[("Conv2d", 36928), ("Conv2d", 0), ("BatchNorm2d", 128), ("Block", 5), ("ReLU", 0)],
        ("Linear", 4001000),
    ]
    assert found.layers[0].shape == (128, 64, 32, 16)
    assert (found.layers[-1].shape, found.layers[-1].macs) == (None, None)
    totals, _ = module_stats(net, input_shapes=(128, 64, 32, 16), logging_to_stdout=False)
    assert found.macs == totals.flops
    assert found.parameters == sum(p.size for p in net.parameters()) == totals.param_dims + 5
    lines = str(found).splitlines()
    assert max(map(len, lines)) == 80 and "not called" in lines[-3]
    assert lines[2].startswith("...")
    assert capsys.readouterr().out.count("Conv2d") == 0  # It prints nothing by itself.


def test_the_model_is_left_as_it_was() -> None:
    net = M.Sequential(M.BatchNorm1d(3), M.Dropout(0.5))
    net[1].eval()
    mean = net[0].running_mean.numpy().copy()
    mge.summary(net, inputs=np.ones((4, 3), "float32"))
    assert (net.training, net[0].training, net[1].training) == (True, True, False)
    assert not any(m._forward_hooks for m in net.modules())
    np.testing.assert_array_equal(net[0].running_mean.numpy(), mean)
    with pytest.raises(mge.TreadleError):
        mge.summary(net, input_shapes=(4, 7))
    assert not any(m._forward_hooks for m in net.modules())


def test_what_is_no_tree_of_floats() -> None:
    """Integer inputs, parts of attention, shared weights, no inputs at all, no layers."""
    table = M.Embedding(50, 8)
    found = mge.summary(table, inputs=np.zeros((2, 3), "int32"))
    assert [(x.name, x.kind, x.shape) for x in found.layers] == [("", "Embedding", (2, 3, 8))]
    attention = M.MultiHeadAttention(8, 2)
    x = np.ones((1, 4, 8), "float32")
    (row,) = mge.summary(attention, inputs=(x, x, x)).layers
    assert row.parameters == sum(p.size for p in attention.parameters()) and row.macs
    shared = M.Linear(4, 4)
    twice = mge.summary(M.Sequential(shared, shared))
    assert twice.parameters == 20 and [x.parameters for x in twice.layers] == [20]
    assert "MACs" not in str(twice)
    assert str(mge.summary(M.Sequential())).endswith("0 parameters, 0 B")
