"""Numbers to blocks with scales that are quantized themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.blocks.bits import pack
from treadle.base.blocks.layout import Bytes, Fields, Floats
from treadle.base.blocks.scales import (
    codes,
    extreme,
    halves,
    inverse,
    scale_and_minimum,
    scale_of_levels,
    scale_of_values,
    whole,
)
from treadle.base.blocks.small import filled

Layout = np.dtype[np.void]


def _signed(x: Floats, levels: int, most: int) -> tuple[Floats, Any, Any]:
    """Scale of blocks, scales of their runs from -most to most - 1, and levels [n, 256], from 0."""
    scales = scale_of_levels(x, levels)[..., 0]
    d = halves(extreme(scales) / np.float32(-most))
    s = whole(scales * inverse(d), -most, most - 1)
    low = -levels // 2
    q = whole(x * inverse(d * s)[..., None], low, -low - 1) - low
    return d, s.astype(np.int8), q.astype(np.uint8).reshape(len(x), -1)


def _ranged(x: Floats, levels: int, most: int, steps: int) -> tuple[Any, ...]:
    """Scale and minimum of blocks, those of their runs from 0 to most, and levels [n, 256]."""
    scales, minima = (v[..., 0] for v in scale_and_minimum(x, levels, steps))
    found = []
    for each in (scales, minima):
        d = halves(each.max(axis=-1, keepdims=True) / np.float32(most))
        found += [d, whole(each * inverse(d), 0, most)]
    d, s, m, z = found
    q = whole((x + (m * z)[..., None]) * inverse(d * s)[..., None], 0, levels - 1)
    return d, m, s.astype(np.uint8), z.astype(np.uint8), q.astype(np.uint8).reshape(len(x), -1)


def encode_q2_k(x: Floats, layout: Layout) -> Fields:
    """Scales and minima of 4 bits for 16 elements."""
    d, m, s, z, q = _ranged(x.reshape(-1, 16, 16), 4, 15, 16)
    return filled(layout, d=d, m=m, s=s | (z << 4), q=pack(q, 2, groups=2))


def encode_q3_k(x: Floats, layout: Layout) -> Fields:
    """Scales of 6 bits for 16 elements."""
    d, s, q = _signed(x.reshape(-1, 16, 16), 8, 32)
    u = (s + 32).astype(np.uint8)
    scales = np.concatenate([pack(u & 15, 4), pack(u >> 4, 2)], axis=1)
    return filled(layout, d=d, s=scales, mask=pack(q >> 2, 1), q=pack(q & 3, 2, groups=2))


def _pairs(s: Bytes, z: Bytes) -> Bytes:
    """The inverse of `scales_and_minima`."""
    (s, more_s), (z, more_z) = np.split(s, 2, axis=1), np.split(z, 2, axis=1)
    nibbles = (more_s & 15) | (more_z << 4)
    return np.concatenate([s | (more_s >> 4 << 6), z | (more_z >> 4 << 6), nibbles], axis=1)


def encode_q4_k(x: Floats, layout: Layout) -> Fields:
    """Scales and minima of 6 bits for 32 elements."""
    d, m, s, z, q = _ranged(x.reshape(-1, 8, 32), 16, 63, 21)
    return filled(layout, d=d, m=m, s=_pairs(s, z), q=pack(q, 4, groups=4))


def encode_q5_k(x: Floats, layout: Layout) -> Fields:
    """Scales and minima of 6 bits for 32 elements."""
    d, m, s, z, q = _ranged(x.reshape(-1, 8, 32), 32, 63, 16)
    fields = {"h": pack(q >> 4, 1), "q": pack(q & 15, 4, groups=4)}
    return filled(layout, d=d, m=m, s=_pairs(s, z), **fields)


def encode_q6_k(x: Floats, layout: Layout) -> Fields:
    """Scales of 8 bits for 16 elements."""
    d, s, q = _signed(x.reshape(-1, 16, 16), 64, 128)
    fields = {"l": pack(q & 15, 4, groups=2), "h": pack(q >> 4, 2, groups=2)}
    return filled(layout, d=d, s=s, **fields)


def encode_iq4_xs(x: Floats, layout: Layout) -> Fields:
    """Scales of 6 bits for 32 elements."""
    runs = x.reshape(-1, 8, 32)
    scales = scale_of_values(runs)[..., 0]
    d = halves(extreme(scales) / np.float32(-32))
    s = whole(scales * inverse(d), -32, 31)
    q = codes(runs * inverse(d * s)[..., None]).reshape(len(x), -1)
    u = (s + 32).astype(np.uint8)
    fields = {"l": pack(u & 15, 4, groups=4), "h": pack(u >> 4, 2, groups=2)}
    return filled(layout, d=d, q=pack(q, 4, groups=8), **fields)
