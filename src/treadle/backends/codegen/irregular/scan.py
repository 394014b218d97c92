"""Running values along an axis: cumulative sums and products, linear recurrences.

Every line is run in order, as the reference does it; lanes and items stand for different lines.
16-bit floats run in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, RowCost, over_rows
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import compute_dtype, load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.cumulative import CumProd, CumSum, Cumulative, LinearRecurrence

_STEPS: dict[str, Callable[[Value, list[Value]], Value]] = {
    CumSum.name: lambda state, at: state + at[0],
    CumProd.name: lambda state, at: state * at[0],
    # A product and a sum, rounded one after the other, as the reference does.
    LinearRecurrence.name: lambda state, at: at[1] + at[0] * state,
}
"""The next state from the state and the elements at this place of every input."""


@lowers(CumSum, CumProd)
def lower_cumulative(
    op: Cumulative, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """One state per line, 0 or 1 at first."""
    return _lowered(op.name, op.axis, types[0], 1, op.reverse, op.exclusive, target)


@lowers(LinearRecurrence)
def lower_recurrence(
    op: LinearRecurrence, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """One state per line, 0 at first."""
    return _lowered(op.name, op.axis, types[0], 2, op.reverse, False, target)


def _lowered(
    name: str, axis: int, x: TensorType, inputs: int, reverse: bool, exclusive: bool, target: Target
) -> Lowered:
    """x as [outer, extent, inner]: lanes are neighbors over inner."""
    shape = x.shape
    axis %= len(shape)
    outer, extent, inner = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    lanes = target.lanes(x.dtype) if inner > 1 else 1
    kernel = _kernel(name, x.dtype, inputs, lanes, exclusive, inner < lanes)
    panels = -(-inner // lanes)
    # From the last element on, the same walk has a negative step.
    first: Dim = (extent - 1) * inner if reverse else 0
    step = -inner if reverse else inner
    xs = tuple([Ref("input", i) for i in range(inputs)])
    given = _ScannedLines(Ref("output", 0), xs, extent, inner, first, step, panels)
    nbytes = (inputs + 1) * product(shape) * x.dtype.itemsize
    launch = over_rows(kernel, given, outer * panels, RowCost(3, 1.3, extent), nbytes)
    return Lowered((launch,))


class _ScannedLines(Record[P, S]):
    target: P
    xs: tuple[P, ...]
    extent: S
    inner: S
    begin: S
    step: S
    panels: S


@cache
def _kernel(
    name: str, dtype: DType, inputs: int, lanes: int, exclusive: bool, narrow: bool
) -> RecordedKernel:
    """Return the kernel; a row of the launch is `lanes` lines; `narrow`: fewer than `lanes`."""
    e, wide = RowBuilder(), compute_dtype(dtype)
    p = e.record(
        _ScannedLines[Pointer, Value],
        target=dtype,
        xs=lambda: tuple([e.pointer(dtype, f"x{i}") for i in range(inputs)]),
    )
    with e.rows(p.panels, p.panels) as (_, outer, panel):
        # The last panel does some columns again rather than mask every store.
        column = minimum(panel * lanes, maximum(p.inner - lanes, 0))
        mask = e.first_lanes(p.inner, lanes) if narrow else None
        start = outer * p.extent * p.inner + column + p.begin
        state = [e.constant(1 if name == CumProd.name else 0, wide, lanes)]
        with e.loop(p.extent, carrying=state) as j:
            place = start + j * p.step
            at = [load_value(x, place, lanes, mask) for x in p.xs]
            before, state[0] = state[0], _STEPS[name](state[0], at)
            store_value(p.target, place, before if exclusive else state[0], mask)
    label = f"{name}_{dtype.name}_{lanes}" + "_exclusive" * exclusive + "_narrow" * narrow
    return RecordedKernel(e.kernel(label), p)
