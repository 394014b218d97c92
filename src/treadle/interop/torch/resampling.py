"""Images of ATen with other extents: nearest, between neighbors, smoothed when they shrink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops.gather import IndexAdd, Take
from treadle.ops.matmul import Matmul
from treadle.ops.resample import Resize

V = GraphOperand


@lowers("upsample_bilinear2d.vec", "upsample_bilinear2d.default")
def _upsample(call: OperatorCall, x: V, size: Any, align_corners: bool, *rest: Any) -> V:
    scales = next((r for r in rest if isinstance(r, (list, tuple))), [r for r in rest if r])
    exact = zip(call.shape[2:], extents(x)[2:], scales, strict=False)
    if not align_corners and any(m != n * s for m, n, s in exact):
        raise NotImplementedError("a scale that is not the ratio of the extents")
    places = "align_corners" if align_corners else "half_pixel"
    return Resize("linear", places, call.shape[2:])(x)


@lowers(
    "upsample_nearest1d.vec",
    "upsample_nearest1d.default",
    "upsample_nearest2d.vec",
    "upsample_nearest2d.default",
    "upsample_nearest3d.vec",
    "upsample_nearest3d.default",
)
def _upsample_nearest(call: OperatorCall, x: V, size: Any, *scales: Any) -> V:
    given = scales[0] if scales and isinstance(scales[0], (list, tuple)) else scales
    return _at_nearest(call, x, given, 0.0)


@lowers(
    "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact1d.default",
    "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact2d.default",
    "_upsample_nearest_exact3d.vec",
    "_upsample_nearest_exact3d.default",
)
def _upsample_exact(call: OperatorCall, x: V, size: Any, *scales: Any) -> V:
    given = scales[0] if scales and isinstance(scales[0], (list, tuple)) else scales
    return _at_nearest(call, x, given, 0.5)


def _nearest(count: int, wide: int, step: float | None, offset: float) -> Any:
    """Cells of so many that so many places read; as PyTorch, by steps of float32."""
    ratio = np.float32(1 / step if step else count / wide)
    cells = np.floor((np.arange(wide, dtype=np.float32) + np.float32(offset)) * ratio)
    return np.minimum(cells.astype(np.int64), count - 1)


def _at_nearest(call: OperatorCall, x: V, scales: Any, offset: float) -> V:
    steps = list(scales) if scales and any(scales) else [None] * (x.type.ndim - 2)
    for axis, step in enumerate(steps, 2):
        cells = _nearest(extents(x)[axis], call.shape[axis], step, offset)
        x = Take(axis)(x, call.builder.constant(cells))
    return x


def _spread_back(call: OperatorCall, dy: V, offset: float, scales: Sequence[Any]) -> V:
    """The gradient of reading the nearest cells."""
    steps = list(scales) if scales and any(scales) else [None] * (len(call.shape) - 2)
    for axis, step in enumerate(steps, 2):
        cells = _nearest(call.shape[axis], extents(dy)[axis], step, offset)
        shape = (*extents(dy)[:axis], call.shape[axis], *extents(dy)[axis + 1 :])
        zeros = dy.constant(0).broadcast_to(shape)
        dy = IndexAdd((axis,))(zeros, dy, call.builder.constant(cells))
    return dy


@lowers(
    "upsample_nearest1d_backward.default",
    "upsample_nearest2d_backward.default",
    "upsample_nearest3d_backward.default",
)
def _upsample_nearest_backward(call: OperatorCall, dy: V, size: Any, given: Any, *scales: Any) -> V:
    return _spread_back(call, dy, 0.0, scales)


@lowers(
    "_upsample_nearest_exact1d_backward.default",
    "_upsample_nearest_exact2d_backward.default",
    "_upsample_nearest_exact3d_backward.default",
)
def _upsample_exact_backward(call: OperatorCall, dy: V, size: Any, given: Any, *scales: Any) -> V:
    return _spread_back(call, dy, 0.5, scales)


# -- smoothed ----------------------------------------------------------------------------------


def _triangle(x: Any) -> Any:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: Any) -> Any:
    """Keys' cubic with -1/2, as of Pillow."""
    x = np.abs(x)
    inner = (1.5 * x - 2.5) * x * x + 1
    outer = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, inner, np.where(x < 2, outer, 0))


def _lanczos(x: Any) -> Any:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_FILTERS = {"bilinear": (_triangle, 1), "bicubic": (_cubic, 2), "lanczos": (_lanczos, 3)}
"""By what operators are called: a filter, and how far it reaches."""


def _smoothing(name: str, count: int, wide: int, aligned: bool, scale: float | None) -> Any:
    """[wide, count]: the shares of cells in places; a filter as wide as a step, if that shrinks."""
    filtered, reach = next(v for k, v in _FILTERS.items() if k in name)
    step = 1 / scale if scale and not aligned else count / wide
    if aligned:
        step = (count - 1) / (wide - 1) if wide > 1 else 0.0
    spread = max(step, 1.0)
    centers = step * (np.arange(wide) + 0.5)[:, None]
    first = np.maximum((centers - reach * spread + 0.5).astype(np.int64), 0)
    stop = np.minimum((centers + reach * spread + 0.5).astype(np.int64), count)
    cells = np.arange(count)[None]
    shares = filtered((cells - centers + 0.5) / spread) * ((cells >= first) & (cells < stop))
    total = shares.sum(1, keepdims=True)
    return shares / np.where(total == 0, 1, total)


def _matrices(
    call: OperatorCall, given: Sequence[int], wide: Sequence[int], rest: Any
) -> list[Any]:
    aligned, *scales = rest
    if scales and isinstance(scales[0], (list, tuple)):
        scales = list(scales[0])
    scales = scales if len(scales) == 2 else [None, None]
    axes = zip(given, wide, scales, strict=True)
    return [_smoothing(call.name, n, m, bool(aligned), scale) for n, m, scale in axes]


def _between(x: V, rows: Any, columns: Any) -> V:
    """A matrix times the images times another one."""
    kind = x.type.dtype.numpy
    first = Matmul()(x, x.builder.constant(np.asarray(columns.T, kind)))
    return Matmul()(x.builder.constant(np.asarray(rows, kind)), first)


@lowers(
    "_upsample_bilinear2d_aa.default",
    "_upsample_bilinear2d_aa.vec",
    "_upsample_bicubic2d_aa.default",
    "_upsample_bicubic2d_aa.vec",
    "_upsample_lanczos2d_aa.default",
    "_upsample_lanczos2d_aa.vec",
)
def _smoothed(call: OperatorCall, x: V, size: Any, *rest: Any) -> V:
    return _between(x, *_matrices(call, extents(x)[2:], call.shape[2:], rest))


@lowers(
    "_upsample_bilinear2d_aa_backward.default",
    "_upsample_bicubic2d_aa_backward.default",
    "_upsample_lanczos2d_aa_backward.default",
)
def _smoothed_backward(call: OperatorCall, dy: V, size: Any, given: Any, *rest: Any) -> V:
    rows, columns = _matrices(call, call.shape[2:], extents(dy)[2:], rest)
    return _between(dy, rows.T, columns.T)
