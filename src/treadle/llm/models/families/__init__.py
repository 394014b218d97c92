"""Families of models: one file each, which says how they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from treadle.base.errors import CheckpointError
from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder, Encoder
from treadle.llm.models.families import (
    bert,
    gemma,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    modernbert,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)

D = TypeVar("D", Decoder, Encoder)

DECODERS: dict[str, Callable[[Config], Decoder]] = {
    "gemma": gemma.describe,
    "gemma2": gemma.describe_2,
    "gemma3": gemma.describe_3_of_pictures,
    "gemma3_text": gemma.describe_3,
    "gpt_oss": gpt_oss.describe,
    "llama": llama.describe,
    "mistral": mistral.describe,
    "mixtral": mixtral.describe,
    "olmoe": olmoe.describe,
    "phi3": phi3.describe,
    "qwen2": qwen2.describe,
    "qwen3": qwen3.describe,
    "qwen3_moe": qwen3.describe_moe,
    "smollm3": smollm3.describe,
}
"""By `model_type`."""

ENCODERS: dict[str, Callable[[Config], Encoder]] = {
    "bert": bert.describe,
    "modernbert": modernbert.describe,
}
"""By `model_type`."""


def describe(config: Config) -> Decoder:
    """Describe a model that continues text.

    Raises:
        CheckpointError: the family is unknown, or the config says what cannot be.
    """
    return _found(config, DECODERS, ENCODERS, "makes vectors of texts: build_embedder takes it")


def describe_encoder(config: Config) -> Encoder:
    """Describe a model that makes vectors of texts; see `describe`."""
    return _found(config, ENCODERS, DECODERS, "continues text: build takes it")


def _found(
    config: Config, wanted: dict[str, Callable[[Config], D]], others: Collection[str], else_: str
) -> D:
    kind = config.text("model_type")
    if kind in wanted:
        return wanted[kind](config)
    hint = f"Treadle knows {', '.join(sorted({**DECODERS, **ENCODERS}))}"
    if kind in others:
        raise CheckpointError(config.where, f"a model of type {kind!r} {else_}")
    raise CheckpointError(config.where, f"model_type {kind!r} is unknown", hint=hint)
