"""Products with weights in quantized blocks: every format on every family of targets."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.backends.codegen.execution import assembly
from tests.backends.codegen.irregular import FAMILIES, one_by_one, run, runner_of
from tests.backends.codegen.test_pairs import MATRICES
from tests.backends.codegen.test_pairs import PAIRS as DOTS
from tests.backends.codegen.test_pairs import runner as runner_of_pairs

import treadle
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX2, AVX512, NEON_DOT, NEON_SDOT
from treadle.base import dtype as dt
from treadle.base.blocks import FORMATS
from treadle.base.blocks.activations import rounded_activations
from treadle.base.blocks.panels import LAYOUTS, from_panels, to_panels
from treadle.base.dtype import as_dtype
from treadle.base.types import TensorType
from treadle.jit import compile as compile_function
from treadle.ops.block_matmul import (
    BlockExperts,
    BlockExpertsGrad,
    BlockMatmul,
    BlockMatmulGrad,
    BlockValues,
)

VNNI = replace(AVX512, name="vnni", features=("+avx512vnni",), dot_int8=True)
SHAPES = ((1, 37, 3), (3, 16, 2), (9, 20, 1), (0, 5, 1))
"""Rows of x, rows of the weight, blocks of a row."""
EACH = (*FAMILIES, DOTS, MATRICES)
PAIRED = [
    (name, target)
    for (i, name), (k, target) in itertools.product(enumerate(LAYOUTS), enumerate(EACH))
    if k == 1 or i % 3 == (k + 1) % 3
]
"""Every format on AVX2, every third on each other target: levels of a format are taken apart by one
body, written in vectors of the target's width. The largest kernels are not among those in narrow
vectors, which LLVM takes longest for."""
BY_PAIR = pytest.mark.parametrize(
    ("name", "target"),
    [p if p[1] is AVX2 else pytest.param(*p, marks=pytest.mark.long) for p in PAIRED],
    ids=lambda x: getattr(x, "name", x),
)
"""Those on other targets are long: kernels of 480 KB of text. `test_every_format` and experts run
there in any case."""
KINDS = [
    (name, target, kind)
    for i, name in enumerate(LAYOUTS)
    for k, target in enumerate(FAMILIES)
    for j, kind in enumerate(("int8", "int16"))
    if target is AVX2 or (i + j + k // 2) % 2
]
"""Every format in both roundings on AVX2; on the others every format in one, and both in turn: the
rounding of activations and the levels of a format meet in one product of integers."""


def blocks(name, rows, count, seed=0):
    """Random rows of blocks with small scales, as files have them."""
    rng, made = np.random.default_rng(seed), FORMATS[name]
    data = rng.integers(0, 256, (rows, count * made.bytes), dtype=np.uint8)
    if name == "MXFP4":
        data.view(made.layout)["e"] = rng.integers(117, 125, (rows, count))
        return data
    for field in ("d", "m")[: 1 + LAYOUTS[name].minimum]:
        data.view(made.layout)[field] = rng.standard_normal((rows, count)) * 0.01
    return data


@pytest.mark.parametrize("name", LAYOUTS)
def test_panels_hold_what_blocks_do(name):
    data = blocks(name, 20, 3)
    panels = to_panels(name, data)
    assert panels.nbytes <= 32 * 3 * FORMATS[name].bytes * 1.06
    np.testing.assert_array_equal(from_panels(name, panels, 20), FORMATS[name].dequantize(data))


def of(arrays):
    """Their types."""
    return tuple(TensorType(as_dtype(a.dtype), a.shape) for a in arrays)


def close(got, want):
    largest = np.abs(want).max(initial=1e-30)
    np.testing.assert_allclose(got / largest, want / largest, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("name", "target", "kind"), KINDS, ids=lambda x: getattr(x, "name", x))
def test_every_format(name, target, kind):
    rng = np.random.default_rng(1)
    for m, rows, count in SHAPES:
        panels = to_panels(name, blocks(name, rows, count))
        x = rng.standard_normal((m, count * LAYOUTS[name].elements)).astype(np.float32)
        op = BlockMatmul(name, rows, kind)
        (got,) = run(op, (x, panels), runner_of(target), one_by_one, target)
        close(got, op.reference(x, panels))


@pytest.mark.parametrize("target", FAMILIES[:2], ids=lambda t: t.name)
@pytest.mark.parametrize("name", LAYOUTS)
def test_company_changes_no_bit(name, target):
    """A row alone, in a tile that is not full, and among those for whom levels are widened once."""
    elements = LAYOUTS[name].elements
    for terms in (elements, 3 * max(256, elements)):  # More than are widened at a time.
        panels = to_panels(name, blocks(name, 37, terms // elements))
        x = np.random.default_rng(1).standard_normal((9, terms)).astype(np.float32)
        op = BlockMatmul(name, 37)
        (all_rows,) = run(op, (x, panels), runner_of(target), one_by_one, target)
        close(all_rows, op.reference(x, panels))
        for m in (1, 3):
            (got,) = run(op, (x[:m], panels), runner_of(target), one_by_one, target)
            np.testing.assert_array_equal(got, all_rows[:m])


def close_to_bfloat16(got, want):
    """Values that are not sums of many terms may be rounded the other way."""
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max(initial=1e-30))


@BY_PAIR
def test_every_format_in_bfloat16(name, target):
    """Rows of no block, one, some and several; columns of a half, an odd and an even number."""
    rng = np.random.default_rng(1)
    elements = LAYOUTS[name].elements
    for m, rows, terms in ((1, 37, 256), (17, 16, 768), (35, 70, 256), (0, 5, 256)):
        panels = to_panels(name, blocks(name, rows, terms // elements))
        x = rng.standard_normal((m, terms)).astype(np.float32)
        op = BlockMatmul(name, rows, "bfloat16")
        runner = runner_of_pairs(target) if target in (DOTS, MATRICES) else runner_of(target)
        (got,) = run(op, (x, panels), runner, one_by_one, target)
        close_to_bfloat16(got, op.reference(x, panels))


@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
@pytest.mark.parametrize("shared", [True, False])
def test_experts(shared, target):
    rng = np.random.default_rng(6)
    panels = np.stack([to_panels("Q4_K", blocks("Q4_K", 37, 1, seed)) for seed in range(4)])
    experts = rng.integers(-4, 4, (5, 3)).astype(np.int32)
    x = rng.standard_normal((5, 1 if shared else 3, 256)).astype(np.float32)
    op = BlockExperts("Q4_K", 37)
    (got,) = run(op, (x, panels, experts), runner_of(target), one_by_one, target)
    want = op.reference(x, panels, experts)
    close(got, want)
    single = BlockMatmul("Q4_K", 37).reference(x[2, -1], panels[experts[2, 2]])
    close(want[2, 2], single)


@pytest.mark.parametrize("target", FAMILIES[:2], ids=lambda t: t.name)
@pytest.mark.parametrize("shared", [True, False])
def test_experts_of_many_rows(shared, target):
    """Levels are widened once for all rows of an expert, which changes no bit of them."""
    rng = np.random.default_rng(6)
    panels = np.stack([to_panels("Q5_K", blocks("Q5_K", 37, 3, seed)) for seed in range(4)])
    experts = rng.choice([0, -2, 3], (30, 2), p=[0.05, 0.65, 0.3]).astype(np.int64)
    x = rng.standard_normal((30, 1 if shared else 2, 768)).astype(np.float32)
    op = BlockExperts("Q5_K", 37)
    (got,) = run(op, (x, panels, experts), runner_of(target), one_by_one, target)
    close(got, op.reference(x, panels, experts))
    few = x[:2], panels, experts[:2]
    names = [
        [k.kernel.name for k in lower(op, of(a), (), target).launches]
        for a in (few, (x, panels, experts))
    ]
    assert "several" not in names[0][-1] and "several" in names[1][-1]
    (alone,) = run(op, few, runner_of(target), one_by_one, target)
    np.testing.assert_array_equal(alone, got[:2])


@pytest.mark.parametrize("target", EACH, ids=lambda t: t.name)
@pytest.mark.parametrize("shared", [True, False])
def test_experts_in_bfloat16(shared, target):
    """One that nobody chose, one of a few rows, one of several blocks of them."""
    rng = np.random.default_rng(6)
    panels = np.stack([to_panels("Q4_K", blocks("Q4_K", 70, 2, seed)) for seed in range(4)])
    experts = rng.choice([0, -2, 3], (50, 2), p=[0.05, 0.65, 0.3]).astype(np.int64)
    x = rng.standard_normal((50, 1 if shared else 2, 512)).astype(np.float32)
    op = BlockExperts("Q4_K", 70, "bfloat16")
    runner = runner_of_pairs(target) if target in (DOTS, MATRICES) else runner_of(target)
    (got,) = run(op, (x, panels, experts), runner, one_by_one, target)
    close_to_bfloat16(got, op.reference(x, panels, experts))


@BY_PAIR
def test_every_format_the_other_way_round(name, target):
    """Terms: one panel, several steps of two, none at all whole, more than sums take at a time."""
    rng = np.random.default_rng(1)
    elements = LAYOUTS[name].elements
    for m, rows, terms in ((1, 37, 256), (17, 16, 512), (35, 704, 256), (3, 3, 256), (0, 5, 256)):
        panels = to_panels(name, blocks(name, rows, terms // elements))
        dy = rng.standard_normal((m, rows)).astype(np.float32)
        op = BlockMatmulGrad(name, rows)
        runner = runner_of_pairs(target) if target in (DOTS, MATRICES) else runner_of(target)
        (got,) = run(op, (dy, panels), runner, one_by_one, target)
        close_to_bfloat16(got, op.reference(dy, panels))


@pytest.mark.parametrize(
    ("name", "target"),
    [*itertools.product(["Q4_0"], EACH), ("Q6_K", AVX2), ("Q6_K", MATRICES)],
    ids=lambda x: getattr(x, "name", x),
)
def test_experts_the_other_way_round(name, target):
    rng = np.random.default_rng(6)
    count = 256 // LAYOUTS[name].elements
    panels = np.stack([to_panels(name, blocks(name, 70, count, seed)) for seed in range(4)])
    experts = rng.choice([0, -2, 3], (50, 2), p=[0.05, 0.65, 0.3]).astype(np.int64)
    dy = rng.standard_normal((50, 2, 70)).astype(np.float32)
    op = BlockExpertsGrad(name, 70)
    runner = runner_of_pairs(target) if target in (DOTS, MATRICES) else runner_of(target)
    (got,) = run(op, (dy, panels, experts), runner, one_by_one, target)
    close_to_bfloat16(got, op.reference(dy, panels, experts))


@pytest.mark.parametrize(
    ("name", "target"),
    [pair for pair in PAIRED if pair[1] in FAMILIES],
    ids=lambda x: getattr(x, "name", x),
)
def test_values(name, target):
    """Whole panels, and a last one with fewer rows: the numbers are those of the file."""
    for rows, count in ((32, 2), (37, 1), (1, 3)):
        data = blocks(name, rows, count)
        (got,) = run(
            BlockValues(name, rows),
            (to_panels(name, data),),
            runner_of(target),
            one_by_one,
            target,
        )
        want = FORMATS[name].dequantize(data)
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-7 * np.abs(want).max())


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q6_K", "IQ4_NL", "MXFP4"])
def test_instructions_for_bytes_change_nothing(name):
    """Interpreted: what VNNI's instruction computes is what pairs of products compute, and what
    Arm's computes of signed levels.
    """
    panels = to_panels(name, blocks(name, 18, 1))
    x = np.random.default_rng(2).standard_normal((2, LAYOUTS[name].elements)).astype(np.float32)
    op = BlockMatmul(name, 18)
    targets = VNNI, AVX512, NEON_DOT, NEON_SDOT
    first, *others = (run(op, (x, panels), runner_of(t), target=t)[0] for t in targets)
    for result in others:
        np.testing.assert_array_equal(result, first)


@pytest.mark.parametrize(("target", "dot"), [(NEON_DOT, "usdot"), (NEON_SDOT, "sdot")])
@pytest.mark.parametrize("name", LAYOUTS)
def test_arm_multiplies_bytes_by_place(name, target, dot):
    """High and low bytes of every level are one product of four; words come with a vector load."""
    panels = TensorType(dt.uint8, (1, LAYOUTS[name].block))
    for rows in (1, 3):
        x = TensorType(dt.float32, (rows, LAYOUTS[name].elements))
        kernel = lower(BlockMatmul(name, 16), (x, panels), (), target).launches[-1].kernel
        text = assembly([kernel], target)
        by_place = re.findall(rf"\t{dot}\tv\d+\.4s, v\d+\.16b, v\d+\.4b\[\d\]", text)
        tile = 1 if rows == 1 else 4
        assert len(by_place) == 2 * tile * LAYOUTS[name].span // 4
        assert not re.search(r"\t[us]?ml[as]l?2?\t", text)


@pytest.mark.parametrize(("name", "kind"), [*zip(LAYOUTS, itertools.cycle(("int8", "int16")))])
def test_matrix_registers_change_nothing(name, kind):
    """Sums of groups are integers; what they add up to is rounded in the same order."""
    target = runner_of_pairs(MATRICES)
    for m, rows, count in ((20, 37, 3), (33, 16, 1)):
        count *= max(2, 64 // LAYOUTS[name].elements)
        panels = to_panels(name, blocks(name, rows, count))
        x = np.random.default_rng(7).standard_normal((m, count * LAYOUTS[name].elements))
        given = x.astype(np.float32), panels
        op = BlockMatmul(name, rows, kind)
        names = [launch.kernel.name for launch in lower(op, of(given), (), MATRICES).launches]
        assert names[1] == f"blocks_{name}_{kind}_matrices"
        (got,) = run(op, given, target, one_by_one, MATRICES)
        (plain,) = run(op, given, target=AVX2, runner=runner_of(AVX2))
        np.testing.assert_array_equal(got, plain)
        close(got, op.reference(*given))


@pytest.mark.parametrize("name", LAYOUTS)
def test_results_are_near_those_of_exact_activations(name):
    """A byte holds an activation to 0.4 % of the largest of 32, 16 bits to 0.0015 %."""
    data = blocks(name, 40, 2)
    x = np.random.default_rng(3).standard_normal((8, 2 * LAYOUTS[name].elements))
    exact = x @ from_panels(name, to_panels(name, data), 40).T.astype(np.float64)
    for kind, far in (("int8", 0.02), ("bfloat16", 0.01), ("int16", 1e-4)):
        got = BlockMatmul(name, 40, kind).reference(x.astype(np.float32), to_panels(name, data))
        assert np.abs(got - exact).max() < far * np.abs(exact).max()


@pytest.mark.parametrize("kind", ["int16", "bfloat16"])
@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_numbers_that_are_not_finite_stay_in_their_row(target, kind):
    panels = to_panels("Q4_0", blocks("Q4_0", 20, 2))
    x = np.ones((4, 64), np.float32)
    x[1, 40], x[2, 3], x[3] = np.nan, np.inf, 1e-39
    (got,) = run(BlockMatmul("Q4_0", 20, kind), (x, panels), runner_of(target), target=target)
    assert np.isnan(got[1]).all() and not np.isfinite(got[2]).any()
    assert np.isfinite(got[0]).all()
    assert np.abs(got[3]).max() < 1e-35


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float16], ids=lambda d: d.name)
def test_activations_of_16_bits(dtype):
    panels = to_panels("Q8_0", blocks("Q8_0", 33, 2))
    x = np.random.default_rng(4).standard_normal((5, 64)).astype(dtype.numpy)
    op = BlockMatmul("Q8_0", 33)
    (got,) = run(op, (x, panels))
    assert got.dtype == dtype.numpy
    want = op.reference(x, panels).astype(np.float32)
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2e-2, atol=1e-4)


def test_tiles_have_as_many_rows_as_there_are():
    """A token's product does not compute for eight; many rows share what is read of a weight."""
    panels = TensorType(dt.uint8, (2, 544))

    def names(rows, target):
        types = TensorType(dt.float32, (rows, 32)), panels
        return [x.kernel.name for x in lower(BlockMatmul("Q8_0", 20), types, (), target).launches]

    for rows, tile in ((1, 1), (2, 2), (3, 4), (8, 8), (500, 8)):
        wanted = [f"quantize_rows_float32_int16_{tile}", f"blocks_Q8_0_int16_{tile}"]
        assert names(rows, VNNI) == wanted
        kind = f"several_{tile}" if rows > tile else f"pairs_{tile}"
        wanted = [f"quantize_rows_float32_int16_pairs_{tile}", f"blocks_Q8_0_int16_{kind}"]
        assert names(rows, AVX512) == wanted


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_through_experts(shared):
    """Those of the rows' own products; a row that several experts share has the sum of theirs."""
    rng = np.random.default_rng(8)
    panels = np.stack([to_panels("Q5_0", blocks("Q5_0", 40, 2, seed)) for seed in range(3)])
    experts = rng.integers(0, 3, (6, 2))
    x = treadle.tensor(rng.standard_normal((6, 1 if shared else 2, 64)).astype(np.float32))

    def step(x):
        with GradManager().attach([x]) as gm:
            y = F.block_experts(x, treadle.tensor(panels), treadle.tensor(experts), "Q5_0", 40)
            gm.backward((y * y).sum())
        return y, x.grad

    for run_step in (step, compile_function(step)):
        x.grad = None
        y, gradient = (t.numpy() for t in run_step(x))
        want = np.stack(
            [
                [2 * y[t, s] @ from_panels("Q5_0", panels[experts[t, s]], 40) for s in range(2)]
                for t in range(6)
            ]
        )
        want = want.sum(1, keepdims=True) if shared else want
        np.testing.assert_allclose(gradient, want, rtol=0, atol=0.01 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["int16", "bfloat16"])
def test_a_program_with_a_gradient(kind):
    data = blocks("Q4_K", 24, 1)
    panels, bias = treadle.tensor(to_panels("Q4_K", data)), treadle.tensor(np.ones(24, np.float32))
    x = treadle.tensor(np.random.default_rng(5).standard_normal((2, 3, 256)).astype(np.float32))

    def step(x):
        gm = GradManager().attach([x])
        with gm:
            y = F.block_linear(x, panels, "Q4_K", 24, bias, activations=kind)
            gm.backward((y * y).sum())
        return y, x.grad

    values = from_panels("Q4_K", to_panels("Q4_K", data), 24)
    for run_step in (step, compile_function(step)):
        x.grad = None
        y, gradient = (t.numpy() for t in run_step(x))
        if kind == "int16":
            want = rounded_activations(x.numpy()) @ values.T + 1
            close(y, want)
            close(gradient, 2 * want @ values)
        else:
            rounded = rounded_activations(values, kind)
            close_to_bfloat16(y, rounded_activations(x.numpy(), kind) @ rounded.T + 1)
            close_to_bfloat16(gradient, rounded_activations(2 * y, kind) @ rounded)
