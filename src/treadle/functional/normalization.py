"""Normalization: statistics over a batch, over features, over groups of channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from treadle.base.dtype import float32
from treadle.base.errors import ShapeError
from treadle.base.shape import format_shape
from treadle.functional.arguments import as_float, as_tensor, axis_of, ints, narrowed, widened
from treadle.functional.creation import full
from treadle.functional.elemwise import maximum, sqrt
from treadle.functional.tensor import concat, ones, split, zeros
from treadle.functional.windows import pad
from treadle.ops import batch_norm as bn
from treadle.ops import norm
from treadle.ops.collective import AllGather
from treadle.runtime.comm import groups
from treadle.tensor import Tensor

__all__ = [
    "batch_norm",
    "general_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "sync_batch_norm",
]


def batch_norm(
    inp: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    inplace: bool = True,
) -> Any:
    """Standardize each channel of x (N, C, *) over the batch, then scale and shift.

    out = (x - mean) / sqrt(var + eps) weight + bias, of the shape of x.

    Args:
        inp: (N, C, *).
        running_mean, running_var: statistics of any shape with C elements, used when not
            training and updated when training: new = momentum old + (1 - momentum) batch, with
            the unbiased variance.
        weight, bias: any shape with C elements.
        training: whether to use, and count in, the statistics of the batch.
        momentum: share of the old running value that is kept.
        eps: added to the variance.
        inplace: False returns (out, new_mean, new_var) and leaves the statistics alone; without
            any to update there is `out` alone.

    Raises:
        AssertionError: not training and no statistics are given.
        ShapeError: the statistics, weight or bias have not as many elements as x channels.

    Example:
        >>> x = mge.tensor([[1., 10.], [3., 30.]])
        >>> F.batch_norm(x, training=True)
        Tensor([[-1. -1.]
         [ 1.  1.]], device=xpux:0)
    """
    x = as_float(inp)
    channels = x.shape[1] if x.ndim > 1 else 0
    named = {"running_mean": running_mean, "running_var": running_var}
    _check_channels(x, channels, {**named, "weight": weight, "bias": bias})
    if not training:
        if running_mean is None or running_var is None:
            raise AssertionError("batch_norm without training needs running_mean and running_var")
        out = _infer_norm(x, running_mean, running_var, weight, bias, eps)
        return out if inplace else (out, running_mean, running_var)
    affine = _affine(x, weight, bias, (channels,))
    out, mean, var = bn.BatchNormTrain(eps).outputs(x, *affine)
    means = _running(running_mean, mean, momentum)
    variances = _running(running_var, var, momentum)
    if not inplace and (means is not None or variances is not None):
        return out, means, variances
    for old, new in ((running_mean, means), (running_var, variances)):
        if old is not None and new is not None:
            old._reset(new)
    return out


def sync_batch_norm(
    inp: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    eps_mode: str = "additive",
    group: Any = None,
) -> Tensor:
    """`batch_norm` with the statistics of all processes of a group, as of their joined batches.

    In one process the two are equal. Every process of the group calls it.

    Args:
        inp: (N, C, *), of up to 4 axes.
        running_mean, running_var, weight, bias, training, momentum, eps: as for `batch_norm`.
        eps_mode: "additive" adds eps to the variance, "max" lets the variance count as at least
            eps.
        group: the processes that share statistics, a `distributed.Group`; all of them for None.

    Returns:
        The shape of `inp`.

    Raises:
        AssertionError: an unknown `eps_mode`, or not training and no statistics are given.
        ShapeError: the statistics, weight or bias have not as many elements as x channels.
        CommunicationError: processes disagree, or do not answer.

    Example:
        >>> x = mge.tensor([[1., 10.], [3., 30.]])
        >>> F.sync_batch_norm(x, None, None, training=True)
        Tensor([[-1. -1.]
         [ 1.  1.]], device=xpux:0)
    """
    if str(eps_mode).lower() not in ("additive", "max"):
        raise AssertionError(f"eps_mode must be 'additive' or 'max', got {eps_mode!r}")
    x, kept, most = as_float(inp), float(momentum), str(eps_mode).lower() == "max"
    named = {"running_mean": running_mean, "running_var": running_var}
    _check_channels(x, x.shape[1], {**named, "weight": weight, "bias": bias})
    ranks = _ranks_of(group) if training else None
    if ranks is None and not most:
        out: Tensor = batch_norm(
            x,
            running_mean,
            running_var,
            weight,
            bias,
            training=training,
            momentum=kept,
            eps=eps,
        )
        return out
    shape = tuple(x.shape[1] if i == 1 else 1 for i in range(x.ndim))
    x = x._as_operand_of(bn.BatchNormTrain(eps))
    wide = widened(x)
    if training:
        mean, variance, count = _joint_statistics(wide, ranks)
        unbiased = (variance * (count / (count - 1))).detach()
        for old, now in ((running_mean, mean.detach()), (running_var, unbiased)):
            new = _running(old, now, kept)
            if old is not None and new is not None:
                old._reset(new)
    elif running_mean is None or running_var is None:
        raise AssertionError("batch_norm without training needs running_mean and running_var")
    else:
        mean, variance = running_mean.reshape(shape), running_var.reshape(shape)
    out = (wide - mean) / sqrt(maximum(variance, eps) if most else variance + eps)
    given = _affine(x, weight, bias, (x.shape[1],))
    out = out * given[0].reshape(shape) + given[1].reshape(shape) if given else out
    return out.astype(x.dtype)


def _ranks_of(group: Any) -> tuple[str, int] | None:
    """Name and size of a group that shares statistics; None where there is one process in it."""
    world = groups.world()
    if world is None:
        return None
    name, size = (groups.WORLD, world.size) if group is None else group.joined()
    return (name, size) if size > 1 else None


def _joint_statistics(
    x: Tensor, ranks: tuple[str, int] | None
) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean and biased variance [1, C, 1, ...] over all ranks, and of how many elements.

    Means and sums of squares of the ranks, which may have batches of other sizes, are joined by
    the formula of Chan, Golub and LeVeque (1979), which does not cancel, after one collective.
    """
    axes, channels = [i for i in range(x.ndim) if i != 1], x.shape[1]
    count = x.size // max(channels, 1)
    mean = x.mean(axes, keepdims=True)
    squares = ((x - mean) ** 2).sum(axes, keepdims=True)
    if ranks is None:
        return mean, squares / count, count
    shape, row = (1, channels, *[1] * (x.ndim - 2)), (1, channels)
    counted = full((1, 1), float(count), dtype=x.dtype, device=x.device)
    known = [mean.reshape(row), squares.reshape(row), counted]
    every = AllGather(*ranks)(concat(known, axis=1))
    means, squares, counts = split(every, [channels, 2 * channels], axis=1)
    total = counts.sum(0, keepdims=True)
    joint = (means * counts).sum(0, keepdims=True) / total
    between = ((means - joint) ** 2 * counts).sum(0, keepdims=True)
    variance = (squares.sum(0, keepdims=True) + between) / total
    return joint.reshape(shape), variance.reshape(shape), total.reshape((1,) * x.ndim)


def _check_channels(x: Tensor, channels: int, named: Mapping[str, Tensor | None]) -> None:
    """Raise `ShapeError` unless what is given per channel fits the channels of x."""
    for name, value in named.items():
        given = None if value is None else as_tensor(value)
        if given is not None and given.size != channels:
            raise ShapeError(
                "batch_norm",
                f"x has {channels} channels, {name} has {given.size}",
                saw=f"x {x.type}, {name} {given.type}",
                hint="axis 1 of x holds the channels; make the layer for as many",
            )


def _infer_norm(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    channels = (x.shape[1],)
    scale, shift = _affine(x, weight, bias, channels) or (
        x.constant([1.0] * channels[0], x._kind.dtype),
        x.constant([0.0] * channels[0], x._kind.dtype),
    )
    statistics = (t.astype(scale.dtype).reshape(channels) for t in (mean, var))
    return bn.BatchNormInfer(eps)(x, scale, shift, *statistics)


def _running(old: Tensor | None, batch: Tensor, momentum: float) -> Tensor | None:
    """The updated running statistic, outside any gradient."""
    if old is None:
        return None
    new = batch.detach().reshape(old.shape).astype(old.dtype)
    return old.detach() * momentum + new * (1 - momentum)


def _affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """(weight, bias) in the shape and type ops take, or nothing where neither is given."""
    if weight is None and bias is None:
        return ()
    # Beside 16-bit values float32 parameters are welcome; else all have the type of x.
    mine = x._kind.dtype
    wide = float32 if mine.itemsize < 4 else mine
    first = ones(shape, dtype=wide, device=x.device) if weight is None else weight
    second = zeros(shape, dtype=wide, device=x.device) if bias is None else bias
    both = as_tensor(first), as_tensor(second)
    given = [p if p._kind.dtype in (mine, wide) else p.astype(wide) for p in both]
    return given[0].reshape(shape), given[1].reshape(shape)


def layer_norm(
    inp: Tensor,
    normalized_shape: Any,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize the last axes, which must have `normalized_shape`, then scale and shift.

    out = (x - mean) / sqrt(var + eps) weight + bias, with the mean and population variance over
    those axes; weight and bias, used if `affine`, have `normalized_shape`. The shape stays.

    Raises:
        ShapeError: the last axes of x, the weight or the bias have another shape.

    Example:
        >>> F.layer_norm(mge.tensor([[1., 3.], [10., 30.]]), 2, affine=False)
        Tensor([[-1.  1.]
         [-1.  1.]], device=xpux:0)
    """
    x = as_float(inp)
    shape = ints(normalized_shape)
    if x.shape[x.ndim - len(shape) :] != shape:
        raise ShapeError(
            "layer_norm",
            f"the last axes of x are not {format_shape(shape)}",
            saw=f"x {x.type}",
            hint="make normalized_shape the extents of the last axes of x",
        )
    if affine:
        _check_affine(shape, {"weight": weight, "bias": bias})
    given = _affine(x, weight, bias, shape) if affine else ()
    return norm.LayerNorm(len(shape), eps)(x, *given)


def _check_affine(shape: tuple[int, ...], named: Mapping[str, Tensor | None]) -> None:
    """Raise `ShapeError` unless the weight and the bias of a layer norm fit its shape."""
    for name, given in named.items():
        if given is not None and given.size != math.prod(shape):
            raise ShapeError(
                "layer_norm",
                f"the {name} does not fit normalized_shape {format_shape(shape)}",
                saw=f"{name} {given.type}",
                hint=f"give a {name} of shape {format_shape(shape)}",
            )


def general_norm(
    inp: Tensor,
    normalized_axis: Any,
    affine: bool = True,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize over chosen axes; weight and bias have their extents, in axis order.

    The formula is that of `layer_norm`; the shape stays.

    Example:
        >>> F.general_norm(mge.tensor([[1., 10.], [3., 30.]]), 0, affine=False)
        Tensor([[-1. -1.]
         [ 1.  1.]], device=xpux:0)
    """
    x = as_float(inp)
    axes = sorted(axis_of(a, x, "general_norm") for a in ints(normalized_axis))
    out = norm.Standardize(tuple(axes), eps)(x)
    if not affine or (weight is None and bias is None):
        return out
    shape = tuple(x.shape[i] if i in axes else 1 for i in range(x.ndim))
    scale, shift = _affine(x, weight, bias, tuple(x.shape[i] for i in axes))
    return out * scale.reshape(shape) + shift.reshape(shape)


def group_norm(
    inp: Tensor,
    num_groups: int,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize each group of channels of x (N, C, *) with all positions, then scale, shift.

    The formula is that of `layer_norm`; weight and bias have C elements. The shape stays.

    Source: Wu and He, Group normalization, ECCV 2018.

    Raises:
        ShapeError: the channels do not form equal groups.

    Example:
        >>> x = mge.tensor([[[1.], [3.], [10.], [30.]]])
        >>> F.group_norm(x, 2, affine=False).reshape(-1)
        Tensor([-1.  1. -1.  1.], device=xpux:0)
    """
    x = _with_channels("group_norm", inp)
    given = _affine(x, weight, bias, (x.shape[1],)) if affine else ()
    return norm.GroupNorm(num_groups, eps)(x, *given)


def instance_norm(
    inp: Tensor,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize every channel of every sample of x (N, C, *), then scale and shift.

    Equals `group_norm` with as many groups as channels.

    Example:
        >>> F.instance_norm(mge.tensor([[[1., 3.], [10., 30.]]]), affine=False)
        Tensor([[[-1.  1.]
          [-1.  1.]]], device=xpux:0)
    """
    x = _with_channels("instance_norm", inp)
    return group_norm(x, x.shape[1], affine, weight, bias, eps)


def _with_channels(name: str, inp: Tensor) -> Tensor:
    """Floats with an axis of channels behind that of samples."""
    x = as_float(inp)
    if x.ndim < 2:
        raise ShapeError(name, "expects samples and channels, (N, C, *)", saw=f"x {x.type}")
    return x


def local_response_norm(
    inp: Tensor, kernel_size: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75
) -> Tensor:
    """x / (k + alpha sum of squares over `kernel_size` neighboring channels)^beta, x (N, C, H, W).

    Source: Krizhevsky, Sutskever and Hinton, ImageNet classification, NIPS 2012, section 3.3.

    Example:
        >>> x = F.ones((1, 3, 1, 1))
        >>> F.local_response_norm(x, kernel_size=3, k=1., alpha=1., beta=1.).reshape(-1)
        Tensor([0.3333 0.25   0.3333], device=xpux:0)
    """
    x = as_float(inp)
    half, wide = kernel_size // 2, widened(x)
    squares = pad(wide * wide, ((0, 0), (half, kernel_size - 1 - half), (0, 0), (0, 0)))
    channels = x.shape[1]
    total = squares[:, 0:channels]
    for shift in range(1, kernel_size):
        total = total + squares[:, shift : shift + channels]
    return narrowed(wide / (k + alpha * total) ** beta, x._kind.dtype)
