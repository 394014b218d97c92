"""Every family, with random weights, equals transformers: logits and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import directory, read

from treadle.llm.models import build

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


def random_model(name: str, config: dict[str, Any]) -> Any:
    import torch
    import transformers

    kind = getattr(transformers, f"{name}Config")(**{**SIZES, **config})
    kind._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, f"{name}ForCausalLM")(kind).float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            norm = "norm" in key and weight.ndim == 1
            weight.normal_(1.0 if norm else 0.0, 0.2)
    return model


@pytest.mark.parametrize("case", CASES)
def test_as_transformers(case: str, tmp_path: Path) -> None:
    import torch

    model = random_model(*CASES[case])
    model.save_pretrained(tmp_path)
    ours = build(directory(tmp_path))
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 97, n).tolist() for n in (5, 19, 1, 12)]
    logits, texts = read(ours, prompts, 8, 12)
    for prompt, text, got in zip(prompts, texts, logits, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([text]), use_cache=False).logits[0].numpy()
            greedy = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)
        assert text == greedy[0].tolist()
        assert np.ptp(expected) > 1  # not all the same
