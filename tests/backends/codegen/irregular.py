"""Runs the lowerings of irregular ops, natively or in the interpreter, as an engine would."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.backends.codegen.execution import RUNNABLE, compiled, standing_in

from treadle.backends.api import Support
from treadle.backends.codegen import lower
from treadle.backends.codegen.kernel import interpret
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.text import kernel_text, symbol_of
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.ops.op import Op, as_tuple

Runner = Callable[[KernelModule, Sequence[Any], int, int], None]
Split = Callable[[int], list[tuple[int, int]]]

HOST = RUNNABLE[-1]
FAMILIES = (GENERIC, AVX2, AVX512)
"""Targets whose kernels every processor tests."""
GUARD = 64
"""Bytes behind every area that must stay as they were."""

_native: dict[tuple[str, str, bool], Runner] = {}
"""By symbol, which equal kernels share, target, and whether that stands in for another."""


def whole(items: int) -> list[tuple[int, int]]:
    return [(0, items)]


def one_by_one(items: int) -> list[tuple[int, int]]:
    """Every item by itself, the last one first."""
    return [(i, i + 1) for i in reversed(range(items))]


def native(target: Target = HOST, stands_in: bool = False) -> Runner:
    def run(kernel: KernelModule, arguments: Sequence[Any], lo: int, hi: int) -> None:
        key = symbol_of(kernel), target.name, stands_in
        if key not in _native:
            _native[key] = compiled([kernel], target, stands_in)
        _native[key](kernel, arguments, lo, hi)

    return run


def interpreted(kernel: KernelModule, arguments: Sequence[Any], lo: int, hi: int) -> None:
    interpret.run(kernel, arguments, lo, hi)


def runner_of(target: Target) -> Runner:
    """Native if any code of this processor can stand for the target's, else the interpreter."""
    how = standing_in(target)
    if how is None:
        return interpreted
    return native(how) if how is target else _standing_in(how)


def _standing_in(target: Target) -> Runner:
    """Kernels of wider vectors, natively but for sums of integers, on which LLVM takes seconds."""

    def run(kernel: KernelModule, arguments: Sequence[Any], lo: int, hi: int) -> None:
        integers = _adds_integers(symbol_of(kernel), kernel)
        runner = interpreted if integers else native(target, stands_in=True)
        runner(kernel, arguments, lo, hi)

    return run


_INTEGER_DOT = re.compile(r"= dot\(.*: int32(x\d+)?$", re.M)
_integers: dict[str, bool] = {}


def _adds_integers(symbol: str, kernel: KernelModule) -> bool:
    if symbol not in _integers:
        _integers[symbol] = bool(_INTEGER_DOT.search(kernel_text(kernel)))
    return _integers[symbol]


def lowered(op: Op, arrays: Sequence[Array], target: Target = HOST) -> Lowered:
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    found = lower.lower(op, types, (), target)
    assert not isinstance(found, Support), found
    return found


def run(
    op: Op,
    arrays: Sequence[Array],
    runner: Runner | None = None,
    split: Split = whole,
    target: Target = HOST,
    in_place: bool = False,
) -> tuple[Array, ...]:
    """The results of the lowered op; with `in_place` it updates a copy of its operand."""
    how = lowered(op, arrays, target)
    types = op.infer(*(TensorType(as_dtype(a.dtype), a.shape) for a in arrays))
    memory = {("input", i): _area(a.nbytes, a) for i, a in enumerate(arrays)}
    memory |= {
        ("output", i): _area(size_of(t.shape) * t.dtype.itemsize) for i, t in enumerate(types)
    }
    memory |= {("workspace", i): _area(n) for i, n in enumerate(how.workspaces)}
    memory |= {("constant", i): _area(a.nbytes, a) for i, a in enumerate(how.constants)}
    if in_place:
        for output, origin in ((o, i) for i, o in how.in_place):
            memory["output", output] = memory["input", origin]
    for launch in how.launches:
        _launch(launch, memory, runner or runner_of(target), split)
    for area in memory.values():
        assert (area[-GUARD:] == 0xA5).all(), "a kernel wrote behind its memory"
    return tuple(_array(memory["output", i], t) for i, t in enumerate(types))


def _area(nbytes: int, holding: Array | None = None) -> Array:
    area = np.full(nbytes + GUARD, 0xA5, np.uint8)
    if holding is not None:
        area[:nbytes] = np.ascontiguousarray(holding).reshape(-1).view(np.uint8)
    return area


def _array(area: Array, type_: TensorType) -> Array:
    shape = tuple(int(d) for d in type_.shape)
    return area[:-GUARD].view(type_.dtype.numpy).reshape(shape).copy()


def _launch(
    launch: Launch, memory: dict[tuple[str, int], Array], runner: Runner, split: Any
) -> None:
    # The interpreter checks bounds: it sees the areas without their guards.
    given = [
        memory[a.kind, a.index][a.offset : -GUARD] if isinstance(a, Ref) else a
        for a in launch.arguments
    ]
    assert len(given) == len(launch.kernel.parameters)
    for lo, hi in split(launch.items):
        runner(launch.kernel, given, lo, hi)


TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 4e-6, "float64": 1e-12}


def check(got: Array, expected: Array, what: str, exact: bool) -> None:
    """Equal bits (or values, for `exact` False: within the rounding of sums)."""
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    if exact or got.dtype.kind in "biu":
        # NumPy knows of no NaN in bfloat16.
        wide = got.dtype if got.dtype.kind in "biu" else np.float64
        np.testing.assert_array_equal(got.astype(wide), expected.astype(wide), err_msg=what)
        return
    tolerance = TOLERANCE[as_dtype(got.dtype).name]
    np.testing.assert_allclose(
        got.astype(np.float64), expected.astype(np.float64), tolerance, tolerance, err_msg=what
    )


def against_reference(
    op: Op, arrays: Sequence[Array], *, exact: bool = True, target: Target = HOST
) -> None:
    """All items at once gives the reference's results; one by one gives the same bits."""
    with np.errstate(all="ignore"):
        expected = as_tuple(op.reference(*arrays))
    results = run(op, arrays, target=target)
    parts = run(op, arrays, split=one_by_one, target=target)
    for got, again, wanted in zip(results, parts, expected, strict=True):
        check(got, wanted, f"{op} {[a.shape for a in arrays]} {arrays[0].dtype}", exact)
        assert got.tobytes() == again.tobytes(), f"{op}: the split changes its bits"


def inside_memory(op: Op, arrays: Sequence[Array], *, exact: bool = True) -> None:
    """The interpreter, which checks every address, gives the reference's results."""
    with np.errstate(all="ignore"):
        expected = as_tuple(op.reference(*arrays))
    for got, wanted in zip(run(op, arrays, interpreted), expected, strict=True):
        check(got, wanted, f"{op} interpreted", exact)


DTYPES = (
    dt.bool_,
    dt.uint8,
    dt.int16,
    dt.int32,
    dt.uint64,
    dt.float16,
    dt.bfloat16,
    dt.float32,
    dt.float64,
)
"""One of every size and kind; widths are what kernels differ in."""


def samples(op: type[Op], dtypes: Sequence[DType] = DTYPES) -> list[tuple[Op, tuple[Array, ...]]]:
    """An op's samples that have elements, as (op, arrays)."""
    found = [
        (sample.op, sample.arrays(dtype))
        for sample in op.samples()
        for dtype in sample.element_types()
        if dtype in dtypes and all(size_of(a.shape) for a in sample.args)
    ]
    assert found
    return found


def check_op(op: type[Op], *, exact: bool = True, dtypes: Sequence[DType] = DTYPES) -> None:
    """All samples natively; those of float32 (or the first type) inside checked memory as well."""
    cases = samples(op, dtypes)
    for one, arrays in cases:
        against_reference(one, arrays, exact=exact)
    first = dt.float32 if any(a[0].dtype == np.float32 for _, a in cases) else None
    for one, arrays in cases:
        if first is None or arrays[0].dtype == np.float32:
            inside_memory(one, arrays, exact=exact)


def draw(shape: Sequence[int], dtype: DType, seed: int, nan: float = 0.0) -> Array:
    """Whole and half numbers with many ties; NaN and -0.0 in a share `nan` of floats each."""
    rng = np.random.default_rng(seed)
    if dtype is dt.bool_:
        return rng.random(tuple(shape)) < 0.5
    low = 0 if dtype.kind == "uint" else -9
    if dtype.is_integer:
        return rng.integers(low, 9, tuple(shape)).astype(dtype.numpy)
    found = (rng.integers(2 * low, 18, tuple(shape)) / 2).astype(dtype.numpy)
    found[rng.random(found.shape) < nan] = np.nan
    found[rng.random(found.shape) < nan] = -0.0
    return found


def indices(shape: Sequence[int], extent: int, seed: int, dtype: DType = dt.int32) -> Array:
    """Indices from both ends; more of them than places repeat some."""
    rng = np.random.default_rng(seed)
    return rng.integers(-extent, extent, tuple(shape)).astype(dtype.numpy)
