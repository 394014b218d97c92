"""A language model that several clients ask, each request in a thread of its own.

Threads share the steps of the engine, so a request costs no more steps for having company.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import Counter, Histogram

from treadle.base.errors import NumericError, TreadleError
from treadle.llm.generation import Engine, Options, Token
from treadle.llm.generation.forms import AnswerForm
from treadle.llm.generation.sampling import SampledToken
from treadle.llm.generation.text_stream import Decoding, TextStream
from treadle.serve.llm.fields import Wrong, wrong_of
from treadle.serve.llm.requests import TextRequest
from treadle.serve.metrics import Metrics, ModelMetrics
from treadle.serve.protocol import RequestRefusal

_FIRST = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Text(Protocol):
    """The interface of tokenizers for speakers."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens."""

    def stream(self) -> Decoding:
        """Text of tokens that come one by one."""


class Speaking(Protocol):
    """The interface of models for speakers: `treadle.llm.LanguageModel` has it."""

    @property
    def engine(self) -> Engine:
        """The engine that continues prompts."""

    @property
    def tokenizer(self) -> Text:
        """Tokenizer between text and tokens."""

    def conversation(
        self, messages: Sequence[Any], tools: Sequence[Any] | None = None, /
    ) -> list[int]:
        """Tokens of a conversation; messages with calls of tools may have None as content."""

    def options(self, **changes: Any) -> Options:
        """Return the options of the continuation."""

    def form(self, **given: Any) -> AnswerForm | None:
        """The form of an answer."""

    def score(self, prompt: Sequence[int], *, top: int = 0) -> Iterator[SampledToken]:
        """Tokens of a prompt with their log-probabilities."""


class TokenMetrics:
    """Counters of language models, by model."""

    def __init__(self, metrics: Metrics) -> None:
        labels, registry = ("model",), metrics.registry
        self.first = Histogram(
            "treadle_first_token_seconds",
            "From a request to the first token of its answer.",
            labels,
            registry=registry,
            buckets=_FIRST,
        )
        self.tokens = Counter(
            "treadle_tokens_total",
            "Tokens: of prompts that were read, of prompts that the cache held, of answers.",
            (*labels, "kind"),
            registry=registry,
        )
        self.rate = Histogram(
            "treadle_tokens_per_second",
            "Of an answer, from its first token to its last.",
            labels,
            registry=registry,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
        )


@dataclass(frozen=True)
class Piece:
    """A part of an answer, or its end."""

    index: int
    text: str
    tokens: tuple[Token, ...]
    finish: str = ""


@dataclass(frozen=True)
class Usage:
    """Tokens of a request, and how long it took; after the last piece."""

    prompt: int
    cached: int
    generated: int
    first: float
    rest: float


Event = Piece | Usage | BaseException | None
"""Event of a job; None when the answers have begun."""


class Speaker:
    """A model with its threads.

    Args:
        name: that clients call it by.
        model: what answers.
        sequences: how many answers its engine continues at a time.
    """

    def __init__(self, name: str, model: Speaking, sequences: int = 1) -> None:
        self.name = name
        self.model = model
        self.created = int(time.time())
        self.length = model.engine.length
        self._sequences = sequences
        self._most = sequences
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1)
        self.metrics: ModelMetrics
        self._counts: TokenMetrics

    def open(self, metrics: Metrics, counts: TokenMetrics, waiting: int) -> None:
        """Prepare for requests, of which so many may wait."""
        self.metrics = ModelMetrics(metrics, self.name, "1")
        self.metrics.waiting.set_function(lambda: max(0, len(self._jobs) - self._sequences))
        self._counts = counts
        self._most = self._sequences + waiting
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=f"treadle-{self.name}")

    def ask(self, asked: TextRequest, tell: Callable[[Event], None]) -> Job:
        """Begin to answer; `tell` is called in another thread.

        Raises:
            Refusal: too many wait.
        """
        job = Job(self, asked, tell)
        with self._lock:
            if len(self._jobs) >= self._most:
                raise RequestRefusal(
                    429, "too many requests wait for the model", (b"retry-after", b"1")
                )
            self._jobs.add(job)
        job.future = self._pool.submit(self._run, job)
        return job

    def close(self) -> None:
        """End what is under way."""
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        self._pool.shutdown(cancel_futures=True)

    def _run(self, job: Job) -> None:
        try:
            job.run()
        finally:
            with self._lock:
                self._jobs.discard(job)

    def count(self, usage: Usage) -> None:
        """Write down what a request took."""
        name = self.name
        if usage.generated:
            self._counts.first.labels(name).observe(usage.first)
        for kind, number in (
            ("read", usage.prompt - usage.cached),
            ("cached", usage.cached),
            ("generated", usage.generated),
        ):
            self._counts.tokens.labels(name, kind).inc(number)
        if usage.rest > 0 and usage.generated > 1:
            self._counts.rate.labels(name).observe((usage.generated - 1) / usage.rest)


class Job:
    """A request that is being answered."""

    def __init__(self, speaker: Speaker, asked: TextRequest, tell: Callable[[Event], None]) -> None:
        self.speaker, self.asked = speaker, asked
        self.future: Future[None] | None = None
        self._tell = tell
        self._gone = threading.Event()
        self._streams: list[TextStream] = []
        self._given: list[Sequence[int]] = []

    def run(self) -> None:
        """Tell None, pieces and the usage, or an error instead of any of them."""
        try:
            if self._gone.is_set():
                return
            self._begin()
            self._tell(None)
            self._speak()
        except NumericError as error:
            param = self.asked.form.param if self.asked.form is not None else error.where
            self._tell(wrong_of(error, param))
        except BaseException as error:
            self._tell(error)
        finally:
            for stream in self._streams:
                stream.close()

    def cancel(self) -> None:
        """End the job, as nobody waits any more; its places in the engine are free for others."""
        self._gone.set()
        for stream in list(self._streams):
            stream.close()

    def _begin(self) -> None:
        model, asked = self.speaker.model, self.asked
        try:
            options = model.options(**asked.options)
        except TreadleError as error:
            raise wrong_of(error, error.where) from None
        try:
            self._given = self._prompts()
            if not all(self._given):
                raise Wrong("the prompt has no tokens, and nothing to continue", "prompt")
            for prompt in self._given:
                model.engine.checked(prompt)
                for number in range(0 if asked.silent else asked.count):
                    generation = model.engine.submit(prompt, options, number, self._form())
                    self._streams.append(TextStream(generation, model.tokenizer.stream()))
        except TreadleError as error:
            raise wrong_of(error, "messages" if asked.chat else error.where) from None
        if self._gone.is_set():
            self.cancel()

    def _form(self) -> AnswerForm | None:
        wanted = self.asked.form
        if wanted is None:
            return None
        try:
            return self.speaker.model.form(schema=wanted.schema)
        except TreadleError as error:
            raise wrong_of(error, wanted.param) from None

    def _prompts(self) -> list[Sequence[int]]:
        model, asked = self.speaker.model, self.asked
        if asked.chat:
            return [model.conversation(asked.messages, asked.tools or None)]
        return [model.tokenizer.encode(p) if isinstance(p, str) else p for p in asked.prompts]

    def _speak(self) -> None:
        """Pieces of all answers in turn, until the last has ended."""
        if self.asked.echo:
            for number, prompt in enumerate(self._given):
                self._repeat(number, prompt)
        told = [0] * len(self._streams)
        alive = list(range(len(self._streams)))
        while alive:
            for index in list(alive):
                stream = self._streams[index]
                text = next(stream, None)
                tokens = tuple(stream.tokens[told[index] :])
                told[index] += len(tokens)
                if text is None:
                    alive.remove(index)
                    if stream.finish == "cancelled" and not self._gone.is_set():
                        raise RuntimeError("the model failed while it answered a request")
                self._tell(Piece(index, text or "", tokens, stream.finish if text is None else ""))
        usage = self._usage()
        if not self._gone.is_set():
            self.speaker.count(usage)
        self._tell(usage)

    def _repeat(self, number: int, prompt: Sequence[int]) -> None:
        """A prompt, before each of its answers."""
        model, asked = self.speaker.model, self.asked
        top, given = asked.options.get("logprobs"), asked.prompts[number]
        text = given if isinstance(given, str) else model.tokenizer.decode(prompt)
        tokens = []
        for choice in model.score(prompt, top=top) if top is not None else ():
            if self._gone.is_set():
                return
            tokens.append(Token(choice.token, choice))
        finish = "length" if asked.silent else ""
        for index in range(number * asked.count, (number + 1) * asked.count):
            self._tell(Piece(index, text, tuple(tokens), finish))

    def _usage(self) -> Usage:
        """Return the counts of tokens; each prompt counts once, however many answers it has."""
        if not self._streams:
            return Usage(sum(map(len, self._given)), 0, 0, 0.0, 0.0)
        firsts = self._streams[:: self.asked.count]
        return Usage(
            sum(len(s.generation.prompt) for s in firsts),
            sum(s.generation.reused for s in firsts),
            sum(len(s.generation.generated) for s in self._streams),
            min(s.timing.first for s in self._streams),
            max(s.timing.rest for s in self._streams),
        )
