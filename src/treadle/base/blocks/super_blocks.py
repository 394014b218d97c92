"""Formats of 256 elements to a block: scales of 16 or 32 elements, which are quantized themselves.

What is read is what the package `gguf` reads, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.base.blocks import super_encoding
from treadle.base.blocks.bits import unpack
from treadle.base.blocks.layout import BlockFormat, Bytes, Fields, Floats
from treadle.base.blocks.scales import IQ4_VALUES
from treadle.base.blocks.small import wide

ELEMENTS = 256
_NIBBLES, _SIXES = 0x0F0F0F0F, 0x3F3F3F3F
"""Four and six bits in every byte of a word."""


def _scaled(scales: Floats, q: Any) -> Floats:
    """Runs of elements [n, 256] times their scales [n, runs]: float32 [n, runs, 256/runs]."""
    scaled: Floats = scales[:, :, None] * q.reshape(*scales.shape, -1).astype(np.float32)
    return scaled


def decode_q2_k(blocks: Fields) -> Floats:
    """`d · (s & 15) · q − m · (s ≫ 4)`, a scale for 16 elements.

    Byte 32h + l of `q` holds elements 128h + 32t + l for t = 0 … 3.
    """
    s = blocks["s"]
    d, m = wide(blocks["d"]) * (s & 15), wide(blocks["m"]) * (s >> 4)
    numbers = _scaled(d, unpack(blocks["q"], 2, groups=2)) - m[:, :, None]
    return numbers.reshape(-1, ELEMENTS)


def _three_words(packed: Bytes) -> NDArray[np.uint32]:
    """Twelve bytes as words: uint32 [3, ...] of uint8 [..., 12]."""
    return np.moveaxis(packed.view(np.uint32), -1, 0).copy()


def six_bit_scales(packed: Bytes) -> NDArray[np.int8]:
    """Scales of Q3_K, 6 bits less 32: int8 [..., 16] of uint8 [..., 12].

    The lower 4 bits are the nibbles of 8 bytes, the upper 2 follow in 4 bytes.
    """
    *low, high = _three_words(packed)
    parts = [
        low[i % 2] >> 4 * (i // 2) & _NIBBLES | (high >> 2 * i & 0x03030303) << 4 for i in range(4)
    ]
    scales: NDArray[np.int8] = np.stack(parts, -1).view(np.int8)
    scales -= np.int8(32)
    return scales


def decode_q3_k(blocks: Fields) -> Floats:
    """`d · (s − 32) · q`, a scale of 6 bits for 16 elements, with −4 in q where the mask has a 0.

    `q` is laid out as in Q2_K; bit 4h + t of mask byte l belongs to element 128h + 32t + l.
    """
    d = wide(blocks["d"]) * six_bit_scales(blocks["s"])
    absent = unpack(blocks["mask"], 1) ^ np.uint8(1)
    q = unpack(blocks["q"], 2, groups=2).astype(np.int8) - (absent << 2).astype(np.int8)
    return _scaled(d, q).reshape(-1, ELEMENTS)


def scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima of Q4_K and Q5_K: 6 bits each, uint8 [..., 8] of uint8 [..., 12].

    The first four of each are the lower 6 bits of bytes 0 to 3 and 4 to 7. Of the other four, bytes
    8 to 11 hold the lower 4 bits as nibbles, and the upper 2 bits of bytes 0 to 7 the upper ones.
    """
    first, second, nibbles = _three_words(packed)
    scales = first & _SIXES, nibbles & _NIBBLES | first >> 2 & 0x30303030
    minima = second & _SIXES, nibbles >> 4 & _NIBBLES | second >> 2 & 0x30303030
    return np.stack(scales, -1).view(np.uint8), np.stack(minima, -1).view(np.uint8)


def _decode_k45(blocks: Fields, q: Any) -> Floats:
    """`d · s · q − m · z`, scale s and minimum z for 32 elements."""
    s, z = scales_and_minima(blocks["s"])
    d, m = wide(blocks["d"]) * s, wide(blocks["m"]) * z
    return (_scaled(d, q) - m[:, :, None]).reshape(-1, ELEMENTS)


def decode_q4_k(blocks: Fields) -> Floats:
    """`d · s · q − m · z`: 32 bytes of `q` hold 64 elements, first their low nibbles."""
    return _decode_k45(blocks, unpack(blocks["q"], 4, groups=4))


def decode_q5_k(blocks: Fields) -> Floats:
    """Q4_K with a fifth bit: bit b of byte l of `h` belongs to element 32b + l."""
    fifth = unpack(blocks["h"], 1) << np.uint8(4)
    return _decode_k45(blocks, unpack(blocks["q"], 4, groups=4) | fifth)


def decode_q6_k(blocks: Fields) -> Floats:
    """`d · s · (q − 32)`, a scale of 8 bits for 16 elements.

    Each half of the block has 64 bytes of low nibbles and 32 bytes of upper pairs of bits.
    """
    d = wide(blocks["d"]) * blocks["s"]
    q = unpack(blocks["l"], 4, groups=2) | (unpack(blocks["h"], 2, groups=2) << np.uint8(4))
    return _scaled(d, q.astype(np.int8) - np.int8(32)).reshape(-1, ELEMENTS)


def low_and_high_scales(blocks: Fields) -> Any:
    """The scales of IQ4_XS: int8 [n, 8]."""
    s = unpack(blocks["l"], 4, groups=4) | (unpack(blocks["h"], 2, groups=2) << np.uint8(4))
    return s.astype(np.int8) - np.int8(32)


def decode_iq4_xs(blocks: Fields) -> Floats:
    """`d · (s − 32) · T[q]`, a scale of 6 bits for 32 elements, T being `IQ4_VALUES`.

    Lower bits of the scales are the nibbles of `l`, upper ones the pairs of bits of `h`.
    """
    d = wide(blocks["d"]) * low_and_high_scales(blocks)
    return _scaled(d, IQ4_VALUES[unpack(blocks["q"], 4, groups=8)]).reshape(-1, ELEMENTS)


FORMATS = (
    BlockFormat(
        "Q2_K",
        10,
        ELEMENTS,
        np.dtype([("s", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("m", "<f2")]),
        decode_q2_k,
        super_encoding.encode_q2_k,
    ),
    BlockFormat(
        "Q3_K",
        11,
        ELEMENTS,
        np.dtype([("mask", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), ("d", "<f2")]),
        decode_q3_k,
        super_encoding.encode_q3_k,
    ),
    BlockFormat(
        "Q4_K",
        12,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128)]),
        decode_q4_k,
        super_encoding.encode_q4_k,
    ),
    BlockFormat(
        "Q5_K",
        13,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("h", "u1", 32), ("q", "u1", 128)]),
        decode_q5_k,
        super_encoding.encode_q5_k,
    ),
    BlockFormat(
        "Q6_K",
        14,
        ELEMENTS,
        np.dtype([("l", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), ("d", "<f2")]),
        decode_q6_k,
        super_encoding.encode_q6_k,
    ),
    BlockFormat(
        "IQ4_XS",
        23,
        ELEMENTS,
        np.dtype([("d", "<f2"), ("h", "u1", 2), ("l", "u1", 4), ("q", "u1", 128)]),
        decode_iq4_xs,
        super_encoding.encode_iq4_xs,
    ),
)
