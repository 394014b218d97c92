"""Transfers carry the device in their type, and their gradients come back."""

import numpy as np

from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops.abstract import ArrayOperand, TypeOperand
from treadle.ops.op import Pullback
from treadle.ops.transfer import Identity, StopGradient, Transfer


def test_the_gradient_is_copied_back() -> None:
    x = TypeOperand(TensorType(dt.float32, (2,), "cpu0:0"))
    y = Transfer("gpu1:0")(x)
    assert y.type == TensorType(dt.float32, (2,), "gpu1:0")
    (dx,) = Transfer("gpu1:0").vjp(Pullback((y,), (x,), (y,), (True,)))
    assert dx is not None and dx.type == x.type


def test_results_do_not_alias_operands() -> None:
    array = np.arange(3.0)
    for op in (Transfer("cpu0:0"), Identity(), StopGradient()):
        assert not np.shares_memory(op(ArrayOperand(array)).array, array)
