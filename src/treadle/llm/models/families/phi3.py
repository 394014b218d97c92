"""Phi 3 and 4: queries, keys and values are rows of one tensor, so are gate and up; longrope."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer, Piece
from treadle.llm.models.families.plain import (
    attention,
    decoder,
    features_of_head,
    gated,
    norm,
    optional_count,
    with_default,
)
from treadle.llm.models.rope import rope_parameters, rotary


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    config = with_default(config, original_max_position_embeddings=4096, rms_norm_eps=1e-5)
    given = rope_parameters(config)
    if given.text("rope_type", given.text("type", "default")) in ("su", "yarn"):
        given = Config({**given.values, "rope_type": "longrope"}, given.where)
    turning = rotary(config, features_of_head(config), given)
    window = optional_count(config, "sliding_window")
    mixing = attention(config, rotary=turning, window=window)
    feed = gated(config)
    q, k = mixing.heads * mixing.features, mixing.kv_heads * mixing.features
    pieces = {
        "self_attn.q_proj": ("self_attn.qkv_proj", slice(0, q)),
        "self_attn.k_proj": ("self_attn.qkv_proj", slice(q, q + k)),
        "self_attn.v_proj": ("self_attn.qkv_proj", slice(q + k, None)),
        "mlp.gate_proj": ("mlp.gate_up_proj", slice(0, feed.width)),
        "mlp.up_proj": ("mlp.gate_up_proj", slice(feed.width, None)),
    }

    def names(name: str) -> Sequence[Piece]:
        for part, (whole, rows) in pieces.items():
            if f".{part}." in name:
                return (Piece(name.replace(part, whole), rows), Piece(name))
        return (Piece(name),)

    layer = Layer(mixing, feed, norm(config))
    return decoder(config, lambda _: layer, names=names)
