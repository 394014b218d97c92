"""How rows are divided into items, and the loops that irregular kernels share."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import interpreted, one_by_one

from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    divide,
    over_rows,
    place,
    resolve,
    vector_loop,
)
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.records import RecordedKernel
from treadle.base import dtype as dt


@pytest.mark.parametrize("rows", [1, 2, 7, 255, 256, 257, 1000, 12345])
@pytest.mark.parametrize("cost", [0.5, 90.0, 1e5])
def test_items_cover_all_rows_once(rows: int, cost: float) -> None:
    items, grain = divide(rows, cost)
    assert 1 <= items <= 256
    assert (items - 1) * grain < rows <= items * grain


def test_small_launches_are_serial() -> None:
    kernel = RecordedKernel(RowBuilder().kernel("nothing"), ())
    assert over_rows(kernel, (), 10, 100.0).serial
    shared = over_rows(kernel, (), 1000, 1000.0)
    assert not shared.serial
    assert shared.items > 8


def _run(kernel: KernelModule, arguments: list[object], rows: int, grain: int) -> None:
    for lo, hi in one_by_one(-(-rows // grain)):
        interpreted(kernel, [*arguments, rows, grain], lo, hi)


def test_walk_counts_coordinates_on() -> None:
    e = RowBuilder()
    out, sizes = e.pointer(dt.int64, "out"), e.sizes("two", "three", "five")
    with e.rows(*sizes) as (row, *at):
        out[row] = place(at, [e.index(10000), e.index(100), e.index(1)])
    found = np.zeros(30, np.int64)
    _run(e.kernel("walk"), [found, 2, 3, 5], 30, 7)
    wanted = np.stack(np.unravel_index(np.arange(30), (2, 3, 5))).T @ [10000, 100, 1]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 11])
def test_vector_loop_masks_what_is_left(count: int) -> None:
    e = RowBuilder()
    out, extent = e.pointer(dt.int32, "out"), e.size("count")
    for i, mask in vector_loop(e, 0, extent, 4):
        out.store(i, e.constant(7, dt.int32, 4), mask)
    found = np.zeros(12, np.int32)
    _run(e.kernel("fill"), [found, count], 1, 1)
    assert found.tolist() == [7] * count + [0] * (12 - count)


def test_resolve() -> None:
    e = RowBuilder()
    index, out = e.pointer(dt.int32, "index"), e.pointer(dt.int64, "out")
    with e.loop(e.first, e.stop) as i:
        out.store(i, resolve(index[i], e.index(5)))
    given, found = np.array([0, 4, -1, -5, 5, -6, 2**31 - 1, -(2**31)], np.int32), np.zeros(8, int)
    _run(e.kernel("resolve"), [given, found], 8, 3)
    assert found.tolist() == [0, 4, 4, 0, 4, 0, 4, 0]
