"""Fourier transforms of ATen: products with matrices of sines, in factors of the length.

A length that is a product is transformed in two steps with a rotation between them, a large prime
as a convolution whose length is a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.dtype import DType
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.pairs import COMPLEX, Pair
from treadle.interop.torch.shaping import extents, part
from treadle.interop.torch.table import OperatorCall
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Concat, Flip
from treadle.ops.slicing import Pad

V = GraphOperand
_WHOLE = 128
"""Up to this length a transform is one product with a matrix."""


def _angles(rows: int, columns: int, length: int, sign: int) -> Any:
    """sign * 2 pi j k / length; j k is reduced first, which keeps the digits."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    return sign * 2 * np.pi * turns / length


def _constant(like: V, array: Any) -> V:
    kind: DType = like.type.dtype
    return like.builder.constant(np.asarray(array, kind.numpy))


def _rotated(x: Pair, angles: Any) -> Pair:
    cosines, sines = _constant(x.real, np.cos(angles)), _constant(x.real, np.sin(angles))
    return Pair(x.real * cosines - x.imag * sines, x.real * sines + x.imag * cosines)


def _times_matrix(real: V, imag: V | None, angles: Any) -> Pair:
    """Rows times e^(i angles)."""
    cosines, sines = _constant(real, np.cos(angles)), _constant(real, np.sin(angles))
    first, second = Matmul()(real, cosines), Matmul()(real, sines)
    if imag is None:
        return Pair(first, second)
    return Pair(first - Matmul()(imag, sines), second + Matmul()(imag, cosines))


def transformed(real: V, imag: V | None, sign: int) -> Pair:
    """The transform over the last axis, without a factor; `imag` None: of real numbers."""
    *lead, length = extents(real)
    if len(lead) != 1:  # one product of two matrices serves all
        lines = (math.prod(lead), length)
        made = transformed(real.reshape(lines), None if imag is None else imag.reshape(lines), sign)
        shape = (*lead, length)
        return Pair(made.real.reshape(shape), made.imag.reshape(shape))
    if length <= _WHOLE:
        return _times_matrix(real, imag, _angles(length, length, length, sign))
    inner = _divisor(length)
    if inner == 1:
        return _prime(real, imag, sign)
    outer, rows = length // inner, lead[0]

    def columns(x: V) -> V:  # element j + inner * k as [j, k]
        return x.reshape((rows, outer, inner)).transpose((0, 2, 1))

    first = transformed(columns(real), None if imag is None else columns(imag), sign)
    turned = _rotated(first, _angles(inner, outer, length, sign))  # [rows, inner, outer]
    swap = (0, 2, 1)
    last = transformed(turned.real.transpose(swap), turned.imag.transpose(swap), sign)
    # Frequency f + outer * g stands at [f, g].
    shape = (rows, length)
    return Pair(last.real.transpose(swap).reshape(shape), last.imag.transpose(swap).reshape(shape))


def _divisor(length: int) -> int:
    """The largest divisor up to the root; 1 for primes."""
    return next(d for d in range(math.isqrt(length), 0, -1) if length % d == 0)


def _prime(real: V, imag: V | None, sign: int) -> Pair:
    """Bluestein's: a convolution with a chirp, of a length that has small factors."""
    length = extents(real)[1]
    wide = 1 << (2 * length - 2).bit_length()
    squares = np.arange(length, dtype=np.int64) ** 2 % (2 * length)
    chirp = sign * np.pi * squares / length
    zero = real.constant(0).broadcast_to(extents(real))
    given = _rotated(Pair(real, zero if imag is None else imag), chirp[None])
    padding = ((0, 0), (0, wide - length))
    pad = Pad(padding, "constant", 0)
    spectrum = transformed(pad(given.real), pad(given.imag), -1)
    kernel = np.zeros(wide, np.complex128)
    kernel[:length] = np.exp(-1j * chirp)
    kernel[wide - length + 1 :] = kernel[1:length][::-1]
    image = np.fft.fft(kernel) / wide
    first, second = _constant(real, image.real[None]), _constant(real, image.imag[None])
    product = Pair(
        spectrum.real * first - spectrum.imag * second,
        spectrum.real * second + spectrum.imag * first,
    )
    back = transformed(product.real, product.imag, 1)
    kept = Pair(part(back.real, 1, 0, length), part(back.imag, 1, 0, length))
    return _rotated(kept, chirp[None])


# -- axes and factors --------------------------------------------------------------------------


def _along(x: Pair | V, axis: int, sign: int) -> Pair:
    """The transform over one axis."""
    real, imag = (x.real, x.imag) if isinstance(x, Pair) else (x, None)
    rank = real.type.ndim
    order = (*(i for i in range(rank) if i != axis), axis)
    back = tuple(order.index(i) for i in range(rank))
    moved = None if imag is None else imag.transpose(order)
    made = transformed(real.transpose(order), moved, sign)
    return Pair(made.real.transpose(back), made.imag.transpose(back))


def _scaled(x: Any, normalization: int, cells: int) -> Any:
    """Multiplied by 1, 1 / sqrt(cells), or 1 / cells."""
    factor = (1.0, cells**-0.5, 1 / cells)[normalization]
    if factor == 1.0:
        return x
    if isinstance(x, Pair):
        return Pair(x.real * factor, x.imag * factor)
    return x * factor


def _fft(
    call: OperatorCall, x: Pair, dims: Sequence[int], normalization: int, forward: bool
) -> Pair:
    rank = x.real.type.ndim
    cells = math.prod(extents(x.real)[d] for d in dims)
    for dim in dims:
        x = _along(x, dim % rank, -1 if forward else 1)
    made: Pair = _scaled(x, normalization, cells)
    return made


def _of_reals(
    call: OperatorCall, x: V, dims: Sequence[int], normalization: int, onesided: bool
) -> Pair:
    rank, last = x.type.ndim, dims[-1] % x.type.ndim
    cells = math.prod(extents(x)[d] for d in dims)
    made = _along(x, last, -1)
    if onesided:
        kept = extents(x)[last] // 2 + 1
        made = Pair(part(made.real, last, 0, kept), part(made.imag, last, 0, kept))
    for dim in dims[:-1]:
        made = _along(made, dim % rank, -1)
    scaled: Pair = _scaled(made, normalization, cells)
    return scaled


def _to_reals(
    call: OperatorCall, x: Pair, dims: Sequence[int], normalization: int, length: int
) -> V:
    """Back from the half of a spectrum whose other half mirrors it."""
    rank, last = x.real.type.ndim, dims[-1] % x.real.type.ndim
    for dim in dims[:-1]:
        x = _along(x, dim % rank, 1)
    half = length // 2 + 1
    have = extents(x.real)[last]
    if have < half:
        widths = tuple((0, half - have if i == last else 0) for i in range(rank))
        pad = Pad(widths, "constant", 0)
        x = Pair(pad(x.real), pad(x.imag))
    x = Pair(part(x.real, last, 0, half), part(x.imag, last, 0, half))
    mirrored = length - half

    def whole(v: V, sign: int) -> V:
        if not mirrored:
            return v
        tail = Flip((last,))(part(v, last, 1, mirrored + 1))
        return Concat(last)(v, tail if sign > 0 else -tail)

    made = _along(Pair(whole(x.real, 1), whole(x.imag, -1)), last, 1)
    cells = math.prod(length if d % rank == last else extents(x.real)[d] for d in dims)
    scaled: V = _scaled(made.real, normalization, cells)
    return scaled


COMPLEX["_fft_c2c.default"] = _fft
COMPLEX["_fft_r2c.default"] = _of_reals
COMPLEX["_fft_c2r.default"] = _to_reals
