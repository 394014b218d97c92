"""The checks themselves: each must notice the mistake it is there for."""

from typing import Any, ClassVar

import numpy as np
import pytest
from tests.ops import harness

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.types import TensorType
from treadle.ops import elementwise as ew
from treadle.ops.arg import Arg
from treadle.ops.op import Op, Pullback, Sample
from treadle.ops.scalar import Scalar


class Cube(Op):
    """x**3, right in every part; the classes below break one part each."""

    name = "cube"
    dtypes: ClassVar[Any] = dt.FLOATS

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def reference(self, x: Array) -> Array:
        return x * x * x

    def scalar(self, x: Scalar) -> Scalar:
        return x * x * x

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        x = at.inputs[0]
        return (at.dy * x * x * 3.0,)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (Sample(cls(), (Arg((2, 3)),)), Sample(cls(), (Arg(()),)))


class WrongType(Cube):
    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape((*x.shape, 1)),)


class FixedShape(Cube):
    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape(tuple(5 if not isinstance(d, int) else d for d in x.shape)),)


class WrongScalar(Cube):
    def scalar(self, x: Scalar) -> Scalar:
        return x * x * x + 1e-4


class WrongGradient(Cube):
    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        x = at.inputs[0]
        return (at.dy * x * x * 3.001,)


class WrongSecondOrder(Cube):
    """The gradient's value is right, but its dependence on x is hidden in a constant."""

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        x = at.inputs[0]
        return (at.dy * x * x.constant(3.0 * x.array),)


class WrongGradientType(Cube):
    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        x = at.inputs[0]
        return ((at.dy * x * x * 3.0).astype(dt.float64),)


class WritesInput(Cube):
    def reference(self, x: Array) -> Array:
        x *= x * x
        return x


def check_all(cls: type[Cube]) -> None:
    for sample in cls.samples():
        harness.check_types(sample, dt.float32)
        assert harness.symbolic_refusal(sample, dt.float32) == ""
        harness.check_scalar(sample.op, sample.arrays(dt.float32), "scalar")
        harness.check_gradient(sample)
        harness.check_gradient_contract(sample, dt.float32)


def test_a_right_declaration_passes() -> None:
    check_all(Cube)


@pytest.mark.parametrize(
    "cls",
    [WrongType, FixedShape, WrongScalar, WrongGradient, WrongSecondOrder, WrongGradientType],
)
def test_a_wrong_part_is_noticed(cls: type[Cube]) -> None:
    with pytest.raises(AssertionError):
        check_all(cls)


def test_writing_to_an_input_is_noticed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        check_all(WritesInput)


class BothGradients(Cube):
    """x * y that always computes both gradients."""

    operands = ("x", "y")

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def reference(self, x: Array, y: Array) -> Array:
        return x * y

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        return at.dy * at.inputs[1], at.dy * at.inputs[0]

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (Sample(cls(), (Arg((2,)), Arg((2,)))),)


def test_computing_an_unneeded_gradient_is_noticed() -> None:
    (sample,) = BothGradients.samples()
    harness.check_gradient(sample)
    with pytest.raises(AssertionError, match="not needed"):
        harness.check_gradient_contract(sample, dt.float32)


def test_special_values_meet_in_every_combination() -> None:
    sample = ew.Mul.samples()[0]
    arrays = harness.special_arrays(sample, dt.float32)
    assert arrays is not None
    x, y = arrays
    assert x.shape == y.shape
    assert np.any(np.isinf(x) & (y == 0)) and np.any(np.isnan(x) & np.isnan(y))
