"""The parts of contraction kernels by themselves: tiles, packing, schedules, simplification."""

import re

import numpy as np
import pytest
from tests.backends.codegen.contractions import check, fused, lowered, types_of, values
from tests.backends.codegen.execution import assembly

from treadle.backends.codegen.contraction.shared.body import anchor_of, read_product
from treadle.backends.codegen.contraction.shared.pack import order_of, pack_function, transpose
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile, tile_function
from treadle.backends.codegen.contraction.tiles.schedule import schedule
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, TARGETS
from treadle.base import dtype as dt
from treadle.graph.builder import trace_body
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.movement import Transpose

TILE = Tile(dt.float32, 6, 4, 2, 8)


def kernel_of(function):
    """A kernel that calls the function once."""
    e = KernelBuilder([type(p)(p.type, p.name) for p in function.parameters])
    e.call(function, *e.parameters)
    return e.kernel("once", [function])


@pytest.mark.parametrize("form", ["row", "column"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("add", [None, 0, 1])
def test_tile(form, count, add):
    rng = np.random.default_rng(count)
    small, terms = count < TILE.rows, 5
    a = values(rng, (count, terms), dt.float32)
    b, c = values(rng, (terms, 16), dt.float32), values(rng, (count, 20), dt.float32)
    given = np.ascontiguousarray(a if form == "row" else a.T)
    made = c.copy()
    function = tile_function(TILE, form, small=small, accumulate=add is not None)
    more = [*([count] if small else []), *([] if add is None else [add])]
    run(kernel_of(function), [given, given.shape[1], b, 16, terms, made, 20, *more])
    expected = a @ b + (c[:, :16] if add else 0)
    np.testing.assert_allclose(made[:, :16], expected, 1e-5, 1e-5)
    np.testing.assert_array_equal(made[:, 16:], c[:, 16:])


def test_cuts_cover_all_rows():
    for tile in (TILE, Tile(dt.float32, 8, 4, 3, 16), Tile(dt.float32, 1, 1, 8, 8)):
        for rows in range(1, 40):
            full, small = tile.cut(rows)
            assert full * tile.rows <= rows <= full * tile.rows + small * tile.small
            assert full * tile.rows + small * tile.small - rows < tile.small
    assert TILE.cut(128) == (20, 2)


def test_few_columns_take_half_of_a_long_vector():
    """Six channels in sixteen lanes took 1.6 times as long as in eight."""
    lanes = {n: choose_tile(AVX512, dt.float32, 100, n).lanes for n in (6, 8, 9, 64)}
    assert lanes == {6: 8, 8: 8, 9: 16, 64: 16}
    assert choose_tile(AVX2, dt.float32, 100, 4).lanes == 8
    # What computes in a layout is asked for the same.
    found = {t.name: t.layouts[0] for t in (GENERIC, AVX2, AVX512)}
    widths = {name: (layout.columns, layout.narrow) for name, layout in found.items()}
    assert widths == {"generic": (8, 4), "avx2": (16, 8), "avx512": (32, 8)}


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize("form", ["row", "column"])
def test_no_vector_register_is_spilled(target, form):
    for dtype in (dt.float32, dt.float64):
        for rows, columns in ((100, 768), (100, 256), (1, 99), (2, 99)):
            tile = choose_tile(target, dtype, rows, columns)
            for small in (False, True):
                function = tile_function(tile, form, small=small, accumulate=True)
                text = assembly([kernel_of(function)], target)
                assert "vfmadd" in text
                assert not re.search(r"%[yz]mm\d+, -?\d*\(%rsp\)|\(%rsp\), %[yz]mm\d+", text)


@pytest.mark.parametrize(
    "source", [dt.float32, dt.bfloat16, dt.float16, dt.int8, dt.uint8], ids=str
)
@pytest.mark.parametrize("order", ["straight", "transposed", "strided"])
@pytest.mark.parametrize("panel", [True, False])
def test_packing(source, order, panel):
    rng = np.random.default_rng(3)
    pack = kernel_of(pack_function(TILE, source, order, panel=panel))
    for outer, inner in ((1, 1), (9, 16), (17, 7), (8, 13), (3, 15 if panel else 37)):
        x = values(rng, (outer, inner), source)
        pitch = 16 if panel else 48
        steps = {"straight": (inner, 1), "transposed": (1, outer), "strided": (2 * inner, 2)}[order]
        given = {"straight": x, "transposed": x.T, "strided": np.repeat(x, 2, axis=1)}[order]
        made = np.zeros((outer, pitch), np.float32)
        run(pack, [np.ascontiguousarray(given), *steps, made, pitch, outer, inner])
        np.testing.assert_array_equal(made[:, :inner], x.astype(np.float32))
    assert order_of(*steps) == order


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_transpose(lanes):
    e = KernelBuilder()
    source, target = e.pointer(dt.float32), e.pointer(dt.float32)
    rows = [source.load(i * lanes, lanes) for i in range(lanes)]
    for i, row in enumerate(transpose(rows)):
        target[i * lanes] = row
    x = np.arange(lanes * lanes, dtype=np.float32).reshape(lanes, lanes)
    y = np.zeros_like(x)
    run(e.kernel("transpose"), [x, y])
    np.testing.assert_array_equal(y, x.T)


def problem_of(function, arrays):
    body = trace_body(function, types_of(arrays))
    return read_product(body, anchor_of(body)).problem.simplified()


def test_a_stack_times_one_matrix_is_one_tall_matrix():
    arrays = [np.zeros((3, 4, 5, 6), np.float32), np.zeros((6, 7), np.float32)]
    problem = problem_of(Matmul(), arrays)
    assert (problem.batch, problem.m, problem.n, problem.k) == ((), 60, 7, 6)


def test_batch_axes_merge_where_every_array_allows_it():
    arrays = [np.zeros((3, 4, 5, 6), np.float32), np.zeros((3, 4, 6, 7), np.float32)]
    assert problem_of(Matmul(), arrays).batch == (12,)
    arrays[1] = np.zeros((3, 1, 6, 7), np.float32)
    found = problem_of(Matmul(), arrays)
    assert (found.batch, found.m) == ((3,), 20)
    arrays[1] = np.zeros((1, 4, 6, 7), np.float32)
    assert problem_of(Matmul(), arrays).batch == (3, 4)


def test_a_result_by_columns_is_the_transposed_product():
    arrays = [np.zeros((5, 6), np.float32), np.zeros((6, 7), np.float32)]

    def body(x, y):
        return x.apply(Transpose((1, 0)), x.apply(Matmul(), (x, y)))[0]

    problem = problem_of(body, arrays)
    assert (problem.m, problem.n) == (7, 5)
    assert [c.column for c in problem.results] == [1]


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_schedules_cover_the_result_and_fit_the_scratch(target):
    for m, k, n in ((1, 1, 1), (7, 300, 19), (1024, 256, 768), (100, 100000, 40), (3000, 5000, 9)):
        for dtype in (dt.float32, dt.float64):
            arrays = [np.broadcast_to(np.zeros((), dtype.numpy), s) for s in ((m, k), (k, n))]
            problem = problem_of(Matmul(), arrays)
            tile = choose_tile(target, dtype, problem.m, problem.n)
            plan = schedule(problem, tile, target)
            division, spec = plan.division, plan.spec
            panels = -(-problem.n // tile.width)
            assert division.row_items * division.height >= problem.m
            assert division.panel_items * division.width >= panels
            assert division.width * division.depth * tile.width <= spec.panels
            held = division.height * division.width if spec.split else division.block
            assert held * tile.width <= spec.sums
            assert division.block >= division.height or division.block % tile.rows == 0
            assert plan.items == problem.count * division.row_items * division.panel_items


def test_without_vectors_of_the_host():
    rng = np.random.default_rng(2)
    for m, k, n in ((7, 30, 18), (1, 30, 18), (2, 5, 40)):
        arrays = [values(rng, (m, k), dt.float32), values(rng, (k, n), dt.float32)]
        check(Matmul(), arrays, k, target=GENERIC)
    ints = [values(rng, (7, 300), dt.uint8), values(rng, (300, 9), dt.int8)]
    check(IntMatmul(), ints, 300, target=GENERIC)


def test_neon_kernels_are_code():
    arrays = [np.zeros((20, 30), np.float32), np.zeros((30, 40), np.float32)]
    op = fused(lambda x, y: x.apply(Matmul(), (x, y))[0] * 2.0, arrays)
    (launch,) = lowered(op, arrays, target=NEON).launches
    assert "fmla" in assembly([launch.kernel], NEON)
