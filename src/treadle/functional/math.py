"""Reductions, linear algebra, sorting.

Reductions take an axis, several, or None for all; these are dropped from the shape, or stay with
extent 1 for `keepdims`. An axis out of range is a `ShapeError`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from treadle.base.dtype import bool_, int32, uint8
from treadle.base.errors import ShapeError
from treadle.base.guards import at_most
from treadle.base.modes import uncast
from treadle.base.quantized import BUILTIN, quantized_type
from treadle.base.symbol import Dim, Expr, minimum
from treadle.engine.eager.dispatch import eager_type
from treadle.functional import elemwise as ew
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    axis_of,
    narrowed,
    plain_product,
    promote_all,
    stored,
    unary,
    unary_float,
    widened,
)
from treadle.functional.creation import zeros
from treadle.functional.cross import cross
from treadle.ops import linalg, logic, reduce
from treadle.ops import sort as sorting
from treadle.ops import unary as un
from treadle.ops.methods import either, over, reduced_axes
from treadle.ops.operators import product_of
from treadle.tensor import Tensor

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "cross",
    "dot",
    "isfinite",
    "isinf",
    "isnan",
    "matinv",
    "matmul",
    "max",
    "mean",
    "min",
    "norm",
    "normalize",
    "prod",
    "sign",
    "sort",
    "std",
    "sum",
    "svd",
    "topk",
    "var",
]

Axis = builtins.int | tuple[builtins.int, ...] | list[builtins.int] | None


def isnan(inp: Any) -> Tensor:
    """Return whether each element is NaN; False for integers.

    Example:
        >>> F.isnan(mge.tensor([1., float("nan")])).tolist()
        [False, True]
    """
    return unary(logic.IsNan(), _number(inp))


def isinf(inp: Any) -> Tensor:
    """Return whether each element is an infinity; False for integers.

    Example:
        >>> F.isinf(mge.tensor([1., float("-inf")])).tolist()
        [False, True]
    """
    return unary(logic.IsInf(), _number(inp))


def isfinite(inp: Any) -> Tensor:
    """Return whether each element is neither NaN nor an infinity; True for integers.

    Example:
        >>> F.isfinite(mge.tensor([1., float("nan"), float("inf")])).tolist()
        [True, False, False]
    """
    return unary(logic.IsFinite(), _number(inp))


def _number(x: Any) -> Tensor:
    """A tensor that is not a bool: truth values become 0 and 1."""
    operand = as_tensor(x)
    return operand.astype(uint8) if operand._kind.dtype is bool_ else operand


def sign(x: Any) -> Tensor:
    """-1, 0 or 1 by the sign of each element.

    Example:
        >>> F.sign(mge.tensor([-2., 0., 3.])).tolist()
        [-1.0, 0.0, 1.0]
    """
    return unary(un.Sign(), x)


def sum(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Sum over axes (all for None, none for an empty tuple); bool counts as int32.

    Example:
        >>> x = mge.tensor([[1., 2.], [3., 4.]])
        >>> F.sum(x).item(), F.sum(x, axis=0).tolist(), F.sum(x, 1, keepdims=True).tolist()
        (10.0, [4.0, 6.0], [[3.0], [7.0]])
    """
    return as_tensor(inp).sum(axis, keepdims, dim, keepdim)


def prod(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Product over axes; bool counts as int32.

    Example:
        >>> F.prod(mge.tensor([[1., 2.], [3., 4.]]), axis=1).tolist()
        [2.0, 12.0]
    """
    return as_tensor(inp).prod(axis, keepdims, dim, keepdim)


def mean(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Mean over axes; integers, bool and float16 give float32.

    Example:
        >>> F.mean(mge.tensor([[1, 2], [3, 4]]), axis=0).tolist()
        [2.0, 3.0]
    """
    return as_tensor(inp).mean(axis, keepdims, dim, keepdim)


_OF_POPULATION = (
    "{0}() takes axis= and keepdims= and divides by the count, as PyTorch does with correction=0; "
    "for its default, by one less, scale the result"
)


def var(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Population variance over axes: mean((x - mean(x))^2), divided by the count, not by one less.

    Example:
        >>> F.var(mge.tensor([1., 2., 3., 4.])).item()
        1.25
    """
    if dim is not None or keepdim is not None:
        raise TypeError(_OF_POPULATION.format("var"))
    x = as_tensor(inp)
    axes = reduced_axes(axis, x.ndim, "var")
    deviation = x - mean(x, axes, keepdims=True)
    return mean(deviation * deviation, axis, keepdims)


def std(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Population standard deviation over axes: sqrt(var(x)).

    Example:
        >>> F.std(mge.tensor([1., 3.])).item()
        1.0
    """
    if dim is not None or keepdim is not None:
        raise TypeError(_OF_POPULATION.format("std"))
    return ew.sqrt(var(inp, axis, keepdims))


def min(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Smallest element over axes; the gradient goes to every element that is smallest.

    Example:
        >>> F.min(mge.tensor([[3., 1.], [2., 4.]]), axis=1).tolist()
        [1.0, 2.0]
    """
    return as_tensor(inp).min(axis, keepdims, dim, keepdim)


def max(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Largest element over axes; the gradient goes to every element that is largest.

    Example:
        >>> F.max(mge.tensor([[3., 1.], [2., 4.]]), axis=1).tolist()
        [3.0, 4.0]
    """
    return as_tensor(inp).max(axis, keepdims, dim, keepdim)


def all(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Return whether all elements over axes are true (not zero).

    Example:
        >>> F.all(mge.tensor([[1, 0], [2, 3]]), axis=1).tolist()
        [False, True]
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = over(axis, keepdims, dim, keepdim)
    return as_tensor(inp).astype("bool")._reduce(reduce.All, axis, keepdims)


def any(
    inp: Tensor,
    axis: Axis = None,
    keepdims: bool = False,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Return whether any element over axes is true (not zero).

    Example:
        >>> F.any(mge.tensor([[0, 0], [2, 0]]), axis=1).tolist()
        [False, True]
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = over(axis, keepdims, dim, keepdim)
    return as_tensor(inp).astype("bool")._reduce(reduce.Any, axis, keepdims)


def argmin(
    inp: Tensor,
    axis: builtins.int | None = None,
    keepdims: bool = False,
    dim: builtins.int | None = None,
    keepdim: bool | None = None,
) -> Tensor:
    """int32 index of the first smallest element along an axis; of the flat tensor for None.

    Example:
        >>> F.argmin(mge.tensor([[3., 1.], [2., 4.]]), axis=1).tolist()
        [1, 0]
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = over(axis, keepdims, dim, keepdim)
    return _arg_extremum(reduce.Argmin, inp, axis, keepdims)


def argmax(
    inp: Tensor,
    axis: builtins.int | None = None,
    keepdims: bool = False,
    dim: builtins.int | None = None,
    keepdim: bool | None = None,
) -> Tensor:
    """int32 index of the first largest element along an axis; of the flat tensor for None.

    Several axes count as flattened into one.

    Example:
        >>> x = mge.tensor([[3., 1.], [2., 4.]])
        >>> F.argmax(x, axis=1).tolist(), F.argmax(x).item()
        ([0, 1], 3)
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = over(axis, keepdims, dim, keepdim)
    return _arg_extremum(reduce.Argmax, inp, axis, keepdims)


def _arg_extremum(op: type[reduce.ArgExtremum], inp: Tensor, axis: Any, keepdims: bool) -> Tensor:
    x = _number(inp)
    if axis is None:
        found = unary(op(0), x.reshape(-1))
        return found.reshape((1,) * x.ndim) if keepdims else found
    if isinstance(axis, (tuple, list)):
        return _arg_of_several(op, x, axis, keepdims)
    return unary(op(axis_of(axis, x, op.name), keepdims), x)


def _arg_of_several(
    op: type[reduce.ArgExtremum], x: Tensor, axes: Sequence[builtins.int], keepdims: bool
) -> Tensor:
    """Indices along several axes as if they were flattened into one."""
    at = sorted({axis_of(a, x, op.name) for a in axes})
    if not at or len(at) != len(axes):
        raise ShapeError(op.name, f"axes must be given, each once; got {axes}", saw=str(x.type))
    rest = [a for a in range(x.ndim) if a not in at]
    kept = [x.shape[a] for a in rest]
    together = x.transpose(*rest, *at).reshape(*kept, math.prod(x.shape[a] for a in at))
    found = unary(op(len(rest), False), together)
    if not keepdims:
        return found
    return found.reshape(*(1 if a in at else extent for a, extent in enumerate(x.shape)))


def _check_non_finite(inps: Sequence[Tensor], scale: float = 1.0) -> Tensor:
    """int32 (1,): whether an element is NaN or infinite, once all tensors are scaled in place.

    What loss scaling asks of gradients; nothing is recorded for differentiation.
    """
    found = zeros(1, dtype=bool_)
    for x in inps:
        scaled = x.detach() * scale
        x._reset(scaled.astype(x.dtype))
        found = found.to(x.device) | any(~isfinite(scaled)).reshape(1)
    return found.astype(int32)


# -- sorting -----------------------------------------------------------------------------------


def argsort(inp: Tensor, descending: bool = False) -> Tensor:
    """int32 indices that sort the last axis; equal elements keep their order.

    Example:
        >>> F.argsort(mge.tensor([[3., 1., 2.]])).tolist()
        [[1, 2, 0]]
    """
    return sort(inp, descending)[1]


def sort(inp: Tensor, descending: bool = False, dim: builtins.int = -1) -> tuple[Tensor, Tensor]:
    """(sorted values, int32 indices) along an axis; equal elements keep their order.

    Example:
        >>> values, indices = F.sort(mge.tensor([3., 1., 2.]), descending=True)
        >>> values.tolist(), indices.tolist()
        ([3.0, 2.0, 1.0], [0, 2, 1])
    """
    x = as_tensor(inp)
    values, indices = sorting.Sort(axis_of(dim, x, "sort"), bool(descending)).outputs(x)
    return values, indices


def topk(
    inp: Tensor,
    k: Dim,
    descending: bool = True,
    kth_only: bool = False,
    no_sort: bool = False,
) -> tuple[Tensor, Tensor]:
    """The k largest (`descending`) or smallest elements of the last axis of x (..., n).

    Returns:
        (values, int32 indices) of shape (..., k), sorted unless `no_sort`; of shape (...) and
        for the k-th element alone with `kth_only`.

    Raises:
        ShapeError: k is 0, or x has no axes. One larger than n counts as n, as in MegEngine; a
            negative one turns the order around.

    Example:
        >>> values, indices = F.topk(mge.tensor([[3., 1., 2.]]), k=2)
        >>> values.tolist(), indices.tolist()
        ([[3.0, 2.0]], [[0, 2]])
    """
    x, k = as_tensor(inp), k if isinstance(k, Expr) else int(k)
    if x.ndim == 0 or (isinstance(k, int) and k == 0):
        hint = f"use a k from 1 to {x.shape[-1]}" if x.ndim else "a scalar has no axes"
        raise ShapeError("topk", f"k = {k} does not fit the last axis", saw=str(x.type), hint=hint)
    descending, count = descending != (k < 0), -k if k < 0 else k
    most = (minimum if isinstance(count, Expr) else at_most)(count, x.shape[-1])
    op = sorting.TopK(x.ndim - 1, most, descending, kth_only or not no_sort)
    values, indices = op.outputs(x)
    return (values[..., -1], indices[..., -1]) if kth_only else (values, indices)


# -- linear algebra ----------------------------------------------------------------------------


def matmul(
    inp1: Any,
    inp2: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute_mode: str = "default",
) -> Tensor:
    """Matrix product over the last two axes; the axes before them broadcast.

    1-d operands count as a row on the left and a column on the right; the axis they bring is
    dropped from the result. Integers are multiplied in their own type and wrap; of two quantized
    tensors, sums are `qint32` with the product of their scales. `compute_mode` is accepted for
    MegEngine's signature: float16 and bfloat16 always accumulate in float32.

    Raises:
        ShapeError: the inner extents differ, or an operand is 0-d.

    Example:
        >>> x = F.ones((5, 2, 3))
        >>> F.matmul(x, F.ones((3, 4))).shape, F.matmul(x, F.ones(3)).shape
        ((5, 2, 4), (5, 2))
        >>> F.matmul(mge.tensor([[1., 2.], [3., 4.]]), mge.tensor([[1., 0.], [0., 2.]])).tolist()
        [[1.0, 4.0], [3.0, 8.0]]
    """
    if not transpose_a and not transpose_b and (made := plain_product(inp1, inp2)) is not None:
        return made
    first = as_tensor(inp1, inp2 if isinstance(inp2, Tensor) else None)
    second = as_tensor(inp2, first)
    if first._kind.quantized is not None or second._kind.quantized is not None:
        return _quantized_matmul(first, second, transpose_a, transpose_b)
    x, y = (_factor(t) for t in promote_all([first, second]))
    if x.ndim == 0 or y.ndim == 0:
        saw = f"{x.type}, {y.type}"
        raise ShapeError("matmul", "operands need at least one axis", saw=saw, hint="use *")
    left, right = x.ndim == 1, y.ndim == 1
    if not left and not right:
        return product_of(x._kind.dtype, transpose_a, transpose_b)(x, y)
    if left and right:
        return dot(x, y)
    if left:
        out = product_of(x._kind.dtype, False, transpose_b)(x.reshape(1, -1), y)
        return out.reshape(*out.shape[:-2], out.shape[-1])
    out = product_of(x._kind.dtype, transpose_a, False)(x, y.reshape(-1, 1))
    return out.reshape(*out.shape[:-1])


def _quantized_matmul(x: Tensor, y: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    """Sums of products of integers with their scale; of real numbers where they have none."""
    kinds = x._kind.quantized, y._kind.quantized
    if builtins.any(k is None or k.zero_point or k.is_per_channel for k in kinds):
        return matmul(x.astype("float32"), y.astype("float32"), transpose_a, transpose_b)
    a, b = (stored(t).astype("int32") for t in (x, y))
    sums = matmul(a, b, transpose_a, transpose_b)
    scale = math.prod(float(k.scale) for k in kinds if k is not None)
    sums._kind = eager_type(int32, sums._kind.device, quantized_type(BUILTIN["qint32"], scale))
    return sums


def _factor(x: Tensor) -> Tensor:
    """An operand of a product: integers as they are."""
    return x if x._kind.dtype.is_integer else as_float(x)


def dot(inp1: Tensor, inp2: Tensor) -> Tensor:
    """Inner product of two 1-d tensors of one length: sum(x y), a 0-d tensor.

    Raises:
        ShapeError: they are not two vectors of one length.

    Example:
        >>> F.dot(mge.tensor([1., 2.]), mge.tensor([3., 4.])).item()
        11.0
    """
    x, y = (_factor(t) for t in promote_all([as_tensor(inp1), as_tensor(inp2)]))
    if x.ndim != 1 or y.ndim != 1 or x.shape != y.shape:
        saw = f"{x.type}, {y.type}"
        raise ShapeError("dot", "takes two vectors of one length", saw=saw, hint="use matmul")
    with uncast():  # Mixed precision takes products of matrices in few bits, not this sum.
        return product_of(x._kind.dtype)(x.reshape(1, -1), y.reshape(-1, 1)).reshape(())


def matinv(inp: Tensor) -> Tensor:
    """Inverse of square matrices (..., n, n); same shape.

    Raises:
        ShapeError: the last two extents differ.
        NumericError: a matrix is singular.

    Example:
        >>> F.matinv(mge.tensor([[2., 0.], [0., 4.]])).tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """
    return unary_float(linalg.MatInv(), inp)


def svd(inp: Tensor, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """Singular value decomposition of x (..., m, n): x = U diag(S) Vh.

    Returns:
        (U, S, Vh) of shapes (..., m, k), (..., k), (..., k, n) with k = min(m, n), or square U and
        Vh with `full_matrices`; S alone without `compute_uv`. S falls.

    Example:
        >>> u, s, vh = F.svd(mge.tensor([[3., 0.], [0., 4.], [0., 0.]]))
        >>> u.shape, s, vh.shape
        ((3, 2), Tensor([4. 3.], device=xpux:0), (2, 2))
    """
    u, s, vh = linalg.Svd(full_matrices).outputs(as_float(inp))
    return (u, s, vh) if compute_uv else s


def norm(
    inp: Tensor,
    ord: float | None = None,
    axis: builtins.int | None = None,
    keepdims: bool = False,
    p: float | None = None,
    dim: builtins.int | None = None,
    keepdim: bool | None = None,
) -> Tensor:
    """p-norm of vectors along an axis: sum(|x|^p)^(1/p), p = 2 unless `ord` is given.

    `ord` 0 counts non-zeros, inf and -inf take the largest and smallest magnitude.

    Raises:
        TypeError: no axis is given and the tensor has more than one.

    Example:
        >>> x = mge.tensor([[3., 4.], [6., 8.]])
        >>> F.norm(x, axis=1).tolist(), F.norm(x, ord=1, axis=1).tolist()
        ([5.0, 10.0], [7.0, 14.0])
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = over(axis, keepdims, dim, keepdim)
    ord = ord if p is None else either("ord", ord, p)
    x = as_tensor(inp)
    if axis is None:
        if x.ndim != 1:
            raise TypeError("norm of a tensor with several axes needs axis=")
        axis = 0
    p = 2.0 if ord is None else float(ord)
    if p == 0:
        return sum((x != 0).astype(x.dtype), axis, keepdims)
    if p in (float("inf"), float("-inf")):
        return (max if p > 0 else min)(ew.abs(x), axis, keepdims)
    if p == 1:
        return sum(ew.abs(x), axis, keepdims)
    wide = widened(x)
    total = sum(wide * wide if p == 2 else ew.abs(wide) ** p, axis, keepdims)
    return narrowed(ew.sqrt(total) if p == 2 else total ** (1 / p), x._kind.dtype)


def normalize(
    inp: Tensor,
    ord: float | None = None,
    axis: builtins.int | None = None,
    eps: float = 1e-12,
    p: float | None = None,
    dim: builtins.int | None = None,
) -> Tensor:
    """x divided by its p-norm along an axis, which counts as at least `eps`; same shape.

    p is 2 unless `ord` is given; without an axis the norm is that of the flat tensor.

    Example:
        >>> F.normalize(mge.tensor([[3., 4.], [0., 0.]]), axis=1)
        Tensor([[0.6 0.8]
         [0.  0. ]], device=xpux:0)
    """
    ord = ord if p is None else either("ord", ord, p)
    axis = axis if dim is None else either("axis", axis, dim)
    x = as_tensor(inp)
    wide = widened(x)
    size = norm(wide.reshape(-1), ord) if axis is None else norm(wide, ord, axis, keepdims=True)
    return narrowed(wide / ew.maximum(size, eps), x._kind.dtype)
