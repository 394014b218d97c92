"""ModernBERT: norms before, rotation, gated units, two of three layers see their neighbors only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Encoder, EncoderLayer, LayerNorm, Piece
from treadle.llm.models.families.plain import activation, features_of_head, slides
from treadle.llm.models.rope import Rotary, rotary

PARTS = {
    "embed_tokens": "embeddings.tok_embeddings",
    "embed_norm": "embeddings.norm",
    "o_proj": "attn.Wo",
    "attention_norm": "attn_norm",
    "down_proj": "mlp.Wo",
    "feed_norm": "mlp_norm",
    "norm": "final_norm",
}
OUTSIDE = {"head": "head.dense", "head_norm": "head.norm", "classifier": "classifier"}


def describe(config: Config) -> Encoder:
    """The declaration of a model."""
    hidden, width = config.count("hidden_size"), config.count("intermediate_size")
    wide = EncoderLayer(
        heads=config.count("num_attention_heads"),
        features=features_of_head(config),
        width=width,
        mix=activation(config, "hidden_activation", "gelu"),
        gated=True,
        bias=config.flag("attention_bias", False),
        feed_bias=config.flag("mlp_bias", False),
        rotary=_rotary(config, "full_attention", "global_rope_theta", 160_000.0),
    )
    local = _rotary(config, "sliding_attention", "local_rope_theta", 10_000.0)
    reach = config.count("local_attention", 128) // 2
    narrow = replace(wide, rotary=local, reach=reach)
    every = config.count("global_attn_every_n_layers", 3)
    count = config.count("num_hidden_layers")
    pooling = config.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise config.wrong("classifier_pooling", "is neither cls nor mean")

    def names(name: str) -> Sequence[Piece]:
        return _names(name, hidden, width)

    return Encoder(
        vocabulary=config.count("vocab_size"),
        hidden=hidden,
        context=config.count("max_position_embeddings", 8192),
        layers=tuple(narrow if slides(config, i, i % every != 0) else wide for i in range(count)),
        norm=LayerNorm(config.number("norm_eps", 1e-5), config.flag("norm_bias", False)),
        norm_first=True,
        head_mix=activation(config, "classifier_activation", "gelu"),
        head_norm=True,
        head_bias=config.flag("classifier_bias", False),
        head_pooling=pooling,
        names=names,
    )


def _rotary(config: Config, kind: str, theta: str, usual: float) -> Rotary:
    nested = config.part("rope_parameters")
    given = nested.part(kind) if nested.has(kind) else config.part("rope_scaling")
    values = {"rope_theta": config.number(theta, usual), **given.values}
    return rotary(config, features_of_head(config), Config(values, given.where))


def _names(name: str, hidden: int, width: int) -> Sequence[Piece]:
    path, _, kind = name.rpartition(".")
    place, _, part = path.rpartition(".")
    if part in OUTSIDE:
        return (Piece(f"{OUTSIDE[part]}.{kind}"),)
    at = f"{place}." if place else ""
    if part in ("q_proj", "k_proj", "v_proj"):
        first = "qkv".index(part[0]) * hidden
        told, rows = f"{at}attn.Wqkv.{kind}", slice(first, first + hidden)
    elif part in ("gate_proj", "up_proj"):
        rows = slice(0, width) if part == "gate_proj" else slice(width, None)
        told = f"{at}mlp.Wi.{kind}"
    else:
        return tuple(Piece(f"{prefix}{at}{PARTS[part]}.{kind}") for prefix in ("", "model."))
    return tuple(Piece(f"{prefix}{told}", rows) for prefix in ("", "model."))
