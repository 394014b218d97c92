"""Functions for decoders: rotary embedding, and keys and values that are kept from call to call."""

from __future__ import annotations

from treadle.base import dtype as dt
from treadle.functional.arguments import as_tensor
from treadle.ops.cache import CachedAttention, CacheUpdate
from treadle.ops.creation import Iota
from treadle.ops.rope import Rope
from treadle.tensor import Tensor

__all__ = ["cache_update", "cached_attention", "rope"]


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, starts: Tensor, *, interleaved: bool = False
) -> Tensor:
    """Pairs of features rotated by the angles of their positions, starts[b] + t.

    Args:
        x: (B, H, T, D).
        cos, sin: float32 (P, d / 2), by position; features from d on pass.
        starts: int32 or int64 (B,), from 0 to P - T.
        interleaved: whether pairs are (2i, 2i + 1), and not (i, i + d / 2).

    Returns:
        As x.

    Raises:
        ShapeError: extents do not fit.
        DTypeError: x or the tables hold no floats, or starts no integers.
        IndexRangeError: a position is beyond the tables.

    Source: Su et al., RoFormer, 2021, arXiv:2104.09864.

    Example:
        >>> x = mge.tensor(np.array([[[[1., 2.]]]], np.float32))
        >>> cos, sin = (mge.tensor(np.array([[v]], np.float32)) for v in (0., 1.))
        >>> print(F.rope(x, cos, sin, mge.tensor(np.array([0], np.int32))).numpy().ravel())
        [-2.  1.]
    """
    x = as_tensor(x)
    return x.apply(Rope(interleaved), (x, as_tensor(cos), as_tensor(sin), as_tensor(starts)))[0]


def cache_update(
    cache: Tensor,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    rows: Tensor | None = None,
    *,
    ring: bool = False,
    page: int | None = None,
) -> Tensor:
    """The cache with x at positions starts[b] to ends[b] of sequence rows[b].

    In a compiled step, `cache[...] = cache_update(cache, ...)` writes x in place, and nothing else.

    Args:
        cache: (N, H, S, D).
        x: (B, H, T, D), cast to the cache's type; tokens for positions from ends[b] on are padding.
        starts, ends: int32 or int64 (B,), from 0 to S, with pages to P S; further for a ring.
        rows: int32 or int64 (B,), distinct sequences; 0 to B - 1 if left out.
        ring: position p lies at p mod S, so that the last S positions are kept.
        page: positions of a page. The cache is (1, H, N page, D) and rows a table (B, P): position
            p of row b lies at page rows[b, p // page] + p mod page. Pages that are written are
            distinct.

    Returns:
        As the cache.

    Raises:
        ShapeError: extents do not fit.
        IndexRangeError: there is no such position or sequence.

    Example:
        >>> at = lambda *v: mge.tensor(np.array(v, np.int32))
        >>> cache, x = mge.tensor(np.zeros((2, 1, 4, 1))), mge.tensor(np.ones((2, 1, 2, 1)))
        >>> print(F.cache_update(cache, x, at(0, 2), at(2, 3)).numpy().reshape(2, 4))
        [[1. 1. 0. 0.]
         [0. 0. 1. 0.]]
    """
    cache = as_tensor(cache)
    x = as_tensor(x, cache).astype(cache.dtype)
    places = as_tensor(starts), as_tensor(ends), _rows(rows, x)
    return cache.apply(CacheUpdate(ring, page), (cache, x, *places))[0]


def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    ends: Tensor,
    rows: Tensor | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scales: tuple[Tensor, Tensor] | None = None,
    rounded: bool = False,
    ring: bool = False,
    page: int | None = None,
) -> Tensor:
    """Attention of new tokens over the keys and values of their sequences.

    Query t of row b sees the keys of sequence rows[b] up to position starts[b] + t. Only positions
    that queries see are read.

    Args:
        q: (B, Hq, T, D).
        k, v: caches (N, Hkv, S, D) and (N, Hkv, S, E), of any float type, or int8 with `scales`;
            Hq is a multiple of Hkv.
        starts, ends: int32 or int64 (B,), positions filled before and with this call; queries from
            ends[b] on are padding and give zeros.
        rows: int32 or int64 (B,), which sequences; 0 to B - 1 if left out.
        scale: 1 / sqrt(D) if left out.
        window: how many keys a query sees at most, its own included.
        softcap: c in c tanh(score / c).
        sinks: (Hq,), one more score in every sum, without a value.
        scales: of caches of int8: float32 (N, Hkv, S, 1) each, what the rows of k and of v are
            multiplied by.
        rounded: operands of products may be rounded to bfloat16, where that is faster.
        ring: position p lies at p mod S. There is a window, and S is at least window + T - 1.
        page: positions of a page. Caches are (1, Hkv, N page, D) and rows a table (B, P), as in
            `cache_update`. Multiples of 128 have kernels.

    Returns:
        (B, Hq, T, E).

    Raises:
        ShapeError: extents do not fit.
        DTypeError: an operand has no fitting type.
        IndexRangeError: there is no such position or sequence.

    Source: Vaswani et al. 2017; shared heads: Ainslie et al. 2023, arXiv:2305.13245.

    Example:
        >>> at = mge.tensor(np.array([1], np.int32))
        >>> k = mge.tensor(np.zeros((1, 1, 4, 2), np.float32))
        >>> v = mge.tensor(np.arange(8, dtype=np.float32).reshape(1, 1, 4, 2))
        >>> q = mge.tensor(np.ones((1, 2, 1, 2), np.float32))
        >>> print(F.cached_attention(q, k, v, at, at + 1).numpy().reshape(2, 2))
        [[1. 2.]
         [1. 2.]]
    """
    q = as_tensor(q)
    given = (q, as_tensor(k), as_tensor(v), as_tensor(starts), as_tensor(ends), _rows(rows, q))
    more = [] if scales is None else [as_tensor(s) for s in scales]
    more += [] if sinks is None else [as_tensor(sinks, q)]
    op = CachedAttention(scale, window, softcap, rounded, ring, page)
    return q.apply(op, (*given, *more))[0]


def _rows(rows: Tensor | None, x: Tensor) -> Tensor:
    """The sequences; all in order where they are left out."""
    if rows is not None:
        return as_tensor(rows)
    count = x.shape[0] if x.ndim else 1  # the op says what is wrong with x
    return x.apply(Iota(0, 1, count, dt.int32), ())[0]
