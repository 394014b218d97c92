"""Attention of several texts that share a row, for training: no cache, and no look across."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

import treadle.functional as F
from treadle.llm.models.declared import Attention
from treadle.tensor import Tensor


class Packed:
    """Memory of queries that see the same call: earlier tokens of their own text.

    Args:
        segments: int32 (batch, time), a number for each text of a row.
        windows: those of the layers.
    """

    def __init__(self, segments: Tensor, windows: Iterable[int | None]) -> None:
        time = segments.shape[1]
        steps = Tensor(np.arange(time, dtype=np.int32))
        back = F.reshape(steps, (-1, 1)) - F.reshape(steps, (1, -1))
        same = F.expand_dims(segments, 2) == F.expand_dims(segments, 1)
        same = F.logical_and(same, F.expand_dims(back >= 0, 0))
        self._masks: dict[int | None, Tensor] = {}
        for window in set(windows):
            near = same if window is None else F.logical_and(same, F.expand_dims(back < window, 0))
            self._masks[window] = F.expand_dims(near, (1, 2))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Attention, sinks: Tensor | None
    ) -> Tensor:
        """Attend to the other tokens of the packed rows; the result has the shape of q."""
        batch, heads, time, features = q.shape
        groups = (batch, layer.kv_heads, heads // layer.kv_heads, time, features)
        queries, keys, values = F.reshape(q, groups), F.expand_dims(k, 2), F.expand_dims(v, 2)
        mask = self._masks[layer.window]
        if layer.softcap is None and sinks is None:
            y = F.scaled_dot_product_attention(queries, keys, values, mask, scale=layer.scale)
        else:
            y = _attend(queries, keys, values, mask, layer, sinks)
        return F.reshape(y, (batch, heads, time, features))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, layer: Attention, sinks: Tensor | None
) -> Tensor:
    """Attention whose scores are bounded, or whose heads may look at nothing."""
    scores = F.matmul(q, k, transpose_b=True).astype("float32") * layer.scale
    if layer.softcap is not None:
        scores = F.tanh(scores / layer.softcap) * layer.softcap
    scores = F.where(mask, scores, Tensor(-math.inf))
    if sinks is None:
        return F.matmul(F.softmax(scores, -1).astype(v.dtype), v)
    shape = (*scores.shape[:-1], 1)
    nothing = F.reshape(sinks.astype("float32"), (1, *shape[1:3], 1, 1))
    weights = F.softmax(F.concat([scores, F.broadcast_to(nothing, shape)], -1), -1)
    return F.matmul(weights[..., :-1].astype(v.dtype), v)
