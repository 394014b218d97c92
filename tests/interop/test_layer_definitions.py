"""Definitions that are the inside of layers and optimizers, each against the function or module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as optim
from treadle.interop.megengine.internals import ROOMS, Grad, apply

B = ROOMS["core.ops.builtin"]
RNG = np.random.default_rng(11)
IMAGE = mge.tensor(RNG.random((2, 4, 6, 6), np.float32))
KERNEL = mge.tensor(RNG.random((5, 4, 3, 3), np.float32))
GROUPED = mge.tensor(RNG.random((2, 2, 2, 3, 3), np.float32))
LOCAL = mge.tensor(RNG.random((1, 4, 4, 4, 3, 3, 5), np.float32))
ROWS = mge.tensor(RNG.normal(size=(3, 4)).astype(np.float32))
BOXES = mge.tensor(np.array([[0, 0, 0, 3, 3], [1, 1, 1, 5, 5]], np.float32))
OFFSET = mge.tensor(RNG.random((2, 18, 4, 4), np.float32))
MASK = mge.tensor(RNG.random((2, 9, 4, 4), np.float32))
PART = mge.tensor(RNG.random((2, 2, 1, 1), np.float32))
REGIONS = mge.tensor(RNG.integers(0, 2, (2, 6, 6)).astype(np.int32))
VOLUME = mge.tensor(RNG.random((1, 2, 3, 3, 3), np.float32))
SPATIAL = mge.tensor(RNG.random((2, 3, 2, 2, 2), np.float32))
STEP, ZERO = mge.tensor(np.float32([0.5])), mge.tensor(np.float32([1.0]))
FACTOR = mge.tensor(np.float32([2.0]))
HOLES = mge.tensor(np.array([[True, False, True, False]] * 3))
WINDOW = {"window_h": 3, "window_w": 3, "pad_h": 1, "pad_w": 1, "stride_h": 2, "stride_w": 2}
PATCHES = F.sliding_window(IMAGE, 3, 1, 2)
Case = tuple[str, dict[str, Any], tuple[Any, ...], Callable[[], Any]]

EQUAL: list[Case] = [
    (
        "Convolution3DBackwardData",
        {"stride_d": 2},
        (SPATIAL, VOLUME),
        lambda: F.conv_transpose3d(VOLUME, SPATIAL, stride=(2, 1, 1)),
    ),
    (
        "DeformableConv",
        {},
        (IMAGE, KERNEL, OFFSET, MASK),
        lambda: F.deformable_conv2d(IMAGE, KERNEL, OFFSET, MASK),
    ),
    (
        "DeformablePSROIPooling",
        {"no_trans": True, "pooled_h": 2, "pooled_w": 2, "part_size": 2, "sample_per_part": 2},
        (IMAGE, BOXES, PART),
        lambda: F.deformable_psroi_pooling(IMAGE, BOXES, PART, True, 2, 2, 2, 2, 1.0, 1.0),
    ),
    (
        "FakeQuant",
        {"qmin": -2, "qmax": 3},
        (ROWS, STEP, ZERO),
        lambda: (F.clip(F.floor(ROWS / 0.5 + 1.0 + 0.5), -2, 3) - 1) * 0.5,
    ),
    (
        "GeneralNorm",
        {"affine": False, "axis_start": 1, "axis_end": 3},
        (IMAGE,),
        lambda: F.general_norm(IMAGE, [1, 2], affine=False),
    ),
    ("GroupLocal", {}, (IMAGE, LOCAL), lambda: F.local_conv2d(IMAGE, LOCAL)),
    ("Images2Neibs", WINDOW, (IMAGE,), lambda: F.sliding_window(IMAGE, 3, 1, 2)),
    (
        "IndexingSetOneHot",
        {"axis": 1, "ndim": 1},
        (ROWS, mge.tensor([1, 0, 3]), mge.tensor([[7.0], [8.0], [9.0]])),
        lambda: F.scatter(
            F.copy(ROWS), 1, mge.tensor([[1], [0], [3]]), mge.tensor([[7.0], [8.0], [9.0]])
        ),
    ),
    (
        "LSQ",
        {"qmin": -2, "qmax": 3},
        (ROWS, STEP, ZERO, FACTOR),
        lambda: F.fake_quant.lsq_forward(-2, 3, ROWS, STEP, ZERO, FACTOR),
    ),
    (
        "MaskedFill",
        {"value": 5.0},
        (ROWS, HOLES),
        lambda: np.where(HOLES.numpy(), np.float32(5), ROWS.numpy()),
    ),
    (
        "Padding",
        {"front_offset_dim1": 1, "back_offset_dim1": 2, "padding_mode": "REFLECT"},
        (ROWS,),
        lambda: np.pad(ROWS.numpy(), ((0, 0), (1, 2)), "reflect"),
    ),
    ("ParamPackConcat", {}, (ROWS, STEP, 0), lambda: F.concat([ROWS.flatten(), STEP])),
    ("PixelShuffleBackward", {"factor": 2}, (F.pixel_shuffle(IMAGE, 2),), lambda: IMAGE),
    (
        "ROIPooling",
        {"mode": "AVERAGE"},
        (IMAGE, BOXES, [2, 2]),
        lambda: F.vision.roi_pooling(IMAGE, BOXES, 2, "average"),
    ),
    (
        "RegionRestrictedConvolution",
        {"sparse": "GROUP", "pad_h": 1, "pad_w": 1},
        (IMAGE, GROUPED, REGIONS, REGIONS),
        lambda: F.region_restricted_conv(IMAGE, GROUPED, REGIONS, REGIONS, padding=1, groups=2),
    ),
    (
        "Resize3D",
        {},
        (VOLUME, [6, 6, 6]),
        lambda: F.vision.interpolate(VOLUME, [6, 6, 6], mode="trilinear", align_corners=False),
    ),
    (
        "SlidingWindowTranspose",
        {**WINDOW, "out_h": 6, "out_w": 6},
        (PATCHES,),
        lambda: F.sliding_window_transpose(PATCHES, 6, 3, 1, 2),
    ),
    (
        "TQT",
        {"qmin": -2, "qmax": 3},
        (ROWS, STEP),
        lambda: F.fake_quant.tqt_forward(-2, 3, ROWS, STEP),
    ),
    ("Where", {}, (HOLES, ROWS, -ROWS), lambda: F.where(HOLES, ROWS, -ROWS)),
]


@pytest.mark.parametrize(
    ("name", "parameters", "given", "wanted"), EQUAL, ids=[e[0] for e in EQUAL]
)
def test_definition_computes_what_the_function_does(
    name: str, parameters: dict[str, Any], given: tuple[Any, ...], wanted: Callable[[], Any]
) -> None:
    found = apply(getattr(B, name)(**parameters), *given)[0]
    np.testing.assert_allclose(found.numpy(), np.asarray(wanted()), rtol=1e-6, atol=1e-6)


def test_vectors_are_taken_apart_at_offsets() -> None:
    packed = apply(B.ParamPackConcat(), ROWS, STEP, mge.tensor([0, 12, 12, 13]))[0]
    parts = apply(B.ParamPackSplit(offsets=[0, 12, 12, 13], shapes=[(3, 4), (1,)]), packed)
    np.testing.assert_array_equal(parts[0], ROWS)
    np.testing.assert_array_equal(parts[1], STEP)


@pytest.mark.parametrize("kind", [M.RNNCell, M.LSTMCell])
def test_cells_take_the_step_of_their_module(kind: Any) -> None:
    cell, h, c = kind(4, 2), ROWS[:, :2], ROWS[:, 2:]
    weights = cell.weight_ih, cell.bias_ih, h, cell.weight_hh, cell.bias_hh
    if kind is M.RNNCell:
        found, wanted = apply(B.RNNCell(nonlineMode="tanh"), ROWS, *weights), [cell(ROWS, h)]
    else:
        found, wanted = apply(B.LSTMCell(), ROWS, *weights, c), cell(ROWS, (h, c))
    for mine, module in zip(found, wanted, strict=False):
        np.testing.assert_allclose(mine, module, rtol=1e-6)


@pytest.mark.parametrize(("decay", "always"), [(0.4, False), (0.0, False), (0.0, True)])
def test_lamb_update_is_a_step_of_the_optimizer(decay: float, always: bool) -> None:
    weight, grad = mge.Parameter(ROWS.numpy()), mge.tensor(RNG.random((3, 4), np.float32))
    weight.grad = grad
    optim.LAMB([weight], 0.1, weight_decay=decay, always_adapt=always).step()
    zeros = F.zeros((3, 4))
    op = B.LAMBUpdate(0.9, 0.999, 1, 0.1, decay, 1e-8, True, always)
    first, second, new = apply(op, zeros, zeros, ROWS, grad)
    np.testing.assert_allclose(new, weight, rtol=1e-5)
    np.testing.assert_allclose(first, 0.1 * grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(second, 0.001 * grad.numpy() ** 2, rtol=1e-4)


def test_definitions_have_gradients_on_the_inner_tape() -> None:
    found: dict[str, mge.Tensor] = {}
    with Grad() as tape:
        x = F.zeros((2, 3))
        tape.wrt(x, callback=lambda g: found.update(x=g))
        (y,) = apply(B.IndexingSetOneHot(1, 1), x, mge.tensor([2, 0]), F.ones((2, 1)))
        tape(y, F.ones_like(y))
    assert found["x"].tolist() == [[1, 1, 0], [0, 1, 1]]
