"""Functions of networks: everything of MegEngine's `F.nn`, gathered from the other files.

All of it but losses and `interpolate` is flat in `treadle.functional`, too, as in MegEngine.
"""

from __future__ import annotations

from treadle.base.dtype import FLOATS
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.symbol import Dim, Expr
from treadle.functional import (
    activation,
    conv,
    deformable,
    loss,
    normalization,
    vision,
    windows,
)
from treadle.functional.activation import *  # noqa: F403
from treadle.functional.arguments import as_tensor, axis_of, indices_of, unary
from treadle.functional.conv import *  # noqa: F403
from treadle.functional.deformable import *  # noqa: F403
from treadle.functional.dropout import dropout
from treadle.functional.loss import *  # noqa: F403
from treadle.functional.math import normalize
from treadle.functional.multi_head_attention import multi_head_attention
from treadle.functional.normalization import *  # noqa: F403
from treadle.functional.quantized import conv_bias_activation as conv_bias_activation
from treadle.functional.region_conv import region_restricted_conv
from treadle.functional.tensor import expand_dims, gather, squeeze
from treadle.functional.vision import *  # noqa: F403
from treadle.functional.windows import *  # noqa: F403
from treadle.ops import gather as gathering
from treadle.tensor import Tensor

__all__ = [
    *activation.__all__,
    *conv.__all__,
    *deformable.__all__,
    *loss.__all__,
    *normalization.__all__,
    *vision.__all__,
    *windows.__all__,
    "dropout",
    "embedding",
    "indexing_one_hot",
    "multi_head_attention",
    "normalize",
    "one_hot",
    "pixel_shuffle",
    "region_restricted_conv",
]


def embedding(
    inp: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float | None = None,
) -> Tensor:
    """Rows of weight (rows, dim) by integer indices of any shape: (*shape, dim).

    Raises:
        DTypeError: the indices are not integers.
        IndexRangeError: an index lies outside the rows.
        ValueError: padding_idx, max_norm or norm_type is given.

    Example:
        >>> rows = mge.tensor([[0., 0.], [1., 10.], [2., 20.]])
        >>> F.embedding(mge.tensor([[2, 1]]), rows).tolist()
        [[[2.0, 20.0], [1.0, 10.0]]]
    """
    if padding_idx is not None or max_norm is not None or norm_type is not None:
        raise ValueError("padding_idx, max_norm and norm_type are not supported")
    rows = as_tensor(weight)
    index = as_tensor(inp, rows)
    if index._kind.dtype in FLOATS:
        raise DTypeError(
            "embedding",
            f"does not take {index.dtype} indices",
            saw=f"inp {index.type}, weight {rows.type}",
            hint='cast inp with astype("int32")',
        )
    return gathering.Take(0)(rows, indices_of(index, rows, "embedding"))


def one_hot(inp: Tensor, num_classes: Dim) -> Tensor:
    """A new last axis with 1 at the index that `inp` holds: (*shape, num_classes).

    The element type of `inp` is kept.

    Raises:
        IndexRangeError: an index is not a class.

    Example:
        >>> F.one_hot(mge.tensor([2, 0]), 3).tolist()
        [[0, 0, 1], [1, 0, 0]]
    """
    classes = num_classes if isinstance(num_classes, Expr) else int(num_classes)
    return unary(gathering.OneHot(classes), inp)


def indexing_one_hot(src: Tensor, index: Tensor, axis: int = 1, keepdims: bool = False) -> Tensor:
    """Pick one entry of `src` along an axis at each position, by an index without the axis.

    The axis is dropped from the shape, or stays with extent 1 for `keepdims`.

    Example:
        >>> scores = mge.tensor([[1., 2.], [3., 4.]])
        >>> F.indexing_one_hot(scores, mge.tensor([1, 0])).tolist()
        [2.0, 3.0]
    """
    x = as_tensor(src)
    at = axis_of(axis, x, "indexing_one_hot")
    picked = gather(x, at, expand_dims(as_tensor(index, x), at))
    return picked if keepdims else squeeze(picked, at)


def pixel_shuffle(inp: Tensor, upscale_factor: int) -> Tensor:
    """x (..., C r^2, H, W) rearranged to (..., C, H r, W r).

    Source: Shi et al., Real-time single image and video super-resolution, CVPR 2016.

    Raises:
        ShapeError: the channels are not a multiple of r^2.

    Example:
        >>> F.pixel_shuffle(mge.tensor([[[1.]], [[2.]], [[3.]], [[4.]]]), 2).tolist()
        [[[1.0, 2.0], [3.0, 4.0]]]
    """
    x = as_tensor(inp)
    r = int(upscale_factor)
    if x.ndim < 3 or r < 1:
        raise ShapeError(
            "pixel_shuffle",
            f"expects (*, C r^2, H, W) and r of 1 or more, got {r}",
            saw=f"x {x.type}",
        )
    *lead, channels, height, width = x.shape
    if channels % (r * r):
        raise ShapeError("pixel_shuffle", f"{channels} channels are not a multiple of {r * r}")
    parts = x.reshape((-1, channels // (r * r), r, r, height, width))
    moved = parts.transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape((*lead, channels // (r * r), height * r, width * r))
