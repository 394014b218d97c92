"""gpt-oss: sinks, alternating windows, experts whose gate and up rows alternate, biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Layer, Piece
from treadle.llm.models.families.plain import (
    attention,
    decoder,
    experts,
    gated,
    norm,
    slides,
    with_default,
)
from treadle.llm.models.gates import CLIPPED

ROPE = {
    **{"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096},
}


def describe(config: Config) -> Decoder:
    """The declaration of a model."""
    config = with_default(config, head_dim=64, attention_bias=True, rms_norm_eps=1e-5)
    if not (config.has("rope_parameters") or config.has("rope_scaling")):
        config = with_default(config, rope_parameters=ROPE)
    for name, known in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if config.number(name, known) != known:
            raise config.wrong(name, f"is not {known}")
    wide = attention(config, sinks=True)
    narrow = replace(wide, window=config.count("sliding_window", 128))
    unit = gated(config, mix=CLIPPED, bias=True)
    feed = experts(config, 128, 4, unit, router="router", router_bias=True)

    def layer(i: int) -> Layer:
        return Layer(narrow if slides(config, i, i % 2 == 0) else wide, feed, norm(config))

    return decoder(config, layer, names=_names)


def _names(name: str) -> Sequence[Piece]:
    """`experts.gate_proj.weight` is every second row of `experts.gate_up_proj`."""
    head, experts, part = name.partition(".mlp.experts.")
    if not experts:
        return (Piece(name),)
    which, _, kind = part.partition(".")
    rows, file = None, f"{head}{experts}{which}"
    if which in ("gate_proj", "up_proj"):
        rows, file = slice(which == "up_proj", None, 2), f"{head}{experts}gate_up_proj"
    if kind == "bias":
        return (Piece(f"{file}_bias", rows, 1),)
    return (Piece(f"{file}_blocks", rows, 1), Piece(file, rows, 1, transposed=True))
