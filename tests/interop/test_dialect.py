"""Numbers and refusals that are MegEngine's in programs that import `megengine`, and only there."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.base.errors import TraceError
from treadle.engine.devices.names import device_count
from treadle.interop.megengine import install, uninstall
from treadle.traced_module import trace_module
from treadle.traced_module.node import TensorNode

RNG = np.random.default_rng(8)
PLACES = np.array([[[1.266667, 0.6, -0.3], [-0.333333, 1.0, 0.7]]], np.float32)


@pytest.fixture
def alias() -> Iterator[None]:
    install()
    yield
    uninstall()


def fixed(matrix: np.ndarray, height: int, width: int, parts: int) -> np.ndarray:
    """Places in steps of 1 / parts, from sums in steps of 1/1024, computed in float64."""
    m = matrix.astype(np.float64)
    across, down = np.arange(width), np.arange(height)
    columns = np.rint(m[:, :1] * across * 1024)[:, None, :]
    rows = np.rint((m[:, 1:2] * down + m[:, 2:]) * 1024)[:, :, None]
    step = 1024 // parts
    return (np.floor((columns + rows + step // 2) / step) / parts).transpose(1, 2, 0)


def warped(image: np.ndarray, mode: str = "linear") -> np.ndarray:
    given, matrix = mge.tensor(image), mge.tensor(PLACES)
    return F.vision.warp_affine(given, matrix, (4, 5), interp_mode=mode).numpy()


@pytest.mark.parametrize(("mode", "parts"), [("linear", 32), ("nearest", 1)])
def test_warps_step_by_fractions_of_pixels(alias: None, mode: str, parts: int) -> None:
    image = RNG.random((1, 6, 7, 3)).astype(np.float32)
    places = mge.tensor(fixed(PLACES[0], 4, 5, parts).astype(np.float32)[None])
    planes = mge.tensor(image.transpose(0, 3, 1, 2))
    wanted = F.vision.remap(planes, places, interp_mode=mode).numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(warped(image, mode), wanted, atol=1e-6)


def test_other_images_and_programs_warp_exactly(alias: None) -> None:
    image = RNG.random((1, 6, 7, 4)).astype(np.float32)
    stepped = warped(image[..., :3])
    four = warped(image)
    uninstall()
    exact = warped(image)
    np.testing.assert_array_equal(four, exact)
    assert 1e-4 < np.abs(stepped - exact[..., :3]).max() < 0.1


def test_gradients_of_stepped_warps_are_those_of_exact_places(alias: None) -> None:
    image = mge.tensor(np.arange(42, dtype=np.float32).reshape(1, 6, 7, 1))
    matrix = mge.Parameter(PLACES)
    with GradManager().attach([matrix]) as gm:
        gm.backward(F.vision.warp_affine(image, matrix, (2, 2), border_mode="constant").sum())
    assert np.isfinite(matrix.grad.numpy()).all()
    assert np.abs(matrix.grad.numpy()).min() > 0


def test_labels_without_an_alignment_cost_a_bounded_number(alias: None) -> None:
    # Two equal classes need a blank between them, so two frames are too few.
    pred = mge.tensor(np.full((2, 1, 3), 1 / 3, np.float32))
    given = pred, mge.tensor([2]), mge.tensor([[1, 1]]), mge.tensor([2])
    loss = F.loss.ctc_loss(*given, reduction="none").item()
    # Four ways lead to an end from a state that costs the smallest number there is.
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny * 4 / 3), rel=1e-6)
    uninstall()
    assert F.loss.ctc_loss(*given, reduction="none").item() > 1e29


def test_labels_with_an_alignment_cost_the_same(alias: None) -> None:
    pred = mge.tensor(RNG.dirichlet(np.ones(4), (6, 2)).astype(np.float32))
    given = pred, mge.tensor([6, 5]), mge.tensor([[1, 2], [3, 3]]), mge.tensor([2, 2])
    inside = F.loss.ctc_loss(*given, reduction="none").numpy()
    uninstall()
    np.testing.assert_allclose(inside, F.loss.ctc_loss(*given, reduction="none").numpy(), rtol=1e-6)


def test_dumps_refuse_statistics_of_a_batch(alias: None) -> None:
    norm = M.BatchNorm2d(3, track_running_stats=False)
    net = mge.jit.trace(lambda x: norm(x).sum(), symbolic=True, capture_as_const=True)
    net(mge.tensor(RNG.random((2, 3, 4, 4)).astype(np.float32)))
    with pytest.raises(TraceError, match="statistics of its batch"):
        net.dump(io.BytesIO())
    uninstall()
    net.dump(io.BytesIO())


def spelled(pred: np.ndarray, label: list[int], blank: int) -> float:
    """The loss of one sequence by MegEngine's recurrence, in float64."""
    least = np.finfo(np.float32).tiny
    states = [blank]
    for c in label:
        states += [c, blank]
    ways = np.full(len(states), float(least))
    ways[:2] = pred[0, states[:2]]
    for frame in pred[1:]:
        before = np.concatenate([[0.0, 0.0], ways])
        jumps = [i > 1 and states[i] != states[i - 2] for i in range(len(states))]
        ways = (before[2:] + before[1:-1] + np.where(jumps, before[:-2], 0.0)) * frame[states]
    return float(-np.log(ways[-1] + ways[-2]))


@pytest.mark.parametrize("label", [[1, 2, 2, 3], [3, 0, 0, 1], [2, 2, 2, 2, 2, 2, 2]])
def test_ctc_is_megengines_recurrence(alias: None, label: list[int]) -> None:
    # The blank is 0: the second label names it, which no alignment tells from a gap.
    pred = RNG.dirichlet(np.ones(4), (8, 1)).astype(np.float32)
    given = mge.tensor(pred), mge.tensor([8]), mge.tensor([label]), mge.tensor([len(label)])
    found = F.loss.ctc_loss(*given, reduction="none").item()
    assert found == pytest.approx(spelled(pred[:, 0].astype(np.float64), label, 0), rel=1e-5)


@pytest.mark.parametrize(
    ("extent", "parts", "means", "largest"),
    [(8, 3, [1.5, 3.5, 5.5], [3.0, 5.0, 7.0]), (7, 2, [1.5, 4.5], [3.0, 6.0])],
)
def test_adaptive_pools_have_windows_of_one_size(
    alias: None, extent: int, parts: int, means: list[float], largest: list[float]
) -> None:
    x = F.broadcast_to(F.arange(extent), (1, 1, extent, extent))
    assert F.adaptive_avg_pool2d(x, parts)[0, 0, 0].tolist() == means
    assert F.adaptive_max_pool2d(x, parts)[0, 0, 0].tolist() == largest
    assert F.adaptive_avg_pool2d(x, extent + 2).shape == (1, 1, extent + 2, extent + 2)


def test_ranges_are_counted_in_float32(alias: None) -> None:
    assert F.arange(7.8, 8.4, 0.05).shape == (12,)
    assert F.arange(0, 2.1, 0.3).shape == (7,)
    assert F.arange(0, 1, 0.1).shape == (10,)


def test_windows_are_added_in_their_order() -> None:
    patches = RNG.normal(size=(1, 1, 5, 5, 3, 3)).astype(np.float32)
    wanted = np.zeros((1, 1, 7, 7), np.float32)
    for i, j in np.ndindex(5, 5):
        wanted[0, 0, i : i + 3, j : j + 3] += patches[0, 0, i, j]
    found = F.sliding_window_transpose(mge.tensor(patches), 7, 3)
    np.testing.assert_array_equal(found.numpy(), wanted)
    compiled = mge.jit.compile(lambda x: F.sliding_window_transpose(x, 7, 3))
    np.testing.assert_array_equal(compiled(mge.tensor(patches)).numpy(), wanted)


def test_nodes_have_values_where_they_are_watched(alias: None) -> None:
    net = M.Linear(2, 3)
    traced = trace_module(net, F.ones((1, 2)))
    nodes = [n for n in traced.graph.nodes() if isinstance(n, TensorNode)]
    assert nodes
    assert all(n.value is None for n in nodes)
    uninstall()
    weight = dict(traced.named_parameters())["weight"]
    assert any(n.value is weight for n in nodes)


def test_cores_of_the_host_are_devices(alias: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = mge.device.get_device_properties("cpu0").cores
    assert mge.get_device_count("cpu") == cores >= 1
    monkeypatch.setattr(mge.device, "what_is_xpu", lambda: "cpu")
    assert mge.get_device_count("xpu") == cores
    monkeypatch.setattr(mge.device, "what_is_xpu", lambda: "gpu")
    assert mge.get_device_count("xpu") == device_count("xpu")
