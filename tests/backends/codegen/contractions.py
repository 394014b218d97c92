"""Runs lowered contractions as an engine would and compares them with NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.backends.codegen.irregular import (
    GUARD,
    HOST,
    Array,
    Runner,
    Split,
    _area,
    _array,
    _launch,
    interpreted,
    one_by_one,
    runner_of,
    whole,
)

from treadle.backends.api import Support
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered
from treadle.base.dtype import DType, as_dtype
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.ops.fused import Fused
from treadle.ops.op import Op, as_tuple


def types_of(arrays: Sequence[Array]) -> tuple[TensorType, ...]:
    return tuple(TensorType(as_dtype(a.dtype), a.shape) for a in arrays)


def fused(function: Any, arrays: Sequence[Array]) -> Fused:
    """A contraction group whose body a function over operands writes."""
    return Fused("contraction", trace_body(function, types_of(arrays)))


def lowered(
    op: Op, arrays: Sequence[Array], frozen: Sequence[bool] = (), target: Target = HOST
) -> Lowered:
    how = lower(op, types_of(arrays), frozen, target)
    assert not isinstance(how, Support), how
    return how


def run(
    op: Op,
    arrays: Sequence[Array],
    runner: Runner | None = None,
    split: Split = whole,
    frozen: Sequence[bool] = (),
    target: Target = HOST,
) -> tuple[Array, ...]:
    """The op's results; every area has a guard behind it that must survive."""
    how = lowered(op, arrays, frozen, target)
    types = op.infer(*types_of(arrays))
    memory = {("input", i): _area(a.nbytes, a) for i, a in enumerate(arrays)}
    memory |= {
        ("output", i): _area(size_of(t.shape) * t.dtype.itemsize) for i, t in enumerate(types)
    }
    memory |= {("workspace", i): _area(n) for i, n in enumerate(how.workspaces)}
    memory |= {("kept", i): _area(n) for i, n in enumerate(how.kept)}
    memory |= {("constant", i): _area(a.nbytes, a) for i, a in enumerate(how.constants)}
    for launch in (*how.prelude, *how.launches):
        _launch(launch, memory, runner or runner_of(target), split)
    for area in memory.values():
        assert (area[-GUARD:] == 0xA5).all(), "a kernel wrote behind its memory"
    return tuple(_array(memory["output", i], t) for i, t in enumerate(types))


def values(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    """Random numbers of order one, or any 8-bit integers."""
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max + 1, shape, dtype=dtype.numpy)
    return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)


def bound(dtype: DType, terms: int) -> float:
    """Largest error of a sum of so many products of order one: rounding at every step."""
    step = {"float64": 2.0**-52, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    sums = 2.0**-52 if dtype.name == "float64" else 2.0**-23
    size = 8 * np.sqrt(terms) + 8
    return float(size * (sums * np.sqrt(terms) * 4 + step.get(dtype.name, 2.0**-23)))


def close(got: Array, wanted: Array, terms: int, like: DType, what: object = "") -> None:
    """`like` is the type of the operands; results may be of a finer one."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, what
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted, err_msg=str(what))
        return
    limit = max(bound(as_dtype(got.dtype), terms), 0 if like.is_integer else bound(like, terms))
    np.testing.assert_allclose(
        got.astype(np.float64), wanted.astype(np.float64), 0, limit, err_msg=str(what)
    )


def check(
    op: Op,
    arrays: Sequence[Array],
    terms: int,
    frozen: Sequence[bool] = (),
    runner: Runner | None = None,
    target: Target = HOST,
) -> tuple[Array, ...]:
    """The oracle's results within the rounding of sums, and the same bits for every split."""
    with np.errstate(all="ignore"):
        expected = as_tuple(op.reference(*arrays))
    found = run(op, arrays, runner, whole, frozen, target)
    for got, wanted in zip(found, expected, strict=True):
        close(got, wanted, terms, as_dtype(arrays[0].dtype), op)
    if runner is not interpreted:
        again = run(op, arrays, runner, one_by_one, frozen, target)
        assert [x.tobytes() for x in found] == [x.tobytes() for x in again], "the split counts"
    return found
