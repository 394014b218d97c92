"""Winograd's convolutions against the direct ones, within a bound that is derived for each input.

The transforms' matrices are derived here anew, from polynomials; with absolute values in place of
all numbers they give the largest that rounding can do.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.polynomial import polynomial
from tests.backends.codegen.contractions import fused, lowered, run, types_of
from tests.backends.codegen.execution import RUNNABLE, object_code
from tests.backends.codegen.irregular import FAMILIES, HOST, interpreted, one_by_one

from treadle.backends.api import Support
from treadle.backends.codegen import lower
from treadle.backends.codegen.contraction.winograd import transforms as winograd_transforms
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, Target
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.ops.movement import Transpose
from treadle.ops.op import Op, as_tuple
from treadle.ops.unary import Relu
from treadle.ops.winograd import WinogradConv

winograd: Any = importlib.import_module("treadle.backends.codegen.contraction.winograd.forward")

Padding = tuple[tuple[int, int], tuple[int, int]]
BFLOAT16 = dt.bfloat16.numpy
EVEN: Padding = ((1, 1), (1, 1))
ROUND = 2.0**-24
"""Largest relative error of one operation in float32."""
STORE = 2.0**-8
"""The same of a result that is stored as bfloat16, and of a half more for what lies between two."""
LIMITS = {2: 1e-6, 4: 4e-6}
"""Largest error by tile, in largest results, where inputs and weights are usual."""


def conv(
    tile: int, padding: Padding = EVEN, back: bool = False, wide: bool = False
) -> WinogradConv:
    return WinogradConv((1, 1), padding, (1, 1), 1, tile, back, wide)


def channels_last(op: Op) -> Callable[..., Any]:
    """A body of maps that are held channels-last."""

    def body(x: Any, weight: Any) -> Any:
        return Transpose((0, 2, 3, 1))(op(Transpose((0, 3, 1, 2))(x), weight))

    return body


def drawn(
    shape: Sequence[int], outputs: int, seed: int = 0, back: bool = False
) -> tuple[Array, Array]:
    """Maps of this shape, channels last, and weights."""
    rng, inputs = np.random.default_rng(seed), shape[-1]
    both = (inputs, outputs) if back else (outputs, inputs)
    x = rng.standard_normal(shape).astype(np.float32)
    return x, rng.standard_normal((*both, 3, 3)).astype(np.float32)


# -- the bound ---------------------------------------------------------------------------------


def matrices(m: int) -> tuple[Array, Array, Array]:
    """The magnitudes of A', G and B' by Toom and Cook."""
    a, b = winograd_transforms.A, winograd_transforms.B
    points = [0.0, a, -a, b, -b] if m == 4 else [0.0, 1.0, -1.0]
    n = m + 2
    of_products, of_weight, of_input = np.zeros((m, n)), np.zeros((n, 3)), np.zeros((n, n))
    for i, point in enumerate(points):
        others = points[:i] + points[i + 1 :]
        of_products[:, i] = point ** np.arange(m)
        of_weight[i] = point ** np.arange(3) / np.prod([point - other for other in others])
        of_input[i, : n - 1] = polynomial.polyfromroots(others)
    of_products[m - 1, m + 1] = of_weight[m + 1, 2] = 1
    of_input[m + 1] = polynomial.polyfromroots(points)
    return abs(of_products), abs(of_weight), abs(of_input)


def bound(op: WinogradConv, x: Array, weight: Array) -> Array:
    """Largest error of every result of maps held channels-last.

    On the way to a result every number is rounded some 24 times in the transforms, and once per
    input channel.
    """
    a, g, b = matrices(op.tile)
    m, n = op.tile, op.tile + 2
    x, weight = (v.astype(np.float64) for v in (x, weight))
    if op.transposed:
        weight = np.flip(weight.swapaxes(0, 1), (2, 3))
    (images, height, width), (outputs, inputs) = x.shape[:3], weight.shape[:2]
    (top, bottom), (left, right) = op.effective_padding
    rows, columns = height + top + bottom - 2, width + left + right - 2
    down, across = -(-rows // m), -(-columns // m)
    padded = np.zeros((images, down * m + 2, across * m + 2, inputs))
    padded[:, top : top + height, left : left + width] = abs(x)
    tiles = np.lib.stride_tricks.sliding_window_view(padded, (n, n), (1, 2))[:, ::m, ::m]
    values = np.einsum("pi,nyxcij,qj->pqnyxc", b, tiles, b, optimize=True)
    weights = np.einsum("pi,ocij,qj->pqco", g, abs(weight), g, optimize=True)
    sums = np.einsum("ip,pqnyxo,jq->nyixjo", a, _product(values, weights), a, optimize=True)
    largest = sums.reshape(images, down * m, across * m, outputs)[:, :rows, :columns]
    return np.asarray((inputs + 24) * ROUND * largest)


def _product(values: Array, weights: Array) -> Array:
    return np.asarray(np.einsum("pqnyxc,pqco->pqnyxo", values, weights, optimize=True))


def exact(op: WinogradConv, x: Array, weight: Array) -> Array:
    given = np.ascontiguousarray(x.transpose(0, 3, 1, 2), np.float64)
    return np.asarray(op.reference(given, weight.astype(np.float64))).transpose(0, 2, 3, 1)


def check(
    op: WinogradConv,
    x: Array,
    weight: Array,
    frozen: bool = False,
    runner: Any = None,
    target: Target = HOST,
) -> Lowered:
    """Within the bound, and the same bits for every split; how it is computed."""
    group, flags = fused(channels_last(op), (x, weight)), (False, frozen)
    (got,) = run(group, (x, weight), runner, frozen=flags, target=target)
    wanted, limit = exact(op, x, weight), bound(op, x, weight)
    if got.dtype == BFLOAT16:
        limit += STORE * abs(wanted)
    wrong = abs(got.astype(np.float64) - wanted) - limit
    assert wrong.max() <= 0, f"{op} of {x.shape} by {weight.shape}"
    if runner is None:
        again = run(group, (x, weight), None, one_by_one, flags, target)
        assert again[0].tobytes() == got.tobytes(), "the split counts"
    return lowered(group, (x, weight), flags, target)


def names(how: Lowered) -> list[str]:
    return [launch.kernel.name for launch in (*how.prelude, *how.launches)]


def one_kernel(tile: int) -> list[str]:
    return [f"winograd_weight_{tile}", f"winograd_whole_{tile}"]


def three_kernels(tile: int, chunks: int = 1) -> list[str]:
    parts = [f"winograd_inputs_{tile}", "contract_float32_row_panels", f"winograd_results_{tile}"]
    return [f"winograd_weight_{tile}", *parts * chunks]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One kernel does all, however small the maps are."""
    monkeypatch.setattr(winograd, "_BLOCK", 7)
    monkeypatch.setattr(winograd, "_ITEMS", 1)
    monkeypatch.setattr(winograd, "_LEAST", 1)
    lower._lower.cache_clear()
    yield
    lower._lower.cache_clear()


# -- numbers -----------------------------------------------------------------------------------


def geometries(count: int, target: Target) -> Iterator[tuple[tuple[int, ...], int, Padding]]:
    """Maps of 1x1 to 9x9 with one to five vectors of channels, of which a result is left."""
    rng, lanes = np.random.default_rng(9), target.lanes(dt.float32)
    count = count if target in RUNNABLE else 2
    while count:
        height, width = (int(d) for d in rng.integers(1, 10, 2))
        top, bottom, left, right = (int(d) for d in rng.integers(0, 3, 4))
        inputs, outputs = (int(d) for d in rng.integers(lanes, min(5 * lanes, 48) + 1, 2))
        if height + top + bottom < 3 or width + left + right < 3:
            continue
        if height + 2 - top - bottom < 1 or width + 2 - left - right < 1:
            continue
        count -= 1
        yield (
            (int(rng.integers(1, 4)), height, width, inputs),
            outputs,
            (
                (top, bottom),
                (left, right),
            ),
        )


@pytest.mark.parametrize("back", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_random_geometry(target: Target, tile: int, back: bool) -> None:
    for seed, (shape, outputs, padding) in enumerate(geometries(8, target)):
        op, given = conv(tile, padding, back), drawn(shape, outputs, seed, back)
        how = check(op, *given, frozen=seed % 2 == 0, target=target)
        assert names(how) == three_kernels(tile)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("back", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_random_geometry_in_one_kernel(target: Target, tile: int, back: bool) -> None:
    for seed, (shape, outputs, padding) in enumerate(geometries(5, target)):
        op, given = conv(tile, padding, back), drawn(shape, outputs, seed, back)
        how = check(op, *given, frozen=seed % 2 == 1, target=target)
        assert names(how) == one_kernel(tile)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("back", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_maps_of_bfloat16_are_rounded_once(
    target: Target, tile: int, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but a result is rounded to bfloat16, and with `wide` not even that."""
    for seed, (shape, outputs, padding) in enumerate(geometries(4, target)):
        if seed == 2:
            monkeypatch.setattr(winograd, "_ITEMS", 100)
            lower._lower.cache_clear()
        x, weight = (v.astype(BFLOAT16) for v in drawn(shape, outputs, seed, back))
        op = conv(tile, padding, back, wide=seed % 2 == 1 and not back)
        how = check(op, x, weight, frozen=seed % 2 == 0, target=target)
        if seed < 2:
            assert names(how) == [f"{name}_bfloat16" for name in one_kernel(tile)]
        else:
            assert f"winograd_inputs_{tile}_bfloat16" in names(how)
            assert names(how)[-1] == f"winograd_results_{tile}"


@pytest.mark.parametrize("tile", [2, 4])
def test_every_small_map(tile: int) -> None:
    for height in range(1, 10):
        width = 10 - height
        check(conv(tile), *drawn((1, height, width, 8), 8))
        check(conv(tile, ((2, 2), (2, 2)), back=height % 2 == 0), *drawn((1, 3, 3, 8), 8))


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.name)
def test_few_channels_are_computed_directly(target: Target) -> None:
    lanes = target.lanes(dt.float32)
    for inputs, outputs in ((1, 16), (16, 3), (lanes - 1, 16), (16, lanes - 1)):
        how = check(conv(2), *drawn((1, 6, 5, inputs), outputs), target=target)
        assert not any("winograd" in name for name in names(how))


@pytest.mark.parametrize("back", [False, True])
def test_row_major_maps_are_computed_directly(back: bool) -> None:
    x, weight = drawn((2, 7, 5, 12), 16, back=back)
    x, op = np.ascontiguousarray(x.transpose(0, 3, 1, 2)), conv(4, ((2, 0), (1, 1)), back)
    (got,) = run(op, (x, weight))
    np.testing.assert_allclose(got, op.reference(x, weight), 0, 2e-5)
    assert not any("winograd" in name for name in names(lowered(op, (x, weight))))


def test_mixed_layouts_are_refused() -> None:
    """A group that took a copy to another layout along would be computed directly."""
    x, weight = drawn((1, 6, 6, 16), 16)
    to_last, to_first = Transpose((0, 2, 3, 1)), Transpose((0, 3, 1, 2))
    bodies: list[Callable[..., Any]] = [
        lambda x, w: conv(2)(to_first(x), w),
        lambda x, w: to_last(conv(2)(x, w)),
    ]
    for body in bodies:
        given = x if body is bodies[0] else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        group = fused(body, (given, weight))
        found = lower.lower(group, types_of((given, weight)), (), HOST)
        assert isinstance(found, Support) and "channels-last" in found.message


@pytest.mark.parametrize("tile", [2, 4])
def test_large_maps_take_one_kernel(tile: int) -> None:
    how = check(conv(tile), *drawn((1, 20 * tile, 20 * tile - 1, 16), 24), frozen=True)
    assert names(how) == one_kernel(tile) and len(how.prelude) == 1


@pytest.mark.parametrize(
    "channels, size, whole", [(64, 56, True), (96, 40, True), (256, 56, False), (64, 28, False)]
)
def test_what_the_cache_holds_takes_one_kernel(channels: int, size: int, whole: bool) -> None:
    """196 and 100 tiles are 8 blocks; of 256 channels a block would be too small."""
    given = drawn((1, size, size, channels), channels)
    found = names(lowered(fused(channels_last(conv(4)), given), given, target=AVX512))
    assert found == (one_kernel(4) if whole else three_kernels(4))


def test_many_tiles_go_through_the_workspace_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "_CHUNK", 400_000)
    shape, outputs = (5, 13, 9, 48), 40
    how = check(conv(4), *drawn(shape, outputs))
    assert names(how) == three_kernels(4, 3)


def test_weights_that_do_not_change_are_transformed_once() -> None:
    given = drawn((1, 8, 8, 16), 16)
    group = fused(channels_last(conv(2)), given)
    assert [r.kernel.name for r in lowered(group, given, (False, True)).prelude] == [
        "winograd_weight_2"
    ]
    assert not lowered(group, given, (False, False)).prelude


# -- epilogues ---------------------------------------------------------------------------------


def with_epilogue(op: Op) -> Callable[..., Any]:
    """Bias, residual and ReLU; the mask of its gradient beside the result; a number per image."""

    def body(x: Any, weight: Any, bias: Any, residual: Any, factor: Any) -> Any:
        last = Transpose((0, 2, 3, 1))
        y = (last(op(Transpose((0, 3, 1, 2))(x), weight)) + bias) * factor + residual
        return Relu()(y), y > 0.0

    return body


def check_epilogue(op: WinogradConv, shape: tuple[int, ...], outputs: int) -> Lowered:
    x, weight = drawn(shape, outputs)
    rng = np.random.default_rng(2)
    result = (*shape[:3], outputs)
    shapes = [(outputs,), result, (shape[0], 1, 1, 1)]
    bias, residual, factor = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    given = [x, weight, bias, residual, factor]
    group = fused(with_epilogue(op), given)
    got, mask = run(group, given)
    plain = (exact(op, x, weight) + bias) * factor + residual
    limit = bound(op, x, weight) * abs(factor) + 1e-6 * (abs(plain) + 4)
    assert (abs(got - np.maximum(plain, 0)) <= limit).all()
    np.testing.assert_array_equal(mask, got > 0)
    again = run(group, given, None, one_by_one)
    assert [a.tobytes() for a in again] == [got.tobytes(), mask.tobytes()]
    return lowered(group, given)


@pytest.mark.parametrize("tile", [2, 4])
def test_epilogue(tile: int) -> None:
    how = check_epilogue(conv(tile), (2, 7, 6, 17), 21)
    assert names(how)[-1].startswith(f"winograd_results_{tile}_add_mul_add")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("tile", [2, 4])
def test_epilogue_in_one_kernel(tile: int) -> None:
    how = check_epilogue(conv(tile), (2, 7, 6, 17), 21)
    assert names(how)[-1].startswith(f"winograd_whole_{tile}_add_mul_add")


# -- error -------------------------------------------------------------------------------------


def error(op: WinogradConv, x: Array, weight: Array) -> float:
    """Largest error, in largest results."""
    (got,) = run(fused(channels_last(op), (x, weight)), (x, weight))
    wanted = exact(op, x, weight)
    return float(abs(got - wanted).max() / abs(wanted).max())


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("channels", [16, 64, 256])
def test_error_on_layers_as_they_are_initialized(tile: int, channels: int) -> None:
    x, weight = drawn((1, 12, 12, channels), 32)
    weight *= np.float32((2 / (9 * channels)) ** 0.5)
    assert error(conv(tile), np.maximum(x, 0), weight) <= LIMITS[tile]


@pytest.mark.parametrize("tile", [2, 4])
def test_error_with_badly_scaled_channels(tile: int) -> None:
    rng = np.random.default_rng(3)
    x, weight = drawn((1, 12, 12, 64), 32)
    scale = np.exp(3 * rng.standard_normal(64)).astype(np.float32)
    assert error(conv(tile), x * scale, weight) <= 3 * LIMITS[tile]
    assert error(conv(tile), x, weight * scale[:, None, None]) <= 3 * LIMITS[tile]
    check(conv(tile), x * np.exp(3 * rng.standard_normal(x.shape)).astype(np.float32), weight)


@pytest.mark.parametrize("tile", [2, 4])
def test_what_is_not_finite_stays_in_the_tiles_that_read_it(tile: int) -> None:
    x, weight = drawn((1, 16, 16, 8), 8)
    x[0, 5, 6, 2] = np.inf
    (got,) = run(fused(channels_last(conv(tile)), (x, weight)), (x, weight))
    strange = ~np.isfinite(got[0]).all(-1)
    reached = np.zeros((16, 16), bool)
    reached[4:7, 5:8] = True
    starts = [(y, x) for y in range(0, 16, tile) for x in range(0, 16, tile)]
    whole = np.zeros((16, 16), bool)
    for y, x0 in starts:
        whole[y : y + tile, x0 : x0 + tile] = reached[y : y + tile, x0 : x0 + tile].any()
    assert strange[reached].all() and not strange[~whole].any()


# -- memory and targets ------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [2, 4])
def test_every_access_stays_inside(tile: int) -> None:
    given = drawn((1, 5, 4, 9), 10)
    check(conv(tile, ((0, 2), (1, 0))), *given, runner=interpreted, target=AVX2)


@pytest.mark.usefixtures("small_blocks")
def test_every_access_stays_inside_in_one_kernel() -> None:
    given = drawn((2, 5, 4, 9), 10, 0, True)
    check(conv(2, ((0, 2), (1, 0)), True), *given, runner=interpreted, target=AVX2)


@pytest.mark.parametrize("tile", [2, 4])
def test_narrow_vectors(tile: int) -> None:
    check(conv(tile), *drawn((1, 6, 7, 5), 6), target=GENERIC)


@pytest.mark.parametrize("target", [AVX512, NEON], ids=lambda t: t.name)
def test_other_targets_compile(target: Target) -> None:
    kernels = []
    for tile in (2, 4):
        for size in (8, 80):
            given = drawn((1, size, size, 32), 40)
            how = lowered(fused(channels_last(conv(tile)), given), given, (), target)
            assert any("winograd" in name for name in names(how))
            kernels += [launch.kernel for launch in how.launches]
    assert object_code(list(dict.fromkeys(kernels)), target)


def test_the_oracle_is_the_convolution() -> None:
    x, weight = drawn((2, 6, 6, 8), 8)
    op, given = conv(2), np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    (wanted,) = as_tuple(op.direct.reference(given, weight))
    np.testing.assert_array_equal(op.reference(given, weight), wanted)
    back = conv(2, ((1, 0), (2, 1)), back=True)
    (made,) = back.infer(*types_of((given, weight)))
    direct = back.direct_gradient(made.shape[2:]).reference(given, weight)
    np.testing.assert_allclose(back.reference(given, weight), direct, 0, 1e-5)
