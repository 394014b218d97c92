"""Scaled dot-product attention of ATen, with masks, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.arrays import DTYPES
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import logic, reduce
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.select import Where

V = GraphOperand


def _seen(mask: V | None, q: V) -> tuple[tuple[V, ...], V | None]:
    """The mask as ours takes it, and which queries see some key, where any may see none.

    PyTorch's result for a query without keys is 0, ours NaN: such a query is shown all keys, and
    what it found is set to 0.
    """
    if mask is None:
        return (), None
    boolean = mask.type.dtype is dt.bool_
    shown = mask if boolean else logic.NotEqual()(mask, mask.constant(-np.inf))
    some = reduce.Any((mask.type.ndim - 1,), True)(shown)
    nothing = mask.constant(True, dt.bool_) if boolean else mask.constant(0.0)
    open_ = Where()(some, mask, nothing.broadcast_to(extents(mask)))
    return (open_ if boolean else open_.astype(q.type.dtype),), some


def _where_seen(some: V | None, x: V) -> V:
    return x if some is None else Where()(some, x, x.constant(0.0))


_HEADED = 4
"""Axes of operands with heads."""


def _groups(q: V, k: V) -> int:
    """Return how many heads keys have where several of the queries share each; 0 where none do."""
    if q.type.ndim != _HEADED or k.type.ndim != _HEADED:
        return 0
    ours, theirs = extents(q)[1], extents(k)[1]
    shared = isinstance(ours, int) and isinstance(theirs, int) and 1 < theirs < ours
    return theirs if shared and not ours % theirs else 0


def _split(x: V | None, groups: int) -> Any:
    """The axis of heads as groups and their members; what is for all heads stays so."""
    if x is None or not groups or x.type.ndim < _HEADED - 1:
        return x
    *batch, heads, rows, columns = extents(x)
    return x.reshape((*batch, min(heads, groups), max(heads // groups, 1), rows, columns))


@lowers("scaled_dot_product_attention.default")
def _attention(
    call: OperatorCall,
    q: V,
    k: V,
    v: V,
    mask: V | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> V:
    if dropout:
        raise NotImplementedError("attention with dropout")
    groups = _groups(q, k)
    q, k, v, mask = (_split(x, groups) for x in (q, k, v, mask))
    given, some = _seen(mask, q)
    made: V = call.shaped(_where_seen(some, Attention(causal, scale)(q, k, v, *given)))
    return made


@lowers("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash_attention(
    call: OperatorCall,
    q: V,
    k: V,
    v: V,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: V | None = None,
    scale: float | None = None,
) -> tuple[V, V]:
    """The second result, sums of exponentials, is for the gradient alone, which makes its own."""
    if dropout:
        raise NotImplementedError("attention with dropout")
    rows, groups = extents(q)[:3], _groups(q, k)
    q, k, v, attn_mask = (_split(x, groups) for x in (q, k, v, attn_mask))
    given, some = _seen(attn_mask, q)
    y = _where_seen(some, Attention(causal, scale)(q, k, v, *given))
    # It has to be ours, too.
    types = (q.type, k.type, v.type, y.type, *(m.type for m in given))
    AttentionGrad(causal, scale).infer(*types)
    kind = DTYPES[call.values[1].dtype].numpy
    nothing = call.builder.constant(np.zeros((1, 1, 1), kind))
    return y.reshape(tuple(call.values[0].shape)), nothing.broadcast_to(rows)


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _flash_attention_backward(
    call: OperatorCall,
    dy: V,
    q: V,
    k: V,
    v: V,
    y: V,
    sums: V,
    dropout: float,
    causal: bool,
    *,
    attn_mask: V | None = None,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if dropout:
        raise NotImplementedError("attention with dropout")
    groups = _groups(q, k)
    q, k, v, dy, attn_mask = (_split(x, groups) for x in (q, k, v, dy, attn_mask))
    given, some = _seen(attn_mask, q)
    made = AttentionGrad(causal, scale).outputs(q, k, v, _where_seen(some, dy), *given)
    return tuple(call.shaped(made))
