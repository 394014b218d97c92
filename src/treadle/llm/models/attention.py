"""Attention over cached keys and values, and the cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.llm.models.declared import Attention
from treadle.tensor import Tensor


@dataclass(frozen=True)
class Cache:
    """Keys and values of the tokens that a model has seen; programs write to it in place.

    Attributes:
        sequences: that it holds, beside each other.
        length: the most tokens of one sequence.
        keys, values: for every layer, (sequences, heads, length + 1, features). The last position
            takes what is written for no token.
    """

    sequences: int
    length: int
    keys: list[Tensor]
    values: list[Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(t.size * t.dtype.itemsize for t in (*self.keys, *self.values))

    def copy(self, source: int, target: int) -> None:
        """Let the sequence `target` continue what `source` holds."""
        for kept in (*self.keys, *self.values):
            kept[target] = kept[source]


def empty_cache(layers: tuple[Attention, ...], sequences: int, length: int, dtype: str) -> Cache:
    """A cache of zeros."""
    if sequences < 1 or length < 1:
        saw = f"{sequences} sequences of {length} tokens"
        raise ShapeError("cache", "needs a sequence and a token", saw=saw)

    def zeros(layer: Attention) -> Tensor:
        shape = (sequences, layer.kv_heads, length + 1, layer.features)
        return Tensor(np.zeros(shape, np.float32)).astype(dtype)

    return Cache(
        sequences, length, [zeros(layer) for layer in layers], [zeros(layer) for layer in layers]
    )


@dataclass(frozen=True)
class Places:
    """Where the tokens of a call stand.

    Attributes:
        rows: int32 (batch,), the sequences of the cache; None: all, in order.
        positions: int32 (batch, time), of the tokens in their sequences.
        slots: int32 (batch, time), where keys and values are written.
        lengths: int32 (batch,), of the sequences with these tokens.
    """

    rows: Tensor | None
    starts: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor


def places(starts: Tensor, counts: Tensor, rows: Tensor | None, time: int, length: int) -> Places:
    """Of `time` tokens from `starts` on, of which `counts` are meant."""
    steps = F.reshape(Tensor(np.arange(time, dtype=np.int32)), (1, -1))
    positions = F.expand_dims(starts, 1) + steps
    slots = F.where(steps < F.expand_dims(counts, 1), positions, F.full_like(positions, length))
    return Places(rows, starts, positions, slots, starts + counts)


def write(kept: Tensor, new: Tensor, at: Places) -> Tensor:
    """Put `new` (batch, heads, time, features) into the cache, and give the sequences' keys."""
    rows = Tensor(np.arange(new.shape[0], dtype=np.int32)) if at.rows is None else at.rows
    kept[F.expand_dims(rows, 1), :, at.slots] = F.transpose(new, (0, 2, 1, 3))
    return kept if at.rows is None else kept[at.rows]


def attend(
    q: Tensor, keys: Tensor, values: Tensor, at: Places, layer: Attention, sinks: Tensor | None
) -> Tensor:
    """What queries read: a query sees keys up to its own position, within the window.

    Args:
        q: (batch, heads, time, features); keys and values have fewer heads, each for several.
        keys: (batch, kv heads, capacity, features), as values.
        at: where queries stand.
        layer: scale, window, softcap.
        sinks: (heads,), one more logit in each sum.

    Returns:
        As q.
    """
    batch, heads, time, features = q.shape
    groups = heads // layer.kv_heads
    grouped = F.reshape(q, (batch, layer.kv_heads, groups * time, features))
    scores = F.matmul(grouped, keys, transpose_b=True).astype("float32") * layer.scale
    scores = F.reshape(scores, (batch, layer.kv_heads, groups, time, -1))
    if layer.softcap is not None:
        scores = F.tanh(scores / layer.softcap) * layer.softcap
    scores = F.where(_seen(at, keys.shape[2], layer.window), scores, F.full((1,), float("-inf")))
    if sinks is not None:
        column = F.reshape(sinks.astype("float32"), (1, layer.kv_heads, groups, 1, 1))
        column = F.broadcast_to(column, (batch, layer.kv_heads, groups, time, 1))
        weights = F.softmax(F.concat([scores, column], -1), -1)[..., :-1]
    else:
        weights = F.softmax(scores, -1)
    weights = F.reshape(weights, (batch, layer.kv_heads, groups * time, -1)).astype(q.dtype)
    return F.reshape(F.matmul(weights, values), (batch, heads, time, features))


def _seen(at: Places, capacity: int, window: int | None) -> Tensor:
    """(batch, 1, 1, time, capacity)."""
    keys = Tensor(np.arange(capacity, dtype=np.int32))
    queries = F.reshape(at.positions, (at.positions.shape[0], 1, 1, -1, 1))
    seen = keys <= queries
    if window is not None:
        seen = F.logical_and(seen, keys > queries - window)
    return seen
