"""Costs of layouts: modelled times of the ops that care, and of copies between layouts.

The rates are shares of peak as measured with this package's kernels on a two-core AVX2 machine;
they decide between layouts, not between machines. Those of blocked layouts are the target's: shares
of the channels-last ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.base.estimates import estimate
from treadle.base.shape import product, size_of
from treadle.engine.cost import RATES
from treadle.engine.optimize.algorithms import maps_of
from treadle.engine.optimize.kinds import is_free
from treadle.engine.optimize.layout import ROW_MAJOR, Layout, Sides, is_neutral
from treadle.engine.optimize.layout_forms import is_depthwise
from treadle.graph.ir import Node, Value, constant_of
from treadle.ops.adaptive_pool import AdaptiveAvgPool, AdaptiveWindow
from treadle.ops.conv import Convolution
from treadle.ops.op import Op
from treadle.ops.pool import AverageWindow, AvgPool, MaxPool, MaxWindow
from treadle.ops.resample import Resize, ResizeGrad
from treadle.ops.winograd import Winograd

CPU = RATES["cpu"]
ROWS = 6
"""Channels that a kernel computes side by side, row-major, which are the rows of a tile: what does
not fill them is lost. Channels-last they are its columns, as many as the target says."""
DENSE: Mapping[str, tuple[float, float, float, float]] = {
    "forward": (0.78, 0.88, 0.82, 0.65),
    "input": (0.72, 0.82, 0.72, 0.65),
    "weight": (0.78, 0.78, 0.70, 0.70),
}
"""Share of peak that a convolution or a gradient gets row-major, channels-last, from row-major to
channels-last and the other way round (of the two operands, for the gradient of a weight).
Row-major pays for gathering patches; channels-last reads whole vectors where they lie."""
DEPTHWISE = (0.06, 0.35, 0.06, 0.06)
"""The same with few channels per group: row-major, no vector of neighbors shares a weight unless
it lies in one row of one map."""
FEW = 8
"""Channels per group from which a group is a product of its own."""
SMALL_MAP = 0.9, 64
"""Row-major loses ends of vectors on maps of fewer positions than this."""
PASSES: Mapping[Any, tuple[float, float]] = {
    MaxPool: (1.0, 0.45),
    MaxWindow: (2.0, 0.8),
    AvgPool: (0.8, 0.4),
    AdaptiveAvgPool: (0.4, 0.45),
    AverageWindow: (4.0, 0.6),
    AdaptiveWindow: (4.0, 0.6),
    Resize: (5.0, 1.2),
    ResizeGrad: (2.9, 1.1),
    Op: (5.0, 5.0),
}
"""Times that window ops move their bytes, row-major and channels-last, by the first class that
fits. Row-major, cells that one vector holds belong to windows that overlap or lie apart."""
PAIRS = 0.6
"""Row-major, windows of 2 x 2 that lie side by side are pairs of neighbors in two rows."""


def seconds(node: Node, layouts: Sides) -> float:
    """Modelled time of an op that cares about layouts."""
    nbytes = sum(estimate(v.type.open_nbytes) for v in (*node.inputs, *node.outputs))
    if isinstance(node.op, Convolution):
        moving = nbytes / CPU.bandwidth / (layouts.main.depthwise if is_depthwise(node) else 1.0)
        return CPU.launch + max(_arithmetic(node, node.op, layouts), moving)
    passes = next(p for cls, p in PASSES.items() if isinstance(node.op, cls))
    if isinstance(node.op, MaxWindow) and set(node.op.kernel) == set(node.op.strides) == {2}:
        passes = (min(passes[0], PAIRS), passes[1])
    main = layouts.main
    if main is ROW_MAJOR:
        return CPU.launch + passes[0] * nbytes / CPU.bandwidth
    filled = _filled(int(node.output.type.shape[1]), main) * main.windows
    return CPU.launch + passes[1] * nbytes / CPU.bandwidth / filled


def _filled(channels: int, layout: Layout) -> float:
    """The share of a kernel's rows or columns that channels fill."""
    if layout is ROW_MAJOR:
        side = ROWS
    elif layout.block:
        side = layout.block
    else:
        side = layout.columns
        while side > layout.narrow and channels <= side // 2:
            side //= 2
    return channels / (-(-channels // side) * side)


def _arithmetic(node: Node, op: Convolution, layouts: Sides) -> float:
    """Time of the multiplications of a convolution, or of a gradient of one."""
    which, main = _mixture(layouts), layouts.main
    if isinstance(op, Winograd) and which == 1:
        if op.side == "weight":
            return maps_of(node).winograd_gradient(op.tile) / CPU.flops
        if not main.block:  # Else it is direct.
            return maps_of(node).winograd(op.tile, frozen=True) / CPU.flops
    x, weight, y = op.roles([v.type.shape for v in node.inputs], node.output.type.shape)
    flops = 2 * estimate(product(y)) * size_of(weight[1:])
    columns = int((x if op.side == "input" else y)[1])
    if op.groups > 1 and int(weight[1]) < FEW:
        share = DEPTHWISE[which] * main.depthwise
        share *= _filled(columns, main) if main.block else 1.0
    else:
        share = DENSE[op.side][which] * main.dense
        share *= _filled(columns // op.groups, main if which else ROW_MAJOR)
    if which == 0 and estimate(product(y[2:])) < SMALL_MAP[1]:
        share *= SMALL_MAP[0]
    return flops / (CPU.flops * share)


def _mixture(layouts: Sides) -> int:
    """0 for row-major throughout, 1 for another layout, 2 and 3 for one before the other."""
    used = [x for x in (*layouts.operands, *layouts.results) if x is not None]
    if len(set(used)) == 1:
        return 0 if used[0] is ROW_MAJOR else 1
    return 2 if used[0] is ROW_MAJOR else 3


def conversion(value: Value) -> float:
    """Modelled time of a copy of the value in another layout; none where the memory is the same."""
    if is_neutral(value.type.shape) or constant_of(value) is not None or is_free(value):
        return 0.0
    return CPU.launch + 2 * estimate(value.type.open_nbytes) / CPU.bandwidth
