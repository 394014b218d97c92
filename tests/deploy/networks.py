"""A small network, traced: what libraries and offline models are made from in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.engine.package.models import Model
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of

Array = np.ndarray[Any, Any]


class Net(M.Module):
    """A convolution, whose weights are packed, and a product, whose weights are not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(3, 8, 3, padding=1)
        self.norm = M.BatchNorm2d(8)
        self.fc = M.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.conv(x)))
        return F.softmax(self.fc(F.mean(x, axis=(2, 3))), axis=1)


def image(*shape: int, seed: int = 0) -> Array:
    """Random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network() -> Net:
    """The network; its weights are the same every time."""
    mge.set_default_device("cpux")
    mge.random.seed(0)
    made = Net()
    made.eval()
    return made


def traced(function: Any, *arrays: Array, output: str = "label") -> Model:
    """The model of a function of arrays."""
    inputs = tuple(mge.tensor(a, dtype=a.dtype) for a in arrays)
    captured = capture(function, inputs, {}, "net")
    names = ["image", "second"][: len(arrays)]
    return model_of("net", captured, argument_names(inputs, {}), Ends(names, [output]))
