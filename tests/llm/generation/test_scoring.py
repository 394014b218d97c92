"""How likely texts are: by definition, in pieces, with adapters, beside answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.llm.models.small import llama, plain_llama
from tests.llm.saved import saved
from tests.llm.tuning.test_tuner import random_adapter

import treadle.llm as llm
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.llm.tuning import Lora, write_adapter

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 256, 300).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def model(folder: Path) -> llm.LanguageModel:
    products = llm.load(folder, context=16).model.stack.products()
    write_adapter(folder.parent / "tuned", random_adapter(products, Lora(4, 64.0)))
    adapters = {"tuned": folder.parent / "tuned"}
    return llm.load(folder, sequences=2, context=400, adapters=adapters)


@pytest.mark.parametrize("count", [2, 9, 128, 129, 130, 300])
def test_by_definition(model: llm.LanguageModel, count: int) -> None:
    """Pieces of 128 tokens, and what is left behind them."""
    given = llama(vocab_size=264, max_position_embeddings=512)
    # Rows behind the last token of the tokenizer cannot be chosen.
    logits = plain_llama(given, TOKENS[:count])[:, :258].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    first, *found = model.score(TOKENS[:count], top=2)
    assert (first.token, first.logprob, first.top) == (TOKENS[0], None, ())
    assert [choice.token for choice in found] == TOKENS[1:count]
    for i, choice in enumerate(found):
        assert choice.logprob == pytest.approx(logs[i, TOKENS[i + 1]], abs=2e-4)
        assert [n for n, _ in choice.top] == np.argsort(-logs[i])[:2].tolist()


def test_adapters_are_read_with(model: llm.LanguageModel) -> None:
    plain, tuned = (
        [c.logprob for c in model.score("Who?", adapter=name)][1:] for name in (None, "tuned")
    )
    assert np.abs(np.subtract(plain, tuned)).max() > 0.1
    assert [c.logprob for c in model.adapted("tuned").score("Who?")][1:] == tuned


def test_answers_beside_it_stay_what_they_are(model: llm.LanguageModel) -> None:
    alone, scores = model.generate("Hi", max_tokens=40), list(model.score(TOKENS))
    stream, pieces, found = model.stream("Hi", max_tokens=40), [], []
    scored = model.score(TOKENS)
    for _ in range(40):
        pieces.append(next(stream, ""))
        found += [choice for _, choice in zip(range(8), scored, strict=False)]
    assert "".join([*pieces, *stream]) == alone and found == scores


def test_what_cannot_be_read(model: llm.LanguageModel) -> None:
    with pytest.raises(ShapeError, match="longer than"):
        list(model.score(TOKENS * 2))
    with pytest.raises(ShapeError, match="no tokens"):
        list(model.score(""))
    with pytest.raises(IndexRangeError):
        list(model.score([1, 999]))
