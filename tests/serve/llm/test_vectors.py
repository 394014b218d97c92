"""Vectors and ranks over HTTP."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.serve.llm.speaking import Vectors, chat, speaking
from tests.serve.running import ask, running_application

from treadle.serve.llm import LanguageApplication, ModelReader


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with speaking() as (_, server):
        yield server.port


def embed(port: int, **content: Any) -> Any:
    return ask(port, "/v1/embeddings", content)


def test_a_text_or_several(port: int) -> None:
    found = embed(port, input="aab", model="vectors").json
    entry = {"object": "embedding", "index": 0, "embedding": [0.6666667, 0.33333334, 0.0]}
    assert found == {
        **{"object": "list", "data": [entry], "model": "vectors"},
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    texts = [*("b" * (i % 37) for i in range(100)), "Grüße"]
    several = embed(port, input=texts).json
    assert [e["index"] for e in several["data"]] == list(range(101))
    expected = [text.count("b") / 3 for text in texts]
    np.testing.assert_allclose([e["embedding"][1] for e in several["data"]], expected, atol=1e-6)
    assert several["usage"]["prompt_tokens"] == sum(1 + len(t.encode()) for t in texts)


def test_base64_has_the_same_numbers(port: int) -> None:
    (plain,) = embed(port, input="abbb").json["data"]
    (packed,) = embed(port, input="abbb", encoding_format="base64").json["data"]
    numbers = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert numbers.tolist() == np.array(plain["embedding"], np.float32).tolist()


def test_tokens_are_those_of_the_model(port: int) -> None:
    (text,) = embed(port, input="abb").json["data"]
    (tokens,) = embed(port, input=[256, 97, 98, 98]).json["data"]
    assert tokens == text
    both = embed(port, input=[[256, 97], "b"], dimensions=3).json["data"]
    assert [e["embedding"] for e in both] == [[0.33333334, 0.0, 0.0], [0.0, 0.33333334, 0.0]]


WRONG = [
    ({}, "input", "a list"),
    ({"input": []}, "input", "0 entries"),
    ({"input": [[]]}, "input", "a text"),
    ({"input": 5}, "input", "a list"),
    ({"input": [5, "a"]}, "input", "a text"),
    ({"input": ["a"] * 2049}, "input", "2048"),
    ({"input": "\udc00"}, "input", "surrogate"),
    ({"input": "a" * 40}, "input", "41 tokens"),
    ({"input": [257]}, "input", "vocabulary"),
    ({"input": [-1]}, "input", "vocabulary"),
    ({"input": [10**30]}, "input", "vocabulary"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "base64"),
    ({"input": "a", "encoding_format": ["float"]}, "encoding_format", "base64"),
    ({"input": "a", "dimensions": 2}, "dimensions", "have 3 dimensions"),
    ({"input": "a", "dimensions": 0}, "dimensions", "1 to"),
    ({"input": "a", "dimensions": "3"}, "dimensions", "an integer"),
    ({"input": "a", "model": "small"}, "model", "small continues text, vectors makes vectors"),
]


@pytest.mark.parametrize(("content", "param", "words"), WRONG)
def test_wrong_requests(port: int, content: dict[str, Any], param: str, words: str) -> None:
    found = embed(port, **content)
    assert found.status == 400, found.json
    assert found.json["error"]["param"] == param and words in found.json["error"]["message"]
    assert embed(port, input="a").status == 200


def test_long_texts_have_the_code_that_clients_look_for(port: int) -> None:
    assert embed(port, input=["a", "b" * 50]).json["error"]["code"] == "context_length_exceeded"


def test_a_model_of_the_other_kind_is_named(port: int) -> None:
    found = chat(port, "capital?", model="vectors")
    assert found.status == 400
    assert found.json["error"]["message"] == (
        "the model vectors makes vectors of texts, small continues text"
    )
    assert [m["id"] for m in ask(port, "/v1/models").json["data"]] == ["small", "vectors"]
    with running_application(LanguageApplication([ModelReader("only", Vectors())])) as server:
        refused = chat(server.port, "capital?", model="only").json["error"]["message"]
        assert refused == "the model only makes vectors of texts, none here continues text"


def test_ranks(port: int) -> None:
    documents = ["xyz", {"text": "abx"}, "ab"]
    found = ask(port, "/v1/rerank", {"query": "ab", "documents": documents}).json
    assert [r["index"] for r in found["results"]] == [2, 1, 0]
    scores = [r["relevance_score"] for r in found["results"]]
    assert scores == pytest.approx([1, 2 / 3, 0], abs=1e-6)
    more = {"query": "ab", "documents": documents, "top_n": 1, "return_documents": True}
    (best,) = ask(port, "/v1/rerank", more).json["results"]
    assert best == {"index": 2, "relevance_score": 1.0, "document": {"text": "ab"}}
    for wrong in ({"query": ""}, {"query": "a", "documents": [5]}, {"documents": ["a"]}):
        assert ask(port, "/v1/rerank", wrong).status == 400


def test_a_failure_is_told_and_the_server_goes_on(port: int) -> None:
    failed = embed(port, input="abc")
    assert failed.status == 500 and failed.json["error"]["type"] == "server_error"
    assert embed(port, input="ab").status == 200
    metrics = ask(port, "/metrics").body.decode()
    assert 'treadle_requests_total{model="vectors",status="500",version="1"} 1.0' in metrics
    assert 'treadle_tokens_total{kind="read",model="vectors"}' in metrics


def test_many_clients_get_their_own_vectors(port: int) -> None:
    found: dict[int, Any] = {}

    def one(i: int) -> None:
        texts = ["a" * (j % 30) + "b" * (i % 5) for j in range(40)]
        rows = [e["embedding"] for e in embed(port, input=texts).json["data"]]
        found[i] = all(
            row == pytest.approx([(j % 30) / 3, (i % 5) / 3, 0], rel=1e-6)
            for j, row in enumerate(rows)
        )

    threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(16), True)
