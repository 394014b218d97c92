"""Pages of caches: whose they are, who waits for them, and that no text shows in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.llm.generation.counting import Counting, answer, expected
from tests.llm.models.small import llama
from tests.llm.models.test_stored import checkpoint

from treadle.backends.codegen.attention.cached import BLOCK
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.llm.generation.engine import Engine
from treadle.llm.generation.options import Options
from treadle.llm.generation.pages import PageStore
from treadle.llm.models import DecoderModel, build
from treadle.llm.models.attention import PAGE


def test_pages_are_as_long_as_kernels_read_at_a_time() -> None:
    assert PAGE % BLOCK == 0


class Texts:
    """Texts in pages of a memory that holds nonsense wherever nothing was written."""

    def __init__(self, places: int, each: int, pages: int, size: int) -> None:
        self.table = np.zeros((places, each), np.int32)
        self.memory = np.full((pages, size), -1)
        self.store = PageStore(self.table, pages, size)
        self.texts: list[list[int]] = [[] for _ in range(places)]
        taken = self.store.take

        def take(*wanted: int) -> int | None:
            number = taken(*wanted)
            if number is not None:
                self.memory[number] = -1
            return number

        self.store.take = take  # type: ignore[method-assign]
        for place in range(places):
            self.begin(place, [])

    def begin(self, place: int, text: Sequence[int]) -> None:
        held = self.store.texts[place]
        copied = held.begin(text, 0)
        if copied is not None:
            page = self.memory[copied.source, : copied.count]
            self.memory[copied.target, : copied.count] = page
        self.texts[place] = list(text[: len(held)])

    def add(self, place: int, tokens: list[int], vain: int) -> bool:
        """Write tokens, and some that do not count; False if there are no pages."""
        held, size = self.store.texts[place], self.store.size
        if not held.reserve(len(held) + len(tokens) + vain):
            return False
        for i, token in enumerate([*tokens, *[-2] * vain], len(held)):
            self.memory[self.table[place, i // size], i % size] = token
        held.add(tokens)
        self.texts[place] += tokens
        return True

    def check(self) -> None:
        used = set()
        for row, text in zip(self.table, self.texts, strict=True):
            count = -(-len(text) // self.store.size)
            assert self.memory[row[:count]].ravel()[: len(text)].tolist() == text
            used |= set(row[:count].tolist())
        # Pages that hold no token yet may have been reserved.
        assert len(used) <= len(self.memory) - self.store.available


@pytest.mark.parametrize(("size", "pages"), [(1, 40), (4, 11), (4, 40), (16, 5)])
def test_a_store_keeps_texts_apart(size: int, pages: int) -> None:
    """Random texts with common beginnings, which take the pages of each other."""
    rng = np.random.default_rng(size + pages)
    each = min(pages, 40 // size)
    texts = Texts(3, each, pages, size)
    reused = full = 0
    known: list[list[int]] = [[]]
    for _ in range(3000):
        place = int(rng.integers(3))
        held = texts.store.texts[place]
        choice = rng.random()
        if choice < 0.1:
            held.leave()
            texts.texts[place] = []
        elif choice < 0.25:
            text = known[rng.integers(len(known))]
            text = [*text[: rng.integers(len(text) + 1)], *rng.integers(0, 3, rng.integers(9))]
            texts.begin(place, text[: each * size])
            reused += len(held)
        elif len(held) + 3 <= each * size:
            vain = int(rng.integers(3))
            tokens = rng.integers(0, 3, rng.integers(1, each * size - len(held) - vain + 1))
            full += not texts.add(place, tokens[:6].tolist(), vain)
            known = [*known[-20:], texts.texts[place][:]]
        texts.check()
    assert reused > 1000 and (full > 20 or pages == 40)
    for held in texts.store.texts:
        held.leave()
    assert texts.store.available == pages
    texts.store.forget()
    assert not texts.store.held([0, 1, 2] * 9, 0)


def test_whole_pages_are_shared_while_their_text_goes_on() -> None:
    texts = Texts(3, 4, 12, 4)
    texts.add(0, list(range(10)), 0)
    for place in (1, 2):
        texts.begin(place, [*range(8), 99])
    assert texts.table[0, :2].tolist() == texts.table[1, :2].tolist() == texts.table[2, :2].tolist()
    assert texts.store.available == 12 - 3
    other = texts.store.held(range(10), 1)
    assert (texts.store.held(range(10), 0), other) == (8, 0)


def test_what_was_used_longest_ago_goes_first() -> None:
    texts = Texts(1, 4, 4, 4)
    for text in ([1] * 8, [2] * 8, [1] * 8):
        texts.begin(0, text)
        texts.add(0, text[len(texts.texts[0]) :], 0) if len(texts.texts[0]) < 8 else None
        texts.store.texts[0].leave()
    texts.begin(0, [3] * 4)
    texts.add(0, [3] * 4, 0)
    assert [texts.store.held([n] * 8, 0) for n in (1, 2, 3)] == [8, 4, 4]


def test_pages_of_a_text_lie_in_order() -> None:
    """Also those that another text left, and what follows a beginning that is shared."""
    texts = Texts(2, 8, 16, 4)
    for place, count in ((0, 10), (1, 16), (0, 12)):
        texts.add(place, list(range(count)), 0)
    assert [texts.table[0, :6].tolist(), texts.table[1, :4].tolist()] == [
        [*range(6)],
        [*range(8, 12)],
    ]
    for i in range(4):
        texts.begin(0, [100 + i])
        texts.add(0, [100 + i] * 32, 0)
        assert (np.diff(texts.table[0]) != 1).sum() <= 1
    texts.begin(1, range(12))
    texts.add(1, list(range(50, 70)), 0)
    assert (np.diff(texts.table[1, 3:7]) == 1).all()


def poisoned(engine: Engine, model: Any) -> None:
    """Fill pages with what is no number before they are taken."""
    store = engine._places.store
    taken = store.take

    def take(*wanted: int) -> int | None:
        number = taken(*wanted)
        if number is not None:
            cache = engine._cache
            if isinstance(model, Counting):
                cache.tokens[number] = 999
            else:
                paged = [k for k, ring in zip(cache.layers, cache.rings, strict=True) if not ring]
                at = slice(number * cache.page, (number + 1) * cache.page)
                for kept in (k for layer in paged for k in layer):
                    kept._data[:, :, at] = 99 if kept.dtype == np.int8 else np.nan
        return number

    store.take = take  # type: ignore[method-assign]


def walk(
    model: Any,
    engine: Engine,
    rng: np.random.Generator,
    prompts: list[list[int]],
    most: int,
    dtype: str | None = None,
) -> tuple[int, int]:
    """Answers to prompts that come and go at random, each as if it were alone."""
    going, interrupted, compared = [], 0, 0
    waiting = [(p, Options(max_tokens=int(rng.integers(1, most)), logprobs=2)) for p in prompts]
    while waiting or going:
        if waiting and (not going or rng.random() < 0.3):
            prompt, options = waiting.pop()
            options = options.changed(
                lookup=int(rng.choice([0, 3])),
                temperature=float(rng.choice([0.0, 0.9])),
                seed=int(rng.integers(5)),
            )
            going.append((engine.submit(prompt, options), []))
            continue
        generation, tokens = going[int(rng.integers(len(going)))]
        token = next(generation, None)
        if token is not None and rng.random() > 0.01:
            tokens.append(token)
            continue
        generation.cancel()
        going = [g for g in going if g[0] is not generation]
        interrupted += generation.interrupted
        alone = Engine(model, 1, engine.length, cache_dtype=dtype).submit(
            generation.prompt, generation.options.changed(lookup=0)
        )
        for found, want in zip(tokens, alone, strict=False):
            assert found == want  # also the bits of log-probabilities
            compared += 1
    return interrupted, compared


@pytest.mark.parametrize(("page", "room"), [(16, 400), (16, 700), (7, 500), (1, 401)])
def test_answers_do_not_depend_on_room(page: int, room: int) -> None:
    rng = np.random.default_rng(page + room)
    model = Counting(5.0, page)
    engine = Engine(model, 8, 400, cache_tokens=room)
    poisoned(engine, model)
    prefixes = [[], [7] * 20, [int(t) for t in rng.integers(0, 61, 130)]]
    prompts = [
        prefixes[rng.integers(3)] + [int(t) for t in rng.integers(0, 61, rng.integers(1, 100))]
        for _ in range(40)
    ]
    interrupted, compared = walk(Counting(5.0), engine, rng, prompts, 120)
    assert interrupted > 5 and compared > 500
    assert not engine._places.used
    assert engine._places.store.available == model.kept.pages


def test_those_who_came_first_go_on() -> None:
    model = Counting()
    engine = Engine(model, 3, 64, cache_tokens=64)
    asked = [engine.submit([i, 5], Options(max_tokens=60)) for i in range(3)]
    for i in (2, 0, 1):
        assert answer(asked[i]) == expected([i, 5], 60)
    assert asked[0].interrupted == 0 < asked[2].interrupted
    # A prompt that finds no room waits, and does not take any from others.
    first = engine.submit([1] * 30, Options(max_tokens=30))
    second = engine.submit([2] * 40, Options(max_tokens=20))
    next(first)
    engine._advance()
    assert [g.place >= 0 for g in (first, second)] == [True, False]
    assert answer(second) == expected([2] * 40, 20)
    assert (first.interrupted, second.interrupted) == (0, 0)


def test_texts_are_no_longer_than_the_room_for_all() -> None:
    engine = Engine(Counting(), 4, 64, cache_tokens=32)
    assert len(answer(engine.submit([1, 2, 3]))) == 29
    with pytest.raises(ShapeError, match="room for 32"):
        engine.submit([1] * 32)


@pytest.fixture(scope="module")
def exact() -> DecoderModel:
    """Products with quantized blocks give a row the same bits in any company."""
    return build(checkpoint("Q8_0", max_position_embeddings=1024), "stored", "int16")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_model_gives_the_same_bits_in_any_room(exact: DecoderModel, dtype: str) -> None:
    rng = np.random.default_rng(0)
    engine = Engine(exact, 4, 500, cache_dtype=dtype, cache_tokens=640)
    poisoned(engine, exact)
    prefix = [int(t) for t in rng.integers(0, exact.vocabulary, 300)]
    prompts = [
        prefix[: 140 * (i % 3)] + [int(t) for t in rng.integers(0, 30, rng.integers(90, 125))]
        for i in range(9)
    ]
    interrupted, compared = walk(exact, engine, rng, prompts, 60, dtype)
    assert interrupted > 1 and compared > 100


def test_pages_of_a_model() -> None:
    model = build(llama(max_position_embeddings=512))
    cache = model.cache(3, 300, tokens=500)
    assert (cache.page, cache.pages, cache.table.shape) == (128, 4, (3, 3))
    assert model.cache(3, 300).nbytes == 3 * 3 * 128 * 2 * 2 * 2 * 6 * 4
    rng = np.random.default_rng(1)
    text = [int(t) for t in rng.integers(0, 61, 290)]
    want = model.step([text], model.cache(1, 290), [0], [290], all=True).numpy()[0]
    cache.table[:] = [[3, 1, 0], [3, 1, 2], [0, 0, 0]]
    model.step([text[:280]], cache, [0], [280], rows=[0])
    model.copy(cache, 0, 2, 24, rings=False)
    got = model.step([text[280:]], cache, [280], [10], rows=[1], all=True).numpy()[0]
    np.testing.assert_allclose(got, want[280:], atol=2e-5)
    with pytest.raises(IndexRangeError, match="two pages of the cache"):
        model.copy(cache, 0, 4, 24, rings=False)


def test_rings_beside_pages_in_any_room() -> None:
    """A layer that sees all of a text, and one that sees 20 tokens and keeps 540."""
    window = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
    model = build(checkpoint("Q8_0", max_position_embeddings=1024, **window), "stored", "int16")
    rng = np.random.default_rng(2)
    engine = Engine(model, 3, 700, cache_tokens=1000)
    assert engine._cache.rings == (False, True) and engine._cache.pages == 8
    prefix = [int(t) for t in rng.integers(0, model.vocabulary, 560)]
    prompts = [
        prefix[: (560, 130, 300)[i % 3]] + [int(t) for t in rng.integers(0, 30, 70)]
        for i in range(6)
    ]
    interrupted, compared = walk(model, engine, rng, prompts, 40)
    assert interrupted > 0 and compared > 100
