"""Boxes and regions: values from loops, gradients, compiled runs, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import IndexRangeError, ShapeError, UnsupportedOp

RNG = np.random.default_rng(9)
X = RNG.standard_normal((2, 4, 8, 7)).astype(np.float32)
ROIS = np.array(
    [[0, 0, 0, 6, 7], [1, 1.3, 2.6, 5.2, 6.1], [1, 4, 4, 12, 9], [0, 2, 2, 2, 2]], np.float32
)


def iou(a: Any, b: Any) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    shared = np.prod(np.maximum(high - low, 0))
    return float(shared / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared))


def test_nms_keeps_what_no_better_box_covers() -> None:
    corners = RNG.uniform(0, 8, (60, 2))
    boxes = np.concatenate([corners, corners + RNG.uniform(1, 5, (60, 2))], 1).astype(np.float32)
    scores = RNG.permutation(60).astype(np.float32)
    kept: list[int] = []
    for i in np.argsort(-scores):
        if all(iou(boxes[i], boxes[j]) <= 0.4 for j in kept):
            kept.append(int(i))
    found = F.vision.nms(mge.tensor(boxes), mge.tensor(scores), 0.4)
    assert found.dtype == np.int32 and found.tolist() == kept and len(kept) < 60
    assert F.nn.nms(mge.tensor(boxes), mge.tensor(scores), 0.4, max_output=5).tolist() == kept[:5]


def test_nms_of_nothing_and_of_wrong_shapes() -> None:
    assert F.vision.nms(F.zeros((0, 4)), F.zeros(0), 0.5).shape == (0,)
    with pytest.raises(ShapeError, match=r"takes boxes \[n,4\] and scores \[n\]"):
        F.vision.nms(F.zeros((2, 4)), F.zeros(3), 0.5)
    with pytest.raises(AssertionError, match="must not be negative"):
        F.vision.nms(F.zeros((2, 4)), F.zeros(2), -1)
    kept = jit.compile(lambda b, s: F.vision.nms(b, s, 0.5))(F.zeros((2, 4)), F.zeros(2))
    assert kept.tolist() == [0, 1]  # Boxes without an area cover nothing.


def part(first: int, last: int, i: int, count: int) -> slice:
    n = max(last - first + 1, 1)
    low, high = first + np.floor(i * n / count), first + np.ceil((i + 1) * n / count)
    return slice(max(int(low), 0), max(int(high), 0))


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_roi_pooling(mode: str, scale: float) -> None:
    wanted = np.zeros((4, 4, 3, 2), np.float32)
    for k, (b, *box) in enumerate(ROIS):
        x0, y0, x1, y1 = (int(np.floor(c * scale + 0.5)) for c in box)
        for i, j in itertools.product(range(3), range(2)):
            cells = X[int(b), :, part(y0, y1, i, 3), part(x0, x1, j, 2)].reshape(4, -1)
            if cells.shape[1]:
                wanted[k, :, i, j] = cells.max(1) if mode == "max" else cells.mean(1)
    found = F.vision.roi_pooling(mge.tensor(X), mge.tensor(ROIS), (3, 2), mode, scale)
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5, 1e-6)


def between(plane: Any, y: float, x: float) -> float:
    h, w = plane.shape
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    top, left = int(y), int(x)
    down, right = y - top, x - left
    below, beside = min(top + 1, h - 1), min(left + 1, w - 1)
    return float(
        plane[top, left] * (1 - down) * (1 - right)
        + plane[top, beside] * (1 - down) * right
        + plane[below, left] * down * (1 - right)
        + plane[below, beside] * down * right
    )


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align(mode: str, aligned: bool) -> None:
    grid, samples, scale = (2, 3), (3, 2), 0.8
    wanted = np.zeros((4, 4, *grid))
    for k, (b, *box) in enumerate(ROIS):
        x0, y0, x1, y1 = (c * scale - (0.5 if aligned else 0) for c in box)
        size = [max(d, 0.0 if aligned else 1.0) for d in (y1 - y0, x1 - x0)]
        for c, i, j in itertools.product(range(4), range(2), range(3)):
            values = []
            for u, v in itertools.product(range(3), range(2)):
                y = y0 + size[0] * (i + (u + 0.5) / 3) / 2
                x = x0 + size[1] * (j + (v + 0.5) / 2) / 3
                far = not (-1 <= y <= X.shape[2] and -1 <= x <= X.shape[3])
                values.append(0.0 if far else between(X[int(b), c], y, x))
            wanted[k, c, i, j] = max(values) if mode == "max" else np.mean(values)
    found = F.vision.roi_align(mge.tensor(X), mge.tensor(ROIS), grid, mode, scale, samples, aligned)
    np.testing.assert_allclose(found.numpy(), wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("still", [True, False])
def test_deformable_psroi_pooling(still: bool) -> None:
    trans = RNG.uniform(-1, 1, (4, 4, 2, 2)).astype(np.float32)
    rows, columns, samples, scale = 3, 2, 2, 0.7
    wanted = np.zeros((4, 4, rows, columns))
    for k, (b, *box) in enumerate(ROIS):
        x0, y0, x1, y1 = (np.floor(c + 0.5) for c in box)
        low = np.array([y0, x0]) * scale - 0.5
        size = np.maximum((np.array([y1, x1]) + 1) * scale - 0.5 - low, 0.1)
        for c, i, j in itertools.product(range(4), range(rows), range(columns)):
            offset = trans[k, c // 2 * 2 : c // 2 * 2 + 2, i * 2 // rows, j * 2 // columns]
            move = 0 if still else offset[::-1] * 0.3 * size
            values = []
            for u, v in itertools.product(range(samples), repeat=2):
                steps = np.array([(i + u / samples) / rows, (j + v / samples) / columns])
                y, x = low + size * steps + move
                if -0.5 <= y <= X.shape[2] - 0.5 and -0.5 <= x <= X.shape[3] - 0.5:
                    values.append(between(X[int(b), c], y, x))
            wanted[k, c, i, j] = np.mean(values) if values else 0
    found = F.nn.deformable_psroi_pooling(
        mge.tensor(X),
        mge.tensor(ROIS),
        mge.tensor(trans),
        still,
        2,
        rows,
        columns,
        samples,
        scale,
        0.3,
    )
    np.testing.assert_allclose(found.numpy(), wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("product", [True, False])
@pytest.mark.parametrize(
    ("kernel", "far", "step", "apart", "pad"), [(1, 1, 1, 1, 0), (3, 2, 2, 2, 3)]
)
def test_correlation(product: bool, kernel: int, far: int, step: int, apart: int, pad: int) -> None:
    a, b = X[:1], X[1:]
    padded = [np.pad(v, ((0, 0), (0, 0), (pad, pad), (pad, pad))) for v in (a, b)]
    reach, half = far // apart, (kernel - 1) // 2
    extents = [-(-(d - 2 * (far + half)) // step) for d in padded[0].shape[2:]]
    wanted = np.zeros((1, (2 * reach + 1) ** 2, *extents))
    moves = list(itertools.product(range(-reach, reach + 1), repeat=2))
    for d, (p, o) in enumerate(moves):
        for i, j in itertools.product(*map(range, extents)):
            y, x = i * step + far, j * step + far
            one = padded[0][0, :, y : y + kernel, x : x + kernel]
            y, x = y + p * apart, x + o * apart
            two = padded[1][0, :, y : y + kernel, x : x + kernel]
            wanted[0, d, i, j] = np.mean(one * two if product else abs(one - two))
    found = F.vision.correlation(
        mge.tensor(a), mge.tensor(b), kernel, far, step, apart, pad, product
    )
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5, 1e-6)


FUNCTIONS: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
    "roi_pooling": lambda x: F.vision.roi_pooling(x, mge.tensor(ROIS), 2),
    "roi_pooling, average": lambda x: F.vision.roi_pooling(x, mge.tensor(ROIS), 2, "average"),
    "roi_align": lambda x: F.vision.roi_align(x, mge.tensor(ROIS), 2),
    # A region of one point has ties, through which all of its samples get a gradient.
    "roi_align, max": lambda x: F.vision.roi_align(x, mge.tensor(ROIS[:3]), 2, "max"),
    "deformable_psroi_pooling": lambda x: F.nn.deformable_psroi_pooling(
        x, mge.tensor(ROIS), F.full((4, 2, 2, 2), 0.2), False, 2, 2, 2, 2, 1.0
    ),
    "correlation": lambda x: F.vision.correlation(x, F.roll(x, 1, 1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_agree_with_differences_eager_and_compiled(name: str) -> None:
    p = mge.Parameter(X)
    shape = FUNCTIONS[name](p).shape
    weights = mge.tensor(RNG.standard_normal(shape).astype(np.float32))
    direction = RNG.standard_normal(X.shape).astype(np.float32)

    def step() -> mge.Tensor:
        with GradManager().attach([p]) as gm:
            y = (FUNCTIONS[name](p) * weights).sum()
            gm.backward(y)
        return y

    step()
    slope = float((p.grad.numpy() * direction).sum())
    p.grad = None
    jit.compile(step)()
    assert float((p.grad.numpy() * direction).sum()) == pytest.approx(slope, rel=1e-4)
    ends = []
    for sign in (1, -1):
        p[...] = mge.tensor(X + np.float32(sign * 1e-3) * direction)
        ends.append(float(step()))
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=2e-2, abs=2e-2)


def test_wrong_regions_are_refused() -> None:
    x, rois = mge.tensor(X), mge.tensor(ROIS)
    for function in (F.vision.roi_align, F.vision.roi_pooling):
        with pytest.raises(ValueError, match="unknown mode"):
            function(x, rois, 2, mode="median")
        with pytest.raises((ShapeError, ValueError), match=r"5"):
            function(x, rois[:, :4], 2)
    with pytest.raises(ShapeError, match="trans must be"):
        F.nn.deformable_psroi_pooling(x, rois, F.zeros((4, 2, 3, 3)), False, 2, 2, 2, 2, 1.0)
    with pytest.raises(ValueError, match="must be odd"):
        F.vision.correlation(x, x, 2)
    with pytest.raises(ShapeError, match="two images of one shape"):
        F.vision.correlation(x, x[:1])
    with pytest.raises(ShapeError, match="raise pad_size"):
        F.vision.correlation(x, x, max_displacement=4)
    with pytest.raises(UnsupportedOp, match="optical flow unit"):
        F.vision.nvof(x)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        F.vision.roi_align,
        F.vision.roi_pooling,
        lambda x, rois, grid: F.vision.roi_pooling(x, rois, grid, "average"),
        lambda x, rois, grid: F.nn.deformable_psroi_pooling(x, rois, rois, True, *grid, 2, 2, 1.0),
    ],
)
def test_the_image_that_is_not_there_is_named(function: Callable[..., Any], compiled: bool) -> None:
    def run(x: mge.Tensor, rois: mge.Tensor) -> Any:
        return function(x, rois, (2, 2))

    run = jit.compile(run) if compiled else run
    for image in (7, -1):  # images do not count from the last one
        with pytest.raises(IndexRangeError, match=rf"(index|image) {image} .* 2\b"):
            run(mge.tensor(X), mge.tensor([[float(image), 0.0, 0.0, 2.0, 2.0]]))
    with pytest.raises(IndexRangeError, match="out of range"):
        run(mge.tensor(X), mge.tensor([[np.nan, 0.0, 0.0, 2.0, 2.0]]))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("image", [-1, 2])
def test_a_warp_of_an_image_that_is_not_there_is_refused(image: int, compiled: bool) -> None:
    def run(x: mge.Tensor, mats: mge.Tensor, which: mge.Tensor) -> Any:
        return F.vision.warp_perspective(x, mats, (2, 2), mat_idx=which)

    run = jit.compile(run) if compiled else run
    mats = mge.tensor(np.eye(3, dtype=np.float32)[None])
    with pytest.raises(IndexRangeError, match=f"warp_perspective: index {image} is out"):
        run(mge.tensor(X), mats, mge.tensor(np.array([image], np.int32)))


@pytest.mark.parametrize(
    ("images", "regions"), [((2, 0, 26, 26), 4), ((0, 1, 26, 26), 0), ((2, 3, 26, 26), 0)]
)
def test_no_regions_channels_or_images_give_empty_results(
    images: tuple[int, ...], regions: int
) -> None:
    x, rois = F.zeros(images), F.zeros((regions, 5))
    assert F.vision.roi_align(x, rois, (7, 7)).shape == (regions, images[1], 7, 7)
    assert F.vision.roi_pooling(x, rois, (7, 7)).shape == (regions, images[1], 7, 7)


def test_modes_are_taken_in_capitals_too() -> None:
    x, rois = mge.tensor(X), mge.tensor(ROIS)
    for function, mode in ((F.vision.roi_align, "average"), (F.vision.roi_pooling, "max")):
        found = function(x, rois, (2, 2), mode=mode.upper())
        np.testing.assert_array_equal(found.numpy(), function(x, rois, (2, 2), mode=mode).numpy())
    wide = F.vision.interpolate(x, (4, 4), mode="BILINEAR").numpy()
    np.testing.assert_array_equal(wide, F.vision.interpolate(x, (4, 4)).numpy())
    mean = F.avg_pool2d(x, 3, 2, 1, mode="AVERAGE").numpy()
    np.testing.assert_array_equal(mean, F.avg_pool2d(x, 3, 2, 1, mode="average").numpy())
    weight = F.ones((1, 4, 1, 1))
    assert F.conv2d(x, weight, conv_mode="CROSS_CORRELATION").shape == (2, 1, 8, 7)
