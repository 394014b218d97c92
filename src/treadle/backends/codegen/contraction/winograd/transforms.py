"""The transforms of Winograd's convolutions F(2x2, 3x3) and F(4x4, 3x3).

A tile of m x m results is Y = A' [(G g G') * (B' d B)] A, with the kernel g, the (m+2) x (m+2)
inputs d and a product element by element (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", 2016). The matrices are those of Toom and Cook: polynomials are multiplied by
their values at m + 1 points and at infinity.

F(2x2) has the points 0, 1, -1. F(4x4) usually has 0, 1, -1, 2, -2; here it has 0, a, -a, b, -b
with a = sqrt(1/2) and b = sqrt(2), whose powers stay near 1: a fifth of the error, and no more
operations.

The gradient in the weight is a correlation of the same inputs with tiles of dy, so it is the
transposed algorithm, G' [(B' d B) * (A dy A')] G: F(3x3, 4x4) and F(3x3, 2x2) with the same points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.backends.codegen.kernel.language import Value, fma

Values = list[Value]
Transform = Callable[[Sequence[Value]], Values]

A = 0.5**0.5
B = 2.0**0.5
"""The points of F(4x4); A * B = 1."""


def of_input(m: int) -> Transform:
    """B': m + 2 inputs to as many values."""
    return _input_4 if m == 4 else _input_2


def of_weight(m: int) -> Transform:
    """G: three taps to m + 2 values."""
    return _weight_4 if m == 4 else _weight_2


def of_products(m: int) -> Transform:
    """A': m + 2 products to m results."""
    return _products_4 if m == 4 else _products_2


def of_gradient(m: int) -> Transform:
    """A: m gradients of results to m + 2 values."""
    return _gradient_4 if m == 4 else _gradient_2


def of_taps(m: int) -> Transform:
    """G': m + 2 sums of products to the gradients of three taps."""
    return _taps_4 if m == 4 else _taps_2


def twice(transform: Transform, square: Sequence[Sequence[Value]]) -> list[Values]:
    """A transform of the columns, then of the rows of what that gives."""
    columns = [transform(column) for column in zip(*square, strict=True)]
    return [transform(row) for row in zip(*columns, strict=True)]


def _input_2(d: Sequence[Value]) -> Values:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[3] - d[1]]


def _weight_2(g: Sequence[Value]) -> Values:
    even, odd = (g[0] + g[2]) * 0.5, g[1] * 0.5
    return [g[0], even + odd, even - odd, g[2]]


def _products_2(y: Sequence[Value]) -> Values:
    return [y[0] + (y[1] + y[2]), y[1] - y[2] + y[3]]


def _gradient_2(y: Sequence[Value]) -> Values:
    return [y[0], y[0] + y[1], y[0] - y[1], y[1]]


def _taps_2(p: Sequence[Value]) -> Values:
    even, odd = (p[1] + p[2]) * 0.5, (p[1] - p[2]) * 0.5
    return [p[0] + even, odd, even + p[3]]


def _input_4(d: Sequence[Value]) -> Values:
    found = [fma(d[2], -2.5, d[0] + d[4])]
    for square, point in ((2.0, A), (0.5, B)):
        even, odd = fma(d[2], -square, d[4]), fma(d[1], -square, d[3])
        found += [fma(odd, point, even), fma(odd, -point, even)]
    return [*found, fma(d[3], -2.5, d[1] + d[5])]


def _weight_4(g: Sequence[Value]) -> Values:
    found = [g[0]]
    for point, scale in ((A, -2 / 3), (B, 1 / 6)):
        even = fma(g[2], point * point, g[0]) * scale
        odd = g[1] * (point * scale)
        found += [even + odd, even - odd]
    return [*found, g[2]]


def _products_4(y: Sequence[Value]) -> Values:
    s, d = y[1] + y[2], y[1] - y[2]
    t, u = y[3] + y[4], y[3] - y[4]
    return [
        y[0] + (s + t),
        fma(u, 2.0, d) * A,
        fma(t, 2.0, s * 0.5),
        fma(fma(u, 8.0, d), A / 2, y[5]),
    ]


def _gradient_4(y: Sequence[Value]) -> Values:
    found = [y[0]]
    for point in (A, B):
        even = fma(y[2], point * point, y[0])
        odd = fma(y[3], point * point, y[1]) * point
        found += [even + odd, even - odd]
    return [*found, y[3]]


def _taps_4(p: Sequence[Value]) -> Values:
    s, t = (p[1] + p[2]) * (-2 / 3), (p[3] + p[4]) * (1 / 6)
    d, u = (p[1] - p[2]) * (-2 / 3 * A), (p[3] - p[4]) * (B / 6)
    return [p[0] + (s + t), d + u, fma(t, 2.0, fma(s, 0.5, p[5]))]
