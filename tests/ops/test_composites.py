"""Every composite: what it declares equals what its body says."""

from typing import Any

import numpy as np
import pytest
from tests.ops import harness

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.guards import recording_guards
from treadle.base.symbol import symbol
from treadle.ops import REGISTRY
from treadle.ops.abstract import ArrayOperand, TypeOperand
from treadle.ops.composite import Composite, differentiate_body, expand
from treadle.ops.op import Op, Pullback, Sample

COMPOSITES = [REGISTRY[n] for n in harness.OPS if issubclass(REGISTRY[n], Composite)]
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-5, "float64": 1e-11}
"""Bodies round after every op, oracles of 16-bit types once."""

every_composite = pytest.mark.parametrize("cls", COMPOSITES, ids=[c.name for c in COMPOSITES])


def assert_near(got: Any, expected: Any, dtype: DType, what: str) -> None:
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    if dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    tolerance = TOLERANCE[dtype.name]
    np.testing.assert_allclose(
        got.astype(np.float64), expected.astype(np.float64), tolerance, tolerance, err_msg=what
    )


def operands(sample: Sample, dtype: DType) -> tuple[ArrayOperand, ...]:
    return tuple(ArrayOperand(a) for a in sample.arrays(dtype))


def body_of(op: Op, xs: tuple[ArrayOperand, ...]) -> tuple[ArrayOperand, ...]:
    assert isinstance(op, Composite)
    with np.errstate(all="ignore"):
        return expand(op, xs)


@every_composite
def test_body_gives_what_the_oracle_gives(cls: type[Composite]) -> None:
    for sample, dtype in harness.all_pairs(cls):
        xs = operands(sample, dtype)
        oracle = harness.run(sample.op, [x.array for x in xs])
        results = body_of(sample.op, xs)
        assert len(results) == len(oracle) == sample.op.n_outputs
        for got, expected in zip(results, oracle, strict=True):
            kind = got.type.dtype if got.type.dtype is not dt.float32 else _coarser(dtype)
            assert_near(got.array, expected, kind, f"{sample} with {dtype}")


def _coarser(dtype: DType) -> DType:
    """float32 results of 16-bit inputs carry the inputs' rounding in bodies."""
    return dtype if dtype.is_float and dtype.itemsize == 2 else dt.float32


@every_composite
def test_body_tells_the_declared_types(cls: type[Composite]) -> None:
    for sample, dtype in harness.all_pairs(cls):
        types = harness.types_of(sample.arrays(dtype))
        assert Composite.infer(sample.op, *types) == sample.op.infer(*types)  # type: ignore[arg-type]


@every_composite
def test_declared_gradient_is_that_of_the_body(cls: type[Composite]) -> None:
    for sample in cls.samples():
        if harness.is_differentiable(sample):
            _compare_gradients(sample)


def _compare_gradients(sample: Sample) -> None:
    op, xs = sample.op, operands(sample, dt.float64)
    assert isinstance(op, Composite)
    rng = np.random.default_rng(5)
    outputs = body_of(op, xs)
    dys = tuple(ArrayOperand(rng.normal(size=y.shape)) for y in outputs)
    needs = tuple(x.type.dtype.is_float for x in xs)
    at = Pullback(dys, xs, outputs, needs)
    for declared, derived in zip(op.vjp(at), differentiate_body(op, at), strict=True):
        if declared is not None and derived is not None:
            assert_near(declared.array, derived.array, dt.float64, f"{sample}: gradient")
        else:
            assert declared is derived, f"{sample}: only one of them has the gradient"


@every_composite
def test_body_and_gradient_take_symbolic_extents(cls: type[Composite]) -> None:
    for sample in cls.samples():
        types = harness.types_of(sample.arrays(sample.element_types()[-1]))
        symbols = {d: symbol(f"n{d}", low=2) for t in types for d in t.shape if d > 1}
        xs = tuple(
            TypeOperand(t.with_shape(tuple(symbols.get(d, d) for d in t.shape))) for t in types
        )
        with recording_guards():
            body = expand(sample.op, xs)
            outputs = sample.op.outputs(*xs)
            assert [y.type for y in body] == [y.type for y in outputs], f"{sample}"
            if not cls.no_gradient:
                needs = tuple(x.type.dtype.is_float for x in xs)
                grads = sample.op.vjp(Pullback(outputs, xs, outputs, needs))
                types_of_grads = [g.type if g else None for g in grads]
                wanted = [x.type if g else None for x, g in zip(xs, grads, strict=True)]
                assert types_of_grads == wanted, f"{sample}"
