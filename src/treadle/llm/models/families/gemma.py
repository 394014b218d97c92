"""Gemma 1, 2 and 3: norms times 1 + w, scaled embeddings, windows; caps or norms of queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Attention, Decoder, Gated, Layer, Piece
from treadle.llm.models.families.plain import (
    activation,
    attention,
    decoder,
    features_of_head,
    gated,
    norm,
    slides,
    with_default,
)
from treadle.llm.models.rope import Rotary, rotary

USUAL = {"head_dim": 256, "tie_word_embeddings": True}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA3 = {
    **{"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216},
    **{"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"max_position_embeddings": 131_072, "sliding_window": 4096},
}
"""Configs of pictures and text leave out what is usual."""


def describe(config: Config) -> Decoder:
    """Gemma 1."""
    config = with_default(config, **USUAL)
    layer = Layer(attention(config), _gated(config), norm(config, plus_one=True))
    return _decoder(config, lambda _: layer)


def describe_2(config: Config) -> Decoder:
    """Gemma 2: a norm behind attention and gated unit, caps, a window in even layers."""
    for cap, value in CAPS.items():  # null takes a cap away
        if cap not in config.values:
            config = with_default(config, **{cap: value})
    config = with_default(config, **USUAL, sliding_window=4096)
    wide = attention(
        config, scale=_scale(config), softcap=config.optional("attn_logit_softcapping")
    )
    return _alternating(config, wide, wide, lambda i: i % 2 == 0)


def describe_3(config: Config) -> Decoder:
    """Gemma 3: norms of queries and keys, five of six layers with a window and quicker turns."""
    config = with_default(config, **USUAL, **GEMMA3)
    wide = attention(
        config,
        scale=_scale(config),
        softcap=config.optional("attn_logit_softcapping"),
        norm=norm(config, plus_one=True),
        rotary=_rotary(config, "full_attention", "rope_theta", 1e6),
    )
    local = _rotary(config, "sliding_attention", "rope_local_base_freq", 1e4)
    every = config.count("sliding_window_pattern", 6)
    return _alternating(config, wide, replace(wide, rotary=local), lambda i: (i + 1) % every != 0)


def describe_3_of_pictures(config: Config) -> Decoder:
    """The part of Gemma 3 that reads and writes text, inside a model that sees."""

    def names(name: str) -> Sequence[Piece]:
        inner = name.removeprefix("model.")
        return (Piece(f"language_model.{name}"), Piece(f"model.language_model.{inner}"))

    return replace(describe_3(config.part("text_config")), names=names)


def _alternating(config: Config, wide: Attention, narrow: Attention, rule: Any) -> Decoder:
    narrow = replace(narrow, window=config.count("sliding_window"))
    feed, norms = _gated(config), norm(config, plus_one=True)

    def layer(i: int) -> Layer:
        return Layer(narrow if slides(config, i, rule(i)) else wide, feed, norms, sandwich=True)

    return _decoder(config, layer)


def _decoder(config: Config, layer: Any) -> Decoder:
    return decoder(
        config,
        layer,
        norm=norm(config, plus_one=True),
        embedding_scale=math.sqrt(config.count("hidden_size")),
        logit_softcap=config.optional("final_logit_softcapping"),
    )


def _gated(config: Config) -> Gated:
    usual = activation(config, "hidden_activation", "gelu_pytorch_tanh")
    return gated(config, mix=usual)


def _scale(config: Config) -> float:
    return 1 / math.sqrt(config.number("query_pre_attn_scalar", 256.0))


def _rotary(config: Config, kind: str, theta: str, usual: float) -> Rotary:
    nested = config.part("rope_parameters")
    whole = kind == "full_attention"
    given = nested.part(kind) if nested.has(kind) else config.part("rope_scaling" if whole else "")
    values = {"rope_theta": config.number(theta, usual), **given.values}
    return rotary(config, features_of_head(config), Config(values, given.where))
