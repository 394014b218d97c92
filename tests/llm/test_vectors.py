"""Texts to vectors and ranks: batches, what is refused, and published weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.llm.models.test_encoders import given
from tests.llm.models.test_published import published

import treadle.llm as llm
from treadle.base.errors import CheckpointError, EngineError, IndexRangeError, ShapeError
from treadle.llm.files import open_checkpoint

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{i}" for i in range(67))]


def saved(folder: Path, case: str, **changes: Any) -> Path:
    """A small encoder in a directory, with a tokenizer of its own words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    checkpoint = given(case, **changes)
    (folder / "config.json").write_text(json.dumps(checkpoint.config))
    save_file(dict(checkpoint.tensors), folder / "model.safetensors")
    numbers = {word: i for i, word in enumerate(WORDS)}
    library = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    library.save(str(folder / "tokenizer.json"))
    return folder


def text_of(count: int, seed: int) -> str:
    chosen = np.random.default_rng(seed).integers(0, 67, count)
    return " ".join(f"w{i}" for i in chosen)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.TextEmbedder:
    return llm.load_embedder(saved(tmp_path_factory.mktemp("bert"), "bert"))


def test_company_changes_no_vector(model: llm.TextEmbedder) -> None:
    texts = [text_of(count, count) for count in [3, 20, 1, 38, 7, 7, 30, *range(1, 30)]]
    together = model.embed(texts)
    assert together.shape == (len(texts), model.hidden) and together.dtype == np.float32
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(model.embed(text), vector, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert model.embed([]).shape == (0, model.hidden)


@pytest.mark.parametrize("case", ["bert", "modernbert"])
def test_ranks_are_scores_of_pairs(case: str, tmp_path: Path) -> None:
    made = llm.load_embedder(saved(tmp_path, case))
    query, texts = text_of(4, 1), [text_of(n, n) for n in (2, 9, 30)]
    found = made.rank(query, texts)
    for text, score in zip(texts, found, strict=True):
        tokens, kinds = made.tokenizer.encode_pair(query, text)
        assert kinds == [0] * 6 + [1] * (len(tokens) - 6)
        types = [kinds] if case == "bert" else None
        plain = made.model.rank([tokens], [len(tokens)], types).numpy()[0, 0]
        assert score == pytest.approx(1 / (1 + np.exp(-plain)), abs=1e-5)


def test_what_is_refused(model: llm.TextEmbedder, tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="41 tokens in text 1, the model reads 40"):
        model.embed(["w1", text_of(39, 0)])
    with pytest.raises(IndexRangeError, match="71 to 71 of 71 in text 0"):
        model.vectors([([71], [0])])
    folder = saved(tmp_path, "modernbert, biases, mean")
    with pytest.raises(EngineError, match="one label"):
        llm.load_embedder(folder).rank("w1", ["w2"])
    with pytest.raises(CheckpointError, match=r"use llm\.load_embedder"):
        llm.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"put tokenizer\.json beside"):
        llm.load_embedder(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(CheckpointError, match=r"use llm\.load$|use llm\.load\n"):
        llm.load_embedder(folder)
    assert open_checkpoint(folder).tokenizer is None


@pytest.mark.llm
def test_published_vectors_tell_what_texts_are_about() -> None:
    made = llm.load_embedder(published("**/modules.json").parent)
    texts = ["A kitten sleeps on the sofa.", "Shares fell for a third day.", "Le chat dort."]
    near = made.embed(texts) @ made.embed("The cat is asleep.")
    assert near.argmax() == 0 and near[0] > 0.5 > 0.3 > near[1]
    # As the model's card has it for sentence-transformers, to four places.
    assert made.hidden == 384 and made.context == 512
