"""A language model of few lines, and a server of it: it says what a table has for the prompt."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from tests.llm.generation.counting import Pages
from tests.llm.saved import bytes_tokenizer
from tests.serve.running import Running, ask, running_application

from treadle.base.errors import CheckpointError
from treadle.llm.generation import Engine, Options
from treadle.llm.generation.forms import AnswerForm, Forms
from treadle.llm.generation.sampling import SampledToken
from treadle.llm.generation.scoring import Scorer
from treadle.llm.text import Tokenizer
from treadle.llm.vectors import TextEmbedder
from treadle.serve.access import Access
from treadle.serve.limits import Limits
from treadle.serve.llm import LanguageApplication, ModelReader, Speaker

END, ASKED = 256, 2
"""The token that ends texts, and the byte behind which the answer stands."""
SAYS = {
    "capital?": "It is Paris, of course.",
    "umlauts?": "Grüße, 世界 🙂!",
    "weather?": '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>',
    "both?": 'Yes. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
    "list?": '[{"name": "weather", "arguments": {"city": "A"}}, {"name": "weather"}]',
    "city?": '{"city": "Wien", "people": 2000000} and so on',
    "call?": '{"name": "wëather", "arguments": {"city": "Wien", "people": 2}}',
    "loop?": '{"city": "Wien"' + " " * 4000,
    "json?": '{"not": "a call"}',
    "long?": "word " * 100_000,
}


class Bytes:
    """A tokenizer: tokens are bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Any) -> str:
        return bytes(t for t in tokens if t < 256).decode(errors="replace")

    def stream(self) -> BytesStream:
        return BytesStream()

    def as_json(self) -> str:
        return str(bytes_tokenizer("<end>").to_str())


class BytesStream:
    def __init__(self) -> None:
        self.held = b""

    def push(self, token: int, /) -> str:
        self.held += bytes([token]) if token < END else b""
        try:
            text = self.held.decode()
        except UnicodeDecodeError:
            return ""
        self.held = b""
        return text

    def flush(self) -> str:
        return self.held.decode(errors="replace")


class Scripted:
    """The next byte of what `SAYS` has for the question; else repeats the question."""

    vocabulary, context, piece = 257, 4000, 1

    def __init__(self) -> None:
        self.steps = 0
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()

    def cache(
        self, sequences: int, length: int, dtype: str | None = None, *, tokens: int | None = None
    ) -> Any:
        return Pages.of(sequences, length, 16, tokens)

    def copy(self, cache: Any, source: int, target: int, count: int, *, rings: bool) -> None:
        cache.copy(source, target, count)

    def step(
        self,
        tokens: Any,
        cache: Any,
        starts: Any,
        counts: Any,
        *,
        rows: Any = None,
        adapters: None = None,
        all: bool = False,
    ) -> Any:
        self.gate.wait(30)
        self.steps += 1
        if self.fails:
            raise RuntimeError("out of order")
        logits = np.zeros((len(tokens), tokens.shape[1] if all else 1, 257), np.float32)
        for i, row in enumerate(range(len(cache.table)) if rows is None else rows):
            start, count = int(starts[i]), int(counts[i])
            cache.write(row, start, tokens[i][:count])
            for t in range(count if all else 1):
                end = start + (t + 1 if all else count)
                logits[i, t, self.following(cache.text(row)[:end].tolist())] = 8.0

        class Result:
            numpy = staticmethod(lambda: logits if all else logits[:, 0])

        return Result

    def following(self, held: list[int]) -> int:
        if ASKED not in held:
            return ASKED  # a prompt without a question is asked
        at = len(held) - 1 - held[::-1].index(ASKED)
        question = bytes(t for t in held[:at] if t < 256).decode(errors="replace")
        says = SAYS.get(question.rpartition(":")[2], f"You said {question}").encode()
        said = len(held) - at - 1
        return says[said] if said < len(says) else END


class Small:
    """What `treadle.llm.LanguageModel` is for the server."""

    def __init__(self, sequences: int = 4, length: int = 4000, room: int | None = None) -> None:
        self.scripted = Scripted()
        self.engine = Engine(self.scripted, sequences, length, [END], cache_tokens=room)
        self.scorer = Scorer(self.scripted, self.engine)
        self.tokenizer = Bytes()
        self.forms = Forms(cast("Tokenizer", self.tokenizer), Scripted.vocabulary, [END])

    def score(self, prompt: Any, *, top: int = 0) -> Iterator[SampledToken]:
        return self.scorer.score(prompt, top=top)

    def form(self, *, schema: Any = None) -> AnswerForm | None:
        return self.forms.form("schema", schema)

    def conversation(self, messages: Any, tools: Any = None, /) -> list[int]:
        if messages[-1]["role"] == "tool" and not tools:
            raise CheckpointError("template", "results of tools need tools")
        told = "".join(f"[{tool['function']['name']}]" for tool in tools or ())
        said = "|".join(f"{m['role']}:{m['content'] or ''}" for m in messages)
        return [*self.tokenizer.encode(told + said), ASKED]

    def options(self, **changes: Any) -> Options:
        return Options().changed(**changes)


class Vectors:
    """What `treadle.llm.TextEmbedder` is for the server: a text's vector counts its letters."""

    hidden, context = 3, 40

    def __init__(self) -> None:
        self.tokenizer = self

    def encode_pair(self, text: str, other: str | None = None) -> tuple[list[int], list[int]]:
        first, second = text.encode(), (other or "").encode()
        return [END, *first, *second], [0] * (1 + len(first)) + [1] * len(second)

    check = TextEmbedder.check
    model = SimpleNamespace(vocabulary=257)

    def vectors(self, texts: Any) -> Any:
        if any(97 in t and 98 in t and 99 in t for t, _ in texts):
            raise RuntimeError("out of order")
        return np.array([[t.count(c) / 3 for c in b"abc"] for t, _ in texts], np.float32)

    def scores(self, pairs: Any) -> Any:
        """How many of the letters of the second text the first one has, too."""
        found = []
        for tokens, kinds in pairs:
            first = {t for t, k in zip(tokens, kinds, strict=True) if not k}
            second = [t for t, k in zip(tokens, kinds, strict=True) if k]
            found.append(sum(t in first for t in second) / max(1, len(second)))
        return np.array(found, np.float32)


@contextmanager
def speaking(
    limits: Limits | None = None, access: Access | None = None, **how: Any
) -> Iterator[tuple[Small, Running]]:
    model = Small(**how)
    served = [Speaker("small", model, how.get("sequences", 4)), ModelReader("vectors", Vectors())]
    with running_application(LanguageApplication(served, limits, access)) as server:
        yield model, server


def chat(port: int, text: str, **more: Any) -> Any:
    """One question."""
    messages = [{"role": "user", "content": text}]
    return ask(port, "/v1/chat/completions", {"messages": messages, **more})


def events(
    port: int, path: str, content: dict[str, Any]
) -> tuple[list[Any], http.client.HTTPResponse]:
    """What a stream sends, the last without its [DONE]."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps({**content, "stream": True}))
    answer = connection.getresponse()
    texts = answer.read().decode().split("\n\n")
    connection.close()
    assert texts.pop() == ""
    assert all(text.startswith("data: ") for text in texts)
    if texts[-1] == "data: [DONE]":
        return [json.loads(text[6:]) for text in texts[:-1]], answer
    return [json.loads(text[6:]) for text in texts], answer
