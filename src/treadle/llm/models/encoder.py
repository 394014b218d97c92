"""The encoder that every family of models which turn texts into vectors is an instance of."""

from __future__ import annotations

import numpy as np

import treadle.functional as F
from treadle.llm.models.declared import Encoder, EncoderLayer, LayerNorm
from treadle.llm.models.gates import ACTIVATIONS, mix
from treadle.llm.models.matrices import TokenTable
from treadle.llm.models.rope import Rotary, rotate
from treadle.llm.models.weights import CheckpointWeights, Linear
from treadle.tensor import Tensor


class Norm:
    """A layer norm with its weight."""

    def __init__(
        self, weights: CheckpointWeights, name: str, features: int, norm: LayerNorm
    ) -> None:
        self._eps = norm.eps
        self.weight = weights.take(f"{name}.weight", features)
        self.bias = (
            weights.take(f"{name}.bias", features) if norm.bias else F.zeros_like(self.weight)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return x with its last axis normalized, scaled and shifted; same shape."""
        return F.layer_norm(x, x.shape[-1], True, self.weight, self.bias, self._eps)


class EncoderBlock:
    """Attention in both directions, then a feed-forward."""

    def __init__(
        self, weights: CheckpointWeights, at: int, declared: EncoderLayer, whole: Encoder
    ) -> None:
        d, hidden, name = declared, whole.hidden, f"layers.{at}"
        inner = d.heads * d.features
        self.declared = d
        self.given = [Linear(weights, f"{name}.{c}_proj", inner, hidden, d.bias) for c in "qkv"]
        self.o = Linear(weights, f"{name}.o_proj", hidden, inner, d.bias)
        parts = ("gate_proj", "up_proj") if d.gated else ("up_proj",)
        self.up = [Linear(weights, f"{name}.{p}", d.width, hidden, d.feed_bias) for p in parts]
        self.down = Linear(weights, f"{name}.down_proj", hidden, d.width, d.feed_bias)
        first = whole.norm_first
        self._first = first
        # The embedding's norm stands before the first layer already.
        bare = first and at == 0
        norm = f"{name}.attention_norm"
        self.attention_norm = None if bare else Norm(weights, norm, hidden, whole.norm)
        self.feed_norm = Norm(weights, f"{name}.feed_norm", hidden, whole.norm)

    def __call__(self, x: Tensor, seen: Tensor, angles: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """(batch, time, hidden), as x."""
        before = self.attention_norm
        if self._first:
            x = x + self._attention(x if before is None else before(x), seen, angles)
            return x + self._feed(self.feed_norm(x))
        x = x + self._attention(x, seen, angles)
        x = x if before is None else before(x)
        return self.feed_norm(x + self._feed(x))

    def _attention(
        self, x: Tensor, seen: Tensor, angles: dict[int, tuple[Tensor, Tensor]]
    ) -> Tensor:
        d = self.declared
        shape = (*x.shape[:2], d.heads, d.features)
        q, k, v = (F.transpose(F.reshape(p(x), shape), (0, 2, 1, 3)) for p in self.given)
        if d.rotary is not None:
            turned = angles[id(d.rotary)]
            q, k = (rotate(t, turned, d.rotary.interleaved) for t in (q, k))
        read = F.scaled_dot_product_attention(q, k, v, seen)
        return self.o(F.reshape(F.transpose(read, (0, 2, 1, 3)), (*x.shape[:2], -1)))

    def _feed(self, x: Tensor) -> Tensor:
        parts = [p(x) for p in self.up]
        if self.declared.gated:
            return self.down(mix(self.declared.mix, *parts))
        return self.down(ACTIVATIONS[self.declared.mix](parts[0]))


class EncoderStack:
    """Tokens to vectors, and what a classifier makes of them."""

    def __init__(self, weights: CheckpointWeights, declared: Encoder) -> None:
        d, hidden = declared, declared.hidden
        self.declared = d
        numbers = weights.take("embed_tokens.weight", d.vocabulary, hidden, widened=False)
        self.tokens = TokenTable(numbers, weights.dtype)
        self.positions = (
            weights.take("embed_positions.weight", d.context, hidden) if d.positions else None
        )
        self.types = weights.take("embed_types.weight", d.types, hidden) if d.types else None
        self.embed_norm = Norm(weights, "embed_norm", hidden, d.norm)
        self.layers = [EncoderBlock(weights, i, layer, d) for i, layer in enumerate(d.layers)]
        self.norm = Norm(weights, "norm", hidden, d.norm) if d.norm_first else None
        self.labels = weights.rows("classifier.weight") if weights.has("classifier.weight") else 0
        if self.labels:
            self.head = Linear(weights, "head", hidden, hidden, d.head_bias)
            self.head_norm = Norm(weights, "head_norm", hidden, d.norm) if d.head_norm else None
            self.classifier = Linear(weights, "classifier", self.labels, hidden, True)

    def hidden(self, tokens: Tensor, types: Tensor, counts: Tensor) -> Tensor:
        """(batch, time, hidden); what stands beyond counts means nothing."""
        batch, time = tokens.shape
        x = self.tokens.vectors(tokens)
        if self.types is not None:
            x = x + F.embedding(types, self.types)
        if self.positions is not None:
            x = x + self.positions[:time]
        x = self.embed_norm(x)
        at = np.arange(time, dtype=np.int32)
        positions = F.broadcast_to(F.reshape(Tensor(at), (1, -1)), (batch, time))
        rotaries = {id(r): r for r in self._rotaries()}
        angles = {key: r.angles(positions, counts) for key, r in rotaries.items()}
        seen = {reach: _seen(time, counts, reach) for reach in {x.reach for x in self._declared()}}
        for layer in self.layers:
            x = layer(x, seen[layer.declared.reach], angles)
        return x if self.norm is None else self.norm(x)

    def classified(self, x: Tensor, counts: Tensor) -> Tensor:
        """float32 (batch, labels)."""
        d = self.declared
        y = ACTIVATIONS[d.head_mix](self.head(pooled(x, counts, d.head_pooling)))
        y = y if self.head_norm is None else self.head_norm(y)
        return self.classifier(y).astype("float32")

    def _declared(self) -> tuple[EncoderLayer, ...]:
        return self.declared.layers

    def _rotaries(self) -> list[Rotary]:
        return [layer.rotary for layer in self._declared() if layer.rotary is not None]


def pooled(x: Tensor, counts: Tensor, mode: str) -> Tensor:
    """One row of each text's: "mean" of those that are meant, the first ("cls"), or the "last"."""
    if mode == "cls":
        return x[:, 0]
    batch, time, _ = x.shape
    if mode == "last":
        return x[Tensor(np.arange(batch, dtype=np.int32)), counts - 1]
    meant = F.expand_dims(_steps(time) < F.expand_dims(counts, 1), -1).astype(x.dtype)
    return (x * meant).sum(1) / F.expand_dims(counts, 1).astype(x.dtype)


def _steps(time: int) -> Tensor:
    return F.reshape(Tensor(np.arange(time, dtype=np.int32)), (1, -1))


def _seen(time: int, counts: Tensor, reach: int | None) -> Tensor:
    """(batch, 1, 1 or time, time): which keys a query sees; padding sees itself."""
    keys = F.reshape(_steps(time) < F.expand_dims(counts, 1), (-1, 1, 1, time))
    if reach is None:
        return keys
    at = np.arange(time)
    distance = np.abs(at[:, None] - at[None, :])
    near: Tensor = F.logical_and(keys, Tensor(distance <= reach))
    seen: Tensor = F.logical_or(near, Tensor(distance == 0))
    return seen
