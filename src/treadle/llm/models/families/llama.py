"""Llama 2 and 3, SmolLM 2: what the others are told apart from."""

from __future__ import annotations

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer
from treadle.llm.models.families.plain import attention, decoder, gated, norm


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    layer = Layer(attention(config), gated(config), norm(config))
    return decoder(config, lambda _: layer)
