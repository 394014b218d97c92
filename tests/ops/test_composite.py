"""Composite ops: everything derived from a body."""

from typing import Any, ClassVar

import numpy as np
import pytest
from tests.ops import harness

from treadle.base import dtype as dt
from treadle.base.errors import ShapeError
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.ops.abstract import ArrayOperand
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite, expand
from treadle.ops.op import Pullback, Sample
from treadle.ops.unary import Tanh


class Swirl(Composite):
    """tanh(x * y) + x, and x * y: values used twice, two results, broadcasting."""

    name = "swirl"
    operands = ("x", "y")
    n_outputs = 2
    dtypes: ClassVar[Any] = dt.FLOATS

    def body(self, x: Any, y: Any) -> Any:
        product = x * y
        return Tanh()(product) + x, product

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((2, 3)), Arg((2, 3)))),
            Sample(cls(), (Arg((2, 3)), Arg((3,)))),
            Sample(cls(), (Arg(()), Arg((0,)))),
        )


class Identity(Composite):
    """Both results are the input itself."""

    name = "identity_twice"
    n_outputs = 2
    dtypes: ClassVar[Any] = dt.FLOATS

    def body(self, x: Any) -> Any:
        return x, x

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (Sample(cls(), (Arg((2,)),)),)


@pytest.mark.parametrize("cls", [Swirl, Identity])
def test_types_values_and_gradients_follow_from_the_body(cls: type[Composite]) -> None:
    for sample in cls.samples():
        for dtype in sample.element_types():
            harness.check_types(sample, dtype)
            harness.check_gradient_contract(sample, dtype)
        assert harness.symbolic_refusal(sample, dt.float32) == ""
        harness.check_gradient(sample)


def test_infer_keeps_symbols() -> None:
    n = symbol("n")
    x = TensorType(dt.float32, (n, 3))
    assert Swirl().infer(x, TensorType(dt.float32, (3,))) == (x, x)


def test_errors_come_from_the_op_that_found_them() -> None:
    x, y = TensorType(dt.float32, (2,)), TensorType(dt.float32, (3,))
    with pytest.raises(ShapeError, match=r"^mul: cannot broadcast axis -1: 2 against 3"):
        Swirl().infer(x, y)


def test_expand_is_the_body_on_operands() -> None:
    x, y = ArrayOperand(np.array([1.0, 2.0])), ArrayOperand(np.array([0.5, -1.0]))
    first, second = expand(Swirl(), (x, y))
    np.testing.assert_array_equal(second.array, [0.5, -2.0])
    np.testing.assert_array_equal(first.array, np.tanh([0.5, -2.0]) + x.array)


def test_a_gradient_that_does_not_exist_is_none() -> None:
    """Only the second result is differentiated and only y needs a gradient."""
    x, y = ArrayOperand(np.array([1.0, 2.0])), ArrayOperand(np.array([0.5, -1.0]))
    outputs = Swirl().outputs(x, y)
    dy = ArrayOperand(np.ones(2))
    grads = Swirl().vjp(Pullback((None, dy), (x, y), outputs, (False, True)))
    assert grads[0] is None
    np.testing.assert_array_equal(grads[1].array, x.array)
