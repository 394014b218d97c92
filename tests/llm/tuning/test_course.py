"""Rows of files, packing, courses that stop and go on, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import llama

from treadle.base.errors import CheckpointError
from treadle.llm.models import build
from treadle.llm.text import Template
from treadle.llm.tuning import (
    Batches,
    Course,
    Example,
    Lora,
    Reader,
    Schedule,
    Tuner,
    fresh,
    packed,
    read_adapter,
    resume,
    take,
)

EOS = 60


class Letters:
    """A tokenizer of characters; 1 begins what is not of a template."""

    bos = None
    eos = frozenset([EOS])

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [*([] if special else [1]), *(2 + ord(c) % 50 for c in text)]

    def token(self, number: int) -> str:
        return "$"


CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def reader(template: str | None = CHAT) -> Reader:
    letters: Any = Letters()
    return Reader(letters, None if template is None else Template(template, letters), EOS)


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    return path


def learned(example: Example) -> list[int]:
    return [t for t, wanted in zip(example.tokens, example.learned, strict=True) if wanted]


def test_what_is_learned(tmp_path: Path) -> None:
    plain = Letters().encode
    turns = [("user", "a"), ("assistant", "bc"), ("user", "d"), ("assistant", "e")]
    messages = [{"role": r, "content": c} for r, c in turns]
    file = written(
        tmp_path / "x.jsonl",
        {"messages": messages},
        {"prompt": "ab", "completion": "cd"},
        {"text": "abc"},
    )
    chat, completion, text = reader().read(file)
    whole = "<user>a.<assistant>bc.<user>d.<assistant>e."
    assert list(chat.tokens) == plain(whole, special=True)
    assert learned(chat) == plain("bc.e.", special=True)
    assert list(completion.tokens) == [*plain("abcd"), EOS]
    assert learned(completion) == [*plain("cd", special=True), EOS]
    assert list(text.tokens) == learned(text) == [*plain("abc"), EOS]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b"{", "damaged"),
        (b"[" * 5000, "damaged"),
        (b'{"text": NaN}', "damaged"),
        (b'{"text": "\xff"}', "damaged"),
        (b'{"text": "a", "text": "b"}', "damaged"),
        (b"[1]", "not an object"),
        (b'{"input": "a"}', "nothing to learn"),
        (b'{"text": 3}', "`text` is not a string"),
        (b'{"prompt": "a", "completion": null}', "`completion` is not a string"),
        (b'{"messages": "hello"}', "not a list of messages"),
        (b'{"messages": []}', "not a list of messages"),
        (b'{"messages": [{"content": "a"}]}', "no role"),
        (b'{"messages": [{"role": "assistant", "content": 1}]}', "no text as content"),
        (b'{"messages": [{"role": "user", "content": "a"}]}', "no message is an assistant's"),
        (
            b'{"messages": [{"role": "assistant", "content": "a"}], "tools": 1}',
            "tools is not a list",
        ),
    ],
)
def test_rows_that_are_wrong(tmp_path: Path, row: bytes, told: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"text": "good"}\n\n' + row + b"\n")
    with pytest.raises(CheckpointError, match=told) as error:
        reader().read(file)
    assert "line 3" in str(error.value)


def test_files_and_templates_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\n\n")
    with pytest.raises(CheckpointError, match="has no rows"):
        reader().read(tmp_path / "x.jsonl")
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    file = written(tmp_path / "y.jsonl", chat)
    with pytest.raises(CheckpointError, match="no template"):
        reader(None).read(file)
    with pytest.raises(CheckpointError, match="otherwise than where it is asked for"):
        reader("{{ messages | length }}").read(file)
    with pytest.raises(CheckpointError, match="no talk"):
        reader("{{ raise_exception('no talk') }}").read(file)


def test_packing_keeps_every_token() -> None:
    rng = np.random.default_rng(0)
    examples = [
        Example(
            tuple(rng.integers(2, 60, n).tolist()), (False,) * (n // 2) + (True,) * (n - n // 2)
        )
        for n in rng.integers(2, 40, 100)
    ]
    made = packed(examples, 32)
    cut = [e.cut(32) for e in examples]
    assert sum(int((r.segments > 0).sum()) for r in made) == sum(len(e.tokens) for e in cut)
    assert sum(r.weights.sum() for r in made) == sum(sum(e.learned[1:]) for e in cut)
    assert len(made) < 1.2 * sum(len(e.tokens) for e in cut) / 32
    for row in made:
        for i in np.flatnonzero(row.weights[0]):
            assert row.targets[0, i] == row.tokens[0, i + 1]
            assert row.segments[0, i] == row.segments[0, i + 1] > 0
            assert row.positions[0, i + 1] == row.positions[0, i] + 1


def test_a_course_that_stops_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    examples = [Example(tuple(rng.integers(2, 60, 12).tolist()), (True,) * 12) for _ in range(10)]
    model = build(llama())

    def tuner(rank: int = 4) -> Tuner:
        return Tuner(model, fresh(Lora(rank), model.stack.products()), Schedule(1e-2, 0, 8))

    plan = Batches(examples, Course(24, 1, 2, held=0.2))
    whole = tuner()
    steps = list(take(whole, plan, str(tmp_path / "whole"), "base"))
    assert plan.updates == 8 == len(steps)
    assert [s.update for s in steps if s.held is not None] == [4, 8]
    first = tuner()
    for step in take(first, plan, str(tmp_path / "part"), "base", every=3):
        if step.update == 4:
            break
    second = tuner()
    resume(second, str(tmp_path / "part"))
    assert second.updates == 3
    rest = list(take(second, plan, str(tmp_path / "part"), "base"))
    np.testing.assert_allclose([s.loss for s in rest], [s.loss for s in steps[3:]], rtol=1e-6)
    ours, theirs = (read_adapter(tmp_path / n, model.stack.products()) for n in ("whole", "part"))
    for module, pair in ours.pairs.items():
        for one, other in zip(pair, theirs.pairs[module], strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(CheckpointError, match="another adapter"):
        resume(tuner(5), str(tmp_path / "part"))
