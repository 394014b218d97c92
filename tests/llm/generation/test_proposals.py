"""Tokens that are proposed: they change how many steps a text takes, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.llm.generation.counting import Counting, answer, expected

from treadle.base.errors import NumericError
from treadle.llm.generation.drafts import Lookup, filled
from treadle.llm.generation.engine import Engine
from treadle.llm.generation.held import HeldTokens, shared
from treadle.llm.generation.options import Options


class Doubtful(Counting):
    """Agrees with `Counting` but for some positions."""

    def step(self, tokens: Any, cache: Any, starts: Any, counts: Any, **more: Any) -> Any:
        found = super().step(tokens, cache, starts, counts, **more)
        logits = found.numpy()
        for i, (start, count) in enumerate(zip(starts, counts, strict=True)):
            if (start + count) % 11 == 0:
                logits[i] = np.roll(logits[i], 1)
        return found


def steps(model: Counting) -> int:
    return len(model.calls)


@pytest.mark.parametrize("draft", [Counting, Doubtful])
@pytest.mark.parametrize("places", [1, 3])
def test_a_draft_model_changes_nothing_but_steps(draft: type[Counting], places: int) -> None:
    model, prompts = Counting(), [[5, 7, 9], list(range(60)), [1]]
    engine = Engine(model, places, draft=draft())
    asked = [engine.submit(p, Options(max_tokens=40)) for p in prompts]
    for generation, prompt in zip(asked, prompts, strict=True):
        assert answer(generation) == expected(prompt, 40)
        assert 0 < generation.accepted <= generation.proposed
        assert (generation.accepted == generation.proposed) == (draft is Counting)
    alone = Counting()
    plain = Engine(alone, places)
    for generation in [plain.submit(p, Options(max_tokens=40)) for p in prompts]:
        answer(generation)
    assert steps(model) < 0.6 * steps(alone)
    assert {shape[1] for shape, _, _ in model.calls} <= {1, 4, 8, 64, 128, 256, 512}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 3.0])
def test_sampled_texts_are_the_same(temperature: float) -> None:
    """Numbers depend on seed, sequence and position: a proposal has no say in them."""
    options = Options(
        max_tokens=80, temperature=temperature, seed=3, top_p=0.9, frequency_penalty=1
    )
    prompt = [5, 7, 9, 5, 7]
    want = answer(Engine(Counting(5.0)).submit(prompt, options, 2))
    spoken = Engine(Counting(5.0), draft=Doubtful(5.0)).submit(prompt, options, 2)
    assert answer(spoken) == want
    assert spoken.accepted > 0
    looked = Engine(Counting(5.0)).submit(prompt, options.changed(lookup=7), 2)
    assert answer(looked) == want
    assert len(set(want)) > 5


def test_a_draft_draws_as_the_model_will() -> None:
    """With the same random numbers, two models that agree choose alike at any temperature."""
    options = Options(max_tokens=60, temperature=3.0, seed=1)
    found = Engine(Counting(5.0), draft=Counting(5.0)).submit([4, 5], options)
    answer(found)
    assert found.accepted == found.proposed > 20


class Circling(Counting):
    """Says 1 to 20 again and again."""

    def step(self, tokens: Any, cache: Any, starts: Any, counts: Any, **more: Any) -> Any:
        found = super().step(tokens, cache, starts, counts, **more)
        logits = found.numpy()
        logits[:] = 0
        last = np.asarray(tokens) if logits.ndim == 3 else np.asarray(tokens)[:, :1]
        for i, row in enumerate(last):
            for t, token in enumerate(row):
                place = (i, t) if logits.ndim == 3 else (i,)
                logits[(*place, token % 20 + 1)] = 1
        return found


def test_texts_that_repeat_take_fewer_steps() -> None:
    model = Circling()
    found = Engine(model).submit([20], Options(max_tokens=100, lookup=7))
    assert answer(found) == [i % 20 + 1 for i in range(100)]
    assert found.accepted > 60
    assert steps(model) < 40


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 21])
def test_a_text_ends_where_it_ends(count: int) -> None:
    """Tokens behind the last one are neither given nor held."""
    engine = Engine(Counting(), draft=Counting())
    assert answer(engine.submit([5, 7, 9], Options(max_tokens=count))) == expected([5, 7, 9], count)
    want = expected([5, 7, 9], 30)
    ending = Engine(Counting(), eos=[want[count]], draft=Counting())
    found = ending.submit([5, 7, 9], Options(max_tokens=30))
    assert answer(found) == want[: want.index(want[count])]
    again = ending.submit([5, 7, 9, *want[:3], 8], Options(max_tokens=5, ignore_eos=True))
    assert answer(again) == expected([5, 7, 9, *want[:3], 8], 5)


def test_the_last_places_of_a_context() -> None:
    for length in range(8, 30):
        found = Engine(Counting(), length=length, draft=Counting()).submit([5, 7, 9])
        assert answer(found) == expected([5, 7, 9], length - 3)
        assert found.finish == "length"


def test_a_draft_with_a_shorter_context_helps_as_long_as_it_can() -> None:
    draft = Counting()
    draft.context = 20
    found = Engine(Counting(), draft=draft).submit([5, 7, 9], Options(max_tokens=40))
    assert answer(found) == expected([5, 7, 9], 40)
    assert found.accepted > 5


def test_options() -> None:
    model = Counting()
    found = Engine(model, draft=Counting()).submit([5, 7], Options(max_tokens=9, draft=0))
    assert answer(found) == expected([5, 7], 9)
    assert found.proposed == 0
    for wrong in ({"lookup": 8}, {"draft": -1}, {"shift": -1}):
        with pytest.raises(NumericError):
            Options().changed(**wrong)


def test_lookup_finds_the_latest() -> None:
    lookup, text = Lookup(), [1, 2, 3, 4, 9, 2, 3, 5, 6, 2, 3]
    assert lookup.propose(text, 2) == [5, 6]
    assert lookup.propose([*text, 4], 3) == [9, 2, 3]
    assert lookup.propose([*text, 4, 9], 3) == [2, 3, 5]
    assert lookup.propose([*text, 4, 9, 77], 3) == []
    assert Lookup().propose([1], 5) == []
    assert Lookup().propose([1, 1, 1], 5) == [1]


def test_places_of_programs() -> None:
    assert filled([2], 4) == [2]
    assert filled([3, 1, 0], 8) == [3, 1, 0, 2]
    assert filled([0, 1, 2, 3, 4], 6) == [0, 1, 2, 3, 4, 5]
    assert shared([1, 2, 3], (1, 2, 4)) == 2
    assert shared([], (1,)) == 0
    held = HeldTokens(back=3)
    held.add([1, 2, 3, 4, 5, 6], more=1)
    assert [held.kept(n) for n in (3, 4, 0)] == [0, 4, 0]
    held.cut(5)
    assert [held.shared([1, 2, 3, 4, 9]), held.shared([1, 2, 3, 9]), len(held)] == [4, 0, 5]
    held.cut(0)
    held.add([1, 2])
    assert held.kept(1) == 1
    assert shared([1, 2, 3], (1, 2)) == 2
