"""Pooling and resizing of channels-last arrays: groups of one op and the moves around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_tables import (
    WindowAxis,
    arguments_of,
    covered,
    is_open,
    is_tiling,
    table_of,
    with_table,
)
from treadle.backends.codegen.irregular.pooling import Axes, open_windows, windows_of
from treadle.backends.codegen.irregular.resample import lower_resize_last
from treadle.backends.codegen.irregular.rows import over_rows
from treadle.backends.codegen.irregular.window_grad_kernels import (
    AveragesParameters,
    MaximaParameters,
    averages_grad_kernel,
    maxima_grad_kernel,
)
from treadle.backends.codegen.irregular.window_kernels import Kind, WindowParameters, window_kernel
from treadle.backends.codegen.irregular.window_parts import VolumeRecord, WindowConfig, volume_of
from treadle.backends.codegen.lowering import LOWERINGS
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Strided, sizes_of, strided_input, strided_output
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node
from treadle.ops.adaptive_pool import AdaptiveMaxPool
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.pool import GatherAtMaxima, MaxPool, Pooling, ScatterToMaxima, SpreadAverages
from treadle.ops.precision import compute_type
from treadle.ops.resample import Interpolation, Resize, ResizeGrad

_PARTS = 8
"""Images, or strips of images, that keep a handful of threads busy."""


def _lower_fused(
    op: Fused, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    if not isinstance(op.body, Graph):
        return no("op", "the body of the group is not a graph")
    found = _read(op.body)
    if isinstance(found, Support):
        return found
    node, given, result = found
    if isinstance(node.op, Pooling):
        return _Pool(node.op, node.inputs[0].type, given, result, target).lowered()
    (x,) = given
    whole = is_channels_last(x) and is_channels_last(result)
    if not whole or not isinstance(node.op, (Resize, ResizeGrad)):
        return no("layout", f"{node.op.name} takes whole maps, in order")
    return lower_resize_last(node.op, node.inputs[0].type, Ref("input", x.index), target)


LOWERINGS["fused.window"] = _lower_fused


def _read(body: Graph) -> tuple[Node, list[Strided], Strided] | Support:
    """The one window op of a body, and where its operands and its result lie, as [N,C,*S]."""
    anchors = [node for node in body.nodes if isinstance(node.op, (Pooling, Interpolation))]
    if len(anchors) != 1 or len(body.outputs) != 1:
        return no("op", "a window group has one pooling op and one result")
    (node,) = anchors
    inputs = [strided_input(body, value) for value in node.inputs]
    given = [view for view in inputs if view is not None]
    found = strided_output(body, 0)
    if len(given) < len(inputs) or found is None or found[0] is not node.output:
        return no("op", "something is computed beside the pooling op of a window group")
    views = (*given, found[1])
    if any(view.shape[1] > 1 and not is_identical(view.strides[1], 1) for view in views):
        return no("layout", "channels of an operand or of the result are not neighbors")
    return node, given, found[1]


def is_channels_last(view: Strided) -> bool:
    """Return whether maps [N,C,*S] are whole and dense as [N,*S,C]."""
    moved = view.after(Transpose((0, *range(2, len(view.shape)), 1)))
    return moved is not None and moved.is_dense and is_identical(view.offset, 0)


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pooling op, the type of its first operand, views [N,C,*S] of operands and result."""

    op: Pooling
    x: TensorType
    given: Sequence[Strided]
    result: Strided
    target: Target

    def lowered(self) -> Lowered | Support:
        """The launches."""
        op = self.op
        if is_open(self.x.shape[2:]) or is_open(self.result.shape[2:]):
            return self._open()
        if isinstance(op, SpreadAverages):
            return self._averages_grad(windows_of(op, op.spatial)[1])
        axes = windows_of(op, self.x.shape[2:])[1]
        if isinstance(op, ScatterToMaxima):
            return self._maxima_grad(axes)
        return self._forward(axes)

    def _open(self) -> Lowered | Support:
        """The launches over planes whose extents are expressions."""
        op = self.op
        if isinstance(op, (SpreadAverages, ScatterToMaxima)):
            return no("dynamic-shape", "gradients of symbolic planes are computed row-major")
        return self._forward(open_windows(op, self.x.shape[2:]))

    def _spec(self, axes: Axes, vectors: int, *, adds: bool = False) -> WindowConfig:
        lanes = self.target.lanes(self.x.dtype)
        channels = int(self.x.shape[1])
        first = axes[0]
        deep = not is_identical(first.extent, 1) or not is_identical(first.count, 1)
        if not deep and isinstance(first, WindowAxis):
            deep = first.windows[:, :2].tolist() != [[0, 1]]
        masked = channels < lanes or (adds and channels % lanes != 0)
        vectors *= self.target.registers // 16
        vectors = max(min(vectors, channels // lanes), 1)
        return WindowConfig(self.x.dtype, lanes, vectors, deep, masked)

    def _volumes(self, out: Ref) -> list[VolumeRecord[Ref, Dim]]:
        """The result, then the operands."""
        size = self.x.dtype.itemsize
        made = [volume_of(out, self.result, 4 if out.kind == "workspace" else size)]
        return made + [volume_of(Ref("input", v.index), v, size) for v in self.given]

    @property
    def _kind(self) -> Kind:
        if isinstance(self.op, GatherAtMaxima):
            return "gather"
        return "max" if isinstance(self.op, (MaxPool, AdaptiveMaxPool)) else "average"

    def _forward(self, axes: Axes) -> Lowered:
        kind = self._kind
        spec = self._spec(axes, 4 if kind != "gather" else 2)
        n, channels = sizes_of(self.x.shape[:2])
        rows = n * axes[0].count * axes[1].count
        count = estimate(axes[2].count)
        cells = count * _cells(axes)
        cost = count * 5 + cells * -(-channels // spec.lanes)
        to, *operands = self._volumes(Ref("output", 0))
        given = WindowParameters(to, (*operands,), channels, arguments_of(axes))
        launch = over_rows(window_kernel(kind, spec), given, rows, cost)
        return with_table(axes, Lowered((launch,)))

    def _maxima_grad(self, axes: Sequence[WindowAxis]) -> Lowered:
        tiled = is_tiling(axes)
        spec = self._spec(axes, 4, adds=not tiled)
        n, channels = sizes_of(self.x.shape[:2])
        wide, count = compute_type(self.x.dtype), product(self.x.shape)
        half = wide is not self.x.dtype and not tiled
        sums = Ref("workspace", 0) if half else Ref("output", 0)
        height = axes[1].extent
        # A strip has a few rows of windows: those at its edges belong to its neighbors, too. Along
        # depth, the order of a window's cells leads through all strips.
        strip = height
        if not spec.deep:
            strip = max(
                -(-height // max(_PARTS // estimate(n), 1)), 4 * -(-height // axes[1].count)
            )
        strips = -(-height // strip)
        kept = wide if half else self.x.dtype
        kernel = maxima_grad_kernel(spec, kept, tiled=tiled, strips=strips > 1)
        cells = float(np.prod([a.count for a in axes])) * _cells(axes) / strips
        cost = cells * 4 * -(-channels // spec.lanes)
        to, x, dy = self._volumes(sums)
        sizes, covers = (channels, strip, strips), Ref("constant", 1)
        given = MaximaParameters(to, x, dy, covers, *sizes, arguments_of(axes))
        launches: tuple[Launch, ...] = (over_rows(kernel, given, n * strips, cost),)
        if half:
            launches += (
                convert(Ref("output", 0), sums, self.x.dtype, dt.float32, count, self.target),
            )
        constants = table_of(axes), table_of(covered(axes)[1:2])
        return Lowered(launches, (4 * count,) if half else (), constants)

    def _averages_grad(self, axes: Sequence[WindowAxis]) -> Lowered:
        cells = covered(axes)
        spec = self._spec(cells, 4)
        n, channels = sizes_of(self.x.shape[:2])
        counts = np.concatenate([np.maximum(a.windows[:, 2], 1) for a in axes])
        rows = n * cells[0].count * cells[1].count
        cost = cells[2].count * (5 + 2 * _cells(cells) * -(-channels // spec.lanes))
        to, dy = self._volumes(Ref("output", 0))
        given = AveragesParameters(to, dy, Ref("constant", 1), channels, arguments_of(cells))
        launch = over_rows(averages_grad_kernel(spec), given, rows, cost)
        return Lowered((launch,), constants=(table_of(cells), counts.astype(spec.wide.numpy)))


def _cells(axes: Axes) -> float:
    """About how many cells a window has."""
    return float(np.prod([a.cells for a in axes]))
