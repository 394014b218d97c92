"""Answers in forms over HTTP: JSON of a schema, and calls that a request demands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.llm.speaking import SAYS, chat, events, speaking
from tests.serve.llm.test_wrong_requests import schema, tool

from treadle.serve.llm.wanted_forms import read_tools, wanted_form

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 12}},
}
WEATHER = tool("wëather", CITY)
TIME = tool("time", {"type": "object", "properties": {}, "additionalProperties": False})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with speaking() as (_, server):
        yield server.port


def said(port: int, question: str, **more: Any) -> dict[str, Any]:
    found = chat(port, question, **more)
    assert found.status == 200, found.json
    return found.json["choices"][0]  # type: ignore[no-any-return]


def test_a_schema_ends_the_answer(port: int) -> None:
    choice = said(port, ":city?", **schema(CITY))
    assert choice["message"]["content"] == '{"city": "Wien", "people": 2000000}'
    assert choice["finish_reason"] == "stop"
    assert said(port, ":city?")["message"]["content"] == SAYS["city?"]


@pytest.mark.parametrize("temperature", [0, 50])
def test_whatever_the_model_wants_to_say_it_is_json(port: int, temperature: float) -> None:
    for question in (":capital?", ":umlauts?", ":weather?", ":long?"):
        for seed in range(3):
            more = {"seed": seed, "max_tokens": 300, "temperature": temperature}
            choice = said(port, question, **schema(CITY), **more)
            if choice["finish_reason"] == "stop":
                found = json.loads(choice["message"]["content"])
                assert found.keys() == {"city", "people"} and len(found["city"]) <= 12
                assert isinstance(found["people"], int)


def test_an_object_of_any_kind(port: int) -> None:
    found = said(port, ":json?", response_format={"type": "json_object"})
    assert found["message"]["content"] == SAYS["json?"]
    found = said(port, ":capital?", response_format={"type": "json_object"}, max_tokens=2)
    assert found["message"]["content"][0] == "{"


def test_spaces_do_not_go_on_for_ever(port: int) -> None:
    text = said(port, ":loop?", **schema(CITY), max_tokens=60)["message"]["content"]
    assert text.count(" ") < 40


def test_log_probabilities_are_those_of_the_model(port: int) -> None:
    more = {"logprobs": True, "top_logprobs": 1, "max_tokens": 1}
    free, formed = (
        said(port, ":capital?", **more, **form)["logprobs"]["content"][0]
        for form in ({}, schema(CITY))
    )
    assert free["token"] == "I" and formed["token"] == "{"
    assert formed["top_logprobs"] == free["top_logprobs"] and formed["logprob"] < free["logprob"]


def test_company_with_forms_and_without(port: int) -> None:
    forms: list[dict[str, Any]] = [{}, schema(CITY), {"response_format": {"type": "json_object"}}]

    def one(i: int) -> Any:
        more = {"temperature": 4, "seed": i, "max_tokens": 40}
        return said(port, f"{i}:city?", **forms[i % 3], **more)

    alone, found = [one(i) for i in range(12)], {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: one(i)})) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(12)] == alone
    assert all(alone[i]["message"]["content"].startswith("{") for i in (1, 2, 4, 5))


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"wëather", "time"}),
        ({"type": "function", "function": {"name": "wëather"}}, {"wëather"}),
        ({"type": "function", "function": {"name": "time"}}, {"time"}),
    ],
)
def test_calls_that_are_demanded(port: int, choice: Any, names: set[str]) -> None:
    for seed, question in enumerate((":capital?", ":weather?", ":json?", "hello")):
        more = {"tools": [WEATHER, TIME], "tool_choice": choice, "max_tokens": 400, "seed": seed}
        found = said(port, question, **more, temperature=seed)
        if found["finish_reason"] == "length":
            continue
        (call,) = found["message"]["tool_calls"]
        assert found["finish_reason"] == "tool_calls" and found["message"]["content"] is None
        assert call["function"]["name"] in names
        arguments = json.loads(call["function"]["arguments"])
        assert arguments.keys() == (
            {"city", "people"} if "w" in call["function"]["name"] else set()
        )


def test_calls_have_the_arguments_that_are_named() -> None:
    """JSON schema allows any others, and pydantic's schemas do not forbid them."""
    place = {"properties": {"properties": {"type": "string"}}, "type": "object"}
    parameters = {
        "properties": {"at": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]}},
        "$defs": {"place": place, "any": {"type": "object", "additionalProperties": True}},
    }
    content = {"tools": [tool("go", parameters)], "tool_choice": "required"}
    form = wanted_form(content, read_tools(content))
    assert form is not None
    found = json.loads(form.schema)["properties"]["arguments"]
    assert found["additionalProperties"] is False
    assert found["$defs"]["place"] == {**place, "additionalProperties": False}
    assert found["$defs"]["any"]["additionalProperties"] is True
    content["tools"] = [tool("go", {"allOf": [place, {"properties": {"b": {}}}]})]
    joined = wanted_form(content, read_tools(content))
    assert (
        joined is not None
        and "additionalProperties" not in json.loads(joined.schema)["properties"]["arguments"]
    )


def test_streams_of_calls_that_are_demanded(port: int) -> None:
    choice = {"type": "function", "function": {"name": "time"}}
    content = {"messages": [{"role": "user", "content": "a"}], "tools": [TIME]}
    found, _ = events(port, "/v1/chat/completions", {**content, "tool_choice": choice})
    calls = [c for e in found for c in e["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "time"
    assert "".join(call["function"]["arguments"] for call in calls) == "{}"
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_form_or_a_call(port: int) -> None:
    more = {**schema(CITY), "tools": [TIME]}
    found = said(port, ":city?", **more)
    assert json.loads(found["message"]["content"])["city"] == "Wien"
    assert said(port, ":weather?", **more, max_tokens=50)["message"]["content"][0] == "{"


def test_a_schema_beside_json_object(port: int) -> None:
    form = {"response_format": {"type": "json_object", "schema": CITY}}
    assert (
        said(port, ":city?", **form)["message"]["content"] == '{"city": "Wien", "people": 2000000}'
    )


def test_a_demanded_call_that_is_cut_off(port: int) -> None:
    """It is a call with the arguments so far, as OpenAI's interface has it, and no text."""
    more = {"tools": [WEATHER], "tool_choice": "required"}
    cut = said(port, ":call?", **more, max_tokens=48)
    assert cut["finish_reason"] == "length" and cut["message"]["content"] is None
    (call,) = cut["message"]["tool_calls"]
    assert call["function"]["name"] == "wëather"
    assert call["function"]["arguments"] == '{"city": "Wien'
    content = {"messages": [{"role": "user", "content": ":call?"}], **more, "max_tokens": 48}
    found, _ = events(port, "/v1/chat/completions", content)
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    parts = [c["function"].get("arguments", "") for d in deltas for c in d.get("tool_calls", ())]
    assert "".join(parts) == call["function"]["arguments"]
    assert found[-1]["choices"][0]["finish_reason"] == "length"
    early = said(port, ":call?", **more, max_tokens=3)
    assert early["finish_reason"] == "length" and "tool_calls" not in early["message"]
