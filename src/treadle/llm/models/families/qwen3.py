"""Qwen 3: queries and keys of every head are normalized; some models have experts."""

from __future__ import annotations

from dataclasses import replace

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Attention, Decoder, Layer
from treadle.llm.models.families.plain import (
    attention,
    decoder,
    experts,
    gated,
    norm,
    slides,
    with_default,
)


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    config = with_default(config, head_dim=128)
    plain = Layer(_attention(config), gated(config), norm(config))
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return decoder(config, lambda _: plain)
    first = config.count("max_window_layers", 28, least=0)
    window = config.count("sliding_window")
    narrow = replace(plain, attention=replace(plain.attention, window=window))
    return decoder(config, lambda i: narrow if slides(config, i, i >= first) else plain)


def describe_moe(config: Config) -> Decoder:
    """The declaration of a model with experts."""
    window = None
    if config.flag("use_sliding_window", False) and config.has("sliding_window"):
        window = config.count("sliding_window")
    shared = replace(_attention(config), window=window)
    unit = gated(config, width=config.count("moe_intermediate_size", 768))
    chosen = experts(config, 128, 8, unit, renormalized=config.flag("norm_topk_prob", False))
    sparse = Layer(shared, chosen, norm(config))
    dense = Layer(shared, gated(config), norm(config))
    every = config.count("decoder_sparse_step", 1)
    without = config.whole_numbers("mlp_only_layers")

    def layer(i: int) -> Layer:
        return dense if i in without or (i + 1) % every else sparse

    return decoder(config, layer)


def _attention(config: Config) -> Attention:
    return attention(config, norm=norm(config))
