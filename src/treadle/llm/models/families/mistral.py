"""Mistral: all layers have a window, unless the config takes it away."""

from __future__ import annotations

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer
from treadle.llm.models.families.plain import attention, decoder, gated, norm, optional_count

USUAL_WINDOW = 4096


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    absent = "sliding_window" not in config.values
    window = USUAL_WINDOW if absent else optional_count(config, "sliding_window")
    layer = Layer(attention(config, window=window), gated(config), norm(config))
    return decoder(config, lambda _: layer)
