"""SmolLM 3: every fourth layer does not turn queries and keys."""

from __future__ import annotations

from dataclasses import replace

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer
from treadle.llm.models.families.plain import attention, decoder, gated, norm, slides, with_default


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    config = with_default(config, tie_word_embeddings=True)
    usual = attention(config)
    feed, norms = gated(config), norm(config)
    every = config.count("no_rope_layer_interval", 4)
    listed = config.items("no_rope_layers", config.count("num_hidden_layers"))  # 1: turned
    windows = config.flag("use_sliding_window", False) and config.has("sliding_window")

    def layer(i: int) -> Layer:
        turned = bool((i + 1) % every if listed is None else listed[i])
        narrow = windows and slides(config, i, not turned)
        mixing = replace(
            usual,
            rotary=usual.rotary if turned else None,
            window=config.count("sliding_window") if narrow else None,
        )
        return Layer(mixing, feed, norms)

    return decoder(config, layer)
