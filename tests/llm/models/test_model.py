"""Steps of a small model: what they compute, the cache, batches, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import Given, llama, plain_llama, read

from treadle.base.errors import CheckpointError, DTypeError, IndexRangeError, ShapeError
from treadle.llm.models import DecoderModel, build
from treadle.llm.models.attention import as_bytes
from treadle.tensor import Tensor

GIVEN = llama()
PROMPTS = [[5, 6, 7, 8, 9], list(range(3, 22)), [2], list(range(50, 38, -1))]


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    return build(GIVEN)


@pytest.mark.parametrize("chunk", [1, 8, 32])
def test_logits_are_those_of_plain_numpy(model: DecoderModel, chunk: int) -> None:
    logits, texts = read(model, PROMPTS, chunk, 6)
    for text, got in zip(texts, logits, strict=True):
        expected = plain_llama(GIVEN, text)
        np.testing.assert_allclose(got, expected, atol=1e-4)
        n = len(text) - 6
        assert text[n:] == expected[n - 1 : -1].argmax(-1).tolist()


def test_company_changes_nothing(model: DecoderModel) -> None:
    together, texts = read(model, PROMPTS, 8, 4)
    for prompt, text, logits in zip(PROMPTS, texts, together, strict=True):
        (alone,), (same,) = read(model, [prompt], 8, 4)
        assert same == text
        np.testing.assert_allclose(alone, logits, atol=1e-5)


def test_some_sequences_of_a_cache(model: DecoderModel) -> None:
    cache = model.cache(3, 16)
    zeros = np.zeros(1, np.int32)
    for row, prompt in ((2, [7, 8, 9]), (0, [4, 5, 6])):
        got = model.step([prompt], cache, zeros, [3], rows=[row]).numpy()
        np.testing.assert_allclose(got[0], plain_llama(GIVEN, prompt)[-1], atol=1e-4)
    assert not cache.tensors[0].numpy()[0, :, 128:256].any()
    got = model.step([[10], [11]], cache, [3, 3], [1, 1], rows=[2, 0]).numpy()
    np.testing.assert_allclose(got[0], plain_llama(GIVEN, [7, 8, 9, 10])[-1], atol=1e-4)
    np.testing.assert_allclose(got[1], plain_llama(GIVEN, [4, 5, 6, 11])[-1], atol=1e-4)
    model.copy(cache, 2, 1, 3, rings=False)
    got = model.step([[10]], cache, [3], [1], rows=[1]).numpy()
    np.testing.assert_allclose(got[0], plain_llama(GIVEN, [7, 8, 9, 10])[-1], atol=1e-4)


def test_a_sequence_with_no_tokens_stays(model: DecoderModel) -> None:
    cache = model.cache(2, 8)
    model.step([[5, 6], [7, 8]], cache, [0, 0], [2, 2])
    before = [t.numpy().copy() for t in cache.tensors]
    model.step([[9, 9], [0, 0]], cache, [2, 2], [2, 0])
    for kept, old in zip(cache.tensors, before, strict=True):
        new = kept.numpy()
        np.testing.assert_array_equal(new[0, :, 128:], old[0, :, 128:])
        assert (new[0, :, :128] != old[0, :, :128]).any()


def test_padding_does_not_reach_a_full_cache(model: DecoderModel) -> None:
    cache = model.cache(1, 5)
    model.step([[5, 6, 7, 8]], cache, [0], [4])
    got = model.step([[9, 0, 0, 0]], cache, [4], [1]).numpy()
    np.testing.assert_allclose(got[0], plain_llama(GIVEN, [5, 6, 7, 8, 9])[-1], atol=1e-4)


def test_going_back_is_a_smaller_start(model: DecoderModel) -> None:
    cache = model.cache(1, 16)
    model.step([[5, 6, 7, 8]], cache, [0], [4])
    got = model.step([[40, 41]], cache, [2], [2]).numpy()
    np.testing.assert_allclose(got[0], plain_llama(GIVEN, [5, 6, 40, 41])[-1], atol=1e-4)


def test_bfloat16_is_near(model: DecoderModel) -> None:
    narrow = build(GIVEN, "bfloat16")
    assert narrow.cache(1, 4).nbytes * 2 == model.cache(1, 4).nbytes
    (got,), _ = read(narrow, [PROMPTS[1]], 8, 0)
    expected = plain_llama(GIVEN, PROMPTS[1])
    assert np.abs(got - expected).max() < 0.05 * np.ptp(expected)


def test_sizes(model: DecoderModel) -> None:
    assert (model.vocabulary, model.context) == (61, 64)
    assert model.cache(2, 7).nbytes == 2 * 2 * 2 * 128 * 2 * 6 * 4


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (([[5, 6]], [7], [2], None), ShapeError, "the cache is full"),
        (([[5, 61]], [0], [2], None), IndexRangeError, "not in the vocabulary"),
        (([[5, -1]], [0], [2], None), IndexRangeError, "not in the vocabulary"),
        (([5], [0], [1], None), ShapeError, "tokens are"),
        (([[5]], [0, 0], [1], None), ShapeError, "starts has one number"),
        (([[5]], [0], [2], None), ShapeError, "counts are 0 to"),
        (([[5]], [-1], [1], None), ShapeError, "starts not negative"),
        (([[5], [5]], [0, 0], [1, 1], None), ShapeError, "goes on with all sequences"),
        (([[5]], [0], [1], [1]), IndexRangeError, "rows are different"),
    ],
)
def test_wrong_calls(
    model: DecoderModel, arguments: Any, error: type[Exception], told: str
) -> None:
    cache = model.cache(1, 8)
    with pytest.raises(error, match=told):
        model.step(*arguments[:3][:1], cache, *arguments[1:3], rows=arguments[3])


def test_a_cache_beyond_the_context(model: DecoderModel) -> None:
    with pytest.raises(ShapeError, match="made for fewer"):
        model.cache(1, 65)
    with pytest.raises(ShapeError, match="a sequence and a token"):
        model.cache(0, 5)


def without(name: str) -> Given:
    return Given(GIVEN.config, {k: v for k, v in GIVEN.tensors.items() if k != name})


def changed(**config: Any) -> Given:
    return Given({**GIVEN.config, **config}, GIVEN.tensors)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (changed(model_type="llama9"), "model_type 'llama9' is unknown"),
        (changed(model_type=None), "model_type is missing"),
        (without("model.layers.1.mlp.up_proj.weight"), "mlp.up_proj.weight: is missing"),
        (without("lm_head.weight"), "lm_head.weight: is missing"),
        (changed(num_hidden_layers=1), "have no place"),
        (changed(model_type="qwen2"), "q_proj.bias: is missing"),
        (changed(intermediate_size=41), "another shape"),
        (changed(vocab_size=60), "another shape"),
        (changed(head_dim=8), "another shape"),
        (changed(num_key_value_heads=3), "does not divide 4"),
        (changed(hidden_act="swoosh"), "hidden_act is unknown"),
        (changed(num_hidden_layers=0), "num_hidden_layers is not from 1"),
        (changed(num_hidden_layers=2.0), "is not a whole number"),
        (changed(rms_norm_eps=-1.0), "rms_norm_eps is not a positive number"),
        (changed(rope_scaling={"type": "spiral"}), "rope_type 'spiral' is unknown"),
        (changed(rope_scaling=[1]), "is not an object"),
        (changed(tie_word_embeddings="yes"), "neither true nor false"),
    ],
)
def test_checkpoints_that_disagree(given: Given, told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        build(given)


def test_wrong_element_type() -> None:
    with pytest.raises(DTypeError, match="float32, bfloat16 and stored"):
        build(GIVEN, "int4")


@pytest.mark.parametrize(
    ("dtype", "near"), [("bfloat16", 0.02), ("float16", 0.002), ("int8", 0.02)]
)
def test_narrow_caches(model: DecoderModel, dtype: str, near: float) -> None:
    cache = model.cache(1, 20, dtype)
    rows = 2 * 2 * 2 * cache.page  # of keys and values of two heads of two layers
    assert cache.nbytes == rows * (6 + 4 if dtype == "int8" else 6 * 2)
    text = PROMPTS[1]
    expected = plain_llama(GIVEN, text)[-1]
    model.step([text[:8]], cache, [0], [8])
    for i in range(8, len(text)):
        got = model.step([[text[i]]], cache, [i], [1]).numpy()[0]
    apart = np.abs(got - expected).max() / np.ptp(expected)
    assert 0 < apart < near
    with pytest.raises(DTypeError, match="float32, bfloat16, float16"):
        model.cache(1, 20, "int32")


def test_caches_stay_where_they_are(model: DecoderModel) -> None:
    """A step writes a position, it does not copy what is there; memory comes with use."""
    for cache in (model.cache(2, 16), model.cache(2, 16, "int8")):
        before = [t._data.ctypes.data for t in cache.tensors]
        for i in range(3):
            model.step([[5], [6]], cache, [i, i], [1, 1])
        assert [t._data.ctypes.data for t in cache.tensors] == before


def test_bytes_keep_rows_of_zeros_and_what_is_not_finite() -> None:
    rows = np.array([[0.0, 0.0], [1e-42, 0.0], [2.0, -1.0], [np.inf, 1.0], [np.nan, 1.0]])
    x, scale = as_bytes(Tensor(rows.astype(np.float32)))
    with np.errstate(invalid="ignore"):
        kept = x.numpy() * scale.numpy()
    np.testing.assert_allclose(kept[:3], rows[:3], atol=0.01)
    assert not np.isfinite(kept[3:, 0]).any()


def test_programs_hold_no_weights_of_their_own() -> None:
    """There is a program for each width: weights in another order would be there once for each."""
    given = llama(hidden_size=96, intermediate_size=160)
    made = build(given)
    cache = made.cache(1, 64)
    for width in (1, 32, 64):
        made.step([[1] * width], cache, [0], [width])
    programs: list[Any] = list(made._programs.values())
    assert len(programs) == 3
    packed = [re.findall(r"packed once +(\S+ \S+)", str(p.explain())) for p in programs]
    assert packed == [["0 B"]] * 3


def test_files_are_let_go() -> None:
    """Whatever was read of files, in advance too, goes back once the model is built."""

    class Mapped(Given):
        events: list[str] = []

        def tensor(self, name: str) -> Any:
            self.events.append(name)
            return super().tensor(name)

        def release(self, name: str, rows: slice | None = None) -> None:
            self.events.append("release " + name)

    given = Mapped(GIVEN.config, GIVEN.tensors)
    build(given)
    last = {name: i for i, name in enumerate(given.events)}
    assert all(last[name] < last["release " + name] for name in given.names())


def test_sequences_without_pages_are_refused() -> None:
    model = build(llama(max_position_embeddings=512))
    cache = model.cache(2, 300, tokens=300)
    tokens = [list(range(1, 51))]
    alone = model.step(tokens, model.cache(1, 300), [0], [50]).numpy()
    np.testing.assert_array_equal(model.step(tokens, cache, [0], [50], rows=[0]).numpy(), alone)
    with pytest.raises(ShapeError, match="has no pages for its tokens"):
        model.step(tokens, cache, [0], [50], rows=[1])
    cache.table[1, 0] = cache.table[0, 2]
    np.testing.assert_array_equal(model.step(tokens, cache, [0], [50], rows=[1]).numpy(), alone)
