"""Names of tensors: GGUF's and those of Hugging Face's libraries, by architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_Q_K_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_TWO_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_FOUR_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
}
_DECODER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BASE = {**_TWO_NORMS, **_ATTENTION, **_MLP}


@dataclass(frozen=True)
class Names:
    """Names of one architecture, without `.weight` and `.bias`.

    Attributes:
        outer: tensors outside of layers.
        layer: those of a layer; `{e}` stands for an expert, of which GGUF stacks all.
        prefix: of layers, `{n}` standing for the layer.
        bare: names that take no `.weight`.
        permuted: rows of q and k stand in the order of interleaved rotation.
        raised: norms were stored with 1 added.
        consumed: tensors that become part of the config.
    """

    layer: Mapping[str, str]
    outer: Mapping[str, str] = field(default_factory=lambda: _DECODER)
    prefix: str = "model.layers.{n}."
    bare: tuple[str, ...] = ()
    permuted: bool = False
    raised: bool = False
    consumed: tuple[str, ...] = ("rope_freqs", "rope_factors_long", "rope_factors_short")


_MIXTRAL = {
    **_BASE,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
}
_GPT_OSS = {
    **_ATTENTION,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    # Gate and up are put together again, see `gguf_checkpoint`.
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_MODERN_BERT = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}

NAMES: Mapping[str, Names] = {
    "llama": Names(_MIXTRAL, permuted=True),
    "qwen2": Names(_BASE),
    "qwen3": Names({**_BASE, **_Q_K_NORMS}),
    "qwen3moe": Names({**_BASE, **_Q_K_NORMS, **_EXPERTS, "ffn_gate_inp": "mlp.gate"}),
    "gemma2": Names({**_ATTENTION, **_MLP, **_FOUR_NORMS}, raised=True),
    "gemma3": Names({**_ATTENTION, **_MLP, **_FOUR_NORMS, **_Q_K_NORMS}, raised=True),
    "phi3": Names(
        {**_BASE, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "smollm3": Names(_BASE, permuted=True),
    "olmoe": Names({**_BASE, **_Q_K_NORMS, **_EXPERTS, "ffn_gate_inp": "mlp.gate"}),
    "gpt-oss": Names(_GPT_OSS, bare=("attn_sinks",)),
    "bert": Names(
        _BERT,
        {
            "token_embd": "embeddings.word_embeddings",
            "position_embd": "embeddings.position_embeddings",
            "token_types": "embeddings.token_type_embeddings",
            "token_embd_norm": "embeddings.LayerNorm",
        },
        prefix="encoder.layer.{n}.",
    ),
    "modern-bert": Names(
        _MODERN_BERT,
        {
            "token_embd": "embeddings.tok_embeddings",
            "token_embd_norm": "embeddings.norm",
            "output_norm": "final_norm",
        },
        prefix="layers.{n}.",
    ),
}
"""By `general.architecture`."""

_PARTS = re.compile(r"(?:blk\.(\d+)\.)?(\w+?)(\.weight|\.bias)?")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tensor's name in a GGUF file, taken apart: layer (None outside of layers), stem, suffix."""

    layer: int | None
    stem: str
    suffix: str


def parsed(name: str) -> Parsed | None:
    """The parts of a name; None where it has others."""
    found = _PARTS.fullmatch(name)
    if found is None or (found[1] is not None and len(found[1]) > 5):
        return None
    return Parsed(int(found[1]) if found[1] else None, found[2], found[3] or "")


def translated(names: Names, parts: Parsed) -> str | None:
    """The name in Hugging Face's libraries, `{e}` for an expert; None where there is none."""
    if parts.layer is None:
        found = names.outer.get(parts.stem)
        return None if found is None else found + parts.suffix
    found = names.layer.get(parts.stem)
    if found is None:
        return None
    suffix = "" if parts.stem in names.bare else parts.suffix
    return names.prefix.replace("{n}", str(parts.layer)) + found + suffix
