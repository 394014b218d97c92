"""Signed zeros, infinities and NaN: kernels give what the oracle gives, whatever the op."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import RUNNABLE, same
from tests.backends.codegen.irregular import run

from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.graph.cells import is_scalar_op
from treadle.ops import REGISTRY
from treadle.ops.families import Elementwise
from treadle.ops.scalar import Scalar

FLOATS = (dt.float16, dt.bfloat16, dt.float32, dt.float64)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 6.0, 1e-7, np.inf, -np.inf, np.nan)
NUMBERS += (0.1, -0.7, 1.9, -4.4, 0.03, -11.0)
ALIASES = ("identity", "stop_gradient")
MOVES = {"input", "const", "cast", "select", "neg", "abs", "min", "max", "clamp"}
EXACT = MOVES | {"add", "sub", "mul", "div", "sqrt", "floor", "ceil", "trunc", "rint", "round"}
EXACT |= {"eq", "ne", "lt", "le", "isnan", "isinf", "and", "or", "xor", "not"}


def codes(expr: Scalar) -> set[str]:
    return {expr.code}.union(*map(codes, expr.args))


def calls(dtype: DType) -> list[tuple[Elementwise, list[np.ndarray]]]:
    """Every elementwise op of floats, on all pairs and triples of special values."""
    found: dict[Elementwise, list[np.ndarray]] = {}
    for cls in REGISTRY.values():
        if not issubclass(cls, Elementwise):
            continue
        for sample in cls.samples():
            op, count = sample.op, len(sample.args)
            if op in found or not is_scalar_op(op) or not 0 < count <= 3 or op.name in ALIASES:
                continue
            wanted = sample.dtypes or cls.dtypes
            if dtype not in wanted or any(a.dtype is not None for a in sample.args):
                continue
            with np.errstate(all="ignore"):
                table = np.array(list(itertools.product(NUMBERS, repeat=count))).astype(dtype.numpy)
            found[op] = [np.ascontiguousarray(column) for column in table.T]
    return list(found.items())


def is_real(op: Elementwise, arrays: list[np.ndarray]) -> bool:
    """Whether the op is one of real numbers."""
    (result,) = op.infer(*(TensorType(as_dtype(a.dtype), a.shape) for a in arrays))
    return result.dtype.kind != "complex"


# The others' code for float64 is that for float32, in half as many lanes.
CASES = [(t, d) for t in RUNNABLE for d in FLOATS if t is RUNNABLE[-1] or d is not dt.float64]


@pytest.mark.parametrize(("target", "dtype"), CASES, ids=lambda v: v.name)
def test_special_values(target: Target, dtype: DType) -> None:
    """To the bit, where an op is exact; functions of real numbers on the host's target."""
    checked, wrong = 0, []
    for op, arrays in calls(dtype):
        is_exact = codes(op.scalar(*(Scalar("input") for _ in arrays))) <= EXACT
        if not is_real(op, arrays) or not (is_exact or target is RUNNABLE[-1]):
            continue
        (got,) = run(op, arrays, target=target)
        with np.errstate(all="ignore"):
            wanted: Any = np.asarray(op.reference(*arrays))
        alike = same(got, wanted) if is_exact else kind(got) == kind(wanted)
        if not is_exact and dtype.itemsize == 2:
            alike &= np.abs(place(got) - place(wanted)) <= 1
        checked += is_exact
        for i in np.flatnonzero(~alike)[:3]:
            wrong.append((op, [float(a[i]) for a in arrays], float(got[i]), float(wanted[i])))
    assert checked > 30 and not wrong


def place(x: np.ndarray) -> np.ndarray:
    """Where a 16-bit float stands among all of them; one place for NaN."""
    bits = x.view(np.int16).astype(np.int64)
    ordered = np.where(bits < 0, -(bits & 0x7FFF), bits)
    return np.where(np.isnan(x.astype(np.float32)), 0, ordered)


def kind(x: np.ndarray) -> np.ndarray:
    """NaN, or the sign with whether it is zero, infinite or neither."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        size = np.select([wide == 0, np.isinf(wide)], [1, 3], 2)
        return np.where(np.isnan(wide), 9, np.where(np.signbit(wide), -size, size))
