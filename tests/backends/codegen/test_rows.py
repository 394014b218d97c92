"""How rows are divided into items, and the loops that irregular kernels share."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import interpreted, one_by_one

from treadle.backends.codegen.irregular.rows import (
    divide,
    over_rows,
    place,
    resolve,
    row_kernel,
    vector_loop,
    walk,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt


@pytest.mark.parametrize("rows", [1, 2, 7, 255, 256, 257, 1000, 12345])
@pytest.mark.parametrize("cost", [0.5, 90.0, 1e5])
def test_items_cover_all_rows_once(rows: int, cost: float) -> None:
    items, grain = divide(rows, cost)
    assert 1 <= items <= 256
    assert (items - 1) * grain < rows <= items * grain


def test_small_launches_are_serial() -> None:
    kernel = row_kernel("nothing", (), lambda b, first, stop: None)
    assert over_rows(kernel, (), 10, 100.0).serial
    shared = over_rows(kernel, (), 1000, 1000.0)
    assert not shared.serial
    assert shared.items > 8


def _run(kernel: Kernel, arguments: list[object], rows: int, grain: int) -> None:
    for lo, hi in one_by_one(-(-rows // grain)):
        interpreted(kernel, [*arguments, rows, grain], lo, hi)


def test_walk_counts_coordinates_on() -> None:
    out, sizes = pointer(dt.int64, "out"), [size(n) for n in ("two", "three", "five")]

    def body(b: Builder, first: Value, stop: Value) -> None:
        def one(row: Value, *at: Value) -> None:
            weights = [b.index(10000), b.index(100), b.index(1)]
            b.store(out, row, place(b, at, weights))

        walk(b, first, stop, sizes, one)

    found = np.zeros(30, np.int64)
    _run(row_kernel("walk", (out, *sizes), body), [found, 2, 3, 5], 30, 7)
    wanted = np.stack(np.unravel_index(np.arange(30), (2, 3, 5))).T @ [10000, 100, 1]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 11])
def test_vector_loop_masks_what_is_left(count: int) -> None:
    out, sizes = pointer(dt.int32, "out"), [size("count")]

    def body(b: Builder, first: Value, stop: Value) -> None:
        def some(i: Value, mask: Value | None) -> None:
            b.store(out, i, b.constant(7, dt.int32, 4), mask)

        vector_loop(b, 0, sizes[0], 4, some)

    found = np.zeros(12, np.int32)
    _run(row_kernel("fill", (out, *sizes), body), [found, count], 1, 1)
    assert found.tolist() == [7] * count + [0] * (12 - count)


def test_resolve() -> None:
    index, out = pointer(dt.int32, "index"), pointer(dt.int64, "out")

    def body(b: Builder, first: Value, stop: Value) -> None:
        def one(i: Value) -> None:
            b.store(out, i, resolve(b, b.load(index, i), b.index(5)))

        b.loop(first, stop, 1, one)

    given, found = np.array([0, 4, -1, -5, 5, -6, 2**31 - 1, -(2**31)], np.int32), np.zeros(8, int)
    _run(row_kernel("resolve", (index, out), body), [given, found], 8, 3)
    assert found.tolist() == [0, 4, 4, 0, 4, 0, 4, 0]
