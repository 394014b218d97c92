"""Sequences in company: each gives the tokens that it gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.llm.generation.counting import Counting, answer, expected
from tests.llm.models.small import llama

from treadle.base.errors import ShapeError
from treadle.llm.generation.engine import BESIDE, Engine
from treadle.llm.generation.options import Options
from treadle.llm.generation.text_stream import TextStream
from treadle.llm.models import DecoderModel, build


class Letters:
    """Token i is the letter i of the alphabet."""

    def push(self, token: int) -> str:
        return chr(97 + token % 26)

    def flush(self) -> str:
        return ""


def asked_for(rng: np.random.Generator, prefixes: list[list[int]], most: int) -> Any:
    """A prompt, perhaps with a beginning that others have too, and options."""
    tokens = [int(t) for t in rng.integers(0, 61, rng.integers(1, most))]
    prompt = prefixes[rng.integers(len(prefixes))] + tokens
    options = Options(
        max_tokens=int(rng.integers(1, 24)),
        temperature=float(rng.choice([0.0, 0.0, 0.9])),
        seed=int(rng.integers(5)),
        stop=("".join(chr(97 + int(c)) for c in rng.integers(0, 26, 2)),),
        lookup=int(rng.choice([0, 3, 7])),
        repetition_penalty=float(rng.choice([1.0, 1.2])),
    )
    return prompt, options, int(rng.integers(3))


def alone(model: Any, prompt: list[int], options: Options, sequence: int, length: int) -> Any:
    stream = TextStream(
        Engine(model, 1, length).submit(prompt, options.changed(lookup=0), sequence), Letters()
    )
    return "".join(stream), [t.id for t in stream.tokens]


def crowd(model: Any, engine: Engine, rng: np.random.Generator, count: int, length: int) -> int:
    """Ask for many, in turns, at random; cancel some; compare with what each gives alone."""
    prefixes = [[], [7] * 20, [int(t) for t in rng.integers(0, 61, length // 3)]]
    wanted, going, checked = [], [], 0
    for _ in range(count):
        wanted.append(asked_for(rng, prefixes, length // 4))
    while wanted or going:
        if wanted and rng.random() < 0.4:
            prompt, options, sequence = wanted.pop()
            stream = TextStream(engine.submit(prompt, options, sequence), Letters())
            going.append((stream, prompt, options, sequence))
        elif going:
            at = int(rng.integers(len(going)))
            stream, prompt, options, sequence = going[at]
            closed = rng.random() < 0.03
            if closed:
                stream.close()
            if next(stream, None) is not None:
                continue
            del going[at]
            text, tokens = alone(model, prompt, options, sequence, length)
            if closed:
                assert text.startswith(stream.text)
            else:
                assert (stream.text, [t.id for t in stream.tokens]) == (text, tokens)
                checked += 1
    return checked


@pytest.mark.parametrize("places", [1, 3, 8])
@pytest.mark.parametrize("draft", [False, True])
def test_joins_leaves_and_cancels(places: int, draft: bool) -> None:
    model = Counting(5.0)
    engine = Engine(model, places, 400, draft=Counting(5.0) if draft else None)
    rng = np.random.default_rng(places)
    assert crowd(Counting(5.0), engine, rng, 60, 400) > 40
    assert {len(rows) for _, rows, _ in model.calls} <= {1, 2, 4, 8, places}
    assert not engine._places.used and engine._places.store.available == 25 * places


@pytest.fixture(scope="module")
def small() -> DecoderModel:
    return build(llama())


def test_joins_leaves_and_cancels_of_a_model(small: DecoderModel) -> None:
    engine = Engine(small, 3, 60, draft=small)
    assert crowd(small, engine, np.random.default_rng(0), 12, 60) > 6


def test_nothing_is_left_of_others(small: DecoderModel) -> None:
    """Places that held other texts, or what is no number at all, answer as new ones do."""
    options = Options(max_tokens=20)
    want = answer(Engine(small, 1, 60).submit([3, 4, 5], options))
    engine = Engine(small, 2, 60)
    for asked in [engine.submit([i] * 39, options) for i in (50, 51, 52)]:
        answer(asked)
    assert answer(engine.submit([3, 4, 5], options)) == want
    for kept in engine._cache.tensors:
        kept._data[...] = np.nan
    engine._places.forget()
    for asked in [engine.submit([3, 4, 5], options) for _ in range(2)]:
        assert answer(asked) == want


def test_a_long_prompt_does_not_stop_others() -> None:
    model = Counting()
    engine = Engine(model, 2)
    first = engine.submit([5, 7], Options(max_tokens=200))
    next(first)
    model.calls.clear()
    long = engine.submit([i % 101 for i in range(2000)], Options(max_tokens=2))
    next(long)
    widths = [shape[1] for shape, _, _ in model.calls]
    assert widths[:6] == [1, BESIDE] * 3
    assert len(first.ready) == 16
    assert answer(first)[-1] == expected([5, 7], 200)[-1]
    assert answer(long)[0] == expected(long.prompt, 2)[1]


def test_steps_compute_the_sequences_that_there_are() -> None:
    model = Counting()
    engine = Engine(model, 8)
    for count in (1, 2, 3, 5, 8):
        asked = [engine.submit([i, count], Options(max_tokens=30)) for i in range(count)]
        model.calls.clear()
        for i, generation in enumerate(asked):
            assert answer(generation) == expected([i, count], 30)
        most = max(len(rows) for _, rows, _ in model.calls)
        assert most == 1 << (count - 1).bit_length()


def test_beginnings_are_shared_and_their_rests_copied() -> None:
    model = Counting()
    engine = Engine(model, 4)
    prefix = [i % 101 for i in range(108)]
    asked = [engine.submit([*prefix, i], Options(max_tokens=5)) for i in range(4)]
    for i, generation in enumerate(asked):
        assert answer(generation) == expected([*prefix, i], 5)
    assert sorted(g.reused for g in asked) == [0, 108, 108, 108]
    assert model.copied == 3 * (108 % 16)
    assert sum(count for shape, _, count in model.calls if shape[1] > 1) == 109


@pytest.mark.parametrize("kept", [0, 4])
def test_a_full_context_is_shifted(kept: int) -> None:
    """The older half goes; what is left is read again as a new prompt would be."""
    prompt, length = [5, 7, 9, 11, 13], 32
    text, want = list(prompt), []
    for _ in range(100):
        want.append(sum(text) % 101)
        text.append(want[-1])
        if len(text) == length:
            rest = text[kept:]
            text = text[:kept] + rest[(len(rest) + 1) // 2 :]
    for more in ({}, {"lookup": 7}, {"draft": 7}):
        options = Options(max_tokens=100, shift=kept).changed(**more)
        draft = Counting() if "draft" in more else None
        found = Engine(Counting(), length=length, draft=draft).submit(prompt, options)
        assert answer(found) == want
        assert found.finish == "length"


def test_rows_behind_the_vocabulary_are_never_chosen() -> None:
    engine = Engine(Counting(5.0), tokens=50)
    found = answer(engine.submit([5, 7], Options(max_tokens=60, temperature=2.0)))
    assert max(found) < 50 and len(set(found)) > 10


@pytest.fixture(scope="module")
def windowed() -> DecoderModel:
    """Its layers see five tokens."""
    return build(llama(model_type="mistral", sliding_window=5, max_position_embeddings=2000))


def test_windows_far_shorter_than_the_context_are_rings(windowed: DecoderModel) -> None:
    """Every token of a long text, in pieces of any width: as a cache of all positions gives it."""
    text = [int(t) for t in np.random.default_rng(2).integers(0, 61, 90)]
    whole, ring = windowed.cache(2, 100, widest=100), windowed.cache(2, 100, widest=8)
    assert whole.back is None and ring.back == 16
    assert ring.nbytes * 128 == whole.nbytes * 21
    want = windowed.step([text] * 2, whole, [0, 0], [90, 90], all=True).numpy()[0]
    for width in (8, 3):
        got = []
        for start in range(0, 90, width):
            piece = text[start : start + width]
            padded = [piece + [0] * (width - len(piece))]
            found = windowed.step(padded, ring, [start], [len(piece)], rows=[1], all=True)
            got += list(found.numpy()[0, : len(piece)])
        np.testing.assert_allclose(np.stack(got), want, atol=2e-4)
    # Back by a few tokens, and what another sequence holds.
    windowed.copy(ring, 1, 0, rings=True)
    for row in (0, 1):
        got = windowed.step([text[80:83]], ring, [80], [3], rows=[row]).numpy()[0]
        np.testing.assert_allclose(got, want[82], atol=2e-4)
    with pytest.raises(ShapeError, match="layers with windows keep fewer"):
        windowed.step([text[:9]], ring, [0], [9], rows=[0])


@pytest.mark.parametrize("draft", [False, True])
def test_rings_in_company(windowed: DecoderModel, draft: bool) -> None:
    """Texts that are longer than rings, beginnings that are shared, places that go back."""
    length = 1200
    engine = Engine(windowed, 2, length, draft=windowed if draft else None)
    assert engine._cache.back == 520
    rng = np.random.default_rng(3)
    prefix = [int(t) for t in rng.integers(0, 61, 900)]
    prompts = [prefix[:n] + [int(t) for t in rng.integers(0, 61, 9)] for n in (900, 890, 40, 700)]
    options = Options(max_tokens=12, lookup=7)
    for prompt in [*prompts, prompts[0]]:
        found = [engine.submit(prompt, options) for _ in range(2)]
        alone = Engine(windowed, 1, length).submit(prompt, options.changed(lookup=0))
        want = answer(alone)
        assert [answer(g) for g in found] == [want, want]
