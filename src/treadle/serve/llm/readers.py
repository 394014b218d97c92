"""Models that turn texts into vectors or scores, asked by several clients."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from treadle.base.errors import TreadleError
from treadle.llm.vectors import Encoded
from treadle.serve.llm.fields import (
    Wrong,
    list_of,
    mistyped,
    number_of,
    switch_of,
    text_of,
    texts_of,
    wrong_of,
)
from treadle.serve.llm.speakers import TokenMetrics
from treadle.serve.metrics import Metrics, ModelMetrics
from treadle.serve.protocol import RequestRefusal, Response, json_response

T = TypeVar("T")
FloatArray = npt.NDArray[np.float32]

_MOST_TEXTS = 2048
"""As many as OpenAI's interface takes."""
_SLICE = 32
"""Texts between two looks at whether anybody still waits, and whether others do."""


class Pairs(Protocol):
    """The interface of tokenizers for readers."""

    def encode_pair(self, text: str, other: str | None = None) -> Encoded:
        """Tokens of a text, or of two, with their kinds."""


class Embedding(Protocol):
    """The interface of models for readers: `treadle.llm.TextEmbedder` has it."""

    hidden: int
    context: int

    @property
    def tokenizer(self) -> Pairs:
        """Tokenizer between text and tokens."""

    def check(self, texts: Sequence[Encoded]) -> None:
        """Refuse what it cannot read."""

    def vectors(self, texts: Sequence[Encoded]) -> FloatArray:
        """A row for each text."""

    def scores(self, pairs: Sequence[Encoded]) -> FloatArray:
        """A number for each pair."""


@dataclass(frozen=True)
class AskedVectors:
    """A request of `/v1/embeddings`: texts or tokens, and whether vectors are sent as base64."""

    texts: tuple[str | tuple[int, ...], ...]
    packed: bool
    dimensions: int | None


@dataclass(frozen=True)
class AskedRanks:
    """A request of `/v1/rerank`: a question, texts, how many are wanted and whether repeated."""

    query: str
    texts: tuple[str, ...]
    most: int
    repeated: bool


def read_vectors(content: Mapping[str, Any]) -> AskedVectors:
    """A request for vectors.

    Raises:
        Wrong: a field is.
    """
    kind = content.get("encoding_format")
    if kind not in (None, "float", "base64"):
        mistyped("encoding_format", "float or base64", kind)
    dimensions = number_of(content, "dimensions", 1, whole=True)
    return AskedVectors(texts_of(content, "input", _MOST_TEXTS), kind == "base64", dimensions)


def read_ranks(content: Mapping[str, Any]) -> AskedRanks:
    """A request for scores, in the words of Cohere's and Jina's interfaces.

    Raises:
        Wrong: a field is.
    """
    query = text_of(content.get("query"), "query")
    given = list_of(content.get("documents"), "documents", _MOST_TEXTS)
    texts = tuple(
        text_of(each.get("text") if isinstance(each, dict) else each, f"documents[{i}]")
        for i, each in enumerate(given)
    )
    most = number_of(content, "top_n", 1, whole=True)
    repeated = switch_of(content, "return_documents")
    return AskedRanks(query, texts, len(texts) if most is None else most, repeated)


class ModelReader:
    """A model with the thread that it runs in.

    Args:
        name: that clients call it by.
        model: what makes vectors.
    """

    def __init__(self, name: str, model: Embedding) -> None:
        self.name = name
        self.model = model
        self.created = int(time.time())
        self.length = model.context
        self._pool = ThreadPoolExecutor(1)
        self._asking, self._most = 0, 1
        self.metrics: ModelMetrics
        self._counts: TokenMetrics

    def open(self, metrics: Metrics, counts: TokenMetrics, waiting: int) -> None:
        """Prepare for requests, of which so many may wait."""
        self.metrics = ModelMetrics(metrics, self.name, "1")
        self.metrics.waiting.set_function(lambda: max(0, self._asking - 1))
        self._counts = counts
        self._most = 1 + waiting
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"treadle-{self.name}")

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(cancel_futures=True)

    async def embedded(self, asked: AskedVectors) -> Response:
        """The answer to a request for vectors.

        Raises:
            Refusal: too many wait, or the model cannot read a text.
        """
        if asked.dimensions not in (None, self.model.hidden):
            problem = f"vectors of this model have {self.model.hidden} dimensions"
            raise Wrong(f"{problem}, not {asked.dimensions}", "dimensions")

        def encoded() -> list[Encoded]:
            encode = self.model.tokenizer.encode_pair
            return [
                encode(t) if isinstance(t, str) else (list(t), [0] * len(t)) for t in asked.texts
            ]

        def told() -> Response:
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            data = [
                {"object": "embedding", "index": i, "embedding": _written(row, asked.packed)}
                for i, row in enumerate(rows)
            ]
            head = {"object": "list", "data": data, "model": self.name}
            return json_response({**head, "usage": usage})

        rows, tokens = await self._read(encoded, self.model.vectors, "input")
        return await self._run(told)  # a million numbers take a second to be written

    async def ranked(self, asked: AskedRanks) -> Response:
        """The answer to a request for scores, the best first.

        Raises:
            Refusal: too many wait, or the model cannot score texts.
        """

        def encoded() -> list[Encoded]:
            return [self.model.tokenizer.encode_pair(asked.query, text) for text in asked.texts]

        scores, tokens = await self._read(encoded, self.model.scores, "documents")
        results: list[dict[str, Any]] = []
        for i in np.argsort(-scores, kind="stable")[: asked.most].tolist():
            shown = {"document": {"text": asked.texts[i]}} if asked.repeated else {}
            results.append({"index": i, "relevance_score": float(str(scores[i])), **shown})
        head = {"id": f"rerank-{secrets.token_hex(12)}", "model": self.name}
        return json_response({**head, "results": results, "usage": {"total_tokens": tokens}})

    async def _read(
        self,
        encoded: Callable[[], list[Encoded]],
        compute: Callable[[Sequence[Encoded]], FloatArray],
        param: str,
    ) -> tuple[FloatArray, int]:
        """Rows of all texts, and how many tokens these have; by slices, between which others run.

        Raises:
            Refusal: too many wait, or the model cannot read a text.
        """
        if self._asking >= self._most:
            raise RequestRefusal(
                429, "too many requests wait for the model", (b"retry-after", b"1")
            )
        self._asking += 1
        try:
            texts = await self._run(encoded)
            self.model.check(texts)
            # Slices of one length each: little of them is padding.
            order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
            parts = []
            for start in range(0, len(order), _SLICE):
                given = [texts[i] for i in order[start : start + _SLICE]]
                parts.append(await self._run(partial(compute, given)))
        except TreadleError as error:
            raise wrong_of(error, param) from None
        finally:
            self._asking -= 1
        rows = np.concatenate(parts)
        rows[order] = rows.copy()
        tokens = sum(len(t) for t, _ in texts)
        self._counts.tokens.labels(self.name, "read").inc(tokens)
        return rows, tokens

    async def _run(self, what: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, what)


def _written(row: FloatArray, packed: bool) -> Any:
    """A vector: numbers with as many digits as float32 has, or its bytes."""
    if packed:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(str(value)) for value in row]
