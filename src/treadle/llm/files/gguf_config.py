"""GGUF's metadata as the config that Hugging Face's libraries would have of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.llm.files.gguf import Gguf

Config = dict[str, Any]

_COMMON = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
}
_OPTIONAL = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_OPTIONAL_WHOLE = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "num_experts_per_tok": "expert_used_count",
}
MAX_LAYERS = 1000
LARGEST = 1 << 40


class Keys:
    """The metadata of a file under its architecture, checked as it is asked for."""

    def __init__(self, file: Gguf) -> None:
        self.file = file
        found = file.metadata.get("general.architecture")
        if not isinstance(found, str):
            raise self.wrong("general.architecture", "is not text")
        self.architecture = found

    def wrong(self, key: str, problem: str) -> CheckpointError:
        """Return the error for a wrong key."""
        saw = shorten(self.file.metadata[key]) if key in self.file.metadata else "no such key"
        return CheckpointError(self.file.where, f"{key} {problem}", saw=saw)

    def get(self, name: str) -> Any:
        """The number of a key of the architecture; None where there is none.

        Floats of 32 bits become the shortest decimal that rounds to them: 1e-05 is what was meant.
        An array of one value for each layer is that value.
        """
        key = f"{self.architecture}.{name}"
        value = self.file.metadata.get(key)
        if isinstance(value, np.ndarray):
            if value.size == 0 or value.size > MAX_LAYERS or (value != value[0]).any():
                raise self.wrong(key, "differs between layers, which is not read")
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise self.wrong(key, "is not a number")
        if value is not None and not 0 <= value < LARGEST:
            raise self.wrong(key, f"is not from 0 to {LARGEST}")
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def whole(self, name: str) -> int | None:
        """A number that must be whole; None where there is none, or a 0 that says so."""
        value = self.get(name)
        if isinstance(value, float):
            raise self.wrong(f"{self.architecture}.{name}", "is not whole")
        return value or None

    def count(self, name: str) -> int:
        """A whole number of at least 1, which must be there."""
        value = self.whole(name)
        if value is None:
            raise self.wrong(f"{self.architecture}.{name}", "is not a number of at least 1")
        return value


def config_of(file: Gguf) -> Config:
    """The config of a GGUF file.

    Raises:
        CheckpointError: the architecture is unknown, a key is missing or contradicts the tensors.
    """
    keys = Keys(file)
    if keys.architecture not in _FAMILIES:
        raise CheckpointError(
            file.where,
            "the architecture is not known",
            saw=shorten(keys.architecture),
            hint=f"known are {', '.join(_FAMILIES)}",
        )
    config: Config = {each: keys.count(name) for each, name in _COMMON.items()}
    for each, name in _OPTIONAL.items():
        value = keys.get(name)
        if value:
            config[each] = value
    for each, name in _OPTIONAL_WHOLE.items():
        if found := keys.whole(name):
            config[each] = found
    if config["num_hidden_layers"] > MAX_LAYERS:
        raise keys.wrong(f"{keys.architecture}.block_count", f"is beyond {MAX_LAYERS}")
    _embedding(file, config)
    _rotation(keys, config)
    config["model_type"] = keys.architecture.replace("-", "_")
    _FAMILIES[keys.architecture](keys, config)
    _special(file, config)
    return config


def _embedding(file: Gguf, config: Config) -> None:
    """The vocabulary, from the embedding; its width must be the model's."""
    entry = file.entries.get("token_embd.weight")
    if entry is None or len(entry.shape) != 2 or entry.shape[1] != config["hidden_size"]:
        saw = "no such tensor" if entry is None else str(entry.shape)
        problem = f"token_embd.weight is not [vocabulary, {config['hidden_size']}]"
        raise CheckpointError(file.where, problem, saw=saw)
    config["vocab_size"] = entry.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.entries
    config["attention_bias"] = "blk.0.attn_q.bias" in file.entries
    config["mlp_bias"] = "blk.0.ffn_down.bias" in file.entries


def _special(file: Gguf, config: Config) -> None:
    """Ids of the first and the last token of texts, which must be in the vocabulary."""
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        key = f"tokenizer.ggml.{key}_token_id"
        value = file.metadata.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise CheckpointError(file.where, f"{key} is not a number", saw=shorten(value))
        # -1, written without a sign, is how some tools say that there is none.
        if value in (-1, (1 << 32) - 1):
            continue
        if not 0 <= value < config["vocab_size"]:
            problem = f"{key} is not in the vocabulary of {config['vocab_size']}"
            raise CheckpointError(file.where, problem, saw=str(value))
        config[f"{name}_token_id"] = value


# -- rotation ------------------------------------------------------------------------------------


def _rotation(keys: Keys, config: Config) -> None:
    """`partial_rotary_factor` and `rope_scaling`."""
    d = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    turned = keys.whole("rope.dimension_count")
    if turned is not None and turned < d:
        config["partial_rotary_factor"] = turned / d
    scaling: Config = {}
    kind = keys.file.metadata.get(f"{keys.architecture}.rope.scaling.type")
    if kind in ("linear", "yarn", "longrope"):
        scaling = {"rope_type": kind, "factor": keys.get("rope.scaling.factor") or 1.0}
        original = keys.whole("rope.scaling.original_context_length")
        if original:
            scaling["original_max_position_embeddings"] = original
    for ours, name in (("attention_factor", "attn_factor"), ("beta_fast", "yarn_beta_fast"),
                       ("beta_slow", "yarn_beta_slow")):  # fmt: skip
        value = keys.get(f"rope.scaling.{name}")
        if scaling and value:
            scaling[ours] = value
    if "rope_freqs.weight" in keys.file.entries:
        # Llama 3.1: its four numbers were turned into a divisor for each pair.
        scaling = {"rope_type": "divided", "divisors": _numbers(keys.file, "rope_freqs.weight")}
    if scaling:
        config["rope_scaling"] = scaling


def _numbers(file: Gguf, name: str) -> list[float]:
    """A small tensor as numbers."""
    if name not in file.entries or len(file.entries[name].shape) != 1:
        raise CheckpointError(file.where, f"the model lacks the list {name}")
    if file.entries[name].shape[0] > 1 << 16:
        raise CheckpointError(file.where, f"{name} is too long", saw=str(file.entries[name].shape))
    found = file.tensor(name)
    values = found.dequantize() if isinstance(found, BlockTensor) else found.astype(np.float32)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise CheckpointError(file.where, f"{name} has numbers that are not positive")
    return [float(each) for each in values]


# -- families ------------------------------------------------------------------------------------


def _layer_types(keys: Keys, config: Config, period: int) -> list[str]:
    """Kinds of layers: as a list says which have a window, or all but the last of a period."""
    key, count = "attention.sliding_window_pattern", config["num_hidden_layers"]
    listed = keys.file.metadata.get(f"{keys.architecture}.{key}")
    if isinstance(listed, np.ndarray) and listed.dtype == np.bool_:
        if listed.size != count:
            raise keys.wrong(f"{keys.architecture}.{key}", f"is not a list of {count} layers")
        narrow = listed.tolist()
    else:
        period = keys.whole(key) or period
        narrow = [(i + 1) % period != 0 for i in range(count)]
    return ["sliding_attention" if each else "full_attention" for each in narrow]


def _llama(keys: Keys, config: Config) -> None:
    """Set the configuration of Llama, or of Mistral or Mixtral, told by its window and experts."""
    config["hidden_act"] = "silu"
    if window := keys.whole("attention.sliding_window"):
        config["model_type"], config["sliding_window"] = "mistral", window
    if keys.whole("expert_count"):
        config["model_type"] = "mixtral"
        config["num_local_experts"] = keys.count("expert_count")
        config.setdefault("sliding_window", None)


def _qwen2(keys: Keys, config: Config) -> None:
    config["hidden_act"] = "silu"
    config["use_sliding_window"] = False


def _qwen3moe(keys: Keys, config: Config) -> None:
    config["model_type"] = "qwen3_moe"
    config["hidden_act"] = "silu"
    config["num_experts"] = keys.count("expert_count")
    config["moe_intermediate_size"] = keys.count("expert_feed_forward_length")
    config["norm_topk_prob"] = True
    config["decoder_sparse_step"] = 1
    config["mlp_only_layers"] = []
    config["use_sliding_window"] = False


def _gemma2(keys: Keys, config: Config) -> None:
    config["hidden_activation"] = "gelu_pytorch_tanh"
    config["sliding_window"] = keys.whole("attention.sliding_window") or 4096
    config["layer_types"] = _layer_types(keys, config, 2)
    # The scale of attention is not stored: the largest model's is by width, others' by head.
    by_width = config["num_hidden_layers"] == 46
    config["query_pre_attn_scalar"] = _query_scalar(config, by_width)


def _gemma3(keys: Keys, config: Config) -> None:
    config["model_type"] = "gemma3_text"
    config["hidden_activation"] = "gelu_pytorch_tanh"
    config["sliding_window"] = keys.count("attention.sliding_window")
    config["layer_types"] = _layer_types(keys, config, 6)
    config["rope_local_base_freq"] = keys.get("rope.freq_base_swa") or 10000.0
    config["query_pre_attn_scalar"] = _query_scalar(config, config["num_hidden_layers"] == 62)


def _query_scalar(config: Config, by_width: bool) -> float:
    width: int = config["hidden_size"] // config["num_attention_heads"]
    return width if by_width else int(config.get("head_dim", width))


def _phi3(keys: Keys, config: Config) -> None:
    config["hidden_act"] = "silu"
    window = keys.whole("attention.sliding_window")
    config["sliding_window"] = window or None
    original = keys.whole("rope.scaling.original_context_length")
    config["original_max_position_embeddings"] = original or config["max_position_embeddings"]
    if "rope_factors_long.weight" in keys.file.entries:
        scaling = {
            "rope_type": "longrope",
            "short_factor": _numbers(keys.file, "rope_factors_short.weight"),
            "long_factor": _numbers(keys.file, "rope_factors_long.weight"),
        }
        amplitude = keys.get("rope.scaling.attn_factor")
        config["rope_scaling"] = scaling | ({"attention_factor": amplitude} if amplitude else {})


def _smollm3(keys: Keys, config: Config) -> None:
    config["hidden_act"] = "silu"
    count = config["num_hidden_layers"]
    config["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(count)]
    config["no_rope_layer_interval"] = 4
    config["use_sliding_window"] = False


def _olmoe(keys: Keys, config: Config) -> None:
    config["hidden_act"] = "silu"
    config["num_experts"] = keys.count("expert_count")
    config["norm_topk_prob"] = False
    config["clip_qkv"] = keys.get("attention.clamp_kqv") or None


def _gpt_oss(keys: Keys, config: Config) -> None:
    config["num_local_experts"] = keys.count("expert_count")
    config["intermediate_size"] = keys.count("expert_feed_forward_length")
    config["sliding_window"] = keys.count("attention.sliding_window")
    config["layer_types"] = _layer_types(keys, config, 2)
    config["hidden_act"] = "silu"
    config["swiglu_limit"] = 7.0
    if "rope_scaling" in config:
        scaling = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        config["rope_scaling"] = scaling | config["rope_scaling"]


def _bert(keys: Keys, config: Config) -> None:
    config["hidden_act"] = "gelu"
    types = keys.file.entries.get("token_types.weight")
    config["type_vocab_size"] = types.shape[0] if types and len(types.shape) == 2 else 0
    config["position_embedding_type"] = "absolute"


def _modern_bert(keys: Keys, config: Config) -> None:
    config["model_type"] = "modernbert"
    config["hidden_activation"] = "gelu"
    config["norm_eps"] = config.pop("layer_norm_eps", 1e-5)
    config["norm_bias"] = False
    config["global_attn_every_n_layers"] = keys.whole("attention.sliding_window_pattern") or 3
    config["local_attention"] = keys.whole("attention.sliding_window") or 128
    config["global_rope_theta"] = config.pop("rope_theta", 160000.0)
    config["local_rope_theta"] = keys.get("rope.freq_base_swa") or 10000.0
    config["classifier_pooling"] = "mean"


_FAMILIES: Mapping[str, Callable[[Keys, Config], None]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen2,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "smollm3": _smollm3,
    "olmoe": _olmoe,
    "gpt-oss": _gpt_oss,
    "bert": _bert,
    "modern-bert": _modern_bert,
}
"""Settings that an architecture implies beyond its keys, by `general.architecture`."""
