"""Attention in several heads, with all projections in one packed parameter."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from treadle.base.errors import DTypeError, ShapeError
from treadle.functional.activation import softmax
from treadle.functional.arguments import as_tensor
from treadle.functional.attention import scaled_dot_product_attention
from treadle.functional.creation import arange, zeros, zeros_like
from treadle.functional.dropout import dropout
from treadle.functional.logic import logical_and
from treadle.functional.math import matmul
from treadle.functional.tensor import concat, where
from treadle.tensor import Tensor

__all__ = ["multi_head_attention"]


class _Packed(NamedTuple):
    """The projections that a packed parameter holds; None where one is switched off."""

    weights: tuple[Tensor | None, ...]
    biases: tuple[Tensor | None, ...]

    def project(self, which: int, x: Tensor) -> Tensor:
        """x W + b by the projection of query, key, value or output."""
        weight, bias = self.weights[which], self.biases[which]
        out = x if weight is None else matmul(x, weight)
        return out if bias is None else out + bias.astype(out.dtype)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_heads: int,
    attn_drop: float,
    out_drop: float,
    io_weight_bias: Tensor | None,
    qproj_size: int | None = None,
    kproj_size: int | None = None,
    vproj_size: int | None = None,
    oproj_size: int | None = None,
    qbias: bool = False,
    kbias: bool = False,
    vbias: bool = False,
    obias: bool = False,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    need_weights: bool = False,
    average_attn_weights: bool = False,
    is_causal: bool = False,
    maybe_cudnn_style_mask: bool = False,
    reslink: bool = False,
    training: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Project query, key and value, attend in every head, join the heads and project.

    Args:
        query: (N, L, E), or (L, E) without a batch, as key and value then are.
        key: (N, S, K).
        value: (N, S, V).
        embed_dim: E.
        num_heads: heads; they share the projected features evenly.
        attn_drop, out_drop: probabilities of zero in the attention weights and in the result.
        io_weight_bias: the weights of query (E, q), key (K, k), value (V, v) and output (v, o),
            used as x W + b, then their biases, one after the other in row-major order.
        qproj_size, kproj_size, vproj_size, oproj_size: q, k, v and o; E if left out, 0 for no
            projection.
        qbias, kbias, vbias, obias: which biases there are.
        bias_k, bias_v: a further key and value, (1, 1, k) and (1, 1, v), for all samples.
        add_zero_attn: add a key and a value of zeros.
        key_padding_mask: (N, S): bool, where True hides a key, or numbers to add.
        attn_mask: (L, S), or (N * num_heads, L, S) or (N, L, S): bool, where True hides a key, or
            numbers to add.
        need_weights: whether to return the attention weights, too.
        average_attn_weights: whether these are averaged over heads.
        is_causal: hide from each query the keys after it.
        maybe_cudnn_style_mask: the masks are ranges: `attn_mask` (2, L), first key and the one
            after the last for every query; `key_padding_mask` (2, N), lengths of queries and keys.
        reslink: add the query to the result.
        training: whether to drop anything.

    Returns:
        The result (N, L, o), and None or the weights: (N * num_heads, L, S), or averaged
        (N, L, S). Without a batch the first axis is missing, or the heads alone.

    Raises:
        ShapeError: extents do not fit, or the packed parameter has another size.
        DTypeError: a mask is neither bool nor floating.

    Source: Vaswani et al., Attention is all you need, 2017.

    Example:
        >>> x = mge.tensor([[[1., 0.], [0., 1.]]])
        >>> packed = F.concat([F.eye(2).reshape(-1)] * 4)
        >>> out, weights = F.multi_head_attention(x, x, x, 2, 1, 0., 0., packed, need_weights=True)
        >>> print(weights)
        Tensor([[[0.6698 0.3302]
          [0.3302 0.6698]]], device=xpux:0)
    """
    q, k, v = (as_tensor(t) for t in (query, key, value))
    batched = q.ndim == 3
    if not batched:
        q, k, v = (t.reshape(1, *t.shape) for t in (q, k, v))
    _check_operands(q, k, v, embed_dim, num_heads)
    sizes = tuple(
        embed_dim if s is None else s for s in (qproj_size, kproj_size, vproj_size, oproj_size)
    )
    packed = _unpacked(io_weight_bias, q, k, v, sizes, (qbias, kbias, vbias, obias))
    if maybe_cudnn_style_mask:
        given = [_ranges(attn_mask, key_padding_mask, k.shape[1], q)]
    else:
        given = _per_head(attn_mask, q, num_heads) + _of_padding(key_padding_mask, q)
    drop, extra = attn_drop if training else 0.0, (bias_k is not None) + add_zero_attn
    plain = is_causal and not (given or extra or drop or need_weights)
    given += [_causal(q, k)] if is_causal and not plain else []
    keys = _extended(packed.project(1, k), bias_k, add_zero_attn)
    values = _extended(packed.project(2, v), bias_v, add_zero_attn)
    mask = _merged(given, extra)
    heads = [_heads(t, num_heads) for t in (packed.project(0, q), keys, values)]
    if need_weights or drop:
        out, weights = _attend_in_steps(heads, mask, drop)
    else:
        mask = None if mask is None else mask.astype(heads[0].dtype)
        first, second, third = heads
        out = scaled_dot_product_attention(first, second, third, mask, is_causal=plain)
        weights = None
    out = packed.project(3, out.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[1], -1))
    out = dropout(out, out_drop, training) if out_drop else out
    out = out + q if reslink else out
    return _without_batch(out, batched), _returned(weights, average_attn_weights, batched)


def _check_operands(q: Tensor, k: Tensor, v: Tensor, embed_dim: int, num_heads: int) -> None:
    problem = ""
    if not q.ndim == k.ndim == v.ndim == 3:
        problem = "query, key and value have 3 axes each, or 2 each without a batch"
    elif q.shape[2] != embed_dim:
        problem = f"the query has {q.shape[2]} features, embed_dim is {embed_dim}"
    elif k.shape[:2] != v.shape[:2] or k.shape[0] != q.shape[0]:
        problem = "batches, or the numbers of keys and values, differ"
    elif num_heads < 1:
        problem = f"num_heads is {num_heads}"
    if problem:
        raise _misfit(problem, q, k, v)


def _misfit(problem: str, *seen: Tensor) -> ShapeError:
    return ShapeError(
        "multi_head_attention",
        problem,
        saw=", ".join(str(t.type) for t in seen),
        hint="pass query (N, L, E), key (N, S, K), value (N, S, V)",
    )


def _unpacked(
    packed: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: tuple[int, ...],
    has_bias: tuple[bool, ...],
) -> _Packed:
    """The projections that the packed parameter holds."""
    joined = sizes[2] or v.shape[2]
    inputs = (q.shape[2], k.shape[2], v.shape[2], joined)
    shapes = [(i, o) if o else None for i, o in zip(inputs, sizes, strict=True)]
    lengths = [0 if s is None else s[0] * s[1] for s in shapes]
    lengths += [o if b and o else 0 for o, b in zip(sizes, has_bias, strict=True)]
    have = 0 if packed is None else packed.size
    if have != sum(lengths):
        raise ShapeError(
            "multi_head_attention",
            f"io_weight_bias holds {have} numbers, the projections need {sum(lengths)}",
            saw=f"projections {sizes}, biases {has_bias}",
            hint="pack the weights of query, key, value and output, then their biases",
        )
    if packed is None:
        return _Packed((None,) * 4, (None,) * 4)
    flat = packed.reshape(-1)
    ends = np.cumsum(lengths).tolist()
    parts = [flat[e - n : e] if n else None for n, e in zip(lengths, ends, strict=True)]
    weights = [
        None if p is None or s is None else p.reshape(s)
        for p, s in zip(parts[:4], shapes, strict=True)
    ]
    return _Packed(tuple(weights), tuple(parts[4:]))


def _heads(x: Tensor, count: int) -> Tensor:
    """(N, T, F) as (N, heads, T, F / heads)."""
    n, moments, features = x.shape
    if features % count:
        raise _misfit(f"{features} features do not split into {count} heads", x)
    return x.reshape(n, moments, count, features // count).transpose(0, 2, 1, 3)


def _extended(x: Tensor, row: Tensor | None, zero: bool) -> Tensor:
    """Keys or values with a further one, the same for all samples, and one of zeros."""
    n, _, features = x.shape
    parts = [x]
    if row is not None:
        parts.append(row.reshape(1, 1, -1).astype(x.dtype).broadcast_to(n, 1, features))
    if zero:
        parts.append(zeros((n, 1, features), dtype=x.dtype, device=x.device))
    return x if len(parts) == 1 else concat(parts, axis=1)


# -- masks: numbers to add to the scores (N, heads, L, S), or shapes that broadcast to them -------


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add: True becomes minus infinity."""
    if mask.dtype == bool:
        hidden = like.constant(-np.inf).broadcast_to(mask.shape)
        added: Tensor = where(mask, hidden, zeros_like(hidden))
        return added
    if mask._kind.dtype.is_float:
        return mask
    raise DTypeError(
        "multi_head_attention",
        "a mask is bool, with True for hidden keys, or numbers to add",
        saw=str(mask.type),
        hint="cast it with astype(bool)",
    )


def _per_head(mask: Tensor | None, q: Tensor, num_heads: int) -> list[Tensor]:
    if mask is None:
        return []
    given = as_tensor(mask, q)
    added, n = _added(given, q), q.shape[0]
    if added.ndim == 2:
        return [added.reshape(1, 1, *added.shape)]
    if added.ndim == 3 and added.shape[0] == n * num_heads:
        return [added.reshape(n, num_heads, *added.shape[1:])]
    if added.ndim == 3 and added.shape[0] == n:
        return [added.reshape(n, 1, *added.shape[1:])]
    raise _misfit("attn_mask is neither (L, S) nor (N * num_heads, L, S)", q, given)


def _of_padding(mask: Tensor | None, q: Tensor) -> list[Tensor]:
    if mask is None:
        return []
    return [_added(as_tensor(mask, q), q).reshape(q.shape[0], 1, 1, -1)]


def _causal(q: Tensor, k: Tensor) -> Tensor:
    rows = arange(q.shape[1], device=q.device).reshape(-1, 1)
    columns = arange(k.shape[1], device=q.device).reshape(1, -1)
    return _added(columns > rows, q).reshape(1, 1, q.shape[1], k.shape[1])


def _ranges(spans: Tensor | None, lengths: Tensor | None, keys: int, q: Tensor) -> Tensor:
    """Masks in cuDNN's form: the keys each query sees, and how many keys each sample has."""
    if spans is None or lengths is None:
        raise ValueError(
            "multi_head_attention: maybe_cudnn_style_mask needs attn_mask and key_padding_mask"
        )
    if spans.shape != (2, q.shape[1]) or lengths.shape != (2, q.shape[0]):
        raise _misfit("cuDNN's masks are (2, L) and (2, N)", q, spans, lengths)
    column = arange(keys, device=q.device)
    first, last = spans[0].reshape(-1, 1), spans[1].reshape(-1, 1)
    seen = logical_and(column >= first, column < last).reshape(1, 1, -1, keys)
    within = (column < lengths[1].reshape(-1, 1)).reshape(-1, 1, 1, keys)
    return _added(~logical_and(seen, within), q)


def _merged(masks: list[Tensor], extra: int) -> Tensor | None:
    """The sum of all masks; keys that were added at the end are always seen."""
    if not masks:
        return None
    total: Any = masks[0]
    for mask in masks[1:]:
        total = total + mask
    if extra:
        shape = (*total.shape[:-1], extra)
        total = concat([total, zeros(shape, dtype=total.dtype, device=total.device)], axis=-1)
    found: Tensor = total
    return found


def _attend_in_steps(
    heads: list[Tensor], mask: Tensor | None, drop: float
) -> tuple[Tensor, Tensor]:
    """Attention whose weights are dropped from, or wanted."""
    q, k, v = heads
    scores = matmul(q * q.shape[-1] ** -0.5, k, transpose_b=True)
    weights = softmax(scores if mask is None else scores + mask, axis=-1)
    weights = dropout(weights, drop) if drop else weights
    return matmul(weights, v), weights


def _returned(weights: Tensor | None, average: bool, batched: bool) -> Tensor | None:
    if weights is None:
        return None
    if average:
        return _without_batch(weights.mean(axis=1), batched)
    return weights.reshape(-1, *weights.shape[2:])


def _without_batch(x: Tensor, batched: bool) -> Tensor:
    return x if batched else x.reshape(x.shape[1:])
