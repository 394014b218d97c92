"""Convolutions, pooling and resizing along axes whose extents change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from tests.backends.interpreted import interpreting

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.backends.codegen.contraction.winograd import forward as winograd_forward
from treadle.backends.codegen.contraction.winograd import gradient as winograd_gradient
from treadle.backends.codegen.target import TARGETS
from treadle.backends.program import runs_of
from treadle.engine.extents import plans
from treadle.jit.family import Family

Function = Callable[[mge.Tensor], mge.Tensor]
CHANNELS = 6
IMAGES = (2, 3, 7, 16, 30, 8, 15, 0, 1, 40)
"""In two cells of extents, and the two that have captures of their own."""


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def maps(*shape: int) -> mge.Tensor:
    data = np.random.default_rng(sum(shape)).standard_normal(shape, "float32")
    return mge.tensor(data)


def weight(*shape: int) -> mge.Parameter:
    return mge.Parameter(np.random.default_rng(0).standard_normal(shape).astype("float32") / 4)


def families_of(compiled: Any) -> list[Family]:
    return [f for found in compiled._captures.families.values() for f in found]


def gradient_of(function: Function, *sizes: int) -> Function:
    """Gradients in a factor of the operand, and in the weights, one after the other."""
    factor = weight(CHANNELS, *(sizes * 2 if sizes else (12, 13)))
    weights = (SQUARE, POINT, LONG, GROUPS, DEPTHWISE, BIAS, UP, EVEN, PAIRS)
    manager = mge.autodiff.GradManager().attach([factor, *weights])

    def computed(x: mge.Tensor) -> mge.Tensor:
        with manager:
            y = function(x * factor)
            manager.backward((y * y).sum())
        found = [p for p in (factor, *weights) if p.grad is not None]
        made = F.concat([F.flatten(p.grad) for p in found])
        for p in found:
            p.grad = None
        return made

    return computed


SQUARE, POINT, LONG = weight(8, 6, 3, 3), weight(16, 6, 1, 1), weight(8, 8, 3, 3)
GROUPS, DEPTHWISE = weight(2, 4, 3, 3, 3), weight(6, 1, 1, 3, 3)
BIAS, UP = weight(1, 8, 1, 1), weight(6, 4, 3, 2)
EVEN, PAIRS = weight(6, 6, 1, 1), weight(6, 2, 1, 3, 3)
OPS: dict[str, Function] = {
    "padding": lambda x: F.conv2d(x, SQUARE, padding=1),
    "steps and an epilogue": lambda x: F.relu(F.conv2d(x, SQUARE, BIAS, stride=2, padding=1)),
    "dilation": lambda x: F.conv2d(x, SQUARE, dilation=2),
    "one cell": lambda x: F.conv2d(x, POINT),
    "one cell in steps": lambda x: F.conv2d(x, POINT, stride=3),
    "several": lambda x: F.conv2d(F.relu(F.conv2d(x, SQUARE, padding=1)), LONG, padding=(2, 0)),
    "groups": lambda x: F.conv2d(x, GROUPS, groups=2),
    "depthwise": lambda x: F.conv2d(x, DEPTHWISE, groups=6, padding=1, stride=(2, 1)),
    "transposed": lambda x: F.conv_transpose2d(x, SQUARE.transpose(1, 0, 2, 3), stride=2),
    "maxima": lambda x: F.max_pool2d(x, 3, 2, 1),
    "maxima of pairs": lambda x: F.max_pool2d(x, 2, 2),
    "averages": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "adaptive averages": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive maxima": lambda x: F.adaptive_max_pool2d(x, (5, 2)),
    "of a whole map": lambda x: F.adaptive_avg_pool2d(F.conv2d(x, SQUARE), 1),
    "resizing": lambda x: F.vision.interpolate(x, size=(20, 9)),
    "samples at places": lambda x: F.vision.remap(
        x, F.stack([x[:, 0] * 4 + 3, x[:, 1] * 4 + 3], axis=3), border_mode="replicate"
    ),
    "channels last": lambda x: F.relu(
        F.max_pool2d(F.conv2d(F.relu(F.conv2d(x, SQUARE, padding=1)), LONG), 3, 2)
    ),
}


TRAINED = (
    *("steps and an epilogue", "groups", "depthwise", "transposed", "maxima", "averages"),
    "channels last",
)
"""What has gradients for any number of images; for any size of them, too, all have them below."""


@pytest.mark.parametrize(
    ("name", "backward"),
    [*((name, False) for name in OPS), *((name, True) for name in TRAINED)],
    ids=lambda x: x if isinstance(x, str) else ("forward", "backward")[x],
)
def test_any_number_of_images_has_one_plan(name: str, backward: bool) -> None:
    function = gradient_of(OPS[name]) if backward else OPS[name]
    compiled = jit.compile(dynamic={0: {0: "n"}}, options=jit.Options(check=True))(function)
    for n in IMAGES:
        x = maps(n, CHANNELS, 12, 13)
        want = function(x).numpy()
        np.testing.assert_allclose(
            compiled(x).numpy(), want, rtol=1e-4, atol=2e-5 * max(abs(want).max(initial=0), 1)
        )
    found = [f for f in families_of(compiled) if f.regimes]
    assert [len(f.regimes) for f in found] == [2] and not found[0].alone


SIZES = ((2, 12, 13), (3, 9, 14), (7, 15, 8), (2, 40, 70), (1, 12, 12), (3, 33, 20))
PLANES = {
    **OPS,
    "depthwise, dilated": lambda x: F.conv2d(F.conv2d(x, EVEN), DEPTHWISE, groups=6, dilation=2),
    "depthwise, channels last": lambda x: F.relu(
        F.conv2d(F.relu(F.conv2d(x, EVEN)), DEPTHWISE, BIAS[:, :6], groups=6, padding=(1, 2))
    ),
    "two results per channel": lambda x: F.conv2d(F.conv2d(x, EVEN), PAIRS, groups=6, stride=2),
    "twice the size": lambda x: F.vision.interpolate(F.conv2d(x, EVEN), scale_factor=2.0),
    "corners": lambda x: F.vision.interpolate(x, scale_factor=1.5, align_corners=True),
    "nearest cells": lambda x: F.vision.interpolate(x, size=(7, 30), mode="nearest"),
    "cubic": lambda x: F.vision.interpolate(x, scale_factor=(0.5, 2.25), mode="bicubic"),
    "transposed in steps": lambda x: F.conv_transpose2d(x, UP, stride=2, padding=1),
    "large windows": lambda x: F.avg_pool2d(x, 5, 3, 2, mode="average"),
    "a third of the cells": lambda x: F.max_pool2d(x[:, :, 1:, ::2], 2, 2),
    "patches": lambda x: F.sliding_window(x, (3, 2), (3, 1), (2, 1), (2, 3)).sum((-2, -1)),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", PLANES)
def test_any_size_of_picture_has_one_plan(name: str, backward: bool) -> None:
    function = gradient_of(PLANES[name], 1) if backward else PLANES[name]
    axes = {0: {0: "n", 2: "h", 3: "w"}}
    compiled = jit.compile(dynamic=axes, options=jit.Options(check=True))(function)
    for n, height, width in SIZES:
        x = maps(n, CHANNELS, height, width)
        want = function(x).numpy()
        bound = 2e-5 * max(abs(want).max(initial=0), 1)
        np.testing.assert_allclose(compiled(x).numpy(), want, rtol=1e-4, atol=bound)
    found = families_of(compiled)
    assert not any(f.alone for f in found) and sum(len(f.regimes) for f in found) <= 5


class Block(M.Module):
    """Two convolutions with statistics of the batch, beside a third one."""

    def __init__(self, inputs: int, outputs: int, step: int) -> None:
        super().__init__()
        self.first = M.Conv2d(inputs, outputs, 3, step, 1, bias=False)
        self.normal = M.BatchNorm2d(outputs)
        self.second = M.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.beside = M.Conv2d(inputs, outputs, 1, step, bias=False)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.relu(self.second(F.relu(self.normal(self.first(x)))) + self.beside(x))


class Network(M.Module):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 16, 7, 2, 3)
        self.blocks = M.Sequential(Block(16, 16, 1), Block(16, 32, 2))
        self.depthwise = M.Conv2d(32, 32, 3, 1, 1, groups=32)
        self.last = M.Linear(32, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = self.blocks(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1))
        x = F.adaptive_avg_pool2d(F.relu(self.depthwise(x)), 1)
        return self.last(F.flatten(x, 1))


def trained(wrap: Callable[[Any], Any]) -> tuple[Any, list[mge.Parameter]]:
    """A training step, and what it trains."""
    mge.random.seed(1)
    network = Network()
    manager = mge.autodiff.GradManager().attach(network.parameters())
    optimizer = mge.optimizer.SGD(network.parameters(), lr=0.05, momentum=0.9)

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.loss.cross_entropy(network(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return wrap(step), list(network.parameters())


def test_a_network_is_trained_on_batches_of_any_size() -> None:
    axes = {0: {0: "n"}, 1: {0: "n"}}
    step, found = trained(jit.compile(dynamic=axes, options=jit.Options(check=True)))
    eager, wanted = trained(lambda function: function)
    for n in (12, 33, 8, 20, 7, 16, 9):
        x, y = maps(n, 3, 40, 36), mge.tensor(np.arange(n, dtype=np.int32) % 10)
        np.testing.assert_allclose(step(x, y).item(), eager(x, y).item(), rtol=1e-3)
    # A map that rounds to the other side of relu's 0 moves a bias by up to 2e-4 in these steps:
    # eager runs on inputs that differ in their last bit part as far.
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-3, atol=5e-4)
    (family,) = families_of(step)
    assert not family.alone and len(family.regimes) == 2


def test_bits_of_convolutions_do_not_depend_on_the_order_of_extents() -> None:
    found: dict[int, set[bytes]] = {}
    for order in list(permutations((3, 6, 7, 15)))[::5]:
        function = gradient_of(OPS["channels last"])
        compiled = jit.compile(dynamic={0: {0: "n"}})(function)
        for n in order:
            found.setdefault(n, set()).add(compiled(maps(n, CHANNELS, 12, 13)).numpy().tobytes())
    assert {n: len(bits) for n, bits in found.items()} == {3: 1, 6: 1, 7: 1, 15: 1}


def tiled_step(channels: int) -> Callable[[mge.Tensor], tuple[mge.Tensor, ...]]:
    """Two convolutions that Winograd's algorithm computes, and their gradients."""
    weights = [weight(channels, channels, 3, 3) for _ in range(2)]
    manager = mge.autodiff.GradManager().attach(weights)

    def step(x: mge.Tensor) -> tuple[mge.Tensor, ...]:
        manager.attach([x])
        with manager:
            y = F.conv2d(F.conv2d(x, weights[0], padding=1), weights[1], padding=1)
            manager.backward((y * y).mean())
        found = y, x.grad, *(w.grad for w in weights)
        for w in (x, *weights):
            w.grad = None
        return found

    return step


def kernels_of(compiled: Any) -> Counter[str]:
    """How often a program launches each kernel, at most."""
    found: Counter[str] = Counter()
    for variant in compiled.variants:
        found |= Counter(run.kernel.name for run in runs_of(variant.stages.planned.plan.steps))
    return found


# Channels differ, because what an op was lowered to is remembered.
@pytest.mark.parametrize(
    ("channels", "part", "least"), [(32, "whole", 1), (48, "results", 30)], ids=["few", "many"]
)
def test_winograd_has_one_plan_for_many_extents(
    channels: int, part: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = tiled_step(channels)
    if part == "results":  # Many chunks, most of them empty where maps are small.
        monkeypatch.setattr(winograd_forward, "_CHUNK", 1 << 19)
        monkeypatch.setattr(winograd_forward, "_ITEMS", 1 << 20)
        monkeypatch.setattr(winograd_gradient, "_VALUES", (1 << 18, 1 << 18))
    axes = {0: {0: "n", 2: "h", 3: "w"}}
    made: dict[tuple[int, ...], set[bytes]] = {}
    sizes = (2, 9, 10), (3, 17, 14), (7, 12, 15), (2, 12, 12), (15, 15, 9), (4, 16, 16)
    for order in (sizes, sizes[::-1]):
        compiled = jit.compile(dynamic=axes, options=jit.Options(check=True))(step)
        for n, height, width in order:
            x = maps(n, channels, height, width)
            found = [t.numpy() for t in compiled(x)]
            for one, other in zip(found, step(x), strict=True):
                want = other.numpy()
                np.testing.assert_allclose(one, want, rtol=1e-3, atol=1e-5 * abs(want).max())
            bits = b"".join(one.tobytes() for one in found)
            made.setdefault((n, height, width), set()).add(bits)
        (family,) = families_of(compiled)
        assert not family.alone and len(family.regimes) <= 3
        kernels = kernels_of(compiled)
        assert {"winograd_taps_4", f"winograd_{part}_4"} <= kernels.keys()
        assert kernels["winograd_gradients_4"] > least
    assert all(len(bits) == 1 for bits in made.values())


def test_products_of_pairs_have_one_plan_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a processor with dot products of bfloat16 runs them: tables of rows are computed."""
    kind = replace(TARGETS["avx512"], name="pairs", dot_bfloat16=True)
    monkeypatch.setitem(TARGETS, "pairs", kind)
    taps = (np.random.default_rng(0).standard_normal((16, 16, 3, 3)) / 8).astype("float32")
    factors = mge.tensor(taps).astype("bfloat16")
    compiled = jit.compile(dynamic={0: {2: "h", 3: "w"}})(lambda x: F.conv2d(x, factors, padding=1))
    with interpreting("pairs"):
        for height, width in ((8, 9), (11, 5)):
            x = maps(1, 16, height, width).astype("bfloat16")
            exact = F.conv2d(x.astype("float32"), factors.astype("float32"), padding=1).numpy()
            found = compiled(x).astype("float32").numpy()
            np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-2 * abs(exact).max())
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) == 1
