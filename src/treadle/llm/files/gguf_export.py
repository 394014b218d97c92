"""A checkpoint as what a GGUF file of it holds: metadata, and tensors under GGUF's names.

The inverse of `gguf_config` and `gguf_checkpoint`, for decoders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.llm.files.checkpoint import ModelCheckpoint, Stored
from treadle.llm.files.gguf_checkpoint import interleaved
from treadle.llm.files.gguf_names import NAMES, Names

ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "smollm3": "smollm3",
    "olmoe": "olmoe",
}
"""GGUF's names of the families that are written, by `model_type`."""

_KEYS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "num_experts_per_tok": "expert_used_count",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "clip_qkv": "attention.clamp_kqv",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
_WHOLE = frozenset(_KEYS) - {
    "attn_logit_softcapping", "final_logit_softcapping", "rms_norm_eps", "rope_theta",
    "rope_local_base_freq", "clip_qkv",
}  # fmt: skip
LARGEST = 1 << 40
_SPECIAL = {"bos_token_id": "bos", "pad_token_id": "padding"}
_ENDS = ("eos", "eot", "eom")
"""As many tokens that end a text as GGUF has keys for."""
_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+?)(\.weight|\.bias)")
_EXPERT = re.compile(r"\.experts\.(\d{1,5})\.")


@dataclass(frozen=True)
class Export:
    """Content of a GGUF file to be: metadata by key, tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, Stored]


def exported(checkpoint: ModelCheckpoint) -> Export:
    """Metadata and tensors of a checkpoint as GGUF has them.

    Raises:
        CheckpointError: GGUF cannot say what the config says, or the family is not written.
    """
    architecture = _architecture(checkpoint)
    metadata = {"general.architecture": architecture}
    metadata |= _metadata(checkpoint, architecture)
    tensors = renamed(checkpoint)
    for name, numbers in _rotation(checkpoint, metadata, architecture).items():
        tensors[name] = Stored(numbers.shape, partial(_itself, numbers))
    return Export(metadata, tensors)


def _architecture(checkpoint: ModelCheckpoint) -> str:
    found = ARCHITECTURES.get(str(checkpoint.config.get("model_type")))
    if found is None:
        raise CheckpointError(
            checkpoint.path,
            "models of this family are not written as GGUF",
            saw=shorten(checkpoint.config.get("model_type")),
            hint=f"written are {', '.join(ARCHITECTURES)}",
        )
    return found


class _Asked:
    """Values of a config or of an object in it, checked as they are asked for."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        found = self.values.get(key)
        return self._positive(key, default if found is None else found)

    def count(self, key: str) -> int:
        """A whole number of at least 1."""
        found = self.number(key)
        if found != int(found):
            raise self.wrong(key, "is not whole")
        return int(found)

    def numbers(self, key: str) -> Array:
        """A list of positive numbers."""
        found = self.values.get(key)
        if not isinstance(found, list) or not found:
            raise self.wrong(key, "is not a list")
        return np.array([self._positive(key, each) for each in found], np.float32)

    def wrong(self, key: str, problem: str) -> CheckpointError:
        """Return the error for a wrong value."""
        return CheckpointError(self.where, f"{key} {problem}", saw=shorten(self.values.get(key)))

    def _positive(self, key: str, found: Any) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.wrong(key, "is not a number")
        if not 0 < found < LARGEST:
            raise self.wrong(key, f"is not between 0 and {LARGEST}")
        return float(found)


def _itself(numbers: Array) -> Array:
    return numbers


def _metadata(checkpoint: ModelCheckpoint, architecture: str) -> dict[str, Any]:
    config, made = checkpoint.config, dict[str, Any]()
    for key, name in _KEYS.items():
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int and (key in _WHOLE or type(value) is not float):
            raise CheckpointError(checkpoint.path, f"{key} is not a number", saw=shorten(value))
        made[f"{architecture}.{name}"] = value if key in _WHOLE else float(value)
    if isinstance(config.get("head_dim"), int):
        made[f"{architecture}.attention.value_length"] = config["head_dim"]
    for key, name in _SPECIAL.items():
        value = config.get(key, checkpoint.generation.get(key))
        if type(value) is int:
            made[f"tokenizer.ggml.{name}_token_id"] = value
    given = (found.get("eos_token_id") for found in (config, checkpoint.generation))
    ends = [end for found in given for end in (found if isinstance(found, list) else [found])]
    for name, end in zip(_ENDS, dict.fromkeys(e for e in ends if type(e) is int), strict=False):
        made[f"tokenizer.ggml.{name}_token_id"] = end
    if checkpoint.chat_template is not None:
        made["tokenizer.chat_template"] = checkpoint.chat_template
    return made


# -- rotation ------------------------------------------------------------------------------------


def _rotation(
    checkpoint: ModelCheckpoint, metadata: dict[str, Any], architecture: str
) -> dict[str, Array]:
    """Keys of rotation, added to the metadata, and the tensors that it needs."""
    config = checkpoint.config
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise CheckpointError(checkpoint.path, "rope_scaling is not an object", saw=shorten(given))
    asked = _Asked(checkpoint.path, given)
    d = _turned(checkpoint, asked)
    metadata[f"{architecture}.rope.dimension_count"] = d
    if "rope_theta" in given:
        metadata[f"{architecture}.rope.freq_base"] = asked.number("rope_theta")
    kind = given.get("rope_type", given.get("type", "default"))
    prefix = f"{architecture}.rope.scaling."
    if kind in ("linear", "yarn"):
        metadata[f"{prefix}type"] = kind
        metadata[f"{prefix}factor"] = asked.number("factor")
        if given.get("original_max_position_embeddings") is not None:
            original = asked.count("original_max_position_embeddings")
            metadata[f"{prefix}original_context_length"] = original
        return {}
    if kind in ("longrope", "su"):
        if given.get("attention_factor"):
            metadata[f"{prefix}attn_factor"] = asked.number("attention_factor")
        factors = ("long", "short")
        return {f"rope_factors_{n}.weight": asked.numbers(f"{n}_factor") for n in factors}
    if kind == "divided":
        return {"rope_freqs.weight": asked.numbers("divisors")}
    if kind == "llama3":
        theta = metadata.get(f"{architecture}.rope.freq_base", 10000.0)
        return {"rope_freqs.weight": _divisors(asked, theta, d)}
    if kind != "default":
        raise asked.wrong("rope_type", "is a rotation that GGUF does not know")
    return {}


def _turned(checkpoint: ModelCheckpoint, given: _Asked) -> int:
    """The features of a head that are rotated."""
    config = _Asked(checkpoint.path, checkpoint.config)
    if checkpoint.config.get("head_dim") is None:
        head = config.count("hidden_size") // config.count("num_attention_heads")
    else:
        head = config.count("head_dim")
    part = given.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if head > 1 << 16 or part > 1:
        raise config.wrong("head_dim", "is beyond what heads have, or is turned more than whole")
    return int(head * part)


def _divisors(given: _Asked, theta: float, d: int) -> Array:
    """Llama 3.1's four numbers as a divisor of each frequency."""
    frequencies = theta ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    factor, original = given.number("factor"), given.number("original_max_position_embeddings")
    low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
    if low >= high:
        raise given.wrong("low_freq_factor", "is not below high_freq_factor")
    turns = original * frequencies / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0, 1)
    made: Array = (1 / ((1 - blend) / factor + blend)).astype(np.float32)
    return made


# -- tensors -------------------------------------------------------------------------------------


def renamed(checkpoint: ModelCheckpoint) -> dict[str, Stored]:
    """The tensors of a checkpoint, or of a part of one, as GGUF has them.

    Raises:
        CheckpointError: GGUF has no name for one, or the family is not written.
    """
    architecture = _architecture(checkpoint)
    names = NAMES[architecture]
    outer = {theirs: ours for ours, theirs in names.outer.items()}
    layer = {theirs: ours for ours, theirs in names.layer.items()}
    found: dict[str, Stored] = {}
    experts: dict[str, dict[int, str]] = {}
    for name in checkpoint.names():
        if name.endswith("rotary_emb.inv_freq"):
            continue  # computed from the config
        if name == "lm_head.weight" and checkpoint.config.get("tie_word_embeddings"):
            continue
        parts = _LAYER.fullmatch(name)
        if parts is None:
            stem, _, suffix = name.rpartition(".")
            ours = outer.get(stem)
            target = None if ours is None else f"{ours}.{suffix}"
        else:
            inner = _EXPERT.sub(".experts.{e}.", f"{parts[2]}")
            ours = layer.get(inner)
            target = None if ours is None else f"blk.{parts[1]}.{ours}{parts[3]}"
            number = _EXPERT.search(name)
            if target is not None and number is not None:
                experts.setdefault(target, {})[int(number[1])] = name
                continue
        if ours is None or target is None:
            problem = f"GGUF has no name for the tensor {shorten(name)}"
            raise CheckpointError(checkpoint.path, problem, saw=architecture)
        make = partial(_changed, checkpoint, name, names, ours)
        found[target] = Stored(checkpoint.shape(name), make)
    for target, members in experts.items():
        found[target] = _stack(checkpoint, target, members)
    return found


def _stack(checkpoint: ModelCheckpoint, target: str, members: Mapping[int, str]) -> Stored:
    """Single experts as one tensor."""
    ordered = [members.get(i) for i in range(len(members))]
    shapes = {checkpoint.shape(name) for name in ordered if name is not None}
    if None in ordered or len(shapes) != 1:
        raise CheckpointError(checkpoint.path, f"{target}: experts are missing or differ in shape")
    each = [name for name in ordered if name is not None]
    (shape,) = shapes

    def make() -> Array | BlockTensor:
        tensors = [checkpoint.tensor(name) for name in each]
        blocks = [t for t in tensors if isinstance(t, BlockTensor)]
        if len(blocks) == len(each) and len({b.format for b in blocks}) == 1:
            data = np.stack([b.data for b in blocks])
            return BlockTensor(blocks[0].format, (len(each), *shape), data)
        return np.stack([t.dequantize() if isinstance(t, BlockTensor) else t for t in tensors])

    return Stored((len(each), *shape), make)


def _changed(
    checkpoint: ModelCheckpoint, name: str, names: Names, ours: str
) -> Array | BlockTensor:
    """A tensor as conversion to GGUF leaves it."""
    tensor = checkpoint.tensor(name)
    if names.raised and ours.endswith("norm"):
        numbers = tensor.dequantize() if isinstance(tensor, BlockTensor) else tensor
        raised: Array = numbers.astype(np.float32) + np.float32(1)
        return raised
    if names.permuted and ours in ("attn_q", "attn_k"):
        asked = _Asked(checkpoint.path, checkpoint.config)
        grouped = ours == "attn_k" and checkpoint.config.get("num_key_value_heads") is not None
        key = "num_key_value_heads" if grouped else "num_attention_heads"
        heads = asked.count(key)
        if tensor.shape[0] % (2 * heads):
            raise asked.wrong(key, f"does not suit {tensor.shape[0]} rows of {name}")
        return interleaved(tensor, heads)
    return tensor
