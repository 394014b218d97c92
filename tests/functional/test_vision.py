"""Images: colors, warps and sizes against OpenCV, gradients, compiled runs, errors."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError

RNG = np.random.default_rng(3)
COLORS = {
    "RGB2GRAY": (3, cv2.COLOR_RGB2GRAY),
    "BGR2GRAY": (3, cv2.COLOR_BGR2GRAY),
    "RGB2BGR": (3, cv2.COLOR_RGB2BGR),
    "BGR2RGB": (3, cv2.COLOR_BGR2RGB),
    "RGB2YUV": (3, cv2.COLOR_RGB2YUV),
    "YUV2RGB": (3, cv2.COLOR_YUV2RGB),
    "YCrCb2RGB": (3, cv2.COLOR_YCrCb2RGB),
    "YCrCb2BGR": (3, cv2.COLOR_YCrCb2BGR),
    "RGBA2GRAY": (4, cv2.COLOR_RGBA2GRAY),
    "RGBA2RGB": (4, cv2.COLOR_RGBA2RGB),
    "RGBA2BGR": (4, cv2.COLOR_RGBA2BGR),
    "GRAY2RGB": (1, cv2.COLOR_GRAY2RGB),
}
BORDERS = {
    "replicate": cv2.BORDER_REPLICATE,
    "constant": cv2.BORDER_CONSTANT,
    "reflect": cv2.BORDER_REFLECT,
    "reflect_101": cv2.BORDER_REFLECT_101,
    "wrap": cv2.BORDER_WRAP,
}
IMAGE = RNG.random((7, 9, 3)).astype(np.float32)
AFFINE = cv2.getRotationMatrix2D((4, 3), 30, 1.2).astype(np.float32)
PERSPECTIVE = np.array([[1, 0.1, 0.3], [0.05, 0.9, 0.2], [0.002, 0.001, 1]], np.float32)


def near(found: mge.Tensor, wanted: Any, atol: float = 1e-5) -> None:
    assert found.numpy().dtype == wanted.dtype
    np.testing.assert_allclose(found.numpy().astype(np.float64), wanted, 0, atol)


@pytest.mark.parametrize("mode", COLORS)
def test_colors_are_those_of_opencv(mode: str) -> None:
    channels, code = COLORS[mode]
    for image in (RNG.integers(0, 256, (8, 6, channels)).astype(np.uint8), IMAGE[:6, :, :1]):
        if image.dtype == np.float32:
            image = RNG.random((8, 6, channels)).astype(np.float32)
        found = F.vision.cvt_color(mge.tensor(image[None]), mode)
        wanted = cv2.cvtColor(image, code).reshape(found.shape)
        near(found, wanted, 1.0 if image.dtype == np.uint8 else 1e-6)


@pytest.mark.parametrize("target", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("layout", ["NV21", "NV12", "YV12", "YU12"])
def test_subsampled_chroma_is_that_of_opencv(target: str, layout: str) -> None:
    image = RNG.integers(0, 256, (12, 8)).astype(np.uint8)
    name = "I420" if layout == "YU12" else layout
    wanted = cv2.cvtColor(image, getattr(cv2, f"COLOR_YUV2{target}_{name}")).reshape(1, 8, 8, -1)
    x = mge.tensor(image[None, :, :, None])
    near(F.vision.cvt_color(x, f"BT601_YUV2{target}_{layout}"), wanted, 1.0)
    full = F.vision.cvt_color(x, f"YUV2{target}_{layout}")
    assert full.shape == wanted.shape
    if target != "GRAY":  # without chroma, the full range is the luma itself
        neutral = np.full_like(image, 128)
        neutral[:8] = image[:8]
        gray = F.vision.cvt_color(mge.tensor(neutral[None, :, :, None]), f"YUV2{target}_{layout}")
        near(gray, np.repeat(image[None, :8, :, None], 3, 3))


def test_colors_of_wrong_images_are_refused() -> None:
    x = mge.tensor(IMAGE[None])
    with pytest.raises(ValueError, match="unknown mode 'RGB2XYZ'; use one of RGB2GRAY"):
        F.vision.cvt_color(x, "RGB2XYZ")
    with pytest.raises(ShapeError, match="RGBA2RGB takes"):
        F.vision.cvt_color(x, "RGBA2RGB")
    with pytest.raises(DTypeError, match="takes uint8 or float32"):
        F.vision.cvt_color(x.astype("int32"), "RGB2GRAY")
    with pytest.raises(ShapeError, match="luma and subsampled chroma"):
        F.vision.cvt_color(F.zeros((1, 7, 8, 1)), "YUV2RGB_NV21")


@pytest.mark.parametrize("border", BORDERS)
def test_affine_warps_are_those_of_opencv(border: str) -> None:
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    half = (0.5, 0.5, 0.5)
    wanted = cv2.warpAffine(IMAGE, AFFINE, (8, 6), None, flags, BORDERS[border], half)
    x, matrix = mge.tensor(IMAGE[None]), mge.tensor(AFFINE[None])
    near(F.warp_affine(x, matrix, (6, 8), border, 0.5)[0], wanted)
    planes = F.transpose(x, (0, 3, 1, 2))
    found = F.vision.warp_affine(planes, matrix, (6, 8), border, 0.5, "NCHW", "linear")
    near(found[0], wanted.transpose(2, 0, 1))


def test_perspective_warps_are_those_of_opencv() -> None:
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    size, border = (8, 6), cv2.BORDER_REPLICATE
    wanted = cv2.warpPerspective(IMAGE, PERSPECTIVE, size, None, flags, border)
    both = np.stack([IMAGE * 0, IMAGE]).transpose(0, 3, 1, 2)
    matrices = mge.tensor(np.stack([PERSPECTIVE, PERSPECTIVE]))
    found = F.warp_perspective(mge.tensor(both), matrices, (6, 8), mat_idx=mge.tensor([1, 0]))
    near(found[0], wanted.transpose(2, 0, 1))
    assert (found[1].numpy() == 0).all()
    rows = F.warp_perspective(mge.tensor(IMAGE[None]), matrices[:1], size[::-1], format="NHWC")
    near(rows[0], wanted)


def test_integer_images_are_rounded_and_limited() -> None:
    image = RNG.integers(0, 256, (7, 9, 3)).astype(np.uint8)
    half = np.array([[[1, 0, 0.5], [0, 1, 0]]], np.float32)
    found = F.warp_affine(mge.tensor(image[None]), mge.tensor(half), (7, 8))[0]
    wanted = np.floor((image[:, :-1].astype(float) + image[:, 1:]) / 2 + 0.5).astype(np.uint8)
    near(found, wanted)


def test_rotation_is_that_of_opencv() -> None:
    square = RNG.random((8, 6)).astype(np.float32)
    matrix = cv2.getRotationMatrix2D((2.5, 3.5), 30, 1)
    near(
        F.vision.rotate(mge.tensor(square[None, None]), 30)[0, 0],
        cv2.warpAffine(square, matrix, (6, 8)),
    )
    rows = F.vision.rotate(mge.tensor(square[None, :, :, None]), 30, format="NHWC")
    near(rows[0, :, :, 0], cv2.warpAffine(square, matrix, (6, 8)))


@pytest.mark.parametrize("clockwise", [True, False])
def test_quarter_turns(clockwise: bool) -> None:
    x = RNG.random((2, 3, 4, 5)).astype(np.float32)
    found = F.vision.rot90(mge.tensor(x), clockwise)
    near(found, np.rot90(x, -1 if clockwise else 1, axes=(1, 2)))
    near(F.vision.rot90(mge.tensor(x[0, 0]), clockwise), np.rot90(x[0, 0], -1 if clockwise else 1))


def test_flip_mirrors_either_axis() -> None:
    x = RNG.random((1, 2, 3, 4)).astype(np.float32)
    near(F.vision.flip(mge.tensor(x)), x[:, ::-1, ::-1])
    near(F.vision.flip(mge.tensor(x), vertical=False), x[:, :, ::-1])
    near(F.vision.flip(mge.tensor(x[0, 0]), horizontal=False), x[0, 0, ::-1])


def test_resize_takes_layouts_and_the_shorter_edge() -> None:
    x = mge.tensor(IMAGE[None])
    near(F.vision.resize(x, (5, 4), format="NHWC")[0], cv2.resize(IMAGE, (4, 5)))
    nearest = F.vision.resize(x, (14, 18), format="NHWC", imode="nearest")[0]
    near(nearest, cv2.resize(IMAGE, (18, 14), interpolation=cv2.INTER_NEAREST))
    planes = F.transpose(x, (0, 3, 1, 2))
    assert F.vision.resize(planes, 14).shape == (1, 3, 14, 18)
    assert F.vision.resize(planes, 14, max_size=9).shape == (1, 3, 7, 9)
    assert F.vision.resize(F.transpose(planes, (0, 1, 3, 2)), 14).shape == (1, 3, 18, 14)
    bytes_ = mge.tensor((IMAGE[None] * 255).astype(np.uint8))
    assert F.vision.resize(bytes_, (5, 4), format="NHWC", imode="linear").dtype == np.uint8


def test_wrong_calls_of_warps_are_refused() -> None:
    x, matrix = mge.tensor(IMAGE[None]), mge.tensor(AFFINE[None])
    with pytest.raises(ShapeError, match=r"the matrices must be \(1, 3, 3\)"):
        F.warp_perspective(x, matrix, (2, 2), format="NHWC")
    with pytest.raises(ValueError, match="unknown format 'HWC'"):
        F.warp_affine(x, matrix, (2, 2), format="HWC")
    with pytest.raises(ValueError, match="unknown format"):
        F.vision.resize(x, 2, format="HWC")
    with pytest.raises(ValueError, match="max_size limits the longer edge"):
        F.vision.resize(x, (2, 3), max_size=4)
    with pytest.raises(ShapeError, match="4 axes"):
        F.vision.rotate(x[0], 30)
    with pytest.raises(ShapeError, match="takes an image"):
        F.vision.rot90(mge.tensor([1.0]))
    with pytest.raises(ShapeError, match="'quintic' is unknown"):
        F.warp_affine(x, matrix, (2, 2), interp_mode="quintic")
    with pytest.raises(IndexRangeError, match="index 3 is out of range"):
        F.warp_perspective(x, F.eye(3).reshape(1, 3, 3), (2, 2), mat_idx=[3], format="NHWC")


@pytest.mark.parametrize("compiled", [False, True])
def test_warps_are_differentiable_in_image_and_matrix(compiled: bool) -> None:
    image = mge.Parameter(IMAGE[None].transpose(0, 3, 1, 2))
    matrix = mge.Parameter(PERSPECTIVE[None])
    weights = mge.tensor(RNG.random((1, 3, 4, 4)).astype(np.float32))

    def loss() -> mge.Tensor:
        return (F.warp_perspective(image, matrix, (4, 4)) * weights).sum()

    def step() -> mge.Tensor:
        with GradManager().attach([image, matrix]) as gm:
            y = loss()
            gm.backward(y)
        return y

    (jit.compile(step) if compiled else step)()
    for p, place in ((image, (0, 1, 2, 3)), (matrix, (0, 0, 2))):
        slope, before = float(p.grad[place]), p.numpy().copy()
        ends = []
        for sign in (1, -1):
            moved = before.copy()
            moved[place] += sign * 1e-2
            p[...] = mge.tensor(moved)
            ends.append(float(loss()))
        p[...] = mge.tensor(before)
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=2e-2, abs=1e-3)
