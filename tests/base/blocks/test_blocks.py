"""Blocks against bytes written by hand, against plain loops, and against the package gguf."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from treadle.base.blocks import FORMATS, BlockFormat, BlockTensor, by_number
from treadle.base.blocks.panels import LAYOUTS, from_panels, has_panels, rows_of_panels, to_panels
from treadle.base.errors import CheckpointError, DTypeError, NumericError, ShapeError

# Root of the mean square error of normally distributed numbers, relative.
COSTS = {"Q2_K": 0.275, "Q3_K": 0.153, "Q4_K": 0.073, "Q5_K": 0.037, "Q6_K": 0.018}
COSTS |= {"IQ4_NL": 0.077, "IQ4_XS": 0.077}
PLAIN = [each for each in FORMATS.values() if each.name not in COSTS]


def _half(value: float) -> bytes:
    return np.float16(value).tobytes()


def _bytes(*parts: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(parts), np.uint8)


def _random(form: BlockFormat, seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (*shape[:-1], shape[-1] * form.bytes), dtype=np.uint8)


# Bytes whose nibbles count: element j has j % 16, element j + half 15 - j % 16.
_COUNT = bytes(j % 16 | (15 - j % 16) << 4 for j in range(16))
_NIBBLES = np.r_[np.arange(16), 15 - np.arange(16)]
_T = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
_E = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
# The fifth bit is set in elements 0, 9 and 31.
_HIGH = bytes([0x01, 0x02, 0x00, 0x80])
_FIFTH = np.zeros(32) + 16 * np.isin(np.arange(32), [0, 9, 31])

BY_HAND = {
    "Q4_0": ([_half(0.5), _COUNT], 0.5 * (_NIBBLES - 8)),
    "Q4_1": ([_half(0.5), _half(-3), _COUNT], 0.5 * _NIBBLES - 3),
    "Q5_0": ([_half(2), _HIGH, _COUNT], 2 * (_NIBBLES + _FIFTH - 16)),
    "Q5_1": ([_half(2), _half(1), _HIGH, _COUNT], 2 * (_NIBBLES + _FIFTH) + 1),
    "Q8_0": ([_half(0.25), bytes(range(112, 144))], 0.25 * np.r_[112:128, -128:-112]),
    "IQ4_NL": ([_half(2), _COUNT], 2.0 * np.array(_T)[_NIBBLES]),
    "MXFP4": ([bytes([129]), _COUNT], 4.0 * np.array(_E)[_NIBBLES]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_small_blocks_written_by_hand(name: str) -> None:
    parts, numbers = BY_HAND[name]
    np.testing.assert_array_equal(FORMATS[name].dequantize(_bytes(*parts)), numbers)


def test_the_ends_of_mxfp4s_exponents() -> None:
    codes = bytes([0x21]) * 16  # 0.5, then 1.0
    for e in (0, 1, 2, 254):
        numbers = FORMATS["MXFP4"].dequantize(_bytes(bytes([e]), codes))
        assert numbers[0] == np.float32(2.0 ** (e - 128))
        assert numbers[31] == np.float32(2.0 ** (e - 127))


def _f(block: np.ndarray, at: int) -> np.float32:
    return np.float32(block[at : at + 2].view(np.float16)[0])


def _k4_scale(b: np.ndarray, j: int) -> tuple[int, int]:
    if j < 4:
        return b[j] & 63, b[j + 4] & 63
    return b[j + 4] & 15 | (b[j - 4] >> 6) << 4, b[j + 4] >> 4 | (b[j] >> 6) << 4


def _element(name: str, b: list[int], raw: np.ndarray, i: int) -> np.float32:
    """Element i of a super-block, read as the formats are described: one at a time."""
    half, t, l32 = i // 128, i % 128 // 32, i % 32
    if name == "Q2_K":
        s, q = b[i // 16], b[16 + 32 * half + l32] >> 2 * t & 3
        return _f(raw, 80) * np.float32(s & 15) * np.float32(q) - _f(raw, 82) * np.float32(s >> 4)
    if name == "Q3_K":
        k, s = i // 16, b[96:108]
        scale = (s[k % 8] >> 4 * (k // 8) & 15) | (s[8 + k % 4] >> 2 * (k // 4) & 3) << 4
        q = b[32 + 32 * half + l32] >> 2 * t & 3
        q -= 0 if b[l32] >> (4 * half + t) & 1 else 4
        return _f(raw, 108) * np.float32(scale - 32) * np.float32(q)
    if name in ("Q4_K", "Q5_K"):
        j = i // 32
        s, z = _k4_scale(b[4:16], j)
        nibbles = b[16:] if name == "Q4_K" else b[48:]
        q = nibbles[32 * (j // 2) + l32] >> 4 * (j % 2) & 15
        q += 16 * (b[16 + l32] >> j & 1) if name == "Q5_K" else 0
        return _f(raw, 0) * np.float32(s) * np.float32(q) - _f(raw, 2) * np.float32(z)
    if name == "Q6_K":
        low = b[64 * half + 32 * (t % 2) + l32] >> 4 * (t // 2) & 15
        high = b[128 + 32 * half + l32] >> 2 * t & 3
        scale = int(raw[192 + i // 16].view(np.int8))
        return _f(raw, 208) * np.float32(scale) * np.float32((low | high << 4) - 32)
    j = i // 32
    low, high = b[4 + j // 2] >> 4 * (j % 2) & 15, (b[2] | b[3] << 8) >> 2 * j & 3
    q = b[8 + 16 * j + i % 16] >> 4 * (i % 32 // 16) & 15
    return _f(raw, 0) * np.float32((low | high << 4) - 32) * np.float32(_T[q])


@pytest.mark.parametrize("form", [each for each in FORMATS.values() if each.elements == 256])
def test_super_blocks_against_a_loop(form: BlockFormat) -> None:
    raw = _random(form, 1, 2)
    # Scales that are plain numbers: random bits of float16 may be none.
    blocks = raw.view(form.layout)
    blocks["d"] = [0.37, -1.5]
    if "m" in (form.layout.names or ()):
        blocks["m"] = [0.11, 2.25]
    found = form.dequantize(raw).reshape(2, 256)
    for k in range(2):
        block = raw[k * form.bytes : (k + 1) * form.bytes]
        wanted = [_element(form.name, block.tolist(), block, i) for i in range(256)]
        np.testing.assert_array_equal(found[k], wanted)


@pytest.mark.parametrize("form", PLAIN, ids=str)
def test_what_is_written_is_near_what_was_given(form: BlockFormat) -> None:
    x = np.random.default_rng(2).standard_normal((3, 5, 4 * form.elements)).astype(np.float32)
    x[0, 0], x[1, 1], x[2, 2] = 0, 2.5, -1
    data = form.quantize(x)
    assert data.shape == (3, 5, form.row_bytes(4 * form.elements))
    back = form.dequantize(data)
    assert back.shape == x.shape
    if form.name != "MXFP4":  # 2.5 lies between two of its values
        np.testing.assert_allclose(back[1, 1], 2.5, rtol=1e-3)
    np.testing.assert_array_equal(back[0, 0], 0)
    # A step is a 2^bits-th of a block's range, 2/6 of the largest magnitude for MXFP4.
    bits = {"4": 4, "5": 5, "8": 8}[form.name.strip("MXFPQ")[0]]
    step = 1 / 3 if form.name == "MXFP4" else 2.0 ** (1 - bits)
    largest = np.abs(x.reshape(-1, form.elements)).max(axis=1, keepdims=True)
    off = np.abs(back - x).reshape(-1, form.elements)
    assert (off <= 1.01 * step * largest).all()


@pytest.mark.parametrize("form", [*PLAIN, FORMATS["IQ4_NL"]], ids=str)
def test_blocks_survive_being_read_and_written(form: BlockFormat) -> None:
    """What a format can hold is held exactly: values, if not codes, come back."""
    x = np.random.default_rng(3).standard_normal((8, form.elements)).astype(np.float32)
    once = form.dequantize(form.quantize(x))
    twice = form.dequantize(form.quantize(once))
    np.testing.assert_allclose(once, twice, atol=2e-3 * np.abs(x).max())


def test_rows_of_blocks_are_taken_as_rows_of_numbers() -> None:
    form = FORMATS["Q4_0"]
    x = np.random.default_rng(4).standard_normal((6, 64)).astype(np.float32)
    blocks = BlockTensor(form, (6, 64), form.quantize(x))
    order = np.array([3, 0, 5])
    some = blocks[order]
    assert (some.shape, some.size, some.nbytes) == ((3, 64), 192, 3 * 36)
    np.testing.assert_array_equal(some.dequantize(), blocks.dequantize()[order])


@pytest.mark.parametrize("form", FORMATS.values(), ids=str)
def test_formats_know_their_numbers_and_travel(form: BlockFormat) -> None:
    assert by_number(form.number) is form
    assert pickle.loads(pickle.dumps(form)) == form
    raw = _random(form, 5, 2, 3, 2)
    assert form.dequantize(raw).shape == (2, 3, 2 * form.elements)
    assert form.dequantize(raw[:0]).shape == (0, 3, 2 * form.elements)


@pytest.mark.parametrize("form", FORMATS.values(), ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(form: BlockFormat, bad: float) -> None:
    x = np.ones((2, form.elements), np.float32)
    x[1, 7] = bad
    with pytest.raises(NumericError, match="not finite"):
        form.quantize(x)


def test_scales_beyond_float16_are_refused() -> None:
    with pytest.raises(NumericError, match="scale"):
        FORMATS["Q8_0"].quantize(np.full((1, 32), 1e8, np.float32))


def test_what_does_not_fit_is_refused() -> None:
    form = FORMATS["Q4_K"]
    with pytest.raises(ShapeError, match="whole number of blocks"):
        form.row_bytes(896)
    with pytest.raises(ShapeError, match="144 bytes"):
        form.dequantize(np.zeros(143, np.uint8))
    with pytest.raises(DTypeError, match="bytes"):
        form.dequantize(np.zeros(144, np.int8))
    with pytest.raises(ShapeError, match="uint8"):
        BlockTensor(form, (2, 256), np.zeros((2, 288), np.uint8))
    with pytest.raises(CheckpointError, match="known are"):
        by_number(4)


@pytest.mark.parametrize("name", COSTS)
def test_scales_that_are_searched_for_cost_what_is_known(name: str) -> None:
    """Less than the formats of as many bits whose scales are not; some scales are negative."""
    form = FORMATS[name]
    x = np.random.default_rng(5).standard_normal((512, 256)).astype(np.float32) * 0.03
    x[::7] *= 40
    x[1::7] = np.abs(x[1::7])
    found = form.dequantize(form.quantize(x))
    error = np.sqrt(((found - x) ** 2).mean(axis=1) / (x**2).mean(axis=1))
    assert np.sqrt((error**2).mean()) < COSTS[name] * 1.01 and error.max() < COSTS[name] * 1.4
    for value in (0.0, 0.7, -0.7, 1e-9):
        same = np.full((2, 256), value, np.float32)
        np.testing.assert_allclose(form.dequantize(form.quantize(same)), same, rtol=1e-3, atol=1e-7)
    with pytest.raises(NumericError, match="scale in float16 is not finite"):
        form.quantize(np.linspace(-3e9, 3e9, 512, dtype=np.float32).reshape(2, 256))


def test_scales_that_float16_does_not_hold_have_no_panels() -> None:
    form = FORMATS["MXFP4"]
    raw = np.zeros((2, form.bytes), np.uint8)
    for e, fits in ((104, True), (143, True), (103, False), (144, False)):
        raw[:, 0], raw[1, 0], raw[1, 7] = 120, e, 0x0A
        assert has_panels(BlockTensor(form, (2, 32), raw)) is fits
    # Blocks of zeros, of either sign, have any scale.
    raw[1] = 0x88
    raw[1, 0] = 0
    assert has_panels(BlockTensor(form, (2, 32), raw))
    assert not from_panels("MXFP4", to_panels("MXFP4", raw), 2).any()
    assert has_panels(BlockTensor(FORMATS["Q4_0"], (1, 32), np.zeros((1, 18), np.uint8)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_panels_hold_the_same_numbers(name: str) -> None:
    form = FORMATS[name]
    raw = _random(form, 6, 21, 3)
    for field in {"d", "m"} & set(form.layout.names or ()):
        raw.view(form.layout)[field] = np.random.default_rng(7).uniform(0.1, 1, (21, 3))
    if name == "MXFP4":
        raw.view(form.layout)["e"] = np.random.default_rng(7).integers(104, 144, (21, 3))
    found = from_panels(name, to_panels(name, raw), 21)
    np.testing.assert_allclose(found, form.dequantize(raw), rtol=1e-5, atol=1e-4)
    some = np.array([[20, 0, 15], [16, 3, 3]])
    np.testing.assert_array_equal(rows_of_panels(name, to_panels(name, raw), some), found[some])
