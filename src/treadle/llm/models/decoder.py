"""The decoder that every family of models which continue text is an instance of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import treadle.functional as F
from treadle.autodiff import recompute
from treadle.llm.models.attention import AttentionMemory, CacheAttention, Kept, TokenPositions
from treadle.llm.models.declared import Attention, Decoder, Experts, Gated, Layer
from treadle.llm.models.gates import mix
from treadle.llm.models.matrices import (
    PIECE,
    Adapt,
    Dense,
    Projection,
    Routing,
    WeightMatrix,
)
from treadle.llm.models.rope import Rotary, rotate
from treadle.llm.models.weights import CheckpointWeights, Linear, RootMeanSquare
from treadle.tensor import Tensor

Angles = dict[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shared:
    """Values that all layers of a call share: rotation, and changes of products."""

    angles: Angles
    adapt: Adapt | None = None


class AttentionLayer:
    """Projections, norms and rotation around `attend`."""

    def __init__(
        self, weights: CheckpointWeights, name: str, hidden: int, declared: Attention
    ) -> None:
        a = self.declared = declared
        wide, narrow = a.heads * a.features, a.kv_heads * a.features
        parts = {"q_proj": wide, "k_proj": narrow, "v_proj": narrow}
        self.given = projection(weights, name, parts, hidden, a.bias)
        self.o = Linear(weights, f"{name}.o_proj", hidden, wide, a.output_bias)
        self.rounds = weights.rounds_pieces
        self.sinks = weights.take(f"{name}.sinks", a.heads) if a.sinks else None
        self.norms: list[RootMeanSquare | None] = [None, None]
        if a.norm is not None:
            sizes = (wide, narrow) if a.norm_over_heads else (a.features, a.features)
            self.norms = [
                RootMeanSquare(weights, f"{name}.{which}_norm", size, a.norm)
                for which, size in zip("qk", sizes, strict=True)
            ]

    def __call__(self, x: Tensor, memory: AttentionMemory, shared: Shared) -> Tensor:
        """Attend and return values, (batch, time, hidden)."""
        a = self.declared
        q, k, v = (self._heads(y, i) for i, y in enumerate(self.given(x, shared.adapt)))
        if a.rotary is not None:
            turned = shared.angles[id(a.rotary)]
            q, k = (rotate(t, turned, a.rotary.interleaved) for t in (q, k))
        mixed = memory.attend(q, k, v, a, self.sinks)
        batch, _, time, _ = mixed.shape
        y = F.reshape(F.transpose(mixed, (0, 2, 1, 3)), (batch, time, -1))
        return self.o(y, shared.adapt)

    def _heads(self, y: Tensor, which: int) -> Tensor:
        """Queries, keys or values as (batch, heads, time, features)."""
        a = self.declared
        norm = self.norms[which] if which < 2 else None
        if norm is not None and a.norm_over_heads:
            y = norm(y)
        if a.clip is not None:
            y = F.clip(y, -a.clip, a.clip)
        y = F.reshape(y, (*y.shape[:2], -1, a.features))
        if norm is not None and not a.norm_over_heads:
            y = norm(y)
        return F.transpose(y, (0, 2, 1, 3))


class GatedUnit:
    """down(mix(gate(x), up(x)))."""

    def __init__(self, weights: CheckpointWeights, name: str, hidden: int, declared: Gated) -> None:
        width, bias = declared.width, declared.bias
        parts = {"gate_proj": width, "up_proj": width}
        self.given = projection(weights, name, parts, hidden, bias)
        self.down = Linear(weights, f"{name}.down_proj", hidden, width, bias)
        self._mix = declared.mix

    def __call__(self, x: Tensor, adapt: Adapt | None = None) -> Tensor:
        """(batch, time, hidden), as x."""

        def lower(gate: Tensor, up: Tensor) -> Tensor:
            return self.down(mix(self._mix, gate, up), adapt)

        # For gradients the mix is made again: it is cheap, and as wide as half of a layer.
        return recompute(lower)(*self.given(x, adapt))


class ExpertLayer:
    """Gated units of which each token uses those that the router likes best.

    Experts are read as they were chosen. Where tokens together use most of them anyway and none is
    quantized, every expert computes all tokens, and those who did not ask for it give it no weight.
    """

    def __init__(
        self, weights: CheckpointWeights, name: str, hidden: int, declared: Experts
    ) -> None:
        self.declared = declared
        count, width, bias = declared.count, declared.gated.width, declared.gated.bias
        shapes = {
            "gate_proj": (width, hidden),
            "up_proj": (width, hidden),
            "down_proj": (hidden, width),
        }
        router = f"{name}.{declared.router}"
        self.router = Linear(weights, router, count, hidden, declared.router_bias)
        self.stacks = [
            weights.matrices(f"{name}.experts.{{}}.{part}.weight", count, *shape)
            for part, shape in shapes.items()
        ]
        self.products = [
            weights.expert_products(
                f"{name}.experts.{{}}.{part}.weight", count, shape, declared.used
            )
            for part, shape in shapes.items()
        ]
        self.biases = [
            weights.each(f"{name}.experts.{{}}.{part}.bias", count, shape[0]) if bias else None
            for part, shape in shapes.items()
        ]
        self._mix = declared.gated.mix

    def __call__(self, x: Tensor, adapt: Adapt | None = None) -> Tensor:
        """(batch, time, hidden), as x."""
        flat = F.reshape(x, (-1, x.shape[-1]))
        shares, chosen = self._choose(flat)
        dense = [s.weight for s in self.stacks if isinstance(s, Dense)]
        most = flat.shape[0] * self.declared.used * 2 > self.declared.count
        if most and len(dense) == len(self.stacks):
            y = self._all(flat, shares, chosen, dense, adapt)
        else:
            y = self._routed(flat, shares, chosen, adapt, many=x.shape[1] >= PIECE)
        return F.reshape(y, x.shape)

    def _adapted(
        self, i: int, x: Tensor, y: Tensor, adapt: Adapt | None, routing: Routing
    ) -> Tensor:
        """Return a product of one of the parts, changed."""
        products = self.products[i]
        return adapt.of_experts(products, x, y, routing) if adapt and products else y

    def _routed(
        self, x: Tensor, shares: Tensor, chosen: Tensor, adapt: Adapt | None, *, many: bool
    ) -> Tensor:
        """Each token with the experts that it chose."""
        routing = Routing(chosen.astype("int32"))

        def product(x: Tensor, i: int) -> Tensor:
            y, bias = self.stacks[i].chosen(x, chosen, many=many), self.biases[i]
            y = y if bias is None else y + bias[chosen]
            return self._adapted(i, x, y, adapt, routing)

        x = F.expand_dims(x, 1)
        y = product(mix(self._mix, product(x, 0), product(x, 1)), 2)
        return (y * F.expand_dims(shares, -1).astype(x.dtype)).sum(1)

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of each token, (tokens, used) both."""
        logits = self.router(x).astype("float32")
        if self.declared.renormalized:
            best, chosen = F.topk(logits, self.declared.used)
            return F.softmax(best, -1), chosen
        return F.topk(F.softmax(logits, -1), self.declared.used)

    def _all(
        self,
        x: Tensor,
        shares: Tensor,
        chosen: Tensor,
        dense: list[Tensor],
        adapt: Adapt | None,
    ) -> Tensor:
        """Every expert computes every token."""
        spread = F.one_hot(chosen, self.declared.count).astype("float32")
        spread = (spread * F.expand_dims(shares, -1)).sum(1)
        biases = [None if b is None else F.expand_dims(b, 1) for b in self.biases]
        y = self._mixed(F.expand_dims(x, 0), dense, biases, adapt)
        return (y * F.expand_dims(F.transpose(spread, (1, 0)), -1).astype(x.dtype)).sum(0)

    def _mixed(
        self,
        x: Tensor,
        stacks: list[Tensor],
        biases: list[Tensor | None],
        adapt: Adapt | None,
    ) -> Tensor:
        numbers = np.arange(self.declared.count, dtype=np.int32)
        routing = Routing(Tensor(numbers[:, None]), every=True)

        def product(x: Tensor, i: int) -> Tensor:
            y = F.matmul(x, stacks[i], transpose_b=True)
            bias = biases[i]
            y = y if bias is None else y + bias
            return self._adapted(i, x, y, adapt, routing)

        return product(mix(self._mix, product(x, 0), product(x, 1)), 2)


class DecoderLayer:
    """x + attention(norm(x)), then x + feed(norm(x))."""

    def __init__(self, weights: CheckpointWeights, name: str, hidden: int, declared: Layer) -> None:
        def norm(which: str) -> RootMeanSquare:
            return RootMeanSquare(weights, f"{name}.{which}_layernorm", hidden, declared.norm)

        self.attention = AttentionLayer(weights, f"{name}.self_attn", hidden, declared.attention)
        feed = declared.feed
        self.feed: GatedUnit | ExpertLayer = (
            GatedUnit(weights, f"{name}.mlp", hidden, feed)
            if isinstance(feed, Gated)
            else ExpertLayer(weights, f"{name}.mlp", hidden, feed)
        )
        self.before_attention = norm("input")
        sandwich = declared.sandwich
        self.before_feed = norm("pre_feedforward" if sandwich else "post_attention")
        self.after_attention = norm("post_attention") if sandwich else None
        self.after_feed = norm("post_feedforward") if sandwich else None

    def __call__(self, x: Tensor, memory: AttentionMemory, shared: Shared) -> Tensor:
        """(batch, time, hidden), as x."""
        y = self.attention(self.before_attention(x), memory, shared)
        x = x + (y if self.after_attention is None else self.after_attention(y))
        y = self.feed(self.before_feed(x), shared.adapt)
        return x + (y if self.after_feed is None else self.after_feed(y))


def projection(
    weights: CheckpointWeights, name: str, parts: dict[str, int], columns: int, bias: bool
) -> Projection:
    """Products of one operand, by their names and rows."""
    rows = {f"{name}.{part}.weight": count for part, count in parts.items()}
    whole = weights.below(rows, columns)
    matrices = [weights.matrix(n, r, columns) for n, r in rows.items()] if whole is None else whole
    biases = [weights.take(f"{name}.{p}.bias", r) if bias else None for p, r in parts.items()]
    return Projection(matrices, biases, [weights.product(n, r, columns) for n, r in rows.items()])


class DecoderStack:
    """Tokens to logits.

    Attributes:
        nbytes: of all weights.
    """

    def __init__(self, weights: CheckpointWeights, declared: Decoder) -> None:
        self.declared = declared
        vocabulary, hidden = declared.vocabulary, declared.hidden
        embedding = "model.embed_tokens.weight"
        tied = declared.tied
        head = weights.matrix(embedding if tied else "lm_head.weight", vocabulary, hidden)
        self.head = head
        self.embedding = weights.table(embedding, vocabulary, hidden, head if tied else None)
        self.layers = [
            DecoderLayer(weights, f"model.layers.{i}", hidden, layer)
            for i, layer in enumerate(declared.layers)
        ]
        self.norm = RootMeanSquare(weights, "model.norm", hidden, declared.norm)
        self.nbytes = weights.nbytes

    def hidden(
        self,
        given: Tensor,
        kept: list[Kept],
        rings: Sequence[bool],
        at: TokenPositions,
        adapt: Adapt | None = None,
    ) -> Tensor:
        """Return the last layer's output, (batch, time, hidden), for the result of
        `embedding.given`.
        """
        x = self.embedded(given)
        shared = Shared(self.angles(at.positions, at.ends), adapt)
        for layer, memory, ring in zip(self.layers, kept, rings, strict=True):
            rounded = layer.attention.rounds and x.shape[1] >= PIECE
            x = layer(x, CacheAttention(memory, at, ring, rounded), shared)
        return x

    def products(self) -> list[WeightMatrix]:
        """Return the products of all layers, except those of routers and of experts that one
        tensor holds.
        """
        found: list[WeightMatrix] = []
        for layer in self.layers:
            found += (*layer.attention.given.products, layer.attention.o.product)
            if isinstance(layer.feed, GatedUnit):
                found += (*layer.feed.given.products, layer.feed.down.product)
            else:
                found += (p for part in layer.feed.products for p in part)
        return found

    def embedded(self, given: Tensor) -> Tensor:
        """Return the first layer's input."""
        x = self.embedding.vectors(given)
        if self.declared.embedding_scale != 1.0:
            x = x * Tensor(self.declared.embedding_scale).astype(x.dtype)
        return x

    def angles(self, positions: Tensor, lengths: Tensor) -> Angles:
        """Return the angles of every rotation that layers use, by its id; see `Rotary.angles`."""
        return {id(r): r.angles(positions, lengths) for r in self._rotaries()}

    def logits(self, x: Tensor) -> Tensor:
        """float32 (..., vocabulary)."""
        y = self.head.times(self.norm(x)).astype("float32")
        cap = self.declared.logit_softcap
        return y if cap is None else F.tanh(y / cap) * cap

    def _rotaries(self) -> list[Rotary]:
        found = (layer.attention.rotary for layer in self.declared.layers)
        return list({id(r): r for r in found if r is not None}.values())
