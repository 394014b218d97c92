"""Small random models: what a checkpoint looks like to `build`, and how models are asked."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.llm.models import DecoderModel

FAMILIES = Path(__file__).with_name("families.json")
"""Configs, shapes and logits of small models of every family, by transformers."""


class Given:
    """A checkpoint in memory."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.config = config
        self.tensors = tensors

    pooling: Mapping[str, Any] = {}

    def names(self) -> list[str]:
        return list(self.tensors)

    def tensor(self, name: str) -> Any:
        return self.tensors[name]

    def release(self, name: str, rows: slice | None = None) -> None:
        """Nothing is mapped."""


def random_weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Weights that follow from their names; those of norms are about 1."""
    made = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        about = 1.0 if len(shape) == 1 and "norm" in name else 0.0
        made[name] = (rng.standard_normal(shape) * 0.2 + about).astype(np.float32)
    return made


def directory(path: Path) -> Given:
    """What transformers saved."""
    from safetensors.numpy import load_file

    tensors: dict[str, Any] = {}
    for file in path.glob("*.safetensors"):
        tensors |= load_file(file)
    return Given(json.loads((path / "config.json").read_text()), tensors)


def read(model: DecoderModel, prompts: Sequence[Sequence[int]], chunk: int, more: int) -> Any:
    """Logits of every token of some prompts and of `more` greedy ones behind, and all tokens.

    Prompts lie in one batch; each is read in chunks of `chunk`, shorter ones idle at the end.
    """
    batch = len(prompts)
    texts = [list(p) for p in prompts]
    cache = model.cache(batch, max(map(len, prompts)) + more)
    held = np.zeros(batch, np.int32)
    seen: list[list[np.ndarray]] = [[] for _ in prompts]
    while any(h < len(p) for h, p in zip(held, prompts, strict=True)):
        tokens, counts = np.zeros((batch, chunk), np.int32), np.zeros(batch, np.int32)
        for i, prompt in enumerate(prompts):
            part = prompt[held[i] : held[i] + chunk]
            tokens[i, : len(part)], counts[i] = part, len(part)
        got = model.step(tokens, cache, held, counts, all=True).numpy()
        for i in range(batch):
            seen[i] += list(got[i, : counts[i]])
        held = held + counts
    for _ in range(more):
        for text, logits in zip(texts, seen, strict=True):
            text.append(int(np.argmax(logits[-1])))
        last = np.array([[text[-1]] for text in texts], np.int32)
        got = model.step(last, cache, held, np.ones(batch, np.int32)).numpy()
        for i in range(batch):
            seen[i].append(got[i])
        held = held + 1
    return [np.stack(s) for s in seen], texts


def llama(**changes: Any) -> Given:
    """A Llama of two layers with random weights; changes go to its config."""
    config: dict[str, Any] = {
        **{"model_type": "llama", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, **changes},
    }
    hidden, width = config["hidden_size"], config["intermediate_size"]
    kv = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
            "mlp.down_proj": (hidden, width),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    rng = np.random.default_rng(11)
    tensors = {
        name: (rng.standard_normal(shape) * 0.2 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }
    return Given(config, tensors)


def plain_llama(given: Given, tokens: Sequence[int]) -> np.ndarray:
    """Logits of a Llama by NumPy in float64, all positions at once, one head after the other."""
    c, t = given.config, {k: v.astype(np.float64) for k, v in given.tensors.items()}
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    d, n = c["hidden_size"] // heads, len(tokens)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c["rms_norm_eps"]) * t[f"{name}.weight"]

    def turned(x: np.ndarray) -> np.ndarray:
        angle = np.arange(n)[:, None] * c["rope_theta"] ** (-np.arange(0, d, 2) / d)
        z = (x[:, : d // 2] + 1j * x[:, d // 2 :]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], -1)

    x = t["model.embed_tokens.weight"][list(tokens)]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        h = norm(x, f"{at}.input_layernorm")
        q, k, v = (h @ t[f"{at}.self_attn.{w}_proj.weight"].T for w in "qkv")
        read = []
        for head in range(heads):
            mine, shared = (slice(j * d, j * d + d) for j in (head, head * kv_heads // heads))
            scores = turned(q[:, mine]) @ turned(k[:, shared]).T / np.sqrt(d)
            scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            read.append(weights / weights.sum(-1, keepdims=True) @ v[:, shared])
        x = x + np.concatenate(read, -1) @ t[f"{at}.self_attn.o_proj.weight"].T
        h = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (h @ t[f"{at}.mlp.{w}_proj.weight"].T for w in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ t[f"{at}.mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ t["lm_head.weight"].T
