"""Convolution that does not look across the borders of regions."""

from __future__ import annotations

from typing import Any

from treadle.base.errors import ShapeError
from treadle.functional.arguments import as_float, as_tensor, check_conv_mode, promote_all
from treadle.functional.math import matmul
from treadle.functional.windows import sliding_window
from treadle.tensor import Tensor

__all__ = ["region_restricted_conv"]


def region_restricted_conv(
    inp: Tensor,
    weight: Tensor,
    rin: Tensor,
    rout: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """`conv2d` whose every result reads only those cells of x that lie in the result's region.

    Args:
        inp: (N, C, H, W).
        weight: (O, C, KH, KW); with groups (groups, O/groups, C/groups, KH, KW).
        rin: (N, H, W), the number of the region that each cell of x belongs to.
        rout: (N, OH, OW), that of each cell of the result.
        bias: added by broadcasting, usually (1, O, 1, 1).
        stride, padding, dilation, groups, conv_mode, compute_mode: as for `conv2d`.

    Returns:
        (N, O, OH, OW), with the extents of `conv2d`.

    Raises:
        ShapeError: the weight or the regions do not fit.

    Example:
        >>> x, w = F.ones((1, 1, 1, 4)), F.ones((1, 1, 1, 3))
        >>> region = mge.tensor([[[0, 0, 1, 1]]])
        >>> F.region_restricted_conv(x, w, region, region, padding=(0, 1)).tolist()
        [[[[2.0, 2.0, 2.0, 2.0]]]]
    """
    check_conv_mode(conv_mode)
    x, w = (as_float(t) for t in promote_all([as_tensor(inp), as_tensor(weight)]))
    if x.ndim != 4 or w.ndim not in (4, 5) or x.shape[1] != groups * w.shape[-3]:
        raise _misfit(f"x has no {groups} groups of the weight's channels", x, w)
    *_, depth, rows, columns = w.shape
    outputs = w.size // (depth * rows * columns)
    if outputs % groups:
        raise _misfit(f"{outputs} results do not form {groups} groups", x, w)
    window = (rows, columns), padding, stride, dilation
    cells = sliding_window(x, *window)
    n, _, height, width = cells.shape[:4]
    inner, outer = as_tensor(rin, x), as_tensor(rout, x)
    if inner.shape != (n, *x.shape[2:]) or outer.shape != (n, height, width):
        raise _misfit(f"the regions must be {(n, *x.shape[2:])} and {(n, height, width)}", x, inner)
    # Numbers of regions are compared as float32, which holds them up to 2^24.
    numbers = sliding_window(inner.astype("float32").reshape(n, 1, *x.shape[2:]), *window)
    same = numbers == outer.astype("float32").reshape(n, 1, height, width, 1, 1)
    seen = (cells * same.astype(x.dtype)).transpose(0, 1, 4, 5, 2, 3)
    terms = seen.reshape(n, groups, depth * rows * columns, height * width)
    made = matmul(w.reshape(groups, outputs // groups, depth * rows * columns), terms)
    made = made.reshape(n, outputs, height, width)
    return made if bias is None else made + bias


def _misfit(problem: str, x: Tensor, other: Tensor) -> ShapeError:
    return ShapeError(
        "region_restricted_conv",
        problem,
        saw=f"x {x.type}, {other.type}",
        hint="compare the extents with those of conv2d on the same operands",
    )
