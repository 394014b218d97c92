"""Prompts and conversations from whoever writes Python in a hurry."""

import math
from typing import Any

import numpy as np
import pytest
from tests.llm.saved import saved

import treadle.llm as llm
from treadle.base.errors import CheckpointError, DTypeError, IndexRangeError, NumericError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.LanguageModel:
    return llm.load(saved(tmp_path_factory.mktemp("llama")))


@pytest.mark.parametrize("prompt", [[1.5, 2], ["12"], 7, None, [None], b"x".decode().split(), b"x"])
def test_a_prompt_that_is_neither_text_nor_tokens(model: llm.LanguageModel, prompt: Any) -> None:
    for ask in (model.generate, model.score):
        with pytest.raises(DTypeError, match="neither a text nor tokens"):
            ask(prompt)


def test_tokens_are_numbers_of_any_kind(model: llm.LanguageModel) -> None:
    wanted = model.generate([72, 105], max_tokens=3)
    kinds: list[Any] = [np.array([72, 105]), (np.int32(72), np.uint8(105)), range(72, 106, 33)]
    for prompt in kinds:
        assert model.generate(prompt, max_tokens=3) == wanted


@pytest.mark.parametrize(
    "messages",
    ["hello", [], None, ["hello"], [{"content": "hello"}], {"role": "user", "content": "hello"}],
)
def test_messages_that_are_none(model: llm.LanguageModel, messages: Any) -> None:
    if messages == []:  # a template may have something to say all the same
        assert model.conversation(messages)
        return
    with pytest.raises(DTypeError, match="are no conversation"):
        model.chat(messages)


def test_contents_may_be_parts(model: llm.LanguageModel) -> None:
    parts = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]
    whole = model.conversation([{"role": "user", "content": "Hello"}])
    assert model.conversation([{"role": "user", "content": parts}]) == whole
    calls = {"role": "assistant", "content": None, "tool_calls": []}
    assert model.conversation([calls]) == model.conversation([{**calls, "content": ""}])
    for wrong in ([{"type": "image_url", "image_url": "x"}], ["Hello"], [{"type": "text"}]):
        with pytest.raises(DTypeError, match="the content is no text"):
            model.conversation([{"role": "user", "content": wrong}])


@pytest.mark.parametrize("takes_none", [True, False])
def test_calls_without_content_reach_the_template(
    model: llm.LanguageModel, takes_none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates ask whether the content is None, and some fail where it is."""

    class Template:
        asks_for_none = True

        def render(self, messages: list[Any], tools: Any) -> str:
            content = messages[0]["content"]
            if content is None and not takes_none:
                raise CheckpointError("chat template", "None has no length")
            return f"{content}:{len(messages[0]['tool_calls'])}"

    monkeypatch.setattr(model, "template", Template())
    calls = {"role": "assistant", "content": None, "tool_calls": [1, 2]}
    wanted = "None:2" if takes_none else ":2"
    assert model.conversation([calls]) == model.tokenizer.encode(wanted, special=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"logit_bias": {"a": 1}}, "numbers of tokens"),
        ({"logit_bias": [1]}, "numbers of tokens"),
        ({"logit_bias": {5: float("nan")}}, "logit_bias of 5 is a number"),
        ({"logit_bias": {5: "1"}}, "logit_bias of 5 is a number"),
        ({"seed": "a"}, "seed is 0 to"),
        ({"temperature": None, "max_tokens": "4"}, "max_tokens is at least 1"),
        ({"stop": 5}, "stop is a text or several"),
        ({"stop": [5]}, "stop is a text or several"),
        ({"stop": b"a"}, "stop is a text or several"),
    ],
)
def test_options_of_other_kinds(model: llm.LanguageModel, options: Any, problem: str) -> None:
    """They ended in TypeErrors of comparisons, and an answer under a bias of NaN was empty."""
    with pytest.raises(NumericError, match=problem) as raised:
        model.generate("a", **options)
    assert "dataclasses" not in str(raised.value), "the line is the caller's"


def test_a_bias_may_forbid(model: llm.LanguageModel) -> None:
    others = dict.fromkeys({*range(model.model.vocabulary)} - {98}, -math.inf)
    assert model.generate([97], max_tokens=2, logit_bias=others) == "bb"


def test_a_bias_of_a_token_that_is_not_there(model: llm.LanguageModel) -> None:
    for token in (-1, 264, 10**9):
        with pytest.raises(IndexRangeError, match="not in the vocabulary"):
            model.generate("a", logit_bias={token: 1.0})
    assert len(model.generate([97], max_tokens=2, logit_bias={98: 100.0})) == 2
