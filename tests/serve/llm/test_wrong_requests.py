"""What a language server says to requests that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.llm.speaking import chat, speaking
from tests.serve.running import ask


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with speaking(length=200) as (_, server):
        yield server.port


FORMAT = "response_format.json_schema.schema"


def schema(content: Any) -> dict[str, Any]:
    given = {"name": "given", "schema": content}
    return {"response_format": {"type": "json_schema", "json_schema": given}}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CHAT = [
    ({"temperature": -1}, "temperature", "0 to 100"),
    ({"temperature": "hot"}, "temperature", "a number"),
    ({"temperature": True}, "temperature", "a number"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.5}, "top_p", "0 to 1"),
    ({"top_k": 1.5}, "top_k", "an integer"),
    ({"top_k": -1}, "top_k", "at least 0"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_completion_tokens": -5}, "max_tokens", "at least 1"),
    ({"n": 0}, "n", "1 to 8"),
    ({"n": 10**30}, "n", "1 to 8"),
    ({"seed": 2**64}, "seed", "seed is"),
    ({"stop": [""] * 17}, "stop", "17 entries"),
    ({"stop": 5}, "stop", "a list"),
    ({"stop": [5]}, "stop", "a text"),
    ({"stop": "x" * 1001}, "stop", "1000"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "token"),
    ({"logit_bias": {"5": 1000}}, "logit_bias.5", "-100 to 100"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5", "a number"),
    ({"logit_bias": [1]}, "logit_bias", "object"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
    ({"logprobs": 1}, "logprobs", "true or false"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": 1}, "stream_options", "an object"),
    ({"response_format": "json"}, "response_format.type", "json_object"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": [1]}, "response_format.type", "json_object"),
    ({"response_format": {"type": "json_schema"}}, FORMAT, "an object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, FORMAT, "null"),
    (schema({"type": "nothing"}), "response_format", "Invalid type"),
    (schema({"enum": []}), "response_format", "cannot be followed"),
    (schema({"$ref": "http://example.org/a.json"}), "response_format", "not present"),
    (schema({"type": "string", "pattern": "("}), "response_format", "cannot be followed"),
    (schema({"const": "x" * 300_000}), "response_format", "too long"),
    (schema({"const": "\ud800"}), "response_format", "cannot be followed"),
    ({"tools": [{"type": "retrieval"}]}, "tools", "not a function"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tools": [tool("a")], "tool_choice": "always"}, "tool_choice", "required"),
    ({"tools": [tool("a")], "tool_choice": {"type": "function"}}, "tool_choice", "there are a"),
    ({"tools": [tool("")]}, "tools", "0 characters"),
    ({"tools": [tool("a", [])]}, "tools[0].function.parameters", "an object"),
    (
        {"tools": [tool("a", {"type": "nothing"})], "tool_choice": "required"},
        *("tools", "Invalid type"),
    ),
    ({"functions": [{"name": "a"}]}, "functions", "tools"),
    ({"function_call": "auto"}, "functions", "tool_choice"),
    (
        {"response_format": {"type": "json_object", "schema": 1}},
        *("response_format.schema", "an object"),
    ),
    ({"messages": []}, "messages", "0 entries"),
    ({"messages": "hello"}, "messages", "a list"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role", "user"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "no content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a text"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "surrogate"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
        "image_url",
    ),
    ({"model": "large"}, "model", "no model 'large'"),
    ({"model": 5}, "model", "no model"),
]


@pytest.mark.parametrize(("more", "param", "words"), CHAT)
def test_of_chat(port: int, more: dict[str, Any], param: str, words: str) -> None:
    found = chat(port, "a", **more)
    error = found.json["error"]
    assert found.status == (404 if param == "model" else 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param and words in error["message"]
    assert len(error["message"]) < 300


COMPLETION = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": "a", "echo": 1}, "echo"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a" * 500, "echo": True, "max_tokens": 0, "logprobs": 0}, "prompt"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [257]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
]


@pytest.mark.parametrize(("content", "param"), COMPLETION)
def test_of_completions(port: int, content: dict[str, Any], param: str) -> None:
    found = ask(port, "/v1/completions", content)
    assert found.status == 400
    assert found.json["error"]["param"] == param


def test_prompts_beyond_the_context(port: int) -> None:
    found = chat(port, "a" * 500)
    assert found.status == 400
    assert found.json["error"]["code"] == "context_length_exceeded"
    # Clients look for these words: LiteLLM raises ContextWindowExceededError.
    assert "is longer than the model's context length" in found.json["error"]["message"]
    assert "room for 200" in found.json["error"]["message"]
    assert found.json["error"]["param"] == "messages"
    empty = ask(port, "/v1/completions", {"prompt": ""}).json["error"]
    assert "no tokens" in empty["message"] and empty["code"] is None
    streamed = chat(port, "a" * 500, stream=True)
    assert streamed.status == 400, "a stream that cannot begin has a status"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"n": NaN}', b'{"a": 1, "a": 2}', b"[" * 100, b"\xff", b"1e999"]
)
def test_what_is_no_json(port: int, body: bytes) -> None:
    found = ask(port, "/v1/chat/completions", body, method="POST")
    assert found.status == 400 and "JSON" in found.json["error"]["message"]


def test_addresses_and_methods(port: int) -> None:
    assert ask(port, "/v1/other").status == 404
    assert ask(port, "/v2").status == 404
    for path in ("/api/tags", "/api/version", "/v1/responses"):
        told = ask(port, path)
        assert told.status == 404
        message = told.json["error"]["message"]
        assert path in message and "/v1/chat/completions" in message
        assert ("Ollama" in message) == path.startswith("/api")
    assert len(ask(port, "/" + "a" * 5000).json["error"]["message"]) < 400
    assert ask(port, "/v1/chat/completions").status == 405
    assert ask(port, "/v1/models", {}, method="POST").status == 405
    missing = ask(port, "/v1/models/large")
    assert missing.status == 404 and missing.json["error"]["code"] == "model_not_found"


def test_fields_that_are_not_known_are_ignored(port: int) -> None:
    assert chat(port, "capital?", metadata={"a": 1}, user="me", store=False).status == 200
