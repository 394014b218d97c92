"""Windows that slide over an image: pooling, patches, and padding around it.

Sizes, strides and paddings are ints, or pairs for height and width. A window larger than the padded
image is a `ShapeError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from treadle.base.dialect import Dialect
from treadle.base.errors import DTypeError
from treadle.base.quantized import to_stored
from treadle.base.shape import Shape
from treadle.base.symbol import Expr
from treadle.functional.arguments import (
    as_tensor,
    both_sides,
    call,
    extents,
    on_own_scale,
    pair,
    unary,
)
from treadle.ops import adaptive_pool, pool, slicing, sliding
from treadle.ops.methods import either
from treadle.tensor import Tensor

Windows: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

__all__ = [
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "avg_pool2d",
    "max_pool2d",
    "pad",
    "sliding_window",
    "sliding_window_transpose",
]


def pad(
    src: Tensor,
    pad_width: Any = None,
    mode: str = "constant",
    constant_value: float = 0.0,
    *,
    pad_witdth: Any = None,
    value: float | None = None,
) -> Tensor:
    """NumPy-style padding: a (before, after) pair per axis; missing trailing axes get none.

    `mode` is "constant", "edge" (or "replicate") or "reflect". Every axis grows by its pair.
    `pad_witdth` is how early versions of MegEngine spell `pad_width`, `value` is PyTorch's name of
    `constant_value`. PyTorch's flat list is refused, since it has the last axis first.

    Raises:
        TypeError: there are no pairs.
        ValueError: the pairs do not fit the axes, or the mode is unknown.
        DTypeError: channels have scales of their own.

    Example:
        >>> F.pad(mge.tensor([1., 2.]), [(1, 2)], constant_value=9.).tolist()
        [9.0, 1.0, 2.0, 9.0, 9.0]
        >>> F.pad(mge.tensor([1., 2.]), [(1, 2)], mode="edge").tolist()
        [1.0, 1.0, 2.0, 2.0, 2.0]
    """
    pad_width = pad_witdth if pad_width is None else pad_width
    if pad_width is None:
        raise TypeError("pad: missing pad_width, a (before, after) pair per axis")
    if value is not None:
        constant_value = either("constant_value", constant_value, value, 0.0)
    x = as_tensor(src)
    widths = _pairs(x, pad_width)
    if len(widths) > x.ndim or any(len(w) != 2 for w in widths):
        raise ValueError(f"pad_width {pad_width} does not fit {x.ndim} axes")
    if str(mode).lower() not in ("constant", "edge", "replicate", "reflect"):
        raise ValueError(f"pad: unknown mode {mode!r}")
    every = tuple((w[0], w[1]) for w in widths) + ((0, 0),) * (x.ndim - len(widths))
    known = "edge" if str(mode).lower() == "replicate" else str(mode).lower()
    if x._kind.quantized is not None and x._kind.quantized.is_per_channel:
        raise DTypeError(
            "pad",
            "no border is on the grids of all channels",
            saw=str(x._kind.quantized),
            hint="cast with astype('float32') first",
        )
    if x._kind.quantized is not None:
        constant_value = to_stored(np.array(constant_value), x._kind.quantized).item()
    return unary(slicing.Pad(every, known, float(constant_value)), x)  # type: ignore[arg-type]


def _pairs(x: Tensor, given: Any) -> list[Shape]:
    """(before, after) of the leading axes."""
    rows = given if isinstance(given, tuple | list) else ()
    plain: list[Shape] = [
        (w[0], w[1])
        for w in rows
        if type(w) in (tuple, list) and len(w) == 2 and type(w[0]) is type(w[1]) is int
    ]
    if rows and len(plain) == len(rows):
        return plain  # As nearly all calls have them.
    if any([isinstance(v, Expr) for w in rows if isinstance(w, tuple | list) for v in w]):
        return [extents(w) for w in given]
    if np.ndim(given) > 1:
        return [tuple(int(v) for v in w) for w in given]
    problem = f"pad: pad_width is one (before, after) pair per axis, got {given}"
    flat = [int(v) for v in np.ravel(given)]
    if not flat or len(flat) % 2 or len(flat) > 2 * x.ndim:
        raise TypeError(f"{problem}; {[(1, 1)] * x.ndim} adds one at every end")
    # PyTorch's list begins with the last axis.
    ours = [(0, 0)] * (x.ndim - len(flat) // 2) + list(zip(flat[-2::-2], flat[::-2], strict=True))
    raise TypeError(f"{problem}; as PyTorch means it, pass {ours}")


def sliding_window(
    inp: Tensor, kernel_size: Any, padding: Any = 0, stride: Any = 1, dilation: Any = 1
) -> Tensor:
    """Patches of x (N, C, H, W) as (N, C, OH, OW, KH, KW), with the extents of `conv2d`.

    Example:
        >>> patches = F.sliding_window(F.arange(9).reshape(1, 1, 3, 3), 2)
        >>> patches.shape, patches[0, 0, 0, 1].tolist()
        ((1, 1, 2, 2, 2, 2), [[1.0, 2.0], [4.0, 5.0]])
    """
    op = sliding.SlidingWindow(
        pair(kernel_size), pair(stride), both_sides(padding, 2), pair(dilation)
    )
    return unary(op, inp)


def sliding_window_transpose(
    inp: Tensor,
    output_size: Any,
    kernel_size: Any,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
) -> Tensor:
    """Patches (N, C, OH, OW, KH, KW) added up where they came from: (N, C, *output_size).

    Example:
        >>> patches = F.sliding_window(F.ones((1, 1, 3, 3)), 2)
        >>> F.sliding_window_transpose(patches, (3, 3), 2).tolist()
        [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]
    """
    op = sliding.SlidingWindowTranspose(
        pair(kernel_size),
        pair(stride),
        both_sides(padding, 2),
        pair(dilation),
        pair(output_size),
    )
    return unary(op, inp)


def max_pool2d(inp: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Largest element of every window of x (N, C, H, W): (N, C, OH, OW); padding never wins.

    `stride` is the window's size if left out; windows that do not fit are dropped, so that
    OH = floor((H + 2 padding - KH) / stride) + 1.

    Example:
        >>> F.max_pool2d(F.arange(16).reshape(1, 1, 4, 4), 2).tolist()
        [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    kernel = pair(kernel_size)
    strides = kernel if stride is None else pair(stride)
    op = pool.MaxPool(kernel, strides, both_sides(padding, 2), (1, 1), False)
    return call("max_pool2d", op, as_tensor(inp))


def avg_pool2d(
    inp: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: str = "average_count_exclude_padding",
) -> Tensor:
    """Mean of every window of x (N, C, H, W); `mode` "average" counts padding as zeros.

    Shapes and `stride` are as for `max_pool2d`.

    Raises:
        ValueError: the mode is neither of the two.

    Example:
        >>> F.avg_pool2d(F.arange(16).reshape(1, 1, 4, 4), 2).tolist()
        [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    mode = str(mode).lower()
    if mode not in ("average", "average_count_exclude_padding"):
        raise ValueError(f"avg_pool2d: unknown mode {mode!r}")
    kernel = pair(kernel_size)
    strides = kernel if stride is None else pair(stride)
    op = pool.AvgPool(kernel, strides, both_sides(padding, 2), mode == "average", False)
    return on_own_scale(lambda x: call("avg_pool2d", op, x), inp)


def adaptive_avg_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Mean of windows that cut x (N, C, H, W) into a grid of fixed size: (N, C, *oshp).

    Row i of the grid covers the rows from floor(i H / OH) to ceil((i + 1) H / OH). None in `oshp`
    keeps the extent of x. In programs that import `megengine` the windows have one size, as there:
    H - (OH - 1) S rows at a stride of S = floor(H / OH).

    Example:
        >>> F.adaptive_avg_pool2d(F.arange(16).reshape(1, 1, 4, 4), (1, 2)).tolist()
        [[[[6.5, 8.5]]]]
    """
    grid, windows = _adaptive(inp, oshp)
    if windows is not None:
        return avg_pool2d(inp, *windows)
    op = adaptive_pool.AdaptiveAvgPool(grid)
    return on_own_scale(lambda x: call("adaptive_avg_pool2d", op, x), inp)


def adaptive_max_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Maximum of windows that cut x (N, C, H, W) into a grid of fixed size: (N, C, *oshp).

    The windows are those of `adaptive_avg_pool2d`.

    Example:
        >>> F.adaptive_max_pool2d(F.arange(16).reshape(1, 1, 4, 4), (1, 2)).tolist()
        [[[[13.0, 15.0]]]]
    """
    grid, windows = _adaptive(inp, oshp)
    if windows is not None:
        return max_pool2d(inp, *windows)
    return call("adaptive_max_pool2d", adaptive_pool.AdaptiveMaxPool(grid), as_tensor(inp))


def _adaptive(inp: Any, oshp: Any) -> tuple[tuple[int, ...], Windows | None]:
    """The grid of an adaptive pool, and windows of one size where these are to be taken."""
    grid = _grid(oshp, inp)
    return grid, even_windows(as_tensor(inp).shape[-2:], grid) if Dialect.megengine else None


def even_windows(have: Sequence[Any], grid: Sequence[Any]) -> Windows | None:
    """Sizes and strides of MegEngine's adaptive pools; None where the usual windows are the same.

    Extents that are not known yet, and grids finer than the image, have the usual ones, too.
    """
    if not all(isinstance(n, int) for n in (*have, *grid)) or any(
        h < n for h, n in zip(have, grid, strict=True)
    ):
        return None
    strides = tuple(h // n for h, n in zip(have, grid, strict=True))
    sizes = tuple(h - (n - 1) * s for h, n, s in zip(have, grid, strides, strict=True))
    return None if sizes == strides else (sizes, strides)


def _grid(oshp: Any, inp: Any) -> tuple[int, ...]:
    """Rows and columns of an adaptive pool; None stands for those of the input."""
    if oshp is None or (isinstance(oshp, (tuple, list)) and None in oshp):
        have = as_tensor(inp).shape[-2:]
        given = (None, None) if oshp is None else tuple(oshp)
        oshp = tuple(h if d is None else d for d, h in zip(given, have, strict=True))
    return pair(oshp)
