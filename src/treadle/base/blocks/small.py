"""Formats of 32 elements to a block: a scale, perhaps a minimum, and 4, 5 or 8 bits an element.

What is written is what the package `gguf` writes, to the bit, but for IQ4_NL, which it reads alone;
so is what is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.blocks.bits import pack, unpack
from treadle.base.blocks.layout import BlockFormat, Fields, Floats
from treadle.base.blocks.scales import IQ4_VALUES, codes, halves, inverse, scale_of_values

ELEMENTS = 32

# Values of the 16 codes of MXFP4, doubled: a sign, two bits of exponent, one of mantissa.
FP4_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def wide(field: Any) -> Floats:
    """A float16 field of blocks [n] as a column, float32 [n, 1]."""
    column: Floats = field.astype(np.float32)[:, None]
    return column


def decode_q4_0(blocks: Fields) -> Floats:
    """`d · (q − 8)`."""
    return wide(blocks["d"]) * (unpack(blocks["q"], 4).astype(np.int8) - np.int8(8))


def decode_q4_1(blocks: Fields) -> Floats:
    """`d · q + m`."""
    return wide(blocks["d"]) * unpack(blocks["q"], 4) + wide(blocks["m"])


def decode_q5_0(blocks: Fields) -> Floats:
    """`d · (q − 16)`, the fifth bit of element j being bit j of `h`."""
    q = unpack(blocks["q"], 4) | (unpack(blocks["h"], 1, groups=4) << np.uint8(4))
    return wide(blocks["d"]) * (q.astype(np.int8) - np.int8(16))


def decode_q5_1(blocks: Fields) -> Floats:
    """`d · q + m`, the fifth bit of element j being bit j of `h`."""
    q = unpack(blocks["q"], 4) | (unpack(blocks["h"], 1, groups=4) << np.uint8(4))
    return wide(blocks["d"]) * q + wide(blocks["m"])


def decode_q8_0(blocks: Fields) -> Floats:
    """`d · q`."""
    numbers: Floats = wide(blocks["d"]) * blocks["q"]
    return numbers


def decode_iq4_nl(blocks: Fields) -> Floats:
    """`d · T[q]`, T being `IQ4_VALUES`."""
    return wide(blocks["d"]) * IQ4_VALUES[unpack(blocks["q"], 4)]


def decode_mxfp4(blocks: Fields) -> Floats:
    """`2^(e − 127) · E[q]`, E being half of `FP4_DOUBLED`."""
    return _half_power(blocks["e"]) * FP4_DOUBLED[unpack(blocks["q"], 4)]


def _half_power(e: Any) -> Floats:
    """`2^(e − 128)` as a column: normal from e = 2 on, below that a bit of the mantissa."""
    e = e.astype(np.uint32)[:, None]
    bits = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23))
    powers: Floats = bits.view(np.float32)
    return powers


def _levels(x: Floats, highest: int) -> Any:
    """Non-negative numbers that lie half a step high, cut to integers of at most `highest`."""
    return np.trunc(x).astype(np.uint8).clip(0, highest)


def _centred(x: Floats, levels: int) -> tuple[Floats, Any]:
    """Scale and levels where the element of largest magnitude becomes level 0."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    d = extreme / np.float32(-levels // 2)
    return d, _levels(x * inverse(d) + np.float32(levels // 2 + 0.5), levels - 1)


def _from_minimum(x: Floats, levels: int) -> tuple[Floats, Floats, Any]:
    """Scale, minimum and levels where the smallest element becomes 0, the largest the last."""
    low = x.min(axis=-1, keepdims=True)
    d = (x.max(axis=-1, keepdims=True) - low) / np.float32(levels - 1)
    return d, low, _levels((x - low) * inverse(d) + np.float32(0.5), levels - 1)


def filled(layout: np.dtype[np.void], **fields: Any) -> Fields:
    """Blocks of a layout, from the values of its fields."""
    blocks = np.empty(len(next(iter(fields.values()))), layout)
    for name, values in fields.items():
        blocks[name] = values.reshape(blocks[name].shape)
    return blocks


def encode_q4_0(x: Floats, layout: np.dtype[np.void]) -> Fields:
    """Return the fields of blocks whose extreme becomes −8 of the scale's steps."""
    d, q = _centred(x, 16)
    return filled(layout, d=d, q=pack(q, 4))


def encode_q4_1(x: Floats, layout: np.dtype[np.void]) -> Fields:
    """15 steps from the minimum to the maximum."""
    d, m, q = _from_minimum(x, 16)
    return filled(layout, d=d, m=m, q=pack(q, 4))


def encode_q5_0(x: Floats, layout: np.dtype[np.void]) -> Fields:
    """Return the fields of blocks whose extreme becomes −16 of the scale's steps."""
    d, q = _centred(x, 32)
    return filled(layout, d=d, h=pack(q >> 4, 1, groups=4), q=pack(q & 15, 4))


def encode_q5_1(x: Floats, layout: np.dtype[np.void]) -> Fields:
    """31 steps from the minimum to the maximum."""
    d, m, q = _from_minimum(x, 32)
    return filled(layout, d=d, m=m, h=pack(q >> 4, 1, groups=4), q=pack(q & 15, 4))


def encode_q8_0(x: Floats, layout: np.dtype[np.void]) -> Fields:
    """Return fields of blocks whose largest magnitude becomes 127; halves go away from zero."""
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = x * inverse(d)
    whole = np.floor(np.abs(scaled))
    q = np.sign(scaled) * (whole + np.floor(2 * (np.abs(scaled) - whole)))
    return filled(layout, d=d, q=q.astype(np.int8))


def encode_iq4_nl(x: Floats, layout: np.dtype[np.void]) -> Fields:
    """Return fields of blocks whose scale is searched for."""
    d = halves(scale_of_values(x))
    return filled(layout, d=d, q=pack(codes(x * inverse(d)), 4))


def encode_mxfp4(x: Floats, layout: np.dtype[np.void]) -> Fields:
    """Return fields of blocks whose largest magnitude is 4 to 8 times the scale, to the nearest."""
    largest = np.abs(x).max(axis=-1)
    power = np.floor(np.log2(largest)) + np.float32(125)
    e = np.where(largest > 0, power, np.float32(0)).clip(0, 254).astype(np.uint8)
    values = _half_power(e) * FP4_DOUBLED.astype(np.float32)
    q = np.abs(values[:, None, :] - x[:, :, None]).argmin(axis=-1)
    return filled(layout, e=e, q=pack(q, 4))


FORMATS = (
    BlockFormat(
        "Q4_0",
        2,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("q", "u1", 16)]),
        decode_q4_0,
        encode_q4_0,
    ),
    BlockFormat(
        "Q4_1",
        3,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]),
        decode_q4_1,
        encode_q4_1,
    ),
    BlockFormat(
        "Q5_0",
        6,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("h", "u1", 4), ("q", "u1", 16)]),
        decode_q5_0,
        encode_q5_0,
    ),
    BlockFormat(
        "Q5_1",
        7,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("m", "<f2"), ("h", "u1", 4), ("q", "u1", 16)]),
        decode_q5_1,
        encode_q5_1,
    ),
    BlockFormat(
        "Q8_0",
        8,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("q", "i1", 32)]),
        decode_q8_0,
        encode_q8_0,
    ),
    BlockFormat(
        "IQ4_NL",
        20,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("q", "u1", 16)]),
        decode_iq4_nl,
        encode_iq4_nl,
    ),
    BlockFormat(
        "MXFP4",
        39,
        ELEMENTS,
        np.dtype([("e", "u1"), ("q", "u1", 16)]),
        decode_mxfp4,
        encode_mxfp4,
    ),
)
