"""Attention over cached keys and values, and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

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


@dataclass(frozen=True)
class Cache:
    """Keys and values of the tokens that a model has seen; programs write to it in place.

    Attributes:
        sequences: that it holds, beside each other.
        length: the most tokens of one sequence.
        layers: for every layer, keys and values (sequences, heads, length, features); of int8
            float32 scales (sequences, heads, length, 1) of both as well. Layers with a window that
            is far shorter are rings: position p lies at p mod their length.
        widest: tokens of a step at most, as far as rings have room for them.
        back: how many of the tokens that were ever read of a sequence it may go back by, and be
            continued from there; None: by all. From its beginning it may always be read anew.
    """

    sequences: int
    length: int
    layers: list[Kept]
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
    layers: tuple[Attention, ...], sequences: int, length: int, dtype: str, widest: int
) -> Cache:
    """A cache of zeros, of which the system gives memory as it is written.

    Args:
        layers: what they attend to.
        sequences, length: there is room for so many of so many tokens.
        dtype: one of `CACHED`.
        widest: tokens of a step at most, for which rings have room beside the window.
    """
    if sequences < 1 or length < 1:
        saw = f"{sequences} sequences of {length} tokens"
        raise ShapeError("cache", "needs a sequence and a token", saw=saw)
    if dtype not in CACHED:
        hint = f"use one of {', '.join(CACHED)}"
        raise DTypeError("cache", "cannot be kept in it", saw=repr(dtype), hint=hint)
    element = as_dtype(dtype).numpy

    def kept(layer: Attention) -> Kept:
        rows = (sequences, layer.kv_heads, slots(layer))
        found = [adopted(np.zeros((*rows, layer.features), element)) for _ in range(2)]
        if dtype == "int8":
            found += [adopted(np.zeros((*rows, 1), np.float32)) for _ in range(2)]
        return tuple(found)

    more = widest + PROPOSED

    def slots(layer: Attention) -> int:
        return length if layer.window is None else min(length, layer.window + more)

    rings = any(slots(layer) < length for layer in layers)
    return Cache(
        *(sequences, length, [kept(layer) for layer in layers]),
        widest=widest if rings else None,
        back=more if rings else None,
    )


COPIED = 128
"""Positions that a program copies."""


def copy_positions(
    layers: list[Kept],
    source: Tensor,
    target: Tensor,
    given: Tensor,
    ends: Tensor,
    length: int,
) -> None:
    """Copy neighboring positions `given` (time,), as far as `ends` (1,), between sequences (1,)."""
    for kept in (t for layer in layers for t in layer):
        ring = kept.shape[2] < length
        slots = given % kept.shape[2] if ring else F.minimum(given, length - 1)
        new = kept[F.expand_dims(source, 1), :, F.expand_dims(slots, 0)]
        new = F.transpose(new, (0, 2, 1, 3))
        kept[...] = F.cache_update(kept, new, given[:1], ends, target, ring=ring)


@dataclass(frozen=True)
class TokenPositions:
    """Positions of the tokens of a call.

    Attributes:
        rows: int32 (batch,), the sequences of the cache; None: all, in order.
        starts, ends: int32 (batch,), tokens of the sequences before and with this call.
        positions: int32 (batch, time), of the tokens in their sequences, of padding beyond `ends`.
        length: of the cache; layers with less room are rings.
    """

    rows: Tensor | None
    starts: Tensor
    ends: Tensor
    positions: Tensor
    length: int


def places(
    starts: Tensor, counts: Tensor, rows: Tensor | None, time: int, length: int
) -> TokenPositions:
    """Return the places of `time` tokens from `starts` on, of which `counts` are meant."""
    steps = F.reshape(Tensor(np.arange(time, dtype=np.int32)), (1, -1))
    return TokenPositions(rows, starts, starts + counts, F.expand_dims(starts, 1) + steps, length)


def write(kept: Kept, new: tuple[Tensor, Tensor], at: TokenPositions) -> None:
    """Put keys and values (batch, heads, time, features) into the cache."""
    stored: Kept = new
    if len(kept) > 2:
        pairs = [as_bytes(x) for x in new]
        stored = (*(x for x, _ in pairs), *(scale for _, scale in pairs))
    for tensor, x in zip(kept, stored, strict=True):
        tensor[...] = F.cache_update(
            *(tensor, x.astype(tensor.dtype), at.starts, at.ends, at.rows),
            ring=tensor.shape[2] < at.length,
        )


LEAST = 1e-30
"""Least value that a row's largest number counts as, so that its scale is not subnormal."""


def as_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 of x, and the float32 scale of each row: its largest number is 127."""
    x = x.astype("float32")
    scale = F.maximum(F.max(F.abs(x), axis=-1, keepdims=True), LEAST) / 127
    return F.round(x / scale).astype("int8"), scale


@dataclass(frozen=True)
class CacheAttention:
    """Attention of a layer over its cache, to which it adds; see `attend`."""

    kept: Kept
    at: TokenPositions
    rounded: bool

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Attention, sinks: Tensor | None
    ) -> Tensor:
        """Write keys and values into the cache, and attend to it; the result has the shape of q."""
        write(self.kept, (k, v), self.at)
        return attend(q, self.kept, self.at, layer, sinks, rounded=self.rounded)


class AttentionMemory(Protocol):
    """The interface of what a layer's queries see: a cache, or the other tokens of the call."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Attention, sinks: Tensor | None
    ) -> Tensor:
        """Attend with queries (batch, heads, time, features); the result has their shape.

        Keys and values are those of the same tokens, (batch, heads for both, time, features).
        """


def attend(
    q: Tensor,
    kept: Kept,
    at: TokenPositions,
    layer: Attention,
    sinks: Tensor | None,
    *,
    rounded: bool,
) -> Tensor:
    """Attend with queries (batch, heads, time, features) over the cache; the result has their
    shape.

    Where they are `rounded`, they are multiplied as bfloat16 if that is faster.
    """
    keys, values, *scales = kept
    return F.cached_attention(
        *(q, keys, values, at.starts, at.ends, at.rows),
        scale=layer.scale,
        window=layer.window,
        softcap=layer.softcap,
        rounded=rounded,
        sinks=sinks,
        scales=(scales[0], scales[1]) if scales else None,
        ring=keys.shape[2] < at.length,
    )
