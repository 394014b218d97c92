"""Layouts in native programs: every kernel they ask for gives the numbers of the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.conv_graphs import conv, forward, training
from tests.engine.workloads import arrays, f32

from treadle.backends.cpu import pool
from treadle.engine.optimize import layout_offers, layout_problem
from treadle.engine.optimize.layout import ROW_MAJOR
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.builder import trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.gradient import value_and_gradient
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.ops.activation import Relu6
from treadle.ops.movement import Concat
from treadle.ops.pool import MaxPool
from treadle.ops.reduce import Mean
from treadle.ops.resample import Resize
from treadle.ops.unary import Relu, Sigmoid


def check_native(graph: Graph, seed: int, layouts: tuple[str, ...] = ()) -> str:
    """Run natively with layouts; what the report says about them."""
    stages = Inspected(Stages(graph, options=Options(check=True, layouts=layouts)))
    given = arrays(graph, seed)
    for x, y in zip(evaluate(graph, given), stages.compile().run(given), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype.kind == "f":  # Places of equal maxima may differ by how numbers were rounded.
            np.testing.assert_allclose(x, y, 2e-3, 2e-3)
    stages.lower()
    return next((d.outcome for d in stages.report.decisions if d.subject == "layout"), "")


@pytest.fixture
def liked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices by which even small maps are held channels-last wherever that is possible."""
    monkeypatch.setattr(layout_problem, "conversion", lambda value: 1e-12)
    monkeypatch.setattr(layout_offers, "seconds", lambda node, sides: sides.count(ROW_MAJOR))


@pytest.mark.parametrize("spatial", [(8, 7), (9,), (4, 5, 4)])
@pytest.mark.parametrize("seed", [1, 4])
def test_networks(seed: int, spatial: tuple[int, ...], liked: Any) -> None:
    check_native(forward(seed, 8, spatial), seed)


@pytest.mark.parametrize("seed", [3, 5, 6, 9])
def test_training_steps(seed: int, liked: Any) -> None:
    assert check_native(training(seed), seed).startswith("channels-last")


# -- channels in blocks ------------------------------------------------------------------------

BLOCKED = ("blocked",)


@pytest.mark.parametrize("spatial", [(8, 7), (9,), (4, 5, 4)])
@pytest.mark.parametrize("seed", [1, 4])
def test_networks_in_blocks(seed: int, spatial: tuple[int, ...], liked: Any) -> None:
    """Four channels in blocks of sixteen, so that most of each is filled up."""
    said = check_native(forward(seed, 8, spatial), seed, BLOCKED)
    assert said.startswith("blocks of 16 channels")


@pytest.mark.parametrize("seed", [2, 3])
def test_training_steps_in_blocks(seed: int, liked: Any) -> None:
    said = check_native(training(seed), seed, BLOCKED)
    assert said.startswith("blocks of 16 channels")


def test_three_layouts_in_one_program(liked: Any) -> None:
    check_native(training(5), 5, ("blocked", "channels-last"))


@pytest.mark.parametrize("channels", [32, 40])
def test_residual_block_in_blocks(channels: int, liked: Any) -> None:
    def block(x: Any, v: Any, w: Any, short: Any, gain: Any) -> Any:
        y = Relu()(conv(x, v, 2) * gain.reshape((channels, 1, 1)))
        return Relu()(conv(y, w) + conv(x, short, 2))

    types = [f32(2, channels, 12, 10), *[f32(channels, channels, 3, 3)] * 2]
    types += [f32(channels, channels, 1, 1), f32(channels)]
    graph = trace_body(block, types, "residual")
    assert check_native(graph, 1, BLOCKED).startswith("blocks of 16 channels: 3 convolutions, ")


@pytest.mark.parametrize("channels", [16, 24])
def test_unet_block_in_blocks(channels: int, liked: Any) -> None:
    """Down by pooling, up by resizing, and both ways side by side."""

    def block(x: Any, v: Any, w: Any, last: Any) -> Any:
        y = Relu()(conv(x, v))
        low = MaxPool((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), False)(y)
        up = Resize("linear", "half_pixel", (12, 8))(Relu()(conv(low, w)))
        return conv(Concat(1)(y, up), last)

    types = [f32(2, channels, 12, 8), *[f32(channels, channels, 3, 3)] * 2]
    graph = trace_body(block, [*types, f32(channels, 2 * channels, 3, 3)], "unet")
    said = check_native(graph, 2, BLOCKED)
    assert said.startswith("blocks of 16 channels: 3 convolutions, 1 max_pool, 1 resize, ")


@pytest.mark.parametrize("channels", [32, 24])
def test_inverted_block_in_blocks(channels: int, liked: Any) -> None:
    """Depthwise layers, and a gate of one number per channel."""

    def block(x: Any, v: Any, deep: Any, gate: Any, w: Any) -> Any:
        y = Relu6()(conv(Relu6()(conv(x, v)), deep, 2, 2 * channels))
        y = y * Sigmoid()(conv(Mean((2, 3), True)(y), gate))
        return conv(y, w)

    wide = 2 * channels
    types = [f32(2, channels, 9, 8), f32(wide, channels, 1, 1), f32(wide, 1, 5, 5)]
    types += [f32(wide, wide, 1, 1), f32(channels, wide, 1, 1)]
    graph = trace_body(block, types, "inverted")
    assert check_native(graph, 3, BLOCKED).startswith("blocks of 16 channels: 3 convolutions")
    training = value_and_gradient(
        trace_body(lambda *xs: Mean((0, 1, 2, 3))(block(*xs)), types, "t"), range(1, 5)
    )
    check_native(training, 3, BLOCKED)


def test_the_same_bits_on_any_number_of_threads(liked: Any) -> None:
    graph = forward(4, 8, (17, 16))
    given, before = arrays(graph, 4), pool.get_threads()
    program = Stages(graph, options=Options(layouts=BLOCKED)).running
    found = []
    try:
        for threads in (1, 3):
            pool.set_threads(threads)
            found.append([x.tobytes() for x in program.run(given)])
    finally:
        pool.set_threads(before)
    assert found[0] == found[1]
