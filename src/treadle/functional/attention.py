"""Attention."""

from __future__ import annotations

from treadle.functional.arguments import as_tensor, promote_all
from treadle.ops.attention import Attention
from treadle.tensor import Tensor

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query key^T * scale + mask) value.

    Args:
        query: (..., T, D).
        key: (..., S, D).
        value: (..., S, E); the leading axes of the three broadcast.
        attn_mask: broadcasts to (..., T, S): bool, where False hides a key, or numbers to add.
        is_causal: hide from each query the keys after it.
        scale: 1 / sqrt(D) if left out.

    Returns:
        (..., T, E).

    Raises:
        ShapeError: extents do not fit.
        DTypeError: the mask is neither bool nor of the query's type.

    Source: Vaswani et al., Attention is all you need, 2017.

    Example:
        >>> x = mge.tensor([[1., 0.], [0., 1.]])
        >>> print(F.scaled_dot_product_attention(x, x, x, is_causal=True))
        Tensor([[1.     0.    ]
         [0.3302 0.6698]], device=xpux:0)
    """
    q, k, v = promote_all([as_tensor(x) for x in (query, key, value)])
    mask = () if attn_mask is None else (as_tensor(attn_mask, q),)
    return q.apply(Attention(is_causal, scale), (q, k, v, *mask))[0]
