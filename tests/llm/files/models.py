"""Small models under Hugging Face's names, and as GGUF files in what conversion makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.blocks import FORMATS, BlockTensor
from treadle.llm.files.gguf_writer import planned, write_gguf

HIDDEN, HEADS, KV_HEADS, DIM, WIDTH, VOCABULARY, LAYERS, EXPERTS = 64, 4, 2, 16, 96, 50, 2, 3


@dataclass
class Model:
    """Tensors by Hugging Face's names (`wanted`) and by GGUF's (`stored`), keys of metadata."""

    architecture: str
    wanted: dict[str, np.ndarray] = field(default_factory=dict)
    stored: dict[str, np.ndarray] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def random(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def add(self, theirs: str, name: str, *shape: int, stored: Any = None) -> None:
        """A tensor, and `stored`, a function to what the file holds of it."""
        array = self.random(*shape)
        self.wanted[theirs] = array
        self.stored[name] = array if stored is None else stored(array)

    def metadata(self) -> dict[str, Any]:
        named = {f"{self.architecture}.{key}": value for key, value in self.keys.items()}
        return {"general.architecture": self.architecture, **named}

    def write(self, path: Path, form: str = "", **more: Any) -> Path:
        """A GGUF file, matrices in blocks of a format where one is named."""
        tensors = []
        for name, array in self.stored.items():
            if form and array.ndim > 1 and array.shape[-1] % 32 == 0:
                data = FORMATS[form].quantize(array)
                tensors.append(planned(name, BlockTensor(FORMATS[form], array.shape, data)))
            else:
                tensors.append(planned(name, array))
        write_gguf(path, self.metadata() | more, tensors)
        return path


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's conversion does it: row 2i of a head was i, 2i + 1 was i + d/2."""
    d = len(rows) // heads
    made = np.empty_like(rows)
    for head in range(heads):
        for i in range(d // 2):
            made[head * d + 2 * i] = rows[head * d + i]
            made[head * d + 2 * i + 1] = rows[head * d + d // 2 + i]
    return made


def _outer(m: Model, tied: bool = True) -> None:
    m.keys |= {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": WIDTH,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": DIM,
    }
    m.add("model.embed_tokens.weight", "token_embd.weight", VOCABULARY, HIDDEN)
    if not tied:
        m.add("lm_head.weight", "output.weight", VOCABULARY, HIDDEN)


def _decoder(architecture: str, **how: Any) -> Model:
    """A decoder; `norms`: names of the norms, `one`: whether 1 is added, `bias` of q, k, v, ..."""
    m = Model(architecture)
    _outer(m, how.get("tied", True))
    one = (lambda w: w + 1) if how.get("one") else None
    m.add("model.norm.weight", "output_norm.weight", HIDDEN, stored=one)
    for n in range(LAYERS):
        ours, theirs = f"blk.{n}.", f"model.layers.{n}."
        for a, b in how.get("norms", TWO_NORMS).items():
            m.add(f"{theirs}{b}.weight", f"{ours}{a}.weight", HIDDEN, stored=one)
        for short, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            turn = None
            if how.get("permuted") and short != "v":
                turn = lambda w, heads=heads: permuted(w, heads)  # noqa: E731
            names = f"{theirs}self_attn.{short}_proj", f"{ours}attn_{short}"
            if not how.get("fused"):
                shape = (heads * DIM, HIDDEN)
                m.add(f"{names[0]}.weight", f"{names[1]}.weight", *shape, stored=turn)
            if how.get("bias"):
                m.add(f"{names[0]}.bias", f"{names[1]}.bias", heads * DIM, stored=turn)
            if how.get("qk") and short != "v":
                norm = f"{theirs}self_attn.{short}_norm.weight"
                m.add(norm, f"{ours}attn_{short}_norm.weight", how["qk"], stored=one)
        m.add(f"{theirs}self_attn.o_proj.weight", f"{ours}attn_output.weight", HIDDEN, HEADS * DIM)
        how.get("mlp", _gated)(m, ours, theirs)
    return m


TWO_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
FOUR_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _gated(m: Model, ours: str, theirs: str) -> None:
    for part, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN))):
        m.add(f"{theirs}mlp.{part}_proj.weight", f"{ours}ffn_{part}.weight", *shape)
    m.add(f"{theirs}mlp.down_proj.weight", f"{ours}ffn_down.weight", HIDDEN, WIDTH)


def _fused(m: Model, ours: str, theirs: str) -> None:
    rows = (HEADS + 2 * KV_HEADS) * DIM
    m.add(f"{theirs}self_attn.qkv_proj.weight", f"{ours}attn_qkv.weight", rows, HIDDEN)
    m.add(f"{theirs}mlp.gate_up_proj.weight", f"{ours}ffn_up.weight", 2 * WIDTH, HIDDEN)
    m.add(f"{theirs}mlp.down_proj.weight", f"{ours}ffn_down.weight", HIDDEN, WIDTH)


def _experts(gate: str, names: dict[str, str]) -> Any:
    def add(m: Model, ours: str, theirs: str) -> None:
        m.keys |= {"expert_count": EXPERTS, "expert_used_count": 2}
        m.keys |= {"expert_feed_forward_length": WIDTH}
        m.add(f"{theirs}{gate}.weight", f"{ours}ffn_gate_inp.weight", EXPERTS, HIDDEN)
        for part, name in names.items():
            shape = (HIDDEN, WIDTH) if part == "down" else (WIDTH, HIDDEN)
            stack = m.random(EXPERTS, *shape)
            m.stored[f"{ours}ffn_{part}_exps.weight"] = stack
            for e in range(EXPERTS):
                m.wanted[f"{theirs}{name.format(e=e)}.weight"] = stack[e]

    return add


_SINGLE = {part: f"mlp.experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")}
_MIXTRAL = {
    part: f"block_sparse_moe.experts.{{e}}.{name}"
    for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
}


def _gpt_oss(m: Model, ours: str, theirs: str) -> None:
    m.keys |= {"expert_count": EXPERTS, "expert_used_count": 2, "attention.sliding_window": 128}
    m.keys |= {"expert_feed_forward_length": WIDTH}
    m.add(f"{theirs}self_attn.sinks", f"{ours}attn_sinks.weight", HEADS)
    m.add(f"{theirs}mlp.router.weight", f"{ours}ffn_gate_inp.weight", EXPERTS, HIDDEN)
    m.add(f"{theirs}mlp.router.bias", f"{ours}ffn_gate_inp.bias", EXPERTS)
    for suffix, rest, ending in (("weight", (HIDDEN,), "blocks"), ("bias", (), "bias")):
        both = m.random(EXPERTS, 2 * WIDTH, *rest)
        m.wanted[f"{theirs}mlp.experts.gate_up_proj_{ending}"] = both
        m.stored[f"{ours}ffn_gate_exps.{suffix}"] = both[:, ::2]
        m.stored[f"{ours}ffn_up_exps.{suffix}"] = both[:, 1::2]
    down = f"{theirs}mlp.experts.down_proj"
    m.add(f"{down}_blocks", f"{ours}ffn_down_exps.weight", EXPERTS, HIDDEN, WIDTH)
    m.add(f"{down}_bias", f"{ours}ffn_down_exps.bias", EXPERTS, HIDDEN)


def _bert() -> Model:
    m = Model("bert")
    m.keys |= {
        "block_count": LAYERS,
        "context_length": 32,
        "embedding_length": HIDDEN,
        "feed_forward_length": WIDTH,
        "attention.head_count": HEADS,
        "attention.layer_norm_epsilon": 1e-12,
        "pooling_type": 1,
    }
    for name, theirs, rows in (
        ("token_embd", "word_embeddings", VOCABULARY),
        ("position_embd", "position_embeddings", 32),
        ("token_types", "token_type_embeddings", 2),
    ):
        m.add(f"embeddings.{theirs}.weight", f"{name}.weight", rows, HIDDEN)
    parts = {
        "attn_q": ("attention.self.query", HIDDEN, HIDDEN),
        "attn_k": ("attention.self.key", HIDDEN, HIDDEN),
        "attn_v": ("attention.self.value", HIDDEN, HIDDEN),
        "attn_output": ("attention.output.dense", HIDDEN, HIDDEN),
        "attn_output_norm": ("attention.output.LayerNorm", HIDDEN),
        "ffn_up": ("intermediate.dense", WIDTH, HIDDEN),
        "ffn_down": ("output.dense", HIDDEN, WIDTH),
        "layer_output_norm": ("output.LayerNorm", HIDDEN),
    }
    for suffix in ("weight", "bias"):
        m.add(f"embeddings.LayerNorm.{suffix}", f"token_embd_norm.{suffix}", HIDDEN)
        for n in range(LAYERS):
            for name, (theirs, *shape) in parts.items():
                given = shape if suffix == "weight" else shape[:1]
                m.add(f"encoder.layer.{n}.{theirs}.{suffix}", f"blk.{n}.{name}.{suffix}", *given)
    return m


def _modern_bert() -> Model:
    m = Model("modern-bert")
    _outer(m)
    m.wanted["embeddings.tok_embeddings.weight"] = m.wanted.pop("model.embed_tokens.weight")
    m.keys |= {"attention.sliding_window": 128, "attention.layer_norm_epsilon": 1e-5}
    m.add("embeddings.norm.weight", "token_embd_norm.weight", HIDDEN)
    m.add("final_norm.weight", "output_norm.weight", HIDDEN)
    parts = {
        "attn_qkv": ("attn.Wqkv", 3 * HIDDEN, HIDDEN),
        "attn_output": ("attn.Wo", HIDDEN, HIDDEN),
        "ffn_norm": ("mlp_norm", HIDDEN),
        "ffn_up": ("mlp.Wi", 2 * WIDTH, HIDDEN),
        "ffn_down": ("mlp.Wo", HIDDEN, WIDTH),
    }
    for n in range(LAYERS):
        for name, (theirs, *shape) in parts.items():
            m.add(f"layers.{n}.{theirs}.weight", f"blk.{n}.{name}.weight", *shape)
    m.add("layers.1.attn_norm.weight", "blk.1.attn_norm.weight", HIDDEN)
    return m


def _with(model: Model, **keys: Any) -> Model:
    model.keys |= {key.replace("__", "."): value for key, value in keys.items()}
    return model


MODELS = {
    "llama": lambda: _decoder("llama", permuted=True, tied=False),
    "llama with biases": lambda: _decoder("llama", permuted=True, bias=True),
    "mixtral": lambda: _decoder(
        "llama", permuted=True, mlp=_experts("block_sparse_moe.gate", _MIXTRAL)
    ),
    "qwen2": lambda: _decoder("qwen2", bias=True),
    "qwen3": lambda: _decoder("qwen3", qk=DIM),
    "qwen3moe": lambda: _decoder("qwen3moe", qk=DIM, mlp=_experts("mlp.gate", _SINGLE)),
    "gemma2": lambda: _decoder("gemma2", norms=FOUR_NORMS, one=True),
    "gemma3": lambda: _with(
        _decoder("gemma3", norms=FOUR_NORMS, one=True, qk=DIM), attention__sliding_window=512
    ),
    "phi3": lambda: _decoder("phi3", fused=True, mlp=_fused, tied=False),
    "smollm3": lambda: _decoder("smollm3", permuted=True),
    "olmoe": lambda: _decoder("olmoe", qk=HEADS * DIM, mlp=_experts("mlp.gate", _SINGLE)),
    "gpt-oss": lambda: _decoder(
        "gpt-oss",
        bias=True,
        mlp=_gpt_oss,
        norms={"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"},
    ),
    "bert": _bert,
    "modern-bert": _modern_bert,
}
"""What makes a model of each kind, by name."""
