"""Sequences that join and leave, over a model that counts."""

import threading

import numpy as np
import pytest
from tests.llm.generation.counting import Counting, answer, expected

from treadle.base.errors import IndexRangeError, ShapeError
from treadle.llm.generation.engine import Engine
from treadle.llm.generation.options import Options
from treadle.llm.generation.text_stream import TextStream, Timing, begun


def test_one_sequence():
    engine = Engine(Counting())
    found = engine.submit([5, 7, 9], Options(max_tokens=6))
    assert answer(found) == expected([5, 7, 9], 6)
    assert found.finish == "length"


def test_long_prompts_are_read_in_pieces():
    model = Counting()
    prompt = [i % 101 for i in range(1200)]
    found = Engine(model).submit(prompt, Options(max_tokens=3))
    assert answer(found) == expected(prompt, 3)
    assert [shape[1] for shape, _, _ in model.calls[:3]] == [512, 512, 256]
    assert sum(count for _, _, count in model.calls) == 1202


@pytest.mark.parametrize("places", [1, 2, 3, 8])
def test_company_changes_nothing(places):
    """More sequences than places, of different lengths, asked for in any order."""
    engine, rng = Engine(Counting(), places), np.random.default_rng(0)
    prompts = [[int(t) for t in rng.integers(0, 101, n)] for n in (3, 40, 1, 9, 600, 2, 17)]
    asked = [engine.submit(p, Options(max_tokens=4 + i)) for i, p in enumerate(prompts)]
    found = {}
    for i in rng.permutation(len(asked)):
        found[i] = answer(asked[i])
    for i, prompt in enumerate(prompts):
        assert found[i] == expected(prompt, 4 + i)


def test_scratch_memory_goes_when_all_have_ended(monkeypatch):
    rests = []
    monkeypatch.setattr("treadle.llm.generation.engine.rest", lambda: rests.append(1))
    engine = Engine(Counting(), 2)
    long, short, waiting = (engine.submit([3, 4], Options(max_tokens=n)) for n in (9, 2, 3))
    assert answer(short) == expected([3, 4], 2) and not rests
    assert answer(waiting) == expected([3, 4], 3) and not rests
    assert answer(long) == expected([3, 4], 9) and len(rests) == 1
    engine.submit([5], Options(max_tokens=4)).cancel()
    assert len(rests) == 2


def test_threads_share_the_steps():
    engine = Engine(Counting(), 3)
    prompts = [[i, 2 * i, 5] for i in range(8)]
    asked = [engine.submit(p, Options(max_tokens=20)) for p in prompts]
    found = [None] * 8

    def run(i):
        found[i] = answer(asked[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert found == [expected(p, 20) for p in prompts]


def test_prefixes_are_read_once():
    model = Counting()
    engine = Engine(model, 2)
    first = engine.submit(range(1, 60), Options(max_tokens=5))
    tokens = [*range(1, 60), *answer(first)]
    model.calls.clear()
    found = engine.submit([*tokens, 3], Options(max_tokens=2))
    assert answer(found) == expected([*tokens, 3], 2)
    assert found.reused == 63  # the last token was chosen, but not read
    assert model.calls[0][0] == (1, 8)
    assert engine.submit(tokens[:20], Options(max_tokens=1)).reused == 0


def test_the_same_prompt_again_reads_its_last_token():
    engine = Engine(Counting())
    for _ in range(2):
        found = engine.submit(range(12), Options(max_tokens=2))
        assert answer(found) == expected(range(12), 2)
    assert found.reused == 11


def test_prompts_are_read_in_pieces_that_round_alike():
    model = Counting()
    model.piece = 32
    engine = Engine(model)
    for _ in range(2):
        assert answer(engine.submit([4, 5, 6], Options(max_tokens=2))) == expected([4, 5, 6], 2)
    assert [shape for shape, _, _ in model.calls] == [(1, 32), (1, 1), (1, 32), (1, 1)]


def test_ends_of_texts():
    want = expected([5, 7, 9], 6)
    engine = Engine(Counting(), eos=[want[3]])
    found = engine.submit([5, 7, 9], Options())
    assert answer(found) == want[: want.index(want[3])]
    assert found.finish == "stop"
    assert answer(engine.submit([5, 7, 9], Options(max_tokens=6, ignore_eos=True))) == want


def test_a_full_context_ends_a_text():
    engine = Engine(Counting(), length=8)
    found = engine.submit([1, 2, 3])
    assert len(answer(found)) == 5
    assert found.finish == "length"
    with pytest.raises(ShapeError, match="longer than"):
        engine.submit(range(8))
    with pytest.raises(ShapeError, match="no tokens"):
        engine.submit([])
    with pytest.raises(IndexRangeError, match="vocabulary"):
        engine.submit([101])


def test_cancelled_places_are_free_for_others():
    engine = Engine(Counting())
    first = engine.submit([1, 2], Options(max_tokens=50))
    waits = engine.submit([3, 4], Options(max_tokens=3))
    gone = engine.submit([5, 6], Options(max_tokens=3))
    next(first)
    gone.cancel()
    first.cancel()
    assert answer(waits) == expected([3, 4], 3)
    assert first.finish == gone.finish == "cancelled"
    assert answer(gone) == []


def test_a_step_that_fails_leaves_no_trace():
    class Failing(Counting):
        broken = False

        def step(self, *arguments, **options):
            if self.broken:
                raise MemoryError("no room")
            return super().step(*arguments, **options)

    model = Failing()
    engine = Engine(model)
    found = engine.submit([1, 2, 3], Options(max_tokens=9))
    next(found)
    model.broken = True
    with pytest.raises(MemoryError):
        next(found)
    model.broken = False
    again = engine.submit([1, 2, 3], Options(max_tokens=4))
    assert answer(again) == expected([1, 2, 3], 4)
    assert again.reused == 0


class Letters:
    """Token i is the letter i of the alphabet."""

    def push(self, token):
        return chr(97 + token % 26)

    def flush(self):
        return ""


def test_stop_texts_are_never_given_away():
    engine = Engine(Counting())
    whole = "".join(TextStream(engine.submit([5, 7, 9], Options(max_tokens=12)), Letters()))
    stop = whole[4:7]
    options = Options(max_tokens=12, stop=("zzzz", stop))
    stream = TextStream(engine.submit([5, 7, 9], options), Letters())
    pieces = list(stream)
    assert "".join(pieces) == stream.text == whole[: whole.index(stop)]
    assert stream.finish == "stop"
    half = Options(max_tokens=6, stop=(whole[4:6] + "?",))
    assert "".join(TextStream(engine.submit([5, 7, 9], half), Letters())) == whole[:6]


def test_timing_counts_what_was_read():
    engine = Engine(Counting())
    list(TextStream(engine.submit(range(9), Options(max_tokens=2)), Letters()))
    stream = TextStream(engine.submit([*range(9), 36], Options(max_tokens=3)), Letters())
    list(stream)
    assert (stream.timing.prompt, stream.timing.generated) == (1, 3)
    assert "1 + 3 tokens" in str(stream.timing)


def test_begun():
    assert begun("hello <|e", ["<|end|>"]) == 3
    assert begun("hello", ["<|end|>"]) == 0
    assert begun("aab", ["abc", "b?"]) == 2
    assert begun("x", []) == 0


def test_what_an_answer_took_is_told() -> None:
    assert str(Timing(7, 0, 1.2, 1e-4)) == "7 + 0 tokens"
    assert str(Timing(7, 1, 1.2, 1e-4)) == "7 + 1 tokens, the first after 1.20 s"
    assert str(Timing(7, 3, 1.2, 0.5)).endswith("the first after 1.20 s, 4.0 tokens/s")
