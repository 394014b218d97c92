"""Boxes and regions of images: which boxes to keep, which cells hold the maxima of regions.

Both ops give positions, which have no gradient; values are gathered from there.
"""

from __future__ import annotations

import itertools

import numpy as np

from treadle.base import dtype as dt
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.base.shape import Shape, is_static, require_equal
from treadle.base.symbol import Dim, symbol
from treadle.base.types import TensorType
from treadle.ops.index_numpy import typed
from treadle.ops.op import Array, Op, op
from treadle.ops.sample import Arg, BadSample, Sample

_FRESH = itertools.count()


@op
class NonMaxSuppression(Op):
    """Boxes [n,4] as (x0, y0, x1, y1) that no better box covers: int32 [count], best score first.

    In the order of scores [n], a box is kept if the intersection over union with every box kept
    before is at most `threshold`; `most` limits how many are kept (None for all).
    """

    threshold: float
    most: int | None = None

    name = "non_max_suppression"
    operands = ("boxes", "scores")
    dtypes = dt.FLOATS
    no_gradient = "gives positions, which are integers"

    def infer(self, boxes: TensorType, scores: TensorType) -> tuple[TensorType, ...]:
        types = boxes, scores
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_ndim(types, 0, 2)
        self.check_ndim(types, 1, 1)

        def misfit() -> ShapeError:
            return self.error("takes boxes [n,4] and scores [n]", types, "give a score per box")

        require_equal(boxes.shape[1], 4, misfit)
        require_equal(boxes.shape[0], scores.shape[0], misfit)
        count = boxes.shape[0]
        limits = [int(d) for d in (count,) if is_static((d,))]
        limits += [] if self.most is None else [self.most]
        kept: Dim = symbol(f"nms{next(_FRESH)}", 0, min(limits, default=None))
        return (TensorType(dt.int32, (0 if limits and min(limits) == 0 else kept,), boxes.device),)

    def reference(self, boxes: Array, scores: Array) -> Array:
        wide = boxes.astype(np.float64)
        areas = (wide[:, 2] - wide[:, 0]) * (wide[:, 3] - wide[:, 1])
        left = np.argsort(-scores.astype(np.float64), kind="stable")
        kept: list[int] = []
        while left.size and (self.most is None or len(kept) < self.most):
            best, rest = left[0], left[1:]
            kept.append(int(best))
            low = np.maximum(wide[best, :2], wide[rest, :2])
            high = np.minimum(wide[best, 2:], wide[rest, 2:])
            shared = np.prod(np.maximum(high - low, 0), axis=1)
            # Without a division, boxes without an area cover nothing.
            left = rest[shared <= self.threshold * (areas[best] + areas[rest] - shared)]
        return np.array(kept, np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        three = ((0, 0, 4, 4), (1, 0, 5, 4), (8, 8, 9, 9))
        two = Arg((3, 4), values=three), Arg((3,), values=(0.5, 0.75, 0.25))
        none = Arg((0, 4)), Arg((0,))
        one = Arg((1, 4), values=((0, 0, 0, 0),)), Arg((1,))
        calls = ((cls(0.5), two), (cls(0.9, 2), two), (cls(0.5), none), (cls(0.5), one))
        return tuple(Sample(op_, args) for op_, args in calls)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0.5), (Arg((3, 4)), Arg((2,))), ShapeError, "boxes [n,4]"),
            BadSample(lambda: cls(0.5), (Arg((3, 5)), Arg((3,))), ShapeError, "boxes [n,4]"),
        )


@op
class RegionArgmax(Op):
    """Positions of the maxima of a grid over regions of x [N,C,H,W]: int32 [K,C,*grid].

    rois [K,5] are (image, x0, y0, x1, y1); times `scale` and rounded (halves away from 0) they
    name the first and last cell. Part i of m covers floor(i n / m) to ceil((i + 1) n / m) of the
    region's n cells. Positions count the cells of x in row-major order; -1 stands for a part that
    lies outside of the image.
    Source: Girshick, "Fast R-CNN", 2015.
    """

    grid: Shape
    scale: float = 1.0

    name = "region_argmax"
    operands = ("x", "rois")
    dtypes = dt.FLOATS
    no_gradient = "gives positions, which are integers"

    def infer(self, x: TensorType, rois: TensorType) -> tuple[TensorType, ...]:
        types = x, rois
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_ndim(types, 0, 4)
        self.check_ndim(types, 1, 2)
        require_equal(
            rois.shape[1],
            5,
            lambda: self.error("rois are [K,5]", types, "put the image's number before the box"),
        )
        if len(self.grid) != 2 or any(isinstance(d, int) and d < 1 for d in self.grid):
            raise self.error(f"the grid {self.grid} is not (rows, columns)", types, "use (7, 7)")
        shape = (rois.shape[0], x.shape[1], *self.grid)
        return (TensorType(dt.int32, shape, x.device),)

    def reference(self, x: Array, rois: Array) -> Array:
        n, channels, height, width = x.shape
        rows, columns = (int(d) for d in self.grid)
        out = np.full((len(rois), channels, rows, columns), -1, np.int32)
        planes = np.arange(channels) * (height * width)
        for k, roi in enumerate(rois.astype(np.float64)):
            if not -1 < roi[0] < n:  # NaN is no number of an image either.
                raise IndexRangeError(
                    self.name,
                    f"image {roi[0]:.10g} is out of range for {n} images",
                    saw=self.saw(typed((x, rois))),
                    hint="column 0 of rois numbers the images from 0",
                )
            image, scaled = int(roi[0]), roi[1:] * self.scale
            x0, y0, x1, y1 = (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(int)
            spans = _parts(y0, y1, rows, height), _parts(x0, x1, columns, width)
            for (i, (top, end)), (j, (left, right)) in itertools.product(*map(enumerate, spans)):
                if top >= end or left >= right:
                    continue
                span = (end - top) * (
                    right - left
                )  # NumPy finds no -1 where there are no channels.
                part = x[image, :, top:end, left:right].reshape(channels, span)
                best = part.argmax(1)
                at = (top + best // (right - left)) * width + left + best % (right - left)
                out[k, :, i, j] = image * channels * height * width + planes + at
        return out

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        x, both = Arg((2, 2, 6, 5), distinct=True), ((0, 0, 0, 3, 4), (1, 1, 2, 9, 3))
        return (
            Sample(cls((2, 2)), (x, Arg((2, 5), values=both))),
            Sample(cls((1, 3), 0.5), (x, Arg((1, 5), values=((1, 0, 0, 8, 8),)))),
            Sample(cls((2, 2)), (x, Arg((0, 5)))),
            Sample(cls((1, 1)), (Arg((1, 1, 1, 1)), Arg((1, 5), values=((0, 0, 0, 0, 0),)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, outside = Arg((1, 1, 3, 3)), Arg((1, 5), values=((4, 0, 0, 1, 1),))
        return (
            BadSample(lambda: cls((2, 2)), (x, outside), IndexRangeError, "image 4 is out of"),
            BadSample(lambda: cls((2, 2)), (x, Arg((1, 4))), ShapeError, "rois are [K,5]"),
            BadSample(lambda: cls((0, 2)), (x, outside), ShapeError, "is not (rows, columns)"),
        )


def _parts(first: int, last: int, count: int, extent: int) -> list[tuple[int, int]]:
    """First cell and the one behind the last of each part of a region, within the image."""
    cells = max(last - first + 1, 1)
    edges = [(first + i * cells // count, first - -(i + 1) * cells // count) for i in range(count)]
    return [(min(max(a, 0), extent), min(max(b, 0), extent)) for a, b in edges]
