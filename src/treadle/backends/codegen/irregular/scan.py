"""Running values along an axis: cumulative sums and products, linear recurrences.

Every line is run in order, as the reference does it; lanes and items stand for different lines.
16-bit floats run in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from treadle.backends.codegen.irregular.rows import Arguments, over_rows, row_kernel, walk
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.cumulative import CumProd, CumSum, Cumulative, LinearRecurrence

Step = Callable[[Builder, Value, list[Value]], Value]
"""The next state from the state and the elements at this place of every input."""


def _add(b: Builder, state: Value, at: list[Value]) -> Value:
    return b.add(state, at[0])


def _multiply(b: Builder, state: Value, at: list[Value]) -> Value:
    return b.mul(state, at[0])


def _recur(b: Builder, state: Value, at: list[Value]) -> Value:
    # A product and a sum, rounded one after the other, as the reference does.
    return b.add(at[1], b.mul(at[0], state))


_STEPS: dict[str, Step] = {
    CumSum.name: _add,
    CumProd.name: _multiply,
    LinearRecurrence.name: _recur,
}


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
    refs = [Ref("output", 0), *(Ref("input", i) for i in range(inputs))]
    arguments: Arguments = (*refs, extent, inner, first, step, panels)
    nbytes = (inputs + 1) * product(shape) * x.dtype.itemsize
    launch = over_rows(kernel, arguments, outer * panels, 3 + estimate(extent) * 1.3, nbytes)
    return Lowered((launch,))


@cache
def _kernel(
    name: str, dtype: DType, inputs: int, lanes: int, exclusive: bool, narrow: bool
) -> Kernel:
    """Each row of the launch is `lanes` lines side by side; `narrow`: there are not as many."""
    target, xs = pointer(dtype, "target"), [pointer(dtype, f"x{i}") for i in range(inputs)]
    names = ("extent", "inner", "begin", "step", "panels")
    extent, inner, begin, step, panels = sizes = [size(n) for n in names]
    wide = dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype

    def body(b: Builder, first: Value, stop: Value) -> None:
        def lines(_: Value, outer: Value, panel: Value) -> None:
            # The last panel does some columns again rather than mask every store.
            column = b.min(b.mul(panel, lanes), b.max(b.sub(inner, lanes), 0))
            mask = b.first_lanes(inner, lanes) if narrow else None
            start = b.add(b.add(b.mul(b.mul(outer, extent), inner), column), begin)

            def turn(j: Value, state: Value) -> Value:
                place = b.add(start, b.mul(j, step))
                at = [load_value(x, place, lanes, mask) for x in xs]
                after = _STEPS[name](b, state, at)
                store_value(target, place, state if exclusive else after, mask)
                return after

            unit = b.constant(1 if name == CumProd.name else 0, wide, lanes)
            b.loop(0, extent, 1, turn, (unit,))

        walk(b, first, stop, (panels, panels), lines)

    label = f"{name}_{dtype.name}_{lanes}" + "_exclusive" * exclusive + "_narrow" * narrow
    return row_kernel(label, (target, *xs, *sizes), body)
