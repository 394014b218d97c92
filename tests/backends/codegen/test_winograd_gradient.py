"""Winograd's gradients in the weight against the direct ones, within a bound for each input.

The transforms' matrices are derived here anew, from polynomials, as in `test_winograd`.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.contractions import fused, lowered, run, types_of
from tests.backends.codegen.execution import RUNNABLE, object_code
from tests.backends.codegen.irregular import FAMILIES, HOST, interpreted, one_by_one
from tests.backends.codegen.test_winograd import (
    BFLOAT16,
    EVEN,
    ROUND,
    STORE,
    Padding,
    matrices,
    names,
)

from treadle.backends.api import Support
from treadle.backends.codegen import lower
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, Target
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.ops.conv import ConvGradWeight
from treadle.ops.movement import Transpose
from treadle.ops.op import Op
from treadle.ops.winograd import WinogradConvGradWeight

gradient: Any = importlib.import_module("treadle.backends.codegen.contraction.winograd.gradient")

LIMITS = {2: 1e-6, 4: 4e-6}
"""Largest error by tile, in largest gradients, where operands are usual."""
Shape = tuple[int, int, int, int]


def of_weight(tile: int, padding: Padding = EVEN) -> WinogradConvGradWeight:
    return WinogradConvGradWeight((1, 1), padding, (1, 1), 1, tile)


def channels_last(op: Op) -> Callable[..., Any]:
    """A body of operands that are held channels-last."""
    front = Transpose((0, 3, 1, 2))
    return lambda x, dy: op(front(x), front(dy))


def drawn(
    shape: Shape, outputs: int, padding: Padding = EVEN, seed: int = 0
) -> tuple[Array, Array]:
    """Maps of this shape, channels last, after a ReLU, and gradients of results."""
    rng, (images, height, width, _) = np.random.default_rng(seed), shape
    dy = images, height + sum(padding[0]) - 2, width + sum(padding[1]) - 2, outputs
    x = np.maximum(rng.standard_normal(shape), 0)
    return x.astype(np.float32), rng.standard_normal(dy).astype(np.float32)


def exact(op: WinogradConvGradWeight, x: Array, dy: Array) -> Array:
    first, second = (a.transpose(0, 3, 1, 2).astype(np.float64) for a in (x, dy))
    return np.asarray(op.reference(first, second))


def bound(op: WinogradConvGradWeight, x: Array, dy: Array) -> Array:
    """Largest error of every gradient.

    On the way to one every number is rounded some 24 times in the transforms, once per tile, and
    once more where a chunk of tiles ends, of which there are fewer than 8 here.
    """
    a, g, b = matrices(op.tile)
    m, n = op.tile, op.tile + 2
    images, rows, columns, outputs = dy.shape
    down, across = -(-rows // m), -(-columns // m)
    (top, _), (left, _) = op.padding
    source = np.zeros((images, down * m + 2 + top, across * m + 2 + left, x.shape[3]))
    source[:, top : top + x.shape[1], left : left + x.shape[2]] = abs(x)
    source = source[:, : down * m + 2, : across * m + 2]
    given = np.zeros((images, down * m, across * m, outputs))
    given[:, :rows, :columns] = abs(dy)
    tiles = np.lib.stride_tricks.sliding_window_view(source, (n, n), (1, 2))[:, ::m, ::m]
    values = np.einsum("pi,nyxcij,qj->pqnyxc", b, tiles, b, optimize=True)
    blocks = given.reshape(images, down, m, across, m, outputs)
    others = np.einsum("ip,nyixjo,jq->pqnyxo", a, blocks, a, optimize=True)
    sums = np.einsum("pqnyxc,pqnyxo->pqoc", values, others, optimize=True)
    largest = np.einsum("pi,pqoc,qj->ocij", g, sums, g, optimize=True)
    return np.asarray((images * down * across + 32) * ROUND * largest)


def check(
    op: WinogradConvGradWeight,
    x: Array,
    dy: Array,
    runner: Any = None,
    target: Target = HOST,
) -> Lowered:
    """Within the bound, and the same bits for every split; how it is computed."""
    group = fused(channels_last(op), (x, dy))
    (got,) = run(group, (x, dy), runner, target=target)
    wanted, limit = exact(op, x, dy), bound(op, x, dy)
    if got.dtype == BFLOAT16:
        limit += STORE * abs(wanted)
    wrong = abs(got.astype(np.float64) - wanted) - limit
    assert wrong.max() <= 0, f"{op} of {x.shape} and {dy.shape}"
    if runner is None:
        again = run(group, (x, dy), None, one_by_one, target=target)
        assert again[0].tobytes() == got.tobytes(), "the split counts"
    return lowered(group, (x, dy), (), target)


def geometries(count: int, target: Target) -> Iterator[tuple[Shape, int, Padding]]:
    """Maps of 1x1 to 11x11 with one to five vectors of channels, of which a result is left."""
    rng, lanes = np.random.default_rng(5), target.lanes(dt.float32)
    count = count if target in RUNNABLE else 2
    while count:
        height, width = (int(d) for d in rng.integers(1, 12, 2))
        top, bottom, left, right = (int(d) for d in rng.integers(0, 3, 4))
        inputs, outputs = (int(d) for d in rng.integers(lanes, min(5 * lanes, 48) + 1, 2))
        if height + top + bottom >= 3 and width + left + right >= 3:
            count -= 1
            shape = int(rng.integers(1, 6)), height, width, inputs
            yield shape, outputs, ((top, bottom), (left, right))


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_random_geometry(target: Target, tile: int) -> None:
    for seed, (shape, outputs, padding) in enumerate(geometries(10, target)):
        given = drawn(shape, outputs, padding, seed)
        how = check(of_weight(tile, padding), *given, target=target)
        first, second, product, last = names(how)
        assert first == f"winograd_inputs_{tile}" and second == f"winograd_gradients_{tile}"
        assert product.startswith("contract_float32_column") and last == f"winograd_taps_{tile}"


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_operands_of_bfloat16(target: Target, tile: int) -> None:
    for seed, (shape, outputs, padding) in enumerate(geometries(4, target)):
        x, dy = (v.astype(BFLOAT16) for v in drawn(shape, outputs, padding, seed))
        first, second, *_ = names(check(of_weight(tile, padding), x, dy, target=target))
        assert first == f"winograd_inputs_{tile}_bfloat16"
        assert second == f"winograd_gradients_{tile}_bfloat16"


@pytest.mark.parametrize("tile", [2, 4])
def test_many_tiles_go_through_the_workspace_in_chunks(
    tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient, "_VALUES", (1 << 18, 1 << 18))
    how = check(of_weight(tile), *drawn((5, 13, 19, 24), 40))
    products = [name for name in names(how) if name.startswith("contract")]
    assert len(products) > 2 and all(name.endswith("_add") for name in products[1:])
    assert sum("taps" in name for name in names(how)) == 1


@pytest.mark.parametrize("tile", [2, 4])
def test_many_sums_are_made_in_blocks(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient, "_SUMS", 1 << 15)
    how = check(of_weight(tile), *drawn((2, 7, 6, 24), 40))
    assert sum("taps" in name for name in names(how)) == sum("contract" in n for n in names(how))
    assert sum("taps" in name for name in names(how)) > 2


def test_workspaces_stay_in_the_cache() -> None:
    for shape, outputs in (((32, 32, 32, 64), 64), ((32, 4, 4, 512), 512), ((8, 56, 56, 16), 16)):
        given = drawn(shape, outputs)
        how = lowered(fused(channels_last(of_weight(4)), given), given)
        assert sum(how.workspaces) <= 24 << 20


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.name)
def test_few_channels_are_computed_directly(target: Target) -> None:
    lanes = target.lanes(dt.float32)
    for inputs, outputs in ((1, 16), (16, 3), (lanes - 1, 16), (16, lanes - 1)):
        how = check(of_weight(2), *drawn((1, 6, 5, inputs), outputs), target=target)
        assert not any("winograd" in name for name in names(how))


def test_row_major_operands_are_computed_directly() -> None:
    op = of_weight(4)
    x, dy = (np.ascontiguousarray(a.transpose(0, 3, 1, 2)) for a in drawn((2, 7, 5, 12), 16))
    (got,) = run(op, (x, dy))
    np.testing.assert_allclose(got, op.reference(x, dy), 0, 2e-5)
    assert not any("winograd" in name for name in names(lowered(op, (x, dy))))


def test_mixed_layouts_are_refused() -> None:
    x, dy = drawn((1, 6, 6, 16), 16)
    dy, front = np.ascontiguousarray(dy.transpose(0, 3, 1, 2)), Transpose((0, 3, 1, 2))
    group = fused(lambda x, dy: of_weight(2)(front(x), dy), (x, dy))
    found = lower.lower(group, types_of((x, dy)), (), HOST)
    assert isinstance(found, Support) and "channels-last" in found.message


@pytest.mark.parametrize("tile", [2, 4])
def test_epilogue(tile: int) -> None:
    """A step of an optimizer: decay, and the weight that is updated."""
    op, front = of_weight(tile), Transpose((0, 3, 1, 2))
    x, dy = drawn((2, 7, 6, 21), 19)
    weight = np.random.default_rng(3).standard_normal((19, 21, 3, 3)).astype(np.float32)

    def body(x: Any, dy: Any, weight: Any) -> Any:
        found = op(front(x), front(dy)) + weight * 0.5
        return weight - found * 0.25, found

    given = (x, dy, weight)
    group = fused(body, given)
    updated, found = run(group, given)
    wanted, limit = exact(op, x, dy) + weight * 0.5, bound(op, x, dy) + 1e-5
    assert (abs(found - wanted) <= limit).all()
    assert (abs(updated - (weight - 0.25 * wanted)) <= limit).all()
    again = run(group, given, None, one_by_one)
    assert [a.tobytes() for a in again] == [updated.tobytes(), found.tobytes()]
    assert names(lowered(group, given))[-1].startswith(f"winograd_taps_{tile}_")


# -- error -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("channels, size", [(16, 40), (64, 16), (128, 4)])
def test_error_on_usual_layers(tile: int, channels: int, size: int) -> None:
    op, (x, dy) = of_weight(tile), drawn((4, size, size, channels), 32)
    (got,) = run(fused(channels_last(op), (x, dy)), (x, dy))
    wanted = exact(op, x, dy)
    assert abs(got - wanted).max() <= LIMITS[tile] * abs(wanted).max()


@pytest.mark.parametrize("tile", [2, 4])
def test_badly_scaled_operands_stay_within_the_bound(tile: int) -> None:
    rng = np.random.default_rng(3)
    x, dy = (
        (a * np.exp(3 * rng.standard_normal(a.shape))).astype(np.float32)
        for a in drawn((2, 12, 12, 24), 20)
    )
    check(of_weight(tile), x, dy)


def test_what_is_not_finite_stays_with_its_channel() -> None:
    x, dy = drawn((1, 9, 9, 16), 16)
    x[0, 4, 5, 3] = np.inf
    (got,) = run(fused(channels_last(of_weight(4)), (x, dy)), (x, dy))
    strange = ~np.isfinite(got)
    assert strange[:, 3].all() and not strange[:, :3].any() and not strange[:, 4:].any()


# -- memory and targets ------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [2, 4])
def test_every_access_stays_inside(tile: int) -> None:
    padding = ((0, 2), (1, 0))
    check(
        of_weight(tile, padding), *drawn((2, 5, 4, 9), 10, padding), runner=interpreted, target=AVX2
    )


@pytest.mark.parametrize("tile", [2, 4])
def test_narrow_vectors(tile: int) -> None:
    check(of_weight(tile), *drawn((1, 6, 7, 5), 6), target=GENERIC)


@pytest.mark.parametrize("target", [AVX512, NEON], ids=lambda t: t.name)
def test_other_targets_compile(target: Target) -> None:
    kernels = []
    for tile in (2, 4):
        given = drawn((2, 9, 9, 32), 40)
        how = lowered(fused(channels_last(of_weight(tile)), given), given, (), target)
        assert any("winograd_taps" in name for name in names(how))
        kernels += [launch.kernel for launch in how.launches]
    assert object_code(list(dict.fromkeys(kernels)), target)


def test_wide_vectors_stay_inside() -> None:
    """Longer vectors than a pair of channels has taps, here by the interpreter."""
    check(of_weight(4), *drawn((1, 5, 4, 17), 18), runner=interpreted, target=AVX512)


def test_the_oracle_is_the_gradient() -> None:
    op = of_weight(2, ((1, 0), (2, 1)))
    x, dy = (a.transpose(0, 3, 1, 2) for a in drawn((2, 6, 5, 3), 4, ((1, 0), (2, 1))))
    assert isinstance(op.direct, ConvGradWeight)
    np.testing.assert_array_equal(op.reference(x, dy), op.direct.reference(x, dy))
