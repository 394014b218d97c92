"""Texts with different adapters are continued together, each as if its adapter were merged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import llama
from tests.llm.models.test_stored import checkpoint, experts_in_blocks
from tests.llm.tuning.test_tuner import opened, random_adapter

from treadle.base.errors import CheckpointError, IndexRangeError, LoadError
from treadle.llm.files.checkpoint import TokenizerTables
from treadle.llm.generation import LanguageModel
from treadle.llm.generation.engine import Engine
from treadle.llm.generation.options import Options
from treadle.llm.models import DecoderModel, build
from treadle.llm.models.stacked import Stacked
from treadle.llm.tuning import Adapter, Lora, merged, write_adapter

PROMPTS = [[3, 9, 27, 4, 11], [3, 9, 27, 4, 12], [3, 9, 27, 4, 11], [5, 6]]
WHICH = [0, 1, 2, 1]


def adapters(model: DecoderModel) -> list[Adapter]:
    products = model.stack.products()
    return [
        random_adapter(products, Lora(2, 6.0, targets=("q_proj", "up_proj"))),
        random_adapter(products, Lora(4, 4.0)),
    ]


PARTS = ("q_proj", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("case", "formats"),
    [("mixtral", {}), ("olmoe, many experts", {}), ("olmoe, many experts", {".experts.": "Q8_0"})],
)
def test_experts_with_adapters(case: str, formats: dict[str, str]) -> None:
    """Whether all experts compute all tokens or each token those that it chose."""
    given = opened(experts_in_blocks(case, formats)[0])
    model = build(given, "stored")
    products = model.stack.products()
    some = Lora(3, 2.0, targets=("q_proj", "w1", "gate_proj"))
    made = [random_adapter(products, Lora(2, 6.0, targets=PARTS)), random_adapter(products, some)]
    few = {n: p for n, p in made[1].pairs.items() if ".experts.1." not in n}
    made[1] = replace(made[1], pairs=few)  # An expert may have none.
    model.adapters = Stacked([a.scaled() for a in made])
    alone = [build(given, "stored"), *(build(merged(given, a), "stored") for a in made)]
    prompts = [[3, 9, 27, 4, 11], [3, 9, 27], [3, 9, 27, 4, 11]]
    for cut in (5, 1):
        texts = [p[:cut] for p in prompts]
        found = logits(model, texts, adapters=[1, 2, 0])
        for row, text, which in zip(found, texts, (1, 2, 0), strict=True):
            wanted = logits(alone[which], [text])[0]
            near = 2e-4 if not formats else 2e-3  # Merged weights are no blocks any more.
            np.testing.assert_allclose(row, wanted, atol=near * np.abs(wanted).max(), rtol=0)
        assert np.abs(found[0] - found[2]).max() > 0.05


@pytest.fixture(scope="module")
def models() -> tuple[DecoderModel, list[DecoderModel]]:
    """One with two adapters, and one for each choice with its adapter merged."""
    given = opened(llama())
    model = build(given)
    made = adapters(model)
    model.adapters = Stacked([a.scaled() for a in made])
    return model, [build(given), *(build(merged(given, a)) for a in made)]


def logits(model: DecoderModel, prompts: list[list[int]], **more: Any) -> Any:
    tokens = np.zeros((len(prompts), 8), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    counts = [len(p) for p in prompts]
    cache = model.cache(len(prompts), 16)
    return model.step(tokens, cache, [0] * len(prompts), counts, **more).numpy()


def test_rows_with_adapters_of_their_own(models: tuple[DecoderModel, list[DecoderModel]]) -> None:
    model, alone = models
    found = logits(model, PROMPTS, adapters=WHICH)
    for row, prompt, which in zip(found, PROMPTS, WHICH, strict=True):
        np.testing.assert_allclose(row, logits(alone[which], [prompt])[0], atol=2e-4, rtol=1e-4)
    np.testing.assert_array_equal(found[0], logits(model, PROMPTS)[0])
    assert np.abs(found[0] - found[2]).max() > 0.1


def test_texts_are_those_of_merged_models(models: tuple[DecoderModel, list[DecoderModel]]) -> None:
    model, alone = models
    wanted = [
        [t.id for t in Engine(alone[which], 1, 32).submit(prompt, Options(max_tokens=8))]
        for prompt, which in zip(PROMPTS, WHICH, strict=True)
    ]
    for places in (1, 3):
        engine = Engine(model, places, 32, adapters=2)
        # Twice: what a place holds of another adapter's text must not be reused.
        for _ in range(2):
            texts = [
                engine.submit(prompt, Options(max_tokens=8, adapter=which))
                for prompt, which in zip(PROMPTS, WHICH, strict=True)
            ]
            assert [[t.id for t in text] for text in texts] == wanted


def test_quantized_models_take_adapters() -> None:
    given = checkpoint("Q8_0")
    model = build(given, "stored", "int16")
    made = adapters(model)
    model.adapters = Stacked([a.scaled() for a in made])
    found = logits(model, PROMPTS, adapters=WHICH)
    alone = [build(opened(given)), *(build(merged(opened(given), a)) for a in made)]
    for row, prompt, which in zip(found, PROMPTS, WHICH, strict=True):
        wanted = logits(alone[which], [prompt])[0]
        np.testing.assert_allclose(row, wanted, atol=0.02 * np.abs(wanted).max())


def test_adapters_that_are_not_there(models: tuple[DecoderModel, list[DecoderModel]]) -> None:
    model, alone = models
    with pytest.raises(IndexRangeError, match="no such adapter"):
        Engine(model, adapters=2).submit([1], Options(adapter=3))
    with pytest.raises(IndexRangeError, match="one number for each row"):
        logits(model, PROMPTS, adapters=[0, 1, 2, 3])
    with pytest.raises(IndexRangeError, match="one number for each row"):
        logits(alone[0], PROMPTS, adapters=WHICH)


def test_names(tmp_path: Any) -> None:
    letters = [chr(97 + i) for i in range(26)] + [f"<{i}>" for i in range(35)]
    tables = TokenizerTables("gpt2", "gpt-2", letters, None, None, [], {}, {})
    given = replace(opened(llama()), tokenizer=tables)
    made = adapters(build(given))
    for name, adapter in zip(("one", "two"), made, strict=True):
        write_adapter(tmp_path / name, adapter)
    paths = {name: tmp_path / name for name in ("one", "two")}
    model = LanguageModel.of(given, "float32", context=32, adapters=paths)
    texts = {
        name: model.generate(PROMPTS[0], max_tokens=8, adapter=name) for name in (None, *paths)
    }
    assert len(set(texts.values())) == 3
    assert texts["two"] == model.adapted("two").generate(PROMPTS[0], max_tokens=8)
    assert texts[None] == model.generate(PROMPTS[0], max_tokens=8)
    whole = LanguageModel.of(merged(given, made[0]), "float32", context=32)
    assert whole.generate(PROMPTS[0], max_tokens=8) == texts["one"]
    with pytest.raises(LoadError, match="no such adapter"):
        model.generate(PROMPTS[0], adapter="three")
    with pytest.raises(LoadError, match="no such adapter"):
        model.adapted("three")
    with pytest.raises(CheckpointError, match="no place for"):
        other = replace(given, config=given.config | {"num_hidden_layers": 1})
        tensors = {n: t for n, t in given.tensors.items() if ".layers.1." not in n}
        LanguageModel.of(replace(other, tensors=tensors), "float32", adapters=paths)
