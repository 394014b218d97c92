"""Boxes and regions of images: which boxes to keep, maxima and means of the parts of regions.

Boxes and maxima are positions, which have no gradient; values are gathered from there.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.shape import Shape, require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.gather import Index
from treadle.ops.index_numpy import check_indices, typed
from treadle.ops.movement import Reshape
from treadle.ops.op import BadSample, IndexRange, Op, Sample, op
from treadle.ops.reduce import Mean, Sum


@op
class KeptBoxes(Op):
    """Boxes that no better box covers, best score first: int32 [B,C,N], -1 behind the last one.

    Of boxes [B,N,4] as (x0, y0, x1, y1) with scores [B,C,N], those of every image and class are
    visited in `order` [B,C,N], the positions that sort the scores downwards, until one does not
    exceed `least` (None: all are visited). A box is kept if the intersection over union with every
    one kept before is at most `threshold`, up to `most` boxes (None: any number).
    """

    threshold: float
    most: int | None = None
    least: float | None = None

    name = "kept_boxes"
    operands = ("boxes", "scores", "order")
    dtypes = (dt.float32, dt.float64)
    work = "data"
    no_gradient = "gives positions, which are integers"

    def infer(
        self, boxes: TensorType, scores: TensorType, order: TensorType
    ) -> tuple[TensorType, ...]:
        types = boxes, scores, order
        self.check_dtype(types[:2])
        self.check_same_dtype(types[:2])
        if order.dtype is not dt.int32:
            hint = "take the indices that `sort` gives"
            raise DTypeError(self.name, "the order is of int32", saw=self.saw(types), hint=hint)
        for i in range(3):
            self.check_ndim(types, i, 3)

        def misfit() -> ShapeError:
            problem = "takes boxes [B,N,4], scores and order [B,C,N]"
            return self.error(problem, types, "give every class a score for every box")

        require_equal(boxes.shape[2], 4, misfit)
        for axis, extent in ((0, boxes.shape[0]), (2, boxes.shape[1])):
            require_equal(scores.shape[axis], extent, misfit)
        for mine, other in zip(scores.shape, order.shape, strict=True):
            require_equal(mine, other, misfit)
        return (order,)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        return ((2, 0, types[0].shape[1]),)

    def reference(self, boxes: Array, scores: Array, order: Array) -> Array:
        check_indices(self, (boxes, scores, order))
        kept = np.full(scores.shape, -1, np.int32)
        for image, label in np.ndindex(*scores.shape[:2]):
            left = order[image, label]
            if self.least is not None:
                passed = scores[image, label, left] > self.least
                left = left[: len(left) if passed.all() else passed.argmin()]
            found = _kept(boxes[image], left, self.threshold, self.most)
            kept[image, label, : len(found)] = found
        return kept

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        boxes = (((0, 0, 4, 4), (1, 0, 5, 4), (8, 8, 9, 9)),)
        scores = (((0.5, 0.75, 0.25), (0.25, 0.5, 0.75)),)
        order = (((1, 0, 2), (2, 1, 0)),)
        three = (
            Arg((1, 3, 4), values=boxes),
            Arg((1, 2, 3), values=scores),
            Arg((1, 2, 3), dt.int32, values=order),
        )
        none = Arg((2, 0, 4)), Arg((2, 1, 0)), Arg((2, 1, 0), dt.int32)
        one = Arg((1, 1, 4)), Arg((1, 1, 1)), Arg((1, 1, 1), dt.int32, values=(((0,),),))
        calls = ((cls(0.5), three), (cls(0.9, 2, 0.3), three), (cls(0.5), none), (cls(0.5), one))
        return tuple(Sample(op_, args) for op_, args in calls)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        boxes, scores, order = Arg((1, 3, 4)), Arg((1, 1, 3)), Arg((1, 1, 3), dt.int32)
        few, far = Arg((1, 1, 2)), Arg((1, 1, 3), dt.int32, values=(((0, 3, 1),),))
        return (
            BadSample(lambda: cls(0.5), (boxes, scores, far), IndexRangeError, "index 3 is out"),
            BadSample(lambda: cls(0.5), (boxes, few, order), ShapeError, "takes boxes"),
            BadSample(lambda: cls(0.5), (boxes, scores, scores), DTypeError, "is of int32"),
        )


def _kept(boxes: Array, left: Array, threshold: float, most: int | None) -> list[int]:
    """The boxes that are kept of those `left`, in order."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    with np.errstate(all="ignore"):
        while left.size and (most is None or len(kept) < most):
            best, left = left[0], left[1:]
            kept.append(int(best))
            low = np.maximum(boxes[best, :2], boxes[left, :2])
            high = np.minimum(boxes[best, 2:], boxes[left, 2:])
            sides = np.maximum(high - low, 0)
            shared = sides[:, 0] * sides[:, 1]
            total = areas[best] + areas[left] - shared
            left = left[~(shared / total > boxes.dtype.type(threshold))]
    return kept


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


@op
class RegionMean(Composite):
    """Means over the cells of a grid over regions of maps: [K,*grid,C] of x [N,H,W,C].

    Region k lies on map images[k]. Its samples stand where its lines cross: sample line r lies
    between the rows `rows` [K,R,2] of the map, which have the weights `row_weights` [K,R,2];
    `columns` and `column_weights` [K,S,2] are the same across. A cell has `sampling` rows and
    columns of samples, each the weighted sum of the four elements around it.

    Source: He et al., Mask R-CNN, ICCV 2017.
    """

    grid: tuple[int, int]
    sampling: tuple[int, int]

    name = "region_mean"
    operands = ("x", "images", "rows", "row_weights", "columns", "column_weights")
    dtypes = dt.FLOATS

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if len(types) != 6:
            raise self.error(f"takes 6 operands, not {len(types)}", types, "see the class")
        x, images, rows, row_weights, columns, column_weights = types
        self.check_dtype((x,))
        self.check_same_dtype((x, row_weights, column_weights))
        for t in (images, rows, columns):
            if t.dtype not in (dt.int32, dt.int64):
                hint = "cast with astype()"
                raise DTypeError(self.name, "numbers are integers", saw=self.saw(types), hint=hint)
        for i, rank in enumerate((4, 1, 3, 3, 3, 3)):
            self.check_ndim(types, i, rank)

        def misfit() -> ShapeError:
            problem = "takes x [N,H,W,C], images [K], rows [K,R,2] and columns [K,S,2] with weights"
            return self.error(problem, types, "R and S are the grid times the sampling")

        if min(*self.grid, *self.sampling) < 1:
            raise misfit()
        for places, weights, lines in (
            (rows, row_weights, self._lines(0)),
            (columns, column_weights, self._lines(1)),
        ):
            for t in (places, weights):
                for extent, wanted in zip(t.shape, (images.shape[0], lines, 2), strict=True):
                    require_equal(extent, wanted, misfit)
        return (TensorType(x.dtype, (images.shape[0], *self.grid, x.shape[3]), x.device),)

    def _lines(self, side: int) -> int:
        return self.grid[side] * self.sampling[side]

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        maps, height, width, _ = types[0].shape
        return ((1, -maps, maps), (2, -height, height), (4, -width, width))

    def reference(self, *arrays: Any) -> Any:
        check_indices(self, arrays)
        return super().reference(*arrays)

    def body(self, *inputs: Any) -> Any:
        x, images, rows, row_weights, columns, column_weights = inputs
        count, channels = images.type.shape[0], x.type.shape[3]
        lines, across = self._lines(0), self._lines(1)
        # Axes: region, line, tap of the line, column, tap of the column, channel.
        at = [
            Reshape(shape)(v)
            for v, shape in (
                (images, (count, 1, 1, 1, 1)),
                (rows, (count, lines, 2, 1, 1)),
                (columns, (count, 1, 1, across, 2)),
            )
        ]
        weights = Reshape((count, lines, 2, 1, 1, 1))(row_weights)
        weights = weights * Reshape((count, 1, 1, across, 2, 1))(column_weights)
        samples = Sum((2, 4))(Index((0, 1, 2))(x, *at) * weights)
        (down, right), (high, wide) = self.grid, self.sampling
        cells = (count, down, high, right, wide, channels)
        return Mean((2, 4))(Reshape(cells)(samples))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        def regions(count: int, grid: tuple[int, int], down: int, across: int, c: int) -> Sample:
            lines, columns = grid[0] * down, grid[1] * across
            args = (
                Arg((2, 3, 4, c)),
                Arg((count,), dt.int32, low=0, high=2),
                Arg((count, lines, 2), dt.int32, low=0, high=3),
                Arg((count, lines, 2), low=0.0, high=1.0),
                Arg((count, columns, 2), dt.int32, low=0, high=4),
                Arg((count, columns, 2), low=0.0, high=1.0),
            )
            return Sample(cls(grid, (down, across)), args)

        return (
            regions(3, (2, 2), 2, 1, 9),
            regions(1, (1, 1), 1, 1, 1),
            regions(0, (2, 1), 1, 2, 3),
            regions(2, (1, 2), 5, 4, 2),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, images, weights = Arg((2, 3, 4, 1)), Arg((1,), dt.int32, values=(0,)), Arg((1, 2, 2))
        places = Arg((1, 2, 2), dt.int32, values=(((0, 1), (1, 2)),))
        far = Arg((1, 2, 2), dt.int32, values=(((0, 1), (1, 4)),))
        return (
            BadSample(
                lambda: cls((2, 2), (1, 1)), (x, images, places, weights, far, weights),
                IndexRangeError, "index 4 is out",
            ),
            BadSample(
                lambda: cls((2, 3), (1, 1)), (x, images, places, weights, places, weights),
                ShapeError, "takes x [N,H,W,C]",
            ),
            BadSample(
                lambda: cls((2, 2), (1, 1)), (x, images, weights, weights, places, weights),
                DTypeError, "numbers are integers",
            ),
        )  # fmt: skip
