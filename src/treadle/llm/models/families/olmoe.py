"""OLMoE: norms of queries and keys over all heads, projections in bounds, experts."""

from __future__ import annotations

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer
from treadle.llm.models.families.plain import attention, decoder, experts, gated, norm


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    norms = norm(config)
    alike = config.flag("norm_topk_prob", False)
    feed = experts(config, 64, 8, gated(config), renormalized=alike)
    clip = config.optional("clip_qkv")
    mixing = attention(config, norm=norms, norm_over_heads=True, clip=clip)
    layer = Layer(mixing, feed, norms)
    return decoder(config, lambda _: layer)
