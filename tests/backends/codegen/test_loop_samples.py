"""Every op that is computed by loop nests, on its own samples, checked and native."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular
from tests.ops.harness import special_arrays

from treadle.backends.api import Support
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.lowering import LOWERINGS
from treadle.backends.program import Lowered
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.types import TensorType
from treadle.graph.cells import RULES
from treadle.ops import REGISTRY
from treadle.ops.composite import Composite
from treadle.ops.families import Elementwise, Movement, Reduce
from treadle.ops.op import Op, Sample, as_tuple
from treadle.ops.transfer import Identity, StopGradient

OPS = sorted(
    (c for c in REGISTRY.values() if c.__module__.startswith("treadle.")), key=lambda c: c.name
)
LOOPS = [
    c
    for c in OPS
    if issubclass(c, (Elementwise, Reduce, Movement, Composite, *RULES)) and c.name not in LOWERINGS
]
NATIVE = ("int8", "bool")
"""Element types that are compiled here: `tests/backends/cpu/test_every_op.py` has float32."""


def cases(sample: Sample) -> list[tuple[str, tuple[Array, ...]]]:
    kinds = [d for d in sample.element_types() if d.kind != "complex"]
    return [(d.name, sample.arrays(d)) for d in kinds]


def lowered(op: Op, arrays: tuple[Array, ...]) -> Lowered | Support:
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    return lower(op, types, (), irregular.HOST)


@pytest.mark.parametrize("op", LOOPS, ids=lambda c: c.name)
def test_samples_stay_inside_their_memory(op: type[Op]) -> None:
    for sample in op.samples():
        # Addresses depend on the width of elements, and loops on whether they are floats.
        kinds = {(as_dtype(n).itemsize, as_dtype(n).kind): arrays for n, arrays in cases(sample)}
        for arrays in kinds.values():
            found = lowered(sample.op, arrays)
            if isinstance(found, Support):
                assert "complex" in found.message, found
            elif found.launches:
                irregular.inside_memory(sample.op, arrays, exact=False)


@pytest.mark.parametrize("op", LOOPS, ids=lambda c: c.name)
def test_samples_run_natively(op: type[Op]) -> None:
    seen: set[str] = set()
    for sample in op.samples():
        for name, arrays in cases(sample):
            found = lowered(sample.op, arrays)
            # One sample per element type; shapes are the business of the other tests.
            if (
                name in NATIVE
                and name not in seen
                and isinstance(found, Lowered)
                and found.launches
            ):
                seen.add(name)
                whole = irregular.run(sample.op, arrays)
                parts = irregular.run(sample.op, arrays, split=irregular.one_by_one)
                expected = as_tuple(sample.op.reference(*arrays))
                for got, again, wanted in zip(whole, parts, expected, strict=True):
                    irregular.check(got, wanted, f"{sample} {name}", exact=False)
                    assert got.tobytes() == again.tobytes()


SPECIAL = [
    c
    for c in LOOPS
    if issubclass(c, Elementwise) and not issubclass(c, (Composite, Identity, StopGradient))
]


@pytest.mark.parametrize("op", SPECIAL, ids=lambda c: c.name)
def test_special_values(op: type[Op]) -> None:
    sample = op.samples()[0]
    for dtype in sample.element_types():
        given = special_arrays(sample, dtype) if dtype.name in ("float32", "int32") else None
        if given is None or isinstance(lowered(sample.op, given), Support):
            continue
        _same_kind(sample.op, given)


def _same_kind(op: Op, arrays: tuple[Array, ...]) -> None:
    """NaN and infinities where the reference has them; numbers close to its numbers."""
    with np.errstate(all="ignore"):
        (expected,) = as_tuple(op.reference(*arrays))
    (got,) = irregular.run(op, arrays)
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected, err_msg=str(op))
        return
    wide: Any = [x.astype(np.float64) for x in (got, expected)]
    tolerance = 10 * irregular.TOLERANCE[as_dtype(got.dtype).name]
    np.testing.assert_allclose(*wide, tolerance, tolerance, err_msg=f"{op} {arrays[0].dtype}")
