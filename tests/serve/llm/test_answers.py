"""Answers of a language server over plain HTTP."""

from __future__ import annotations

import json
import math
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.llm.speaking import SAYS, Small, chat, events, speaking
from tests.serve.running import Running, ask

from treadle.serve.access import Access
from treadle.serve.limits import Limits

Server = tuple[Small, Running]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with speaking() as made:
        yield made


@pytest.fixture
def port(server: Server) -> int:
    return server[1].port


def test_a_conversation(port: int) -> None:
    found = chat(port, "capital?", model="small").json
    assert found["object"] == "chat.completion" and found["model"] == "small"
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": SAYS["capital?"], "refusal": None}
    assert choice["finish_reason"] == "stop"
    prompt = len("user:capital?") + 1
    assert found["usage"]["prompt_tokens"] == prompt
    assert found["usage"]["completion_tokens"] == len(SAYS["capital?"])
    assert found["usage"]["total_tokens"] == prompt + len(SAYS["capital?"])


def test_contents_in_parts_and_developers(port: int) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    found = ask(port, "/v1/chat/completions", {"messages": messages}).json
    assert found["choices"][0]["message"]["content"] == "You said system:x|user:ab"


def test_a_stream_never_splits_a_character(port: int) -> None:
    question = {"messages": [{"role": "user", "content": "umlauts?"}]}
    found, answer = events(port, "/v1/chat/completions", question)
    assert answer.headers["content-type"].startswith("text/event-stream")
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    pieces = [delta["content"] for delta in deltas[1:-1]]
    assert "".join(pieces) == SAYS["umlauts?"] and len(pieces) == len(SAYS["umlauts?"])
    assert [c["choices"][0]["finish_reason"] for c in found[-2:]] == [None, "stop"]
    assert len({chunk["id"] for chunk in found}) == 1


def test_usage_ends_a_stream_that_asks_for_it(port: int) -> None:
    content = {"prompt": "user:capital?\x02", "stream_options": {"include_usage": True}}
    found, _ = events(port, "/v1/completions", {**content, "max_tokens": 5})
    assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] == 5
    assert all(chunk["usage"] is None for chunk in found[:-1])
    assert "".join(c["choices"][0]["text"] for c in found[:-1]) == "It is"
    assert found[-2]["choices"][0]["finish_reason"] == "length"


def test_completions_of_several_prompts(port: int) -> None:
    prompts = ["a:capital?\x02", list(b"b:umlauts?\x02")]
    found = ask(port, "/v1/completions", {"prompt": prompts, "max_tokens": 6, "n": 2}).json
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in found["choices"]] == ["It is ", "It is ", "Grüß", "Grüß"]
    assert found["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert found["usage"]["completion_tokens"] == 24


def test_16_tokens_unless_more_are_asked_for(port: int) -> None:
    found = ask(port, "/v1/completions", {"prompt": "long?\x02"}).json
    assert found["usage"]["completion_tokens"] == 16


def test_stop_texts_and_prefixes_that_are_kept(port: int) -> None:
    for _ in range(2):
        found = chat(port, "capital?", stop=["is, of"]).json
    assert found["choices"][0]["message"]["content"] == "It is Par"
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == len("user:capital?")


def test_seeds_repeat_and_differ(port: int) -> None:
    def said(**more: Any) -> list[str]:
        found = chat(port, "capital?", temperature=5.0, max_tokens=24, n=3, **more).json
        return [c["message"]["content"] for c in found["choices"]]

    first = said(seed=7)
    assert first == said(seed=7) and len(set(first)) == 3
    assert first != said(seed=8) and said() != said()
    assert said(seed=-1) == said(seed=2**64 - 1)


def test_logprobs(port: int) -> None:
    found = chat(port, "capital?", logprobs=True, top_logprobs=2, max_tokens=3).json
    content = found["choices"][0]["logprobs"]["content"]
    expected = 8 - math.log(math.exp(8) + 256)
    assert [entry["token"] for entry in content] == ["I", "t", " "]
    for entry in content:
        assert entry["logprob"] == pytest.approx(expected, abs=1e-6)
        assert entry["bytes"] == list(entry["token"].encode())
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["token"] == entry["token"]
    plain = {"prompt": "a:capital?\x02", "logprobs": 1, "max_tokens": 3}
    told = ask(port, "/v1/completions", plain).json["choices"][0]["logprobs"]
    assert told["tokens"] == ["I", "t", " "] and told["text_offset"] == [0, 1, 2]
    streamed, _ = events(port, "/v1/completions", plain)
    parts = [c["choices"][0]["logprobs"] for c in streamed if c["choices"][0]["logprobs"]]
    assert [t for p in parts for t in p["tokens"]] == told["tokens"]
    assert [t for p in parts for t in p["text_offset"]] == told["text_offset"]


def test_addresses_without_a_version(port: int) -> None:
    """Clients are given http://HOST:PORT by some, with /v1 by others."""
    for prefix in ("", "/v1"):
        assert ask(port, f"{prefix}/models").json["data"][0]["id"] == "small"
        asked = {"messages": [{"role": "user", "content": "capital?"}]}
        found = ask(port, f"{prefix}/chat/completions", asked).json
        assert found["choices"][0]["message"]["content"] == SAYS["capital?"]
        told = ask(port, prefix + "/").json
        assert told["models"] == ["small", "vectors"]
        assert "/v1/chat/completions" in told["addresses"]


@pytest.mark.parametrize("most", [0, 1])
def test_prompts_are_repeated_with_their_likelihood(port: int, most: int) -> None:
    """As harnesses of evaluations ask (lm-eval: echo, logprobs, at most a token behind)."""
    prompts = ["a:capital?\x02It is Paris", list(b"a:umlauts?\x02G")]
    more = {"max_tokens": most, "echo": True, "logprobs": 1, "n": 2}
    found = ask(port, "/v1/completions", {"prompt": prompts, **more}).json
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert found["usage"]["completion_tokens"] == 4 * most
    likely, unlikely = 8 - math.log(math.exp(8) + 256), -math.log(math.exp(8) + 256)
    for choice in found["choices"]:
        told, text = choice["logprobs"], choice["text"]
        assert choice["finish_reason"] == "length"
        assert text.startswith("a:") and len(told["tokens"]) == most + len(
            prompts[choice["index"] // 2]
        )
        assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        at = text.index("\x02")
        assert told["token_logprobs"][1:at] == pytest.approx([unlikely] * (at - 1))
        assert told["token_logprobs"][at:] == pytest.approx([likely] * (len(told["tokens"]) - at))
        assert told["top_logprobs"][at + 1] == {text[at + 1]: pytest.approx(likely)}
        assert told["text_offset"][: len(text)] == list(range(len(text)))
    streamed, _ = events(port, "/v1/completions", {"prompt": prompts[0], **more, "n": 1})
    parts = [c["choices"][0] for c in streamed]
    assert "".join(p["text"] for p in parts) == found["choices"][0]["text"]
    offsets = [o for p in parts if p["logprobs"] for o in p["logprobs"]["text_offset"]]
    assert offsets == found["choices"][0]["logprobs"]["text_offset"]
    ended = "a:capital?\x02It is Paris, of course."
    told = ask(port, "/v1/completions", {"prompt": ended, **more, "n": 1}).json["choices"][0]
    assert len(told["logprobs"]["tokens"]) == len(ended) + most, "the token that ends texts counts"
    plain = ask(port, "/v1/completions", {"prompt": prompts[0], "max_tokens": 3, "echo": True})
    assert plain.json["choices"][0]["text"] == "a:capital?\x02It is Paris, o"


@pytest.mark.parametrize(
    ("question", "text", "arguments"),
    [
        ("weather?", None, ['{"city": "Köln"}']),
        ("both?", "Yes. ", ['{"city": "Oslo"}']),
        ("list?", None, ['{"city": "A"}', "{}"]),
        ("json?", SAYS["json?"], []),
    ],
)
def test_calls_of_tools(port: int, question: str, text: str | None, arguments: list[str]) -> None:
    question = f":{question}"
    (choice,) = chat(port, question, tools=[WEATHER]).json["choices"]
    calls = choice["message"].get("tool_calls", [])
    assert choice["message"]["content"] == text
    assert [c["function"] for c in calls] == [
        {"name": "weather", "arguments": each} for each in arguments
    ]
    assert choice["finish_reason"] == ("tool_calls" if arguments else "stop")
    asked = {"messages": [{"role": "user", "content": question}], "tools": [WEATHER]}
    streamed, _ = events(port, "/v1/chat/completions", asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
    assert "".join(d.get("content") or "" for d in deltas) == (text or "")
    found: dict[int, str] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", []):
            assert ("id" in call) == (call["index"] not in found)
            place = call["index"]
            found[place] = found.get(place, "") + call["function"]["arguments"]
    assert [found[i] for i in sorted(found)] == arguments
    assert streamed[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_without_tools_calls_are_text(port: int) -> None:
    (choice,) = chat(port, "weather?").json["choices"]
    assert choice["message"]["content"] == SAYS["weather?"]
    assert chat(port, "weather?", tools=[WEATHER], tool_choice="none").json["choices"] == [choice]


def test_results_of_tools_reach_the_template(port: int) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    content = {"messages": messages, "tools": [WEATHER]}
    found = ask(port, "/v1/chat/completions", content).json["choices"][0]["message"]["content"]
    assert found == "You said [weather]user:q|assistant:|tool:rain"
    refused = ask(port, "/v1/chat/completions", {"messages": messages})
    assert refused.status == 400
    assert refused.json["error"]["message"] == "results of tools need tools"


def test_addresses(port: int) -> None:
    model, _ = ask(port, "/v1/models").json["data"]
    assert model["id"] == "small" and model["object"] == "model"
    assert model["context_length"] == 4000
    assert ask(port, "/v1/models/small").json == model
    assert ask(port, "/health").json == {"status": "ok"}
    chat(port, "capital?")
    metrics = ask(port, "/metrics").body.decode()
    assert 'treadle_tokens_total{kind="generated",model="small"}' in metrics
    assert 'treadle_first_token_seconds_count{model="small"}' in metrics
    assert 'treadle_requests_total{model="small",status="200",version="1"}' in metrics


def test_company_changes_no_answer(port: int) -> None:
    alone = [chat(port, f"{i}", temperature=3, seed=i, max_tokens=30).json for i in range(12)]
    found: dict[int, Any] = {}

    def one(i: int) -> None:
        found[i] = chat(port, f"{i}", temperature=3, seed=i, max_tokens=30).json

    threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(12):
        assert found[i]["choices"] == alone[i]["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_ends_its_sequence(stream: bool) -> None:
    with speaking(sequences=1) as (model, server):
        body = b'{"prompt": "long?\\u0002", "max_tokens": 3900, "stream": %s}'
        body %= b"true" if stream else b"false"
        model.scripted.gate.clear()
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            sock.sendall(head.encode() + body)
            if stream:
                model.scripted.gate.set()
                assert b"data:" in sock.recv(65536) + sock.recv(65536)
            else:
                time.sleep(0.2)
        time.sleep(0.1)
        model.scripted.gate.set()
        assert chat(server.port, "capital?").status == 200
        assert model.scripted.steps < 3800, "it has gone on for a client that has gone"
        assert 'status="499"' in ask(server.port, "/metrics").body.decode()


def test_too_many_wait() -> None:
    with speaking(Limits(waiting=1), sequences=1) as (model, server):
        model.scripted.gate.clear()
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(chat(server.port, "capital?").status))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        while len(found) < 2:
            time.sleep(0.01)
        model.scripted.gate.set()
        for thread in threads:
            thread.join()
        assert sorted(found) == [200, 200, 429, 429]


def test_a_model_that_fails_is_told_and_the_server_goes_on() -> None:
    with speaking() as (model, server):
        model.scripted.fails = True
        failed = chat(server.port, "capital?")
        assert failed.status == 500 and failed.json["error"]["type"] == "server_error"
        question = {"messages": [{"role": "user", "content": "capital?"}]}
        found, _ = events(server.port, "/v1/chat/completions", question)
        assert found[-1]["error"]["type"] == "server_error"
        model.scripted.fails = False
        assert chat(server.port, "capital?").status == 200


def test_access() -> None:
    with speaking(access=Access("secret")) as (_, server):
        refused = chat(server.port, "capital?")
        assert refused.status == 401
        assert refused.json["error"]["type"] == "authentication_error"
        assert ask(server.port, "/health").status == 200
        headers = {"authorization": "Bearer secret"}
        assert ask(server.port, "/v1/models", headers=headers).status == 200


@pytest.mark.parametrize("room", [None, 96])
def test_nothing_of_a_conversation_reaches_another(room: int | None) -> None:
    """Clients at random times, of which some go in the middle; prompts begin alike.

    Where there is no room for all of them, some wait, and nobody fails.
    """
    rng, found, waited = random.Random(1), dict[int, Any](), list[Any]()
    with speaking(sequences=3, room=room) as (model, server):
        places = model.engine._places
        reserve = places.reserve

        def reserved(*given: Any) -> Any:
            waited.extend(gave_up := reserve(*given))
            return gave_up

        places.reserve = reserved  # type: ignore[method-assign]

        def ask_about(number: int, secret: str, leaves: bool) -> None:
            time.sleep(rng.random() * 0.2)
            if not leaves:
                found[number] = chat(server.port, f"the secret is {secret}", n=1 + number % 2)
                return
            content = {"prompt": f"user:the secret is {secret} long?\x02", "max_tokens": 3000}
            body = json.dumps({**content, "stream": True}).encode()
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(head.encode() + body)
                sock.recv(300)

        secrets = [f"{rng.getrandbits(40):010x}"[: rng.randint(4, 10)] for _ in range(30)]
        threads = [
            threading.Thread(target=ask_about, args=(i, secret, i % 4 == 3))
            for i, secret in enumerate(secrets)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == sum(i % 4 != 3 for i in range(30))
        for number, answer in found.items():
            said = {c["message"]["content"] for c in answer.json["choices"]}
            assert said == {f"You said user:the secret is {secrets[number]}"}
            assert (
                answer.json["usage"]["prompt_tokens"]
                == len(f"user:the secret is {secrets[number]}") + 1
            )
        reused = [a.json["usage"]["prompt_tokens_details"]["cached_tokens"] for a in found.values()]
        assert max(reused) >= 16  # a page of this model
        assert bool(waited) == (room is not None)
        for _ in range(100):  # those who went are noticed soon
            if places.store.available == model.engine._cache.pages:
                break
            time.sleep(0.1)
        assert places.store.available == model.engine._cache.pages
