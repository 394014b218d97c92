"""Places that advanced indexing reads and writes: an `Indexing` op's region as rows of a table.

x is seen as [outer, extent, width] and the region as [outer, count, width]: row j of the region
is row `index[j]` of x. One index operand is used as it is; several are first joined to numbers of
rows, in a workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, place, resolve
from treadle.backends.codegen.kernel.builder import numbered
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import Shape, broadcast_shapes, product, row_major_strides
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.gather import Indexing


@dataclass(frozen=True, slots=True)
class RowRegion:
    """Rows of x [outer, extent, width], named by `count` numbers of type `dtype` at `index`.

    `launches` compute the numbers, `workspaces` are what they need for it.
    """

    outer: Dim
    extent: Dim
    width: Dim
    count: Dim
    index: Ref
    dtype: DType
    launches: tuple[Launch, ...] = ()
    workspaces: tuple[Dim, ...] = ()


def region_of(
    op: Indexing, x: TensorType, indices: Sequence[TensorType], first: int, workspace: int = 0
) -> RowRegion:
    """The region that operands number `first` and on name together.

    `workspace` is the number that a workspace of the lowered op gets, where one is needed.
    """
    shape = x.shape
    common = broadcast_shapes(op.name, *(t.shape for t in indices))
    axes, width = op.axes, product(shape[op.axes[-1] + 1 :])
    if len(axes) == 1:
        outer, extent = product(shape[: axes[0]]), shape[axes[0]]
        ref, dtype = Ref("input", first), indices[0].dtype
        return RowRegion(outer, extent, width, product(common), ref, dtype)
    neighbors = axes[-1] - axes[0] == len(axes) - 1
    start = axes[0] if neighbors else 0
    named = shape[start : axes[-1] + 1]
    strides = row_major_strides(named)
    others = [a for a in range(start, axes[-1] + 1) if a not in axes]
    grid = (*common, *(shape[a] for a in others))
    base = (*(0 for _ in common), *(strides[a - start] for a in others))
    target = Ref("workspace", workspace)
    launches = []
    for i, (axis, t) in enumerate(zip(axes, indices, strict=True)):
        steps = (*_steps(t, common), *(0 for _ in others))
        ends = named[axis - start], strides[axis - start]
        numbers = _Numbers(target, Ref("input", first + i), *ends, grid, steps, base)
        kernel = _join_kernel(t.dtype, len(grid), i > 0)
        launches.append(over_rows(kernel, numbers, product(grid), 3.0))
    count, outer = product(grid), product(shape[:start])
    rows = product(named)
    return RowRegion(outer, rows, width, count, target, dt.int64, tuple(launches), (8 * count,))


def _steps(index: TensorType, common: Shape) -> list[Dim]:
    """Strides of an index over the shape that all indices broadcast to."""
    shape = index.shape
    strides = row_major_strides(shape)
    own: list[Dim] = [0 if d == 1 else s for d, s in zip(shape, strides, strict=True)]
    return [0] * (len(common) - len(shape)) + own


class _Numbers(Record[P, S]):
    target: P
    index: P
    extent: S
    stride: S
    grid: tuple[S, ...]
    steps: tuple[S, ...]
    base: tuple[S, ...]


@cache
def _join_kernel(dtype: DType, rank: int, add: bool) -> RecordedKernel:
    """Row numbers of one index, times its stride; the first one adds the axes between indices."""
    e = RowBuilder()
    p = e.record(
        _Numbers[Pointer, Value],
        target=dt.int64,
        index=dtype,
        grid=numbered("n", rank),
        steps=numbered("step", rank),
        base=numbered("base", rank),
    )
    with e.rows(*p.grid) as (row, *at):
        found = p.index[place(at, p.steps)]
        value = resolve(found, p.extent) * p.stride
        already = p.target[row] if add else place(at, p.base)
        p.target[row] = value + already
    return RecordedKernel(e.kernel(f"row_numbers_{dtype.name}_{rank}" + "_add" * add), p)
