"""Whole modules in files: found by the name of their class, never imported, never called."""

import io
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.module as M
from treadle.base.errors import CheckpointError
from treadle.quantization import quantize_qat
from treadle.serialization import forms
from treadle.tensor import Tensor


class Tied(M.Module):
    """Two layers with one weight, one of them in a list."""

    made = 0

    def __init__(self, mode: str) -> None:
        super().__init__()
        type(self).made += 1
        self.mode = mode
        self.first = M.Conv2d(1, 1, 3, padding=1)
        self.more = [M.Conv2d(1, 1, 3, padding=1), M.BatchNorm2d(1)]
        self.more[0].weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, *self.more):
            x = layer(x)
        return x if self.mode == "plain" else -x


def _again(obj: Any) -> Any:
    file = io.BytesIO()
    mge.save(obj, file)
    file.seek(0)
    return mge.load(file)


def test_a_module_comes_back_whole() -> None:
    net, x = Tied("negated"), mge.tensor(np.random.default_rng(0).normal(size=(1, 1, 4, 4)))
    net.eval()
    count = Tied.made
    again = _again({"model": net, "epoch": 3})["model"]
    assert type(again) is Tied and Tied.made == count and not again.training
    assert again.first.weight is again.more[0].weight is not net.first.weight
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in net.named_parameters()]
    np.testing.assert_array_equal(again(x).numpy(), net(x).numpy())


def test_modules_of_one_save_share_and_of_two_do_not() -> None:
    net = Tied("plain")
    one, other = _again([net.first, net.more[0]])
    assert one.weight is other.weight
    assert _again(net.first).weight is not _again(net.more[0]).weight


def test_quantized_training_goes_on() -> None:
    net = quantize_qat(M.Sequential(M.QuantStub(), M.ConvBn2d(1, 2, 3), M.DequantStub()))
    x = mge.tensor(np.random.default_rng(0).normal(size=(1, 1, 6, 6)).astype("float32"))
    net(x)
    net.eval()
    again = _again(net)
    assert again[1].act_observer.mode is net[1].act_observer.mode
    np.testing.assert_array_equal(again(x).numpy(), net(x).numpy())


def test_tensors_keep_how_they_were_rounded() -> None:
    x = mge.tensor([1.0, 2.0])
    x.qparams.scale = mge.tensor(0.5)
    first, second = _again([x, x])
    assert first is second and first.qparams == x.qparams
    assert isinstance(first.qparams.scale, Tensor)
    assert _again(mge.tensor(1.0)).qparams.scale is None


def test_classes_that_are_not_here_are_not_looked_for() -> None:
    class Passing(M.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    file = io.BytesIO()
    mge.save(Passing(), file)
    for name in ("this:Passing", "builtins:dict", "treadle.module.module:Module"):
        state = [name, vars(Passing())]
        Passing._as_plain = lambda self, state=state: state  # type: ignore[method-assign,misc]
        file = io.BytesIO()
        mge.save(Passing(), file)
        file.seek(0)
        with pytest.raises(CheckpointError, match="which this program does not have"):
            mge.load(file)


@pytest.mark.parametrize("what", [["tensor", 1, 2], ["mode", "NONE"], ["family", 1], ["other"], 3])
def test_damaged_roundings_are_refused(what: Any) -> None:
    class Odd(M.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    file = io.BytesIO()
    forms.register_form(Odd, "qparams", lambda _: what)
    mge.save(Odd(), file)
    file.seek(0)
    with pytest.raises(CheckpointError, match="malformed"):
        mge.load(file)


def test_functions_are_not_saved() -> None:
    net = M.ReLU()
    net.act = abs
    with pytest.raises(TypeError, match=r"obj.*act.* is a builtin_function_or_method"):
        mge.save(net, io.BytesIO())
