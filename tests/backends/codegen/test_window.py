"""Pooling of channels-last arrays, in groups with the transpositions around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import object_code
from tests.backends.codegen.irregular import (
    Array,
    against_reference,
    draw,
    inside_memory,
    lowered,
)

from treadle.backends.api import Support
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX512, GENERIC, NEON, Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.ops import adaptive_pool
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.op import Op
from treadle.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGather, MaxPoolGrad
from treadle.ops.resample import Resize, ResizeGrad
from treadle.ops.slicing import Slice
from treadle.ops.unary import Relu

Window = tuple[Any, ...]


def last(shape: Sequence[int]) -> tuple[int, ...]:
    """[N,C,*S] to [N,*S,C]."""
    return (shape[0], *shape[2:], shape[1])


def group(op: Op, arrays: Sequence[Array]) -> Fused:
    """The op on channels-last arrays."""
    rank = arrays[0].ndim
    first = Transpose((0, rank - 1, *range(1, rank - 1)))
    back = Transpose((0, *range(2, rank), 1))

    def body(*xs):  # type: ignore[no-untyped-def]
        y = xs[0].apply(op, [x.apply(first, (x,))[0] for x in xs])[0]
        return y.apply(back, (y,))[0]

    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    return Fused("window", trace_body(body, types))


def check(op: Op, arrays: Sequence[Array], *, exact: bool = True) -> None:
    against_reference(group(op, arrays), arrays, exact=exact)


def windows() -> Iterator[tuple[tuple[int, ...], Window]]:
    """(extents, (kernel, strides, padding, dilation, ceil_mode)) of many kinds."""
    yield (8, 10), ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), False)
    yield (9, 7), ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), False)
    yield (12, 13), ((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), False)
    yield (9, 8), ((3, 5), (1, 1), ((1, 1), (2, 2)), (1, 1), False)
    yield (12, 15), ((2, 3), (3, 3), ((0, 1), (1, 0)), (2, 2), True)
    yield (33,), ((4,), (2,), ((3, 3),), (3,), False)
    yield (4, 6, 8), ((2, 3, 2), (1, 2, 2), ((1, 0), (1, 1), (0, 1)), (1, 1, 1), False)
    yield (2, 5), ((2, 2), (2, 2), ((3, 3), (3, 3)), (1, 1), False)  # some see padding only


MAXIMA = [
    (dt.float32, 3, 0.03),
    (dt.float32, 41, 0.0),  # Several vectors at a time, which look at NaN apart.
    (dt.float32, 40, 0.0005),
    (dt.float64, 16, 0.0),
    (dt.bfloat16, 41, 0.001),
    (dt.int8, 41, 0.0),
]


@pytest.mark.parametrize("dtype, channels, nan", MAXIMA, ids=str)
def test_maxima(dtype: DType, channels: int, nan: float) -> None:
    for extents, window in windows():
        x = draw((2, channels, *extents), dtype, 1, nan=nan)
        shape = last(MaxPool(*window).reference(x).shape)
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        check(MaxPool(*window), [x])
        if not dtype.is_float:
            continue
        check(MaxPoolGather(*window), [x, draw(x.shape, dtype, 2)])
        dy = draw(shape, dtype, 3)
        check(MaxPoolGrad(*window), [x, dy])


@pytest.mark.parametrize("extreme", [-np.inf, np.inf, np.nan])
def test_gradients_of_equal_cells_go_to_the_first(extreme: float) -> None:
    for extents, window in windows():
        x = np.full((1, *extents, 33), extreme, np.float32)
        x.reshape(-1)[::7] = 0.0
        op = MaxPool(*window)
        y = op.reference(np.moveaxis(x, -1, 1))
        dy = draw(last(y.shape), dt.float32, 1)
        check(MaxPoolGrad(*window), [x, dy])


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.float64], ids=str)
def test_averages(dtype: DType, counted: bool) -> None:
    for extents, (kernel, strides, padding, dilation, ceil_mode) in windows():
        if max(dilation) > 1:
            continue
        attributes = kernel, strides, padding, counted, ceil_mode
        x = draw((2, *extents, 21), dtype, 1)
        op = AvgPool(*attributes)
        check(op, [x], exact=False)
        y = op.reference(np.moveaxis(x, -1, 1))
        dy = draw(last(y.shape), dtype, 2)
        check(AvgPoolGrad(*attributes, extents), [dy], exact=False)


@pytest.mark.parametrize("extents, counts", [((7, 7), (1, 1)), ((12, 9), (4, 3)), ((5, 8), (3, 5))])
@pytest.mark.parametrize("channels", [16, 19])
def test_adaptive_windows(extents: tuple[int, ...], counts: tuple[int, ...], channels: int) -> None:
    x = draw((2, *extents, channels), dt.float32, 1)
    dy = draw((2, *counts, channels), dt.float32, 2)
    check(adaptive_pool.AdaptiveAvgPool(counts), [x], exact=False)
    check(adaptive_pool.AdaptiveAvgPoolGrad(counts, extents), [dy], exact=False)
    x[0, 0, 0] = np.nan
    check(adaptive_pool.AdaptiveMaxPool(counts), [x])
    check(adaptive_pool.AdaptiveMaxPoolGather(counts), [x, draw(x.shape, dt.float32, 3)])
    check(adaptive_pool.AdaptiveMaxPoolGrad(counts), [x, dy], exact=False)


WINDOW = (3, 2), (2, 1), ((1, 1), (1, 0)), (1, 1), False


def cases(dtype: DType) -> list[tuple[Op, list[Array]]]:
    """Every kernel."""
    x = draw((1, 5, 6, 19), dtype, 1)
    y = draw(last(MaxPool(*WINDOW).reference(np.moveaxis(x, -1, 1)).shape), dtype, 2)
    average = (*WINDOW[:3], True, False)
    return [
        (MaxPool(*WINDOW), [x]),
        (MaxPoolGather(*WINDOW), [x, x]),
        (MaxPoolGrad(*WINDOW), [x, y]),
        (AvgPool(*average), [x]),
        (AvgPoolGrad(*average, (5, 6)), [y]),
        (adaptive_pool.AdaptiveMaxPoolGrad((1, 2)), [x, draw((1, 1, 2, 19), dtype, 3)]),
    ]


def test_every_access_stays_inside() -> None:
    for op, arrays in cases(dt.float32):
        inside_memory(group(op, arrays), arrays, exact=False)


@pytest.mark.parametrize("target", [AVX512, NEON, GENERIC], ids=lambda t: t.name)
def test_other_targets(target: Target) -> None:
    kernels = []
    for dtype in (dt.float32, dt.float16):
        for op, arrays in cases(dtype):
            made = group(op, arrays)
            if target is GENERIC:
                against_reference(made, arrays, exact=False, target=target)
            kernels += [launch.kernel for launch in lowered(made, arrays, target).launches]
    assert object_code(list(dict.fromkeys(kernels)), target)


def test_what_is_not_channels_last_is_refused() -> None:
    x = TensorType(dt.float32, (1, 8, 6, 6))
    pool = MaxPool(*WINDOW)
    plain = Fused("window", trace_body(pool, [x]))
    found = lower(plain, [x], (), AVX512)
    assert isinstance(found, Support) and found.reason == "layout"

    def body(x):  # type: ignore[no-untyped-def]
        return x.apply(Relu(), x.apply(pool, (x,)))[0]

    assert isinstance(lower(Fused("window", trace_body(body, [x])), [x], (), AVX512), Support)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("channels", [1, 3, 19])
def test_resizing(mode: str, channels: int) -> None:
    for sizes, made in (((7,), (20,)), ((7, 20), (11, 9)), ((3, 4, 5), (6, 4, 2))):
        x = draw(last((2, channels, *sizes)), dt.float32, 1)
        dy = draw(last((2, channels, *made)), dt.float32, 2)
        check(Resize(mode, "half_pixel", made), [x])
        check(ResizeGrad(mode, "half_pixel", sizes), [dy], exact=False)
        inside_memory(group(Resize(mode, "half_pixel", made), [x]), [x])


def test_resizing_of_16_bit_floats() -> None:
    x = draw(last((2, 9, 5, 4)), dt.bfloat16, 1)
    check(Resize("linear", "half_pixel", (10, 8)), [x], exact=False)


def test_resizing_takes_whole_maps() -> None:
    def body(x):  # type: ignore[no-untyped-def]
        part = x.apply(Slice((0, 0, 0, 2), (2, 5, 4, 8), (1, 1, 1, 1)), (x,))[0]
        first = part.apply(Transpose((0, 3, 1, 2)), (part,))[0]
        y = first.apply(Resize("linear", "half_pixel", (10, 8)), (first,))[0]
        return y.apply(Transpose((0, 2, 3, 1)), (y,))[0]

    types = [TensorType(dt.float32, (2, 5, 4, 9))]
    answer = lower(Fused("window", trace_body(body, types)), types, (), AVX512)
    assert isinstance(answer, Support) and "takes whole maps" in answer.message
