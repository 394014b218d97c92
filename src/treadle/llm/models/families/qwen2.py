"""Qwen 2 and 2.5: biases of queries, keys and values; later layers may have a window."""

from __future__ import annotations

from dataclasses import replace

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer
from treadle.llm.models.families.plain import attention, decoder, gated, norm, slides


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    plain = Layer(attention(config, bias=True, output_bias=False), gated(config), norm(config))
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return decoder(config, lambda _: plain)
    first = config.count("max_window_layers", 28, least=0)
    window = config.count("sliding_window")
    narrow = replace(plain, attention=replace(plain.attention, window=window))
    return decoder(config, lambda i: narrow if slides(config, i, i >= first) else plain)
