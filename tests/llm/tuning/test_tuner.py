"""Adapters in training: losses, packing, accumulation, quantized weights, files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.llm.cases import some
from tests.llm.models.small import FAMILIES, Given, llama, plain_llama, random_weights
from tests.llm.models.test_stored import checkpoint, experts_in_blocks

from treadle.base.errors import CheckpointError, NumericError
from treadle.llm.files.checkpoint import ModelCheckpoint, Stored
from treadle.llm.models import build
from treadle.llm.tuning import (
    Adapter,
    Lora,
    Rows,
    Schedule,
    Tuner,
    fresh,
    merged,
    read_adapter,
    write_adapter,
)
from treadle.tensor import Tensor

RNG = np.random.default_rng(3)
TEXTS = [RNG.integers(0, 61, n).tolist() for n in (12, 7, 9)]


def rows(texts: list[list[int]], width: int) -> Rows:
    """Texts beside each other in one row; every token but the first is learned."""
    made = {n: np.zeros((1, width), np.int32) for n in ("tokens", "segments", "positions")}
    targets, weights = np.zeros((1, width), np.int32), np.zeros((1, width), np.float32)
    at = 0
    for number, text in enumerate(texts):
        end = at + len(text)
        made["tokens"][0, at:end], made["segments"][0, at:end] = text, number + 1
        made["positions"][0, at:end] = np.arange(len(text))
        targets[0, at : end - 1], weights[0, at : end - 1] = text[1:], 1
        at = end
    return Rows(made["tokens"], made["segments"], made["positions"], targets, weights)


def opened(given: Given) -> ModelCheckpoint:
    """A checkpoint in memory as one of files."""
    tensors = {n: Stored(t.shape, lambda t=t: t) for n, t in given.tensors.items()}
    return ModelCheckpoint("memory", dict(given.config), {}, None, None, {}, tensors)


def random_adapter(products: Any, lora: Lora) -> Adapter:
    """An adapter that changes something."""
    rng = np.random.default_rng(5)
    made = fresh(lora, products)
    pairs = {
        n: (a, (0.2 * rng.standard_normal(b.shape)).astype(np.float32))
        for n, (a, b) in made.pairs.items()
    }
    return Adapter(lora, pairs)


def test_loss_of_packed_texts() -> None:
    model = build(llama())
    tuner = Tuner(model, fresh(Lora(), model.stack.products()))
    wanted, count = 0.0, 0
    for text in TEXTS:
        logits = plain_llama(llama(), text)
        chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        wanted -= chances[np.arange(len(text) - 1), text[1:]].sum()
        count += len(text) - 1
    assert tuner.evaluate([rows(TEXTS, 32)]) == pytest.approx(wanted / count, rel=1e-5)


def test_what_is_packed_or_summed_learns_the_same() -> None:
    found = []
    for batches in ([rows(TEXTS, 32)], [rows([t], 16) for t in TEXTS]):
        model = build(llama())
        adapter = fresh(Lora(4, rslora=True), model.stack.products())
        tuner = Tuner(model, adapter, Schedule(1e-2, updates=5), weight_decay=0.1)
        losses = [tuner.step(batches) for _ in range(4)]
        assert losses[-1] < losses[0]
        found.append((losses, tuner.adapter()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    for module, pair in found[0][1].pairs.items():
        for one, other in zip(pair, found[1][1].pairs[module], strict=True):
            np.testing.assert_allclose(one, other, atol=2e-3)


def test_merged_is_adapted() -> None:
    given = opened(llama())
    model = build(given)
    adapter = random_adapter(model.stack.products(), Lora(3, 5.0, targets=("q_proj", "down_proj")))
    adapted = Tuner(model, adapter).evaluate([rows(TEXTS, 32)])
    whole = build(merged(given, adapter))
    plain = Tuner(whole, fresh(Lora(), whole.stack.products())).evaluate([rows(TEXTS, 32)])
    assert adapted == pytest.approx(plain, rel=1e-5)
    assert (
        abs(
            adapted
            - Tuner(model, fresh(Lora(), model.stack.products())).evaluate([rows(TEXTS, 32)])
        )
        > 1e-3
    )


def test_layers_are_computed_again_where_memory_is_dear() -> None:
    """The same losses; without a word, long rows are and short ones are not."""
    model = build(opened(llama()))
    adapter = random_adapter(model.stack.products(), Lora(4))

    def tuned(again: bool | None) -> Tuner:
        return Tuner(model, adapter, Schedule(1e-2, updates=9), recompute=again)

    def nodes(again: bool | None, width: int) -> int:
        tuner = tuned(again)
        program: Any = tuner._whole
        return len(program.graph(tuner._given(rows(TEXTS, width)), Tensor(1.0)).nodes)

    kept, again = (
        [tuner.step([rows(TEXTS, 40)]) for _ in range(3)] for tuner in (tuned(False), tuned(True))
    )
    np.testing.assert_allclose(kept, again, rtol=1e-5)
    assert nodes(False, 40) < nodes(True, 40)
    assert nodes(None, 1600) == nodes(True, 1600) != nodes(False, 1600)
    model.stack.nbytes = 1 << 30
    assert nodes(None, 1600) == nodes(False, 1600)


def test_mixes_of_gates_are_made_again_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last product of a unit multiplies is wide, and cheap to have again."""
    model = build(opened(llama(intermediate_size=512)))
    adapter = random_adapter(model.stack.products(), Lora(4))
    given = rows(TEXTS, 256)

    def trained() -> tuple[list[float], int]:
        tuner = Tuner(model, adapter, Schedule(1e-2, updates=9), recompute=False)
        losses = [tuner.step([given]) for _ in range(2)]
        program: Any = tuner._whole
        return losses, program.compile(tuner._given(given), Tensor(1.0)).planned().memory.peak

    again = trained()
    monkeypatch.setattr("treadle.llm.models.decoder.recompute", lambda function: function)
    kept = trained()
    np.testing.assert_allclose(again[0], kept[0], rtol=1e-6)
    layers = len(model.stack.layers)
    assert again[1] < kept[1] - 0.9 * layers * 256 * 512 * 4


@pytest.mark.parametrize("pieces", ["int16", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("format", some(["Q8_0", "Q4_0"], ["Q8_0"]))
def test_quantized_weights_stay_and_adapters_learn(format: str, pieces: str) -> None:
    given = checkpoint(format)
    found = []
    for dtype in ("stored", "float32"):
        model = build(given, dtype, pieces)
        tuner = Tuner(model, fresh(Lora(4), model.stack.products()), Schedule(1e-2, updates=9))
        found.append([tuner.step([rows(TEXTS, 32)]) for _ in range(6)])
    assert found[0][-1] < found[0][0] - 0.2
    np.testing.assert_allclose(found[0], found[1], rtol=2e-2)


@pytest.mark.parametrize("case", some(["mixtral", "olmoe, many experts"], ["mixtral"]))
@pytest.mark.long
def test_experts_in_blocks_stay_and_adapters_learn(case: str) -> None:
    given, _ = experts_in_blocks(case, {".experts.": "Q8_0"})
    found = []
    for dtype in ("stored", "float32"):
        model = build(given, dtype)
        tuner = Tuner(model, fresh(Lora(4), model.stack.products()), Schedule(1e-2, updates=9))
        texts = [[t % model.vocabulary for t in text] for text in TEXTS]
        found.append([tuner.step([rows(texts, 32)]) for _ in range(5)])
    assert found[0][-1] < found[0][0]
    # A token whose experts are liked alike may go to another one.
    np.testing.assert_allclose(found[0], found[1], rtol=2e-2)


@pytest.mark.parametrize(
    "name", some(["gemma2", "gpt_oss", "phi3", "qwen3_moe", "smollm3"], ["qwen3_moe"])
)
def test_families(name: str) -> None:
    known = json.loads(FAMILIES.read_text())
    case = known[name]
    model = build(Given(case["config"], random_weights(case["shapes"])))
    tuner = Tuner(model, fresh(Lora(4), model.stack.products()), Schedule(1e-2, updates=9))
    texts = [[t % model.vocabulary for t in text] for text in TEXTS]
    losses = [tuner.step([rows(texts, 32)]) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_dropout_is_for_training() -> None:
    model = build(llama())
    adapter = random_adapter(model.stack.products(), Lora(4, dropout=0.5))
    tuner = Tuner(model, adapter, Schedule(0.0, kind="constant"))
    batch = [rows(TEXTS, 32)]
    quiet = [tuner.evaluate(batch) for _ in range(2)]
    noisy = [tuner.step(batch) for _ in range(3)]
    assert quiet[0] == quiet[1]
    assert len({*noisy}) == 3


def test_nothing_to_learn() -> None:
    model = build(llama())
    tuner = Tuner(model, fresh(Lora(), model.stack.products()))
    with pytest.raises(NumericError, match="no token"):
        tuner.step([rows([[1]], 8)])


def test_rates() -> None:
    rates = [Schedule(1.0, 2, 6, "linear").at(i) for i in range(7)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
    assert Schedule(1.0, 0, 4).at(2) == pytest.approx(0.5)
    with pytest.raises(NumericError, match="unknown"):
        Schedule(kind="step")


# -- files -----------------------------------------------------------------------------------------


def test_files_return_what_was_written(tmp_path: Any) -> None:
    products = build(llama()).stack.products()
    lora = Lora(4, 9.0, 0.1, ("k_proj", "o_proj"), True, {"k_proj": 2}, {"o_proj": 3.0})
    adapter = random_adapter(products, lora)
    write_adapter(tmp_path, adapter)
    again = read_adapter(tmp_path, products)
    assert again.lora == lora
    assert again.pairs.keys() == adapter.pairs.keys()
    for module, pair in adapter.pairs.items():
        assert again.lora.scale_of(module) == lora.scale_of(module)
        for one, other in zip(pair, again.pairs[module], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"use_dora": True}, "use_dora is not supported"),
        ({"bias": "all"}, "bias is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"r": 5}, "other extents"),
        ({"r": 0}, "r is not a rank"),
        ({"r": "8"}, "not a usable number"),
        ({"lora_alpha": 1e300}, "not a usable number"),
        ({"rank_pattern": {"(a+)+$": 3}}, "rank_pattern has"),
        ({"rank_pattern": [1]}, "not an object"),
        ({"target_modules": [1]}, "not names"),
        ({"peft_type": "IA3"}, "peft_type"),
    ],
)
def test_configs_that_ask_for_more(tmp_path: Any, changes: dict[str, Any], told: str) -> None:
    products = build(llama()).stack.products()
    write_adapter(tmp_path, fresh(Lora(), products))
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=told):
        read_adapter(tmp_path, products)


def test_adapters_of_other_models(tmp_path: Any) -> None:
    products = build(llama()).stack.products()
    write_adapter(tmp_path, fresh(Lora(), products))
    with pytest.raises(CheckpointError, match="no place for"):
        read_adapter(tmp_path, build(llama(num_hidden_layers=1)).stack.products())
    with pytest.raises(CheckpointError, match="other extents"):
        read_adapter(tmp_path, build(llama(hidden_size=48)).stack.products())
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match="has no adapter_config"):
        read_adapter(tmp_path, products)
    with pytest.raises(CheckpointError, match="no module is one of the targets"):
        fresh(Lora(targets=("query",)), products)


@pytest.mark.parametrize("format", [{}, {".experts.": "Q8_0"}])
def test_experts_in_training(tmp_path: Any, format: dict[str, str]) -> None:
    """The loss is that of merged weights, it falls, and files keep what was trained."""
    given, text = experts_in_blocks("olmoe, many experts", format)
    model = build(opened(given), "stored")
    lora = Lora(2, 6.0, targets=("v_proj", "gate_proj", "down_proj"))
    adapter = random_adapter(model.stack.products(), lora)
    tuner = Tuner(model, adapter, Schedule(5e-3, kind="constant"))
    batch = [rows([list(text[:8])], 16)]
    other = build(merged(opened(given), adapter), "stored")
    wanted = Tuner(other, fresh(Lora(1), other.stack.products())).evaluate(batch)
    assert tuner.evaluate(batch) == pytest.approx(wanted, rel=1e-5 if not format else 5e-3)
    for name, pair in tuner.adapter().pairs.items():
        for half, kept in zip(adapter.pairs[name], pair, strict=True):
            np.testing.assert_array_equal(half, kept)
    losses = [tuner.step(batch) for _ in range(6)]
    assert losses[-1] < losses[0] - 0.3
    trained = tuner.adapter()
    write_adapter(tmp_path, trained)
    again = read_adapter(tmp_path, model.stack.products())
    assert list(again.pairs) == list(trained.pairs)
    for name, pair in again.pairs.items():
        for half, kept in zip(trained.pairs[name], pair, strict=True):
            np.testing.assert_array_equal(half, kept)
    assert not any(".experts." in n for n in fresh(Lora(), model.stack.products()).pairs)


def test_parameters_of_experts_that_do_not_fit(tmp_path: Any) -> None:
    given, _ = experts_in_blocks("olmoe, many experts", {})
    model = build(opened(given))
    products = model.stack.products()
    made = random_adapter(products, Lora(2, targets=("q_proj",)))
    for shapes in (((48, 7), (64, 48)), ((47, 64), (64, 47)), ((48, 64), (5, 48))):
        a, b = (np.zeros(s, np.float32) for s in shapes)
        pairs = dict(made.pairs) | {"model.layers.0.mlp.experts": (a, b)}
        write_adapter(tmp_path, Adapter(made.lora, pairs))
        with pytest.raises(CheckpointError, match=r"no experts for .*layers\.0\.mlp\.experts"):
            read_adapter(tmp_path, products)
