"""Convolutions of maps whose channels lie in blocks, [N, C / c, *S, c], against the oracles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.contractions import check, fused, interpreted, lowered, types_of, values
from tests.backends.codegen.execution import object_code
from tests.backends.codegen.irregular import HOST, Array

from treadle.backends.api import Support
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, Target
from treadle.backends.codegen.views import blocked_input, split_after, strided_input
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.graph.builder import trace_body
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, Convolution, IntConv
from treadle.ops.fused import Fused
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.slicing import Slice
from treadle.ops.unary import Relu
from treadle.ops.winograd import WinogradConv


def one(op: Any, *xs: Any) -> Any:
    return xs[0].apply(op, xs)[0]


def held(x: Array, block: int) -> Array:
    """[N,C,*S] in blocks, the last of which is filled up with numbers that must not matter."""
    missing = -x.shape[1] % block
    rest = np.full((x.shape[0], missing, *x.shape[2:]), 7, x.dtype)
    whole = np.concatenate([x, rest], 1) if missing else x
    split = whole.reshape(x.shape[0], -1, block, *x.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def merged(x: Any, channels: int) -> Any:
    """Blocks to [N,C,*S]."""
    n, count, *space, block = x.type.shape
    rank = len(space) + 2
    y = one(Transpose((0, 1, rank, *range(2, rank))), x)
    y = one(Reshape((n, count * block, *space)), y)
    if channels == count * block:
        return y
    ones, shape = (1,) * rank, (n, channels, *space)
    return one(Slice((0,) * rank, shape, ones), y)


def split(x: Any, block: int) -> Any:
    """[N,C,*S] to blocks."""
    n, channels, *space = x.type.shape
    y = one(Reshape((n, channels // block, block, *space)), x)
    return one(Transpose((0, 1, *range(3, len(space) + 3), 2)), y)


def group(
    op: Convolution,
    x: Array,
    weight: Array,
    block: int,
    *,
    given: bool = True,
    made: bool = True,
    extras: Sequence[Array] = (),
) -> tuple[Fused, list[Array]]:
    """A convolution whose operand, or result, is in blocks, with additions and a rectifier."""
    operands = [held(x, block) if given else x, weight]
    operands += [held(e, block) if made else e for e in extras]

    def body(x_: Any, w: Any, *more: Any) -> Any:
        z = one(op, merged(x_, x.shape[1]) if given else x_, w)
        z = split(z, block) if made else z
        for extra in more:
            z = z + extra
        return one(Relu(), z) if more else z

    return fused(body, operands), operands


# channels, results, groups, kernel, strides, extents
LAYERS = [
    (32, 48, 1, (3, 3), (1, 1), (9, 7)),
    (20, 32, 1, (3, 3), (2, 1), (9, 7)),
    (64, 32, 2, (1, 1), (1, 1), (5, 4)),
    (32, 64, 2, (2, 3), (1, 1), (6, 6)),
    (16, 16, 1, (3, 3), (1, 1), (4, 4)),
    (48, 32, 1, (3,), (2,), (20,)),
    (17, 16, 1, (3, 2, 3), (1, 2, 1), (4, 5, 4)),
    (256, 32, 1, (3, 3), (1, 1), (5, 5)),
]


@pytest.mark.parametrize("number", range(len(LAYERS)), ids=lambda i: str(LAYERS[i]))
def test_layers(number: int) -> None:
    layer, images = LAYERS[number], 1 + 2 * (number % 2)
    inputs, outputs, groups, kernel, strides, space = layer
    rng = np.random.default_rng(inputs + images)
    op = Conv(strides, ((1, 1),) * len(kernel), (1,) * len(kernel), groups)
    back = ConvGradInput(*(op.strides, op.padding, op.dilation, groups), space)
    others = (dt.float64, dt.bfloat16) if layer in LAYERS[1:3] else ()
    for dtype in (dt.float32, *others):
        x = values(rng, (images, inputs, *space), dtype)
        weight = values(rng, (outputs, inputs // groups, *kernel), dtype)
        y = values(rng, op.reference(x, weight).shape, dtype)
        bias = values(rng, (1, outputs, *(1 for _ in space)), dtype)
        terms = inputs // groups * int(np.prod(kernel))
        for given, made in ((True, True), (True, False), (False, True)):
            how = group(op, x, weight, 16, given=given, made=made, extras=(bias, y))
            check(*how, terms)
        if inputs % 16 == 0:
            check(*group(back, y, weight, 16), terms * outputs // inputs)


@pytest.mark.parametrize("block", [4, 8, 32])
def test_other_blocks(block: int) -> None:
    rng = np.random.default_rng(block)
    op = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    x, weight = values(rng, (2, 40, 6, 5), dt.float32), values(rng, (32, 40, 3, 3), dt.float32)
    found = lower(*asked(group(op, x, weight, block)), (), AVX2)
    if block == 4:
        assert isinstance(found, Support)
        assert "tiles have 8 columns, blocks 4" in found.message
    else:
        check(*group(op, x, weight, block), 360, target=AVX2)


def asked(made: tuple[Fused, list[Array]]) -> tuple[Fused, Any]:
    return made[0], types_of(made[1])


def test_every_access_stays_inside() -> None:
    rng = np.random.default_rng(1)
    op = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    x, weight = values(rng, (2, 20, 3, 4), dt.float32), values(rng, (32, 20, 3, 3), dt.float32)
    for given, made in ((True, True), (True, False), (False, True)):
        check(*group(op, x, weight, 16, given=given, made=made), 180, runner=interpreted)


def test_integers_are_refused() -> None:
    rng = np.random.default_rng(5)
    x, weight = values(rng, (2, 32, 5, 4), dt.int8), values(rng, (32, 32, 3, 3), dt.int8)
    op = IntConv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    found = lower(*asked(group(op, x, weight, 16)), (), HOST)
    assert isinstance(found, Support)
    assert found.message == "products of integers take no blocks of channels"


def test_frozen_weights_are_packed_once() -> None:
    rng = np.random.default_rng(2)
    op = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    x, weight = values(rng, (1, 32, 6, 5), dt.float32), values(rng, (48, 32, 3, 3), dt.float32)
    made = group(op, x, weight, 16)
    assert len(lowered(*made, (False, True)).prelude) == 1
    check(*made, 288, (False, True))


def test_winograd_is_computed_directly() -> None:
    rng = np.random.default_rng(3)
    op = WinogradConv((1, 1), ((1, 1), (1, 1)), (1, 1), 1, 4, False)
    x, weight = values(rng, (1, 32, 8, 8), dt.float32), values(rng, (32, 32, 3, 3), dt.float32)
    made = group(op, x, weight, 16)
    names = [run.kernel.name for run in lowered(*made).launches]
    assert any(name.startswith("contract_") for name in names)
    check(*made, 288)


def test_gradients_of_weights_are_refused() -> None:
    op = ConvGradWeight((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (3, 3))
    x, y = np.zeros((1, 32, 6, 5), np.float32), np.zeros((1, 32, 6, 5), np.float32)
    made = fused(lambda a, b: one(op, merged(a, 32), merged(b, 32)), [held(x, 16), held(y, 16)])
    found = lower(made, types_of([held(x, 16), held(y, 16)]), (), HOST)
    assert isinstance(found, Support)
    assert found.message == "gradients of weights take no blocks of channels"


@pytest.mark.parametrize("target", [GENERIC, AVX512, NEON], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16], ids=str)
def test_other_targets_compile(target: Target, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    op = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    x, weight = values(rng, (1, 20, 3, 2), dtype), values(rng, (32, 20, 3, 3), dtype)
    made = group(op, x, weight, 16)
    for run in lowered(*made, (), target).launches:
        assert object_code([run.kernel], target)


# -- views -------------------------------------------------------------------------------------


def test_operands_in_blocks_are_seen() -> None:
    def body(x: Any) -> Any:
        return merged(x, 20)

    graph = trace_body(body, types_of([np.zeros((2, 2, 5, 3, 16), np.float32)]))
    (value,) = graph.outputs
    view = blocked_input(graph, value)
    assert strided_input(graph, value) is None and view is not None
    assert (view.index, view.block, view.channels, view.shape) == (0, 16, 20, (2, 20, 5, 3))
    assert view.whole.strides == (480, 240, 1, 48, 16)
    images = view.as_images()
    assert images is not None
    assert (images.shape, images.strides) == ((4, 16, 5, 3), (240, 1, 48, 16))


def test_other_moves_are_no_blocks() -> None:
    types = types_of([np.zeros((2, 2, 5, 3, 16), np.float32)])

    def second_half(x: Any) -> Any:
        return one(Slice((0, 16, 0, 0), (2, 32, 5, 3), (1, 1, 1, 1)), merged(x, 32))

    def narrower(x: Any) -> Any:
        return one(Slice((0, 0, 0, 0), (2, 32, 4, 3), (1, 1, 1, 1)), merged(x, 32))

    def other_axes(x: Any) -> Any:
        return one(Reshape((4, 5, 3, 16)), x)

    def computed(x: Any) -> Any:
        return merged(one(Relu(), x), 32)

    for body in (second_half, narrower, other_axes, computed):
        graph = trace_body(body, types)
        assert blocked_input(graph, graph.outputs[0]) is None


def test_only_blocks_that_are_put_last_are_split() -> None:
    types = types_of([np.zeros((2, 32, 5, 3), np.float32)])

    def shuffled(x: Any) -> Any:
        y = one(Relu(), x)
        return one(Transpose((0, 2, 1, 3, 4)), one(Reshape((2, 4, 8, 5, 3)), y))

    def twice(x: Any) -> Any:
        y = one(Relu(), x)
        return split(y, 8) + 1.0, y

    for body, found in ((lambda x: split(one(Relu(), x), 8), True), (shuffled, False), (twice, 0)):
        graph = trace_body(body, types)
        relu = next(n for n in graph.nodes if n.op.name == "relu")
        assert (split_after(graph, relu.output) is not None) == bool(found)
