"""Contractions, pooling and resampling: what samples and gradients cannot show."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import ShapeError
from treadle.base.guards import recording_guards
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.ops import conv_numpy
from treadle.ops.adaptive_pool import AdaptiveAvgPool, AdaptiveMaxPool
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, IntConv
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.pool import AvgPool, MaxPool, MaxPoolGather, MaxPoolGrad
from treadle.ops.remap import Remap
from treadle.ops.resample import Resize
from treadle.ops.windows import Window, transposed_extents

RNG = np.random.default_rng(5)
ONE: Any = ((1, 1), ((0, 0), (0, 0)), (1, 1))


# ── convolution ───────────────────────────────────────────────────────────────────────────────


def direct_convolution(x: Any, weight: Any, op: Any) -> Any:
    """The definition, one product at a time."""
    n, channels = x.shape[:2]
    outputs, inputs = weight.shape[:2]
    pads = ((0, 0), (0, 0), *op.padding)
    padded = np.pad(x, pads)
    reach = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], op.dilation, strict=True)]
    sizes = [(p - r) // s + 1 for p, r, s in zip(padded.shape[2:], reach, op.strides, strict=True)]
    y = np.zeros((n, outputs, *sizes))
    for b, o, *at in np.ndindex(*y.shape):
        group = o // (outputs // op.groups)
        for c, *k in np.ndindex(*weight.shape[1:]):
            cell = [
                p * s + d * i for p, s, d, i in zip(at, op.strides, op.dilation, k, strict=True)
            ]
            y[(b, o, *at)] += weight[(o, c, *k)] * padded[(b, group * inputs + c, *cell)]
    assert channels == inputs * op.groups
    return y


@pytest.mark.parametrize(
    ("op", "x", "weight"),
    [
        (Conv((1, 2), ((1, 0), (0, 2)), (2, 1), 2), (2, 4, 6, 5), (6, 2, 3, 2)),
        (Conv((2,), ((3, 3),), (1,), 1), (1, 2, 3), (2, 2, 4)),
        (Conv((1, 1, 1), ((0, 0),) * 3, (1, 1, 1), 3), (1, 3, 3, 2, 3), (3, 1, 2, 2, 2)),
    ],
    ids=str,
)
def test_convolution_is_its_definition(op: Conv, x: Any, weight: Any) -> None:
    image, kernel = RNG.normal(size=x), RNG.normal(size=weight)
    np.testing.assert_allclose(
        op.reference(image, kernel), direct_convolution(image, kernel, op), 1e-12, 1e-12
    )


def test_large_batches_are_split_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = RNG.normal(size=(5, 2, 4, 4)), RNG.normal(size=(4, 1, 3, 3))
    shared: Any = ((1, 1), ((1, 1), (1, 1)), (1, 1), 2)
    y = Conv(*shared).reference(x, weight)
    calls = (
        (Conv(*shared), (x, weight)),
        (ConvGradInput(*shared, (4, 4)), (y, weight)),
        (ConvGradWeight(*shared, (3, 3)), (x, y)),
    )
    whole = [op.reference(*arrays) for op, arrays in calls]
    for block in (1, 150, 300):  # 144 elements per image: one, one and two images at a time
        monkeypatch.setattr(conv_numpy, "_BLOCK", block)
        for (op, arrays), expected in zip(calls, whole, strict=True):
            np.testing.assert_allclose(op.reference(*arrays), expected, 1e-12, 1e-12)


def test_16_bit_floats_accumulate_in_float32() -> None:
    x = np.ones((1, 300, 1, 1), ml_dtypes.bfloat16)
    weight = np.ones((1, 300, 1, 1), ml_dtypes.bfloat16)
    assert float(Conv(*ONE, 1).reference(x, weight).item()) == 300
    assert float(Matmul().reference(x.reshape(1, 300), weight.reshape(300, 1)).item()) == 300


def test_integer_contractions_are_exact_at_the_extremes() -> None:
    for terms in (3, 511, 5000):
        x = np.full((1, terms, 1, 1), 255, np.uint8)
        weight = np.full((1, terms, 1, 1), -128, np.int8)
        assert IntConv(*ONE, 1).reference(x, weight).item() == -255 * 128 * terms
        product = IntMatmul(False, True).reference(x.reshape(1, terms), x.reshape(1, terms))
        assert product.dtype == np.int32 and product.item() == 255 * 255 * terms


def test_symbolic_extents_pass_through() -> None:
    n, h = symbol("n"), symbol("h")
    weight = TensorType(dt.float32, (8, 3, 3, 3))
    op = Conv((2, 1), ((1, 1), (1, 1)), (1, 1), 1)
    with recording_guards() as guards:
        (y,) = op.infer(TensorType(dt.float32, (n, 3, h, h)), weight)
        back = ConvGradInput(*op.attributes.values(), (h, h)).infer(y, weight)
    assert str(y) == "float32[n,8,((h + 1) // (2)),h]" and not guards
    assert str(back[0]) == "float32[n,3,h,h]"


def test_errors_show_operands_input_and_window() -> None:
    with pytest.raises(ShapeError) as caught:
        Conv(*ONE, 1).infer(
            TensorType(dt.float32, (1, 1, 2, 9)), TensorType(dt.float32, (1, 1, 3, 3))
        )
    text = str(caught.value)
    for part in ("[1,1,2,9]", "[1,1,3,3]", "input extents [2,9]", "kernel [3,3]", "spatial axis 0"):
        assert part in text


def test_transposed_extents_are_accepted_by_the_gradient() -> None:
    for k, s, p, d, extra in itertools.product((1, 3), (1, 2, 3), (0, 1), (1, 2), (0, 1)):
        if p > d * (k - 1) // 2 or extra >= s:
            continue
        window = Window((k,), (s,), ((p, p),), (d,))
        (n,) = transposed_extents(window, (4,), (extra,))
        assert window.extents("test", (n,), "") == (4,)


# ── matrix products ───────────────────────────────────────────────────────────────────────────


def test_vectors_are_refused_by_the_oracle_as_by_the_type_rule() -> None:
    for x, y in (((3,), (3, 2)), ((2, 3), (3,)), ((3,), (3,))):
        with pytest.raises(ShapeError, match="at least 2 axes"):
            Matmul().reference(np.ones(x), np.ones(y))


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=2)))
def test_stacks_times_a_shared_matrix(flags: tuple[bool, bool]) -> None:
    x, y = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(5, 6))
    given = x.swapaxes(2, 3) if flags[0] else x
    other = y.T if flags[1] else y
    np.testing.assert_allclose(Matmul(*flags).reference(given, other), x @ y, 1e-12)


# ── pooling ───────────────────────────────────────────────────────────────────────────────────


def test_maxima_of_special_values() -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[[1.0, nan, -inf, -inf, 2.0, 2.0]]])
    attributes: Any = ((2,), (2,), ((0, 0),), (1,), False)
    np.testing.assert_array_equal(MaxPool(*attributes).reference(x), [[[nan, -inf, 2]]])
    dx = MaxPoolGrad(*attributes).reference(x, np.array([[[5.0, 6.0, 7.0]]]))
    np.testing.assert_array_equal(dx, [[[0, 5, 6, 0, 7, 0]]])
    values = np.arange(6.0).reshape(1, 1, 6)
    assert MaxPoolGather(*attributes).reference(x, values).tolist() == [[[1, 2, 4]]]


def test_padding_never_wins_a_maximum() -> None:
    x = np.full((1, 1, 1), -5.0, np.float32)
    attributes: Any = ((3,), (1,), ((3, 3),), (1,), False)
    low = -np.inf
    assert MaxPool(*attributes).reference(x).tolist() == [[[low, -5, -5, -5, low]]]
    assert MaxPool(*attributes).reference(x.astype(np.int8)).tolist() == [
        [[-128, -5, -5, -5, -128]]
    ]
    dy = np.ones((1, 1, 5), np.float32)
    assert MaxPoolGrad(*attributes).reference(x, dy).tolist() == [[[3]]]
    assert MaxPoolGather(*attributes).reference(x, x).tolist() == [[[0, -5, -5, -5, 0]]]


def test_what_an_average_is_divided_by() -> None:
    x = np.ones((1, 1, 4))

    def average(include: bool, ceil: bool) -> Any:
        return AvgPool((3,), (2,), ((1, 1),), include, ceil).reference(x).ravel().tolist()

    assert average(False, False) == [1, 1]
    np.testing.assert_allclose(average(True, False), [2 / 3, 1])
    assert average(False, True) == [1, 1, 1]
    np.testing.assert_allclose(average(True, True), [2 / 3, 1, 1 / 2])
    far = AvgPool((1,), (1,), ((1, 0),), False, False).reference(x)
    assert far.ravel().tolist() == [0, 1, 1, 1, 1]


def test_adaptive_windows_cover_the_input() -> None:
    x = np.arange(5.0).reshape(1, 1, 5)
    assert AdaptiveAvgPool((3,)).reference(x).tolist() == [[[0.5, 2, 3.5]]]
    assert AdaptiveMaxPool((3,)).reference(x).tolist() == [[[1, 3, 4]]]


# ── resampling ────────────────────────────────────────────────────────────────────────────────


def test_places_of_resized_cells() -> None:
    x = np.arange(4.0).reshape(1, 1, 4)

    def resize(mode: str, coordinates: str, size: int) -> list[float]:
        y: Any = Resize(mode, coordinates, (size,)).reference(x)
        return [float(v) for v in y.ravel()]

    assert resize("linear", "half_pixel", 2) == [0.5, 2.5]
    assert resize("linear", "align_corners", 7) == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert resize("linear", "asymmetric", 8) == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]
    assert resize("nearest", "asymmetric", 3) == [0, 1, 2]
    assert resize("nearest", "half_pixel", 3) == [0, 2, 3]
    assert resize("nearest", "align_corners", 3) == [0, 2, 3]
    assert resize("cubic", "align_corners", 4) == [0, 1, 2, 3]


def test_nearest_copies_infinities_alone() -> None:
    x = np.array([[[np.inf, 1.0, np.nan]]])
    y = Resize("nearest", "asymmetric", (6,)).reference(x)
    np.testing.assert_array_equal(y, [[[np.inf, np.inf, 1, 1, np.nan, np.nan]]])


@pytest.mark.parametrize(
    ("border", "expected"),
    [
        ("replicate", "aaaa|abc|cccc"),
        ("reflect", "ccba|abc|cbaa"),
        ("reflect_101", "abcb|abc|babc"),
        ("wrap", "cabc|abc|abca"),
        ("constant", "----|abc|----"),
    ],
)
def test_borders(border: str, expected: str) -> None:
    x = np.array([1.0, 2.0, 3.0]).reshape(1, 1, 1, 3)
    places = np.arange(-4.0, 7.0)
    grid = np.stack([places, np.zeros_like(places)], -1).reshape(1, 1, 11, 2)
    letters = expected.replace("|", "")
    wanted = [{"a": 1.0, "b": 2.0, "c": 3.0, "-": 9.0}[c] for c in letters]
    for interpolation in ("nearest", "linear"):
        y = Remap(interpolation, border, (0, 0), 9.0).reference(x, grid)
        assert y.ravel().tolist() == wanted, interpolation


@pytest.mark.parametrize("border", ["replicate", "reflect", "reflect_101", "wrap", "constant"])
def test_wild_coordinates_stay_inside(border: str) -> None:
    x = RNG.normal(size=(1, 1, 3, 3)).astype(np.float32)
    wild = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9], np.float32)
    grid = np.stack(np.meshgrid(wild, wild), -1)[None]
    with np.errstate(all="ignore"):
        y = Remap("nearest", border, (0, 0), 0.0).reference(x, grid)
        Remap("linear", border, (0, 0), 0.0).reference(x, grid)
    assert y.shape == (1, 1, 6, 6)
