"""Answers of a given form: they hold whatever a model prefers, also in company."""

from __future__ import annotations

import builtins
import json
import re
import threading
from typing import Any

import numpy as np
import pytest
from tests.llm.saved import saved

import treadle.llm as llm
from treadle.base.errors import LoadError, NumericError
from treadle.llm.generation.options import Options
from treadle.llm.generation.sampling import choose

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "cäke"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.LanguageModel:
    return llm.load(saved(tmp_path_factory.mktemp("llama")), sequences=3)


def check(text: str) -> None:
    found = json.loads(text)
    assert found.keys() == {"name", "age", "likes"} and len(found["name"]) <= 8
    assert 0 <= found["age"] <= 120 and set(found["likes"]) <= {"tea", "cäke"}


@pytest.mark.parametrize("temperature", [0.0, 1.0, 20.0])
def test_json_of_a_schema(model: llm.LanguageModel, temperature: float) -> None:
    for seed in range(3):
        stream = model.stream(
            "a person:", schema=PERSON, temperature=temperature, seed=seed, max_tokens=400
        )
        check("".join(stream))
        assert stream.finish == "stop"


def test_a_schema_as_text_and_as_class(model: llm.LanguageModel) -> None:
    class Person:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return PERSON

    first, *others = [
        model.chat([{"role": "user", "content": "a person"}], schema=given, max_tokens=400)
        for given in (PERSON, json.dumps(PERSON), Person)
    ]
    check(first)
    assert others == [first, first]


def test_expressions_and_grammars(model: llm.LanguageModel) -> None:
    for seed in range(4):
        more: dict[str, Any] = {"temperature": 5.0, "seed": seed, "max_tokens": 60}
        assert re.fullmatch(
            "(yes|no), [a-zß]{2,9}!", model.generate("a", regex="(yes|no), [a-zß]{2,9}!", **more)
        )
        grammar = 'start: item (", " item)*\nitem: "é" | "<" start ">"'
        text = model.generate("b", grammar=grammar, **more)
        assert re.match("[é<]", text) and set(text) <= set("é<>, ")


def test_special_tokens_are_no_text(model: llm.LanguageModel) -> None:
    stream = model.stream("a", regex=r"(?s:.){30}", temperature=50.0, max_tokens=200)
    assert len("".join(stream)) == 30
    assert max(token.id for token in stream.tokens) < 256


def test_company_with_forms_and_without(model: llm.LanguageModel) -> None:
    """Answers with forms, of three kinds, and without, from threads: each as it is alone."""
    forms: list[dict[str, Any]] = [{}, {"schema": PERSON}, {"regex": "[0-9]{30}"}, {"schema": {}}]
    prompts = [f"question {i} " * (1 + i % 3) for i in range(12)]

    def one(i: int) -> str:
        more = {"temperature": 3.0, "seed": i, "max_tokens": 60}
        return model.generate(prompts[i], **forms[i % 4], **more)

    alone, found = [one(i) for i in range(12)], {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: one(i)})) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(12)] == alone
    assert re.fullmatch("[0-9]{30}", alone[2])


WRONG = [
    ({"schema": 5}, "not JSON"),
    ({"schema": "{"}, "not JSON"),
    ({"schema": "5"}, "not an object"),
    ({"schema": {"type": "nothing"}}, "Invalid type"),
    ({"schema": {"enum": []}}, "Unsatisfiable"),
    ({"schema": {"$ref": "http://example.org"}}, "not present"),
    ({"regex": "("}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-ahead"),
    ({"regex": 5}, "not text"),
    ({"regex": "a" * 300_000}, "too long"),
    ({"regex": ".*" * 2000}, "cannot be followed"),
    ({"grammar": "nothing"}, "cannot be followed"),
    ({"grammar": "\ud800"}, "cannot be followed"),
    ({"grammar": 'start: "a"', "regex": "a"}, "grammar and regex"),
]


@pytest.mark.parametrize(("form", "words"), WRONG)
def test_wrong_forms(model: llm.LanguageModel, form: dict[str, Any], words: str) -> None:
    with pytest.raises(NumericError, match=words):
        model.generate("a", **form)


def test_a_form_that_cannot_be_followed_ends_its_own_answer_alone(model: llm.LanguageModel) -> None:
    class Broken:
        ended = False

        def allowed(self) -> Any:
            raise NumericError("form", "the form cannot be followed")

    tokens = model.tokenizer.encode("abc")
    alone = [t.id for t in model.engine.submit(tokens, Options(max_tokens=5))]
    broken = model.engine.submit(tokens, form=Broken())  # type: ignore[arg-type]
    other = model.engine.submit(tokens, Options(max_tokens=5))
    with pytest.raises(NumericError, match="cannot be followed"):
        next(broken)
    assert [t.id for t in other] == alone and broken.finish == "cancelled"


def test_without_the_library(model: llm.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("llguidance"):
            raise ImportError("no llguidance here")
        return real(name, *rest)

    monkeypatch.setattr("importlib.import_module", lambda name: missing(name))
    with pytest.raises(LoadError, match="llguidance cannot be imported"):
        model.generate("a", regex="a")


def test_only_allowed_tokens_are_drawn() -> None:
    rng = np.random.default_rng(0)
    for trial in range(300):
        logits = rng.standard_normal(2000).astype(np.float32) * 5
        allowed = rng.random(2000) < rng.choice([0.002, 0.5])
        allowed[int(rng.integers(2000))] = True
        options = Options(
            temperature=float(rng.choice([0, 1, 30])),
            seed=trial,
            top_k=int(rng.choice([0, 5])),
            top_p=float(rng.choice([1.0, 0.9])),
            typical_p=float(rng.choice([1.0, 0.9])),
            min_p=float(rng.choice([0.0, 0.1])),
            logit_bias={int(np.flatnonzero(~allowed)[0]): 100.0},
        )
        assert allowed[choose(logits, options, [], [], allowed=allowed).token]
