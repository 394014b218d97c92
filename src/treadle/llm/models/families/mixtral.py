"""Mixtral: Mistral with two of eight experts a token, under names of their own."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer, Piece
from treadle.llm.models.families.plain import (
    attention,
    decoder,
    experts,
    gated,
    norm,
    optional_count,
)

PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    feed = experts(config, 8, 2, gated(config))
    window = optional_count(config, "sliding_window")
    layer = Layer(attention(config, window=window), feed, norm(config))
    return decoder(config, lambda _: layer, names=_names)


def _names(name: str) -> Sequence[Piece]:
    told = name.replace(".mlp.", ".block_sparse_moe.")
    for ours, theirs in PARTS.items():
        told = told.replace(f".{ours}.", f".{theirs}.")
    return (Piece(told), Piece(name))
