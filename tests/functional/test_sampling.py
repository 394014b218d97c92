"""Warps and resizing with wide kernels, against OpenCV and against differences."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager

RNG = np.random.default_rng(5)
IMAGE = RNG.random((9, 11, 3), np.float32)
FLAGS = {"cubic": cv2.INTER_CUBIC, "lanczos4": cv2.INTER_LANCZOS4}
BORDERS = {
    "replicate": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT,
    "reflect_101": cv2.BORDER_REFLECT_101,
    "wrap": cv2.BORDER_WRAP,
    "constant": cv2.BORDER_CONSTANT,
}
TURN = np.array([[0.75, -0.25, 1.5], [0.25, 1.125, -1.0]], np.float32)
"""Sends pixels to whole multiples of 1/32, the steps in which OpenCV looks weights up."""


def nchw(image: np.ndarray) -> mge.Tensor:
    return mge.tensor(image.transpose(2, 0, 1)[None].copy())


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("mode", FLAGS)
def test_remap(mode: str, border: str) -> None:
    places = RNG.integers(-3 * 32, 13 * 32, (6, 7, 2)).astype("float32") / 32
    want = cv2.remap(
        IMAGE, places, None, FLAGS[mode], borderMode=BORDERS[border], borderValue=(0.5,) * 3
    )
    got = F.vision.remap(nchw(IMAGE), mge.tensor(places[None]), border, 0.5, mode)
    np.testing.assert_allclose(got.numpy()[0].transpose(1, 2, 0), want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("mode", "flag"), [*FLAGS.items(), ("area", cv2.INTER_LINEAR)])
def test_warp_affine(mode: str, flag: int) -> None:
    flags = flag | cv2.WARP_INVERSE_MAP
    want = cv2.warpAffine(IMAGE, TURN, (8, 10), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    got = F.vision.warp_affine(
        mge.tensor(IMAGE[None]), mge.tensor(TURN[None]), (10, 8), interp_mode=mode
    )
    np.testing.assert_allclose(got.numpy()[0], want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("mode", FLAGS)
def test_warp_perspective_of_whole_numbers(mode: str) -> None:
    image = RNG.integers(0, 256, (9, 11, 1), np.uint8)
    matrix = np.vstack([TURN, [0, 0, 1]]).astype("float32")
    flags = FLAGS[mode] | cv2.WARP_INVERSE_MAP
    want = cv2.warpPerspective(image, matrix, (8, 10), flags=flags, borderMode=cv2.BORDER_REFLECT)
    got = F.vision.warp_perspective(
        nchw(image), mge.tensor(matrix[None]), (10, 8), border_mode="reflect", interp_mode=mode
    )
    assert got.dtype == np.uint8
    # OpenCV computes integer images with weights that are integers, too.
    assert np.abs(got.numpy()[0, 0].astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize("size", [(4, 5), (3, 11), (9, 11), (20, 30), (14, 6), (1, 1)])
@pytest.mark.parametrize(
    ("mode", "flag"), [("area", cv2.INTER_AREA), ("lanczos4", cv2.INTER_LANCZOS4)]
)
def test_resize(mode: str, flag: int, size: tuple[int, int]) -> None:
    want = cv2.resize(IMAGE, size[::-1], interpolation=flag)
    got = F.vision.resize(mge.tensor(IMAGE[None]), size, format="NHWC", imode=mode)
    np.testing.assert_allclose(got.numpy()[0], want, rtol=1e-4, atol=2e-5)


def gradients(function: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    tensors = [mge.tensor(a, dtype="float64") for a in arrays]
    with GradManager().attach(tensors) as manager:
        manager.backward((function(*tensors) ** 2).sum())
    return [t.grad.numpy() for t in tensors]


@pytest.mark.parametrize("mode", FLAGS)
def test_gradients_agree_with_differences(mode: str) -> None:
    image, places = RNG.random((1, 1, 5, 5)), RNG.random((1, 2, 2, 2)) * 3 + 0.3

    def function(image: mge.Tensor, places: mge.Tensor) -> mge.Tensor:
        return F.vision.remap(image, places, "reflect", 0.0, mode)

    def total(image: np.ndarray, places: np.ndarray) -> float:
        operands = (mge.tensor(a, dtype="float64") for a in (image, places))
        return float((function(*operands).numpy() ** 2).sum())

    for number, found in enumerate(gradients(function, image, places)):
        want = np.empty_like(found)
        for place in np.ndindex(found.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [image.copy(), places.copy()]
                moved[number][place] += step
                ends.append(total(*moved))
            want[place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
