"""Families of models: one file each, which says how they differ."""

from __future__ import annotations

from collections.abc import Callable

from treadle.base.errors import CheckpointError
from treadle.llm.models.config import Config
from treadle.llm.models.declared import Decoder
from treadle.llm.models.families import llama, qwen2

DECODERS: dict[str, Callable[[Config], Decoder]] = {
    "llama": llama.describe,
    "qwen2": qwen2.describe,
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
