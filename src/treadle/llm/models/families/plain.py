"""Defaults of families, read from a config; families replace what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.llm.models.config import Config
from treadle.llm.models.declared import Attention, Decoder, Experts, Gated, Layer, Norm
from treadle.llm.models.gates import ACTIVATIONS
from treadle.llm.models.rope import rope_parameters, rotary


def decoder(config: Config, layer: Callable[[int], Layer], **differences: Any) -> Decoder:
    """A decoder of the layers that `layer` gives for their numbers."""
    count = config.count("num_hidden_layers")
    plain: dict[str, Any] = {
        "vocabulary": config.count("vocab_size"),
        "hidden": config.count("hidden_size"),
        "context": context(config),
        "norm": norm(config),
        "tied": config.flag("tie_word_embeddings", False),
    }
    return Decoder(layers=tuple(layer(i) for i in range(count)), **{**plain, **differences})


def attention(config: Config, **differences: Any) -> Attention:
    """Attention as in Llama."""
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"does not divide {heads} heads")
    features = features_of_head(config)
    plain: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "features": features,
        "scale": features**-0.5,
        "bias": config.flag("attention_bias", False),
        "output_bias": config.flag("attention_bias", False),
    }
    if "rotary" not in differences:
        plain["rotary"] = rotary(config, features)
    return Attention(**{**plain, **differences})


def features_of_head(config: Config) -> int:
    """`head_dim`, or hidden features divided among heads."""
    if config.has("head_dim"):
        return config.count("head_dim")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        raise config.wrong("hidden_size", f"is not a multiple of {heads} heads")
    return hidden // heads


def gated(config: Config, **differences: Any) -> Gated:
    """The gated unit as in Llama."""
    plain: dict[str, Any] = {
        "width": config.count("intermediate_size"),
        "mix": activation(config, "hidden_act"),
        "bias": config.flag("mlp_bias", False),
    }
    return Gated(**{**plain, **differences})


def activation(config: Config, key: str, default: str = "silu") -> str:
    """The name of an activation that there is."""
    name = config.text(key, default)
    if name not in ACTIVATIONS:
        raise config.wrong(key, f"is unknown; Treadle knows {', '.join(sorted(ACTIVATIONS))}")
    return name


def norm(config: Config, **differences: Any) -> Norm:
    """The norm of layers."""
    return Norm(eps=config.number("rms_norm_eps", 1e-6), **differences)


def context(config: Config) -> int:
    """Positions that a model may see: stretched ones may be more than the config's maximum."""
    most = config.count("max_position_embeddings", 2048)
    given = rope_parameters(config)
    kind = given.text("rope_type", given.text("type", "default"))
    if kind == "dynamic":
        return int(most * given.number("factor"))
    if kind == "yarn" and given.has("original_max_position_embeddings"):
        original = given.count("original_max_position_embeddings")
        return max(most, int(original * given.number("factor", 1.0)))
    return most


def slides(config: Config, layer: int, otherwise: bool) -> bool:
    """Return whether a layer has a window: as `layer_types` says, or by the family's rule."""
    types = config.items("layer_types", config.count("num_hidden_layers"))
    if types is None:
        return otherwise
    if types[layer] not in ("full_attention", "sliding_attention"):
        raise config.wrong("layer_types", "has kinds of layers that Treadle does not know")
    return bool(types[layer] == "sliding_attention")


def with_default(config: Config, **values: Any) -> Config:
    """The config, with these values where it has none."""
    given = {k: v for k, v in config.values.items() if v is not None}
    return Config({**config.values, **values, **given}, config.where)


def optional_count(config: Config, name: str) -> int | None:
    """A whole number, or None where there is none."""
    return config.count(name) if config.has(name) else None


def experts(config: Config, count: int, used: int, unit: Gated, **differences: Any) -> Experts:
    """Experts that are each as `unit`; `count` and `used` are what the family's config may omit."""
    name = "num_experts" if config.has("num_experts") else "num_local_experts"
    plain: dict[str, Any] = {
        "count": config.count(name, count),
        "used": config.count("num_experts_per_tok", used),
        "gated": unit,
    }
    if plain["used"] > plain["count"]:
        raise config.wrong("num_experts_per_tok", f"is more than the {plain['count']} there are")
    return Experts(**{**plain, **differences})
