"""Attention over cached keys and values, and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.base.dtype import as_dtype
from treadle.base.errors import DTypeError, ShapeError
from treadle.llm.models.adopt import adopted
from treadle.llm.models.declared import Attention
from treadle.tensor import Tensor

CACHED = ("float32", "bfloat16", "float16", "int8")
"""Element types of caches; rows of int8 have a scale each."""

Kept = tuple[Tensor, ...]
"""Of a layer: keys and values, and of int8 the scales of both."""


PAGE = 128
"""Tokens of a page: the keys that kernels read at a time, so that results have the same bits."""
NOBODYS = -1
"""In a table: there is no page for these positions."""


@dataclass(frozen=True)
class Cache:
    """Keys and values of the tokens that a model has seen; programs write to it in place.

    Attributes:
        sequences: that it holds, beside each other.
        length: the most tokens of one sequence.
        layers: for every layer, keys and values (1, heads, pages * page, features); of int8 float32
            scales (1, heads, pages * page, 1) of both as well. Layers with a window that is far
            shorter are rings, (sequences, heads, slots, features): position p lies at p mod slots.
        rings: which layers are.
        table: int32 (sequences, pages of one): position p of a sequence lies in its page
            p // `page`, at p mod `page`. At first every sequence has pages of its own, beside each
            other, as far as there are any, then -1; whoever shares pages writes it.
        page: tokens of a page.
        pages: how many there are.
        widest: tokens of a step at most, as far as rings have room for them.
        back: how many of the tokens that were ever read of a sequence it may go back by, and be
            continued from there; None: by all. From its beginning it may always be read anew.
    """

    sequences: int
    length: int
    layers: list[Kept]
    rings: tuple[bool, ...]
    table: npt.NDArray[np.int32]
    page: int
    pages: int
    widest: int | None = None
    back: int | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors of all layers."""
        return [t for layer in self.layers for t in layer]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(t.size * t.dtype.itemsize for t in self.tensors)


PROPOSED = 8
"""Positions of a ring behind the window and a step: tokens that were proposed in vain."""


def empty_cache(
    layers: tuple[Attention, ...],
    sequences: int,
    length: int,
    dtype: str,
    widest: int,
    tokens: int | None = None,
) -> Cache:
    """A cache of zeros, of which the system gives memory as it is written.

    Args:
        layers: what they attend to.
        sequences, length: there is room for so many of so many tokens.
        dtype: one of `CACHED`.
        widest: tokens of a step at most, for which rings have room beside the window.
        tokens: that pages hold together, in place of those of all sequences; at least a sequence's.
    """
    if sequences < 1 or length < 1:
        saw = f"{sequences} sequences of {length} tokens"
        raise ShapeError("cache", "needs a sequence and a token", saw=saw)
    if dtype not in CACHED:
        hint = f"use one of {', '.join(CACHED)}"
        raise DTypeError("cache", "cannot be kept in it", saw=repr(dtype), hint=hint)
    element = as_dtype(dtype).numpy
    each = -(-length // PAGE)
    pages = sequences * each if tokens is None else max(-(-tokens // PAGE), each)
    more = widest + PROPOSED
    rings = tuple(a.window is not None and a.window + more < length for a in layers)

    def kept(layer: Attention, *, ring: bool) -> Kept:
        lines = (sequences, (layer.window or 0) + more) if ring else (1, pages * PAGE)
        rows = (lines[0], layer.kv_heads, lines[1])
        found = [adopted(np.zeros((*rows, layer.features), element)) for _ in range(2)]
        if dtype == "int8":
            found += [adopted(np.zeros((*rows, 1), np.float32)) for _ in range(2)]
        return tuple(found)

    own = np.arange(sequences * each, dtype=np.int32).reshape(sequences, each)
    own[own >= pages] = NOBODYS
    return Cache(
        *(sequences, length, [kept(a, ring=r) for a, r in zip(layers, rings, strict=True)], rings),
        *(own, PAGE, pages),
        widest=widest if any(rings) else None,
        back=more if any(rings) else None,
    )


def copy_page(layers: list[Kept], source: Tensor, target: Tensor, count: Tensor, page: int) -> None:
    """Copy the first `count` (1,) positions of a page (1,) to another one (1,)."""
    positions = source * page + Tensor(np.arange(page, dtype=np.int32))
    for kept in (t for layer in layers for t in layer):
        at = count * 0, count, F.expand_dims(target, 0)
        kept[...] = F.cache_update(kept, kept[:, :, positions], *at, page=page)


def copy_rings(layers: list[Kept], source: Tensor, target: Tensor) -> None:
    """Copy the rings of a sequence (1,) to those of another one (1,)."""
    zero = Tensor(np.zeros(1, np.int32))
    for kept in (t for layer in layers for t in layer):
        kept[...] = F.cache_update(kept, kept[source], zero, zero + kept.shape[2], target)


@dataclass(frozen=True)
class TokenPositions:
    """Positions of the tokens of a call.

    Attributes:
        rows: int32 (batch,), the sequences of the cache; None: all, in order.
        pages: int32 (batch, pages), those of each sequence, of `page` positions.
        starts, ends: int32 (batch,), tokens of the sequences before and with this call.
        positions: int32 (batch, time), of the tokens in their sequences, of padding beyond `ends`.
    """

    rows: Tensor | None
    pages: Tensor
    page: int
    starts: Tensor
    ends: Tensor
    positions: Tensor

    def within(self, *, ring: bool) -> dict[str, Any]:
        """Return arguments of functions over a layer's cache."""
        found: dict[str, Any] = {"starts": self.starts, "ends": self.ends}
        kind = {"rows": self.rows, "ring": True}
        return found | (kind if ring else {"rows": self.pages, "page": self.page})


def places(
    starts: Tensor, counts: Tensor, rows: Tensor | None, pages: Tensor, page: int, time: int
) -> TokenPositions:
    """Return the places of `time` tokens from `starts` on, of which `counts` are meant."""
    steps = F.reshape(Tensor(np.arange(time, dtype=np.int32)), (1, -1))
    positions = F.expand_dims(starts, 1) + steps
    return TokenPositions(rows, pages, page, starts, starts + counts, positions)


def write(kept: Kept, new: tuple[Tensor, Tensor], at: TokenPositions, *, ring: bool) -> None:
    """Put keys and values (batch, heads, time, features) into the cache."""
    stored: Kept = new
    if len(kept) > 2:
        pairs = [as_bytes(x) for x in new]
        stored = (*(x for x, _ in pairs), *(scale for _, scale in pairs))
    for tensor, x in zip(kept, stored, strict=True):
        tensor[...] = F.cache_update(tensor, x.astype(tensor.dtype), **at.within(ring=ring))


LEAST = 1e-30
"""Least value that a row's largest number counts as, so that its scale is not subnormal."""


def as_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 of x, and the float32 scale of each row: its largest number is 127."""
    x = x.astype("float32")
    scale = F.maximum(F.max(F.abs(x), axis=-1, keepdims=True), LEAST) / 127
    return F.round(x / scale).astype("int8"), scale


@dataclass(frozen=True)
class CacheAttention:
    """Attention of a layer over its cache, to which it adds.

    Where queries are `rounded`, they are multiplied as bfloat16 if that is faster.
    """

    kept: Kept
    at: TokenPositions
    ring: bool
    rounded: bool

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Attention, sinks: Tensor | None
    ) -> Tensor:
        """Write keys and values into the cache, and attend to it; the result has the shape of q."""
        write(self.kept, (k, v), self.at, ring=self.ring)
        keys, values, *scales = self.kept
        return F.cached_attention(
            *(q, keys, values),
            **self.at.within(ring=self.ring),
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            rounded=self.rounded,
            sinks=sinks,
            scales=(scales[0], scales[1]) if scales else None,
        )


class AttentionMemory(Protocol):
    """The interface of what a layer's queries see: a cache, or the other tokens of the call."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Attention, sinks: Tensor | None
    ) -> Tensor:
        """Attend with queries (batch, heads, time, features); the result has their shape.

        Keys and values are those of the same tokens, (batch, heads for both, time, features).
        """
