"""BERT and MiniLM: norms behind attention and feed-forward, learned positions, kinds of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Encoder, EncoderLayer, LayerNorm, Piece
from treadle.llm.models.families.plain import activation, features_of_head

PARTS = {
    "embed_tokens": "embeddings.word_embeddings",
    "embed_positions": "embeddings.position_embeddings",
    "embed_types": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "q_proj": "attention.self.query",
    "k_proj": "attention.self.key",
    "v_proj": "attention.self.value",
    "o_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up_proj": "intermediate.dense",
    "down_proj": "output.dense",
    "feed_norm": "output.LayerNorm",
    "head": "pooler.dense",
    "classifier": "classifier",
}


def describe(config: Config) -> Encoder:
    """The declaration of a model."""
    if config.text("position_embedding_type", "absolute") != "absolute":
        raise config.wrong("position_embedding_type", "is not absolute")
    layer = EncoderLayer(
        heads=config.count("num_attention_heads"),
        features=features_of_head(config),
        width=config.count("intermediate_size"),
        mix=activation(config, "hidden_act", "gelu"),
    )
    return Encoder(
        vocabulary=config.count("vocab_size"),
        hidden=config.count("hidden_size"),
        context=config.count("max_position_embeddings", 512),
        layers=(layer,) * config.count("num_hidden_layers"),
        norm=LayerNorm(config.number("layer_norm_eps", 1e-12)),
        norm_first=False,
        positions=True,
        types=config.count("type_vocab_size", 2, least=0),
        names=_names,
    )


def _names(name: str) -> Sequence[Piece]:
    path, _, kind = name.rpartition(".")
    place, _, part = path.rpartition(".")
    layer = f"encoder.layer.{place.removeprefix('layers.')}." if place else ""
    told = f"{layer}{PARTS[part]}.{kind}"
    # Files of the first years say gamma and beta.
    old = told.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")
    return tuple(Piece(f"{prefix}{n}") for n in (told, old) for prefix in ("", "bert."))
