"""Every family, with random weights, equals transformers: logits and greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import FAMILIES, directory, random_weights, read

from treadle.llm.models import DecoderModel, build

pytestmark = pytest.mark.llm

SIZES = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **more}}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases, wide heads": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 12},
    ),
    "llama, one head for all": ("Llama", {"num_key_value_heads": 1}),
    "llama, linear": ("Llama", rope("linear", factor=4.0)),
    "llama, dynamic": ("Llama", {**rope("dynamic", factor=2.0), "max_position_embeddings": 64}),
    "llama, llama3": (
        "Llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama, yarn": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "qwen2": ("Qwen2", {}),
    "qwen2, window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
}


HALF = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, **HALF}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
NESTED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CASES |= {
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral, window": ("Mistral", {"sliding_window": 6}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, window": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}),
    "gemma2, no caps": (
        "Gemma2",
        {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 6, "num_hidden_layers": 7, "rope_parameters": NESTED},
    ),
    "phi3": ("Phi3", {"num_key_value_heads": 2}),
    "phi3, longrope, short": (
        "Phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 48},
    ),
    "phi3, part of a head": (
        "Phi3",
        {"partial_rotary_factor": 0.5, "sliding_window": 7},
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": False}),
    "smollm3, told layers, window": (
        "SmolLM3",
        {"no_rope_layers": [0, 1, 1], "use_sliding_window": True, "sliding_window": 6},
    ),
    "olmoe": ("Olmoe", EXPERTS),
    "olmoe, clipped, renormalized": (
        "Olmoe",
        {**EXPERTS, "clip_qkv": 0.5, "norm_topk_prob": True},
    ),
    "olmoe, many experts": ("Olmoe", {"num_experts": 24, "num_experts_per_tok": 2}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral, window": ("Mixtral", {"num_local_experts": 4, "sliding_window": 6}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**EXPERTS, "moe_intermediate_size": 20, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "qwen3_moe, every second": (
        "Qwen3Moe",
        {**EXPERTS, "moe_intermediate_size": 20, "decoder_sparse_step": 2, "head_dim": 16},
    ),
    "gpt_oss": (
        "GptOss",
        {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
}


def random_models(case: str, path: Path) -> tuple[Any, DecoderModel]:
    """A model with weights that follow from their names: transformers' and ours."""
    transformers = pytest.importorskip("transformers")
    from safetensors.numpy import save_file

    name, config = {**CASES, **BEYOND}[case]
    told = "Gemma3Text" if name == "Gemma3" else name
    kind = getattr(transformers, f"{told}Config")(**{**SIZES, **config})
    architecture = getattr(transformers, f"{name}ForCausalLM")
    architecture(kind).save_pretrained(path)
    shapes = {n: directory(path).tensor(n).shape for n in directory(path).names()}
    save_file(random_weights(shapes), path / "model.safetensors", {"format": "pt"})
    model = architecture.from_pretrained(path, dtype="float32", attn_implementation="eager")
    return model.eval(), build(directory(path))


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 97, n).tolist() for n in lengths]


def whole(model: Any, text: Sequence[int]) -> np.ndarray:
    import torch

    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([text]), use_cache=False).logits[0].numpy()
    return logits


@pytest.mark.parametrize("case", CASES)
def test_as_transformers(case: str, tmp_path: Path) -> None:
    theirs, ours = random_models(case, tmp_path)
    import torch

    asked = prompts((5, 19, 1, 12))
    logits, texts = read(ours, asked, 8, 12)
    for prompt, text, got in zip(asked, texts, logits, strict=True):
        expected = whole(theirs, text)
        greedy = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)
        assert text == greedy[0].tolist()
        assert np.ptp(expected) > 1  # not all the same


BEYOND = {
    "dynamic": ("Llama", {**rope("dynamic", factor=4.0), "max_position_embeddings": 16}),
    "longrope": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16}),
}
"""Rotation that depends on the length, with texts beyond the one at which it changes."""


@pytest.mark.parametrize("length", [7, 14, 21])
@pytest.mark.parametrize("case", BEYOND)
def test_beyond_the_trained_length(case: str, length: int, tmp_path: Path) -> None:
    theirs, ours = random_models(case, tmp_path)
    import torch

    (prompt,) = prompts([length])
    # Short texts stay short: transformers reads a text anew where longrope changes.
    more = 12 if length > 16 or case == "dynamic" else 16 - length
    (logits,), (text,) = read(ours, [prompt], 32, more)
    made = theirs.generate(
        torch.tensor([prompt]),
        **{"max_new_tokens": more, "do_sample": False, "return_dict_in_generate": True},
        output_logits=True,
    )
    assert text == made.sequences[0].tolist()
    expected = torch.stack(made.logits)[:, 0].numpy()
    np.testing.assert_allclose(logits[length - 1 : -1], expected, atol=1e-4, rtol=0)


GOLDEN = [case for case in CASES if not case.startswith("llama, ")]


def test_what_the_default_suite_compares_with(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`families.json`, for those who have no transformers; --update-golden writes it."""
    found = {}
    (text,) = prompts([14])
    for i, case in enumerate(GOLDEN):
        theirs, _ = random_models(case, tmp_path / str(i))
        given = directory(tmp_path / str(i))
        found[case] = {
            "config": given.config,
            "shapes": {name: list(given.tensor(name).shape) for name in sorted(given.names())},
            "text": text,
            "logits": np.round(whole(theirs, text)[-1].astype(float), 5).tolist(),
        }
    if request.config.getoption("--update-golden"):
        lines = [f"{json.dumps(case)}: {json.dumps(each)}" for case, each in found.items()]
        FAMILIES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    kept = json.loads(FAMILIES.read_text(encoding="utf-8"))
    assert kept.keys() == found.keys()
    for case, each in found.items():
        np.testing.assert_allclose(kept[case]["logits"], each["logits"], atol=1e-4)
