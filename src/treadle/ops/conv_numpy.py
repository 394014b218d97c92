"""Convolution and its two gradients on NumPy arrays, by gathered patches and matrix products.

The batch axis is moved last, so that copying one tap's patches moves long contiguous runs and a
group is one matrix product. Patches are made for as many images at a time as stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from treadle.base.array import Array
from treadle.ops.windows import Index, Window, positions_and_taps

_BLOCK = 1 << 18
"""Elements of gathered patches per step; 2^16 and 2^20 were measured to be slower."""
_ALL: Index = (slice(None),)


def convolve(x: Array, weight: Array, window: Window, groups: int) -> Array:
    """Cross-correlation of x [N,C,*S] with weight [O,C/groups,*K]."""
    if window.is_pointwise:
        return _pointwise_product(_group_matrix(weight, groups), x)
    extents, _ = positions_and_taps(window, x.shape[2:])
    size = math.prod(extents)
    matrix = _group_matrix(weight, groups)
    y = np.empty((len(x), len(weight), *extents), x.dtype)
    for part in _blocks(len(x), matrix.shape[2] * groups * size):
        images = x[part]
        product = np.matmul(matrix, _patches(images, window, groups))
        y[part] = _batch_first(product.reshape(len(weight), *extents, len(images)))
    return y


def convolve_transposed(
    dy: Array, weight: Array, window: Window, groups: int, spatial: tuple[int, ...]
) -> Array:
    """The adjoint of `convolve` in x: dy [N,O,*P] scattered through the weight to [N,C,*S]."""
    swapped = _group_matrix(weight, groups).swapaxes(1, 2)
    if window.is_pointwise:
        return _pointwise_product(swapped, dy)
    extents, taps = positions_and_taps(window, spatial)
    channels, size = weight.shape[1] * groups, math.prod(extents)
    dx = np.empty((len(dy), channels, *spatial), dy.dtype)
    for part in _blocks(len(dy), swapped.shape[1] * groups * size):
        given = _batch_last(dy[part])
        n = given.shape[-1]
        rows = given.reshape(groups, len(weight) // groups, size * n)
        # An outer product (depthwise) is no matter for BLAS.
        patches = swapped * rows if rows.shape[1] == 1 else np.matmul(swapped, rows)
        patches = patches.reshape(channels, *weight.shape[2:], *extents, n)
        total = np.zeros((channels, *spatial, n), dy.dtype)
        for tap in taps:
            total[_ALL + tap.inputs] += patches[_ALL + tap.cell + tap.outputs]
        dx[part] = _batch_first(total)
    return dx


def correlate_for_weight(x: Array, dy: Array, window: Window, groups: int) -> Array:
    """The adjoint of `convolve` in the weight: patches of x times dy, [O,C/groups,*K]."""
    outputs, inputs = dy.shape[1] // groups, x.shape[1] // groups
    size, taps = math.prod(dy.shape[2:]), math.prod(int(k) for k in window.kernel)
    dw = np.zeros((groups, outputs, inputs * taps), x.dtype)
    if window.is_pointwise:
        left = dy.reshape(len(dy), groups, outputs, size)
        right = x.reshape(len(x), groups, inputs, size)
        dw = np.matmul(left, right.swapaxes(2, 3)).sum(axis=0)
    else:
        for part in _blocks(len(x), inputs * groups * taps * size):
            given = _batch_last(dy[part]).reshape(groups, outputs, size * len(dy[part]))
            dw += np.matmul(given, _patches(x[part], window, groups).swapaxes(1, 2))
    return dw.reshape(dy.shape[1], inputs, *(int(k) for k in window.kernel))


def _patches(x: Array, window: Window, groups: int) -> Array:
    """Gather the elements below every window position, [groups, C/groups * taps, positions * N]."""
    extents, taps = positions_and_taps(window, x.shape[2:])
    n, channels = x.shape[:2]
    kernel = tuple(int(k) for k in window.kernel)
    source = _batch_last(x)
    patches = np.zeros((channels, *kernel, *extents, n), x.dtype)
    for tap in taps:
        patches[_ALL + tap.cell + tap.outputs] = source[_ALL + tap.inputs]
    rows = channels // groups * math.prod(kernel)
    return patches.reshape(groups, rows, math.prod(extents) * n)


def _pointwise_product(matrix: Array, x: Array) -> Array:
    """[G,A,B] applied to the channels of x [N,G*B,*S]: [N,G*A,*S]."""
    groups, rows, columns = matrix.shape
    shaped = x.reshape(len(x), groups, columns, math.prod(x.shape[2:]))
    product: Array = np.matmul(matrix, shaped)
    return product.reshape(len(x), groups * rows, *x.shape[2:])


def _group_matrix(weight: Array, groups: int) -> Array:
    """Weight as one matrix per group, [groups, O/groups, C/groups * taps]."""
    return weight.reshape(groups, len(weight) // groups, math.prod(weight.shape[1:]))


def _batch_last(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(*range(1, x.ndim), 0))


def _batch_first(x: Array) -> Array:
    return x.transpose(x.ndim - 1, *range(x.ndim - 1))


def _blocks(n: int, elements: int) -> Iterator[slice]:
    """Ranges of the batch whose patches, `elements` per image, stay within one block."""
    step = max(1, _BLOCK // max(1, elements))
    return (slice(i, i + step) for i in range(0, n, step))
