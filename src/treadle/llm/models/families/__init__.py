"""Families of models: one file each, which says how they differ."""

from __future__ import annotations

from collections.abc import Callable

from treadle.base.errors import CheckpointError
from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder
from treadle.llm.models.families import (
    gemma,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)

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


def describe(config: Config) -> Decoder:
    """What a model consists of.

    Raises:
        CheckpointError: the family is unknown, or the config says what cannot be.
    """
    kind = config.text("model_type")
    if kind not in DECODERS:
        known = ", ".join(sorted(DECODERS))
        raise CheckpointError(
            config.where, f"model_type {kind!r} is unknown", hint=f"Treadle knows {known}"
        )
    return DECODERS[kind](config)
