"""Addresses of OpenAI's interface, and requests on their way to language models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from treadle.base.files.strict_json import shorten
from treadle.base.log import get_logger
from treadle.serve.access import Access
from treadle.serve.limits import Limits
from treadle.serve.llm.answers import AnswerWriter, error_content, event
from treadle.serve.llm.fields import Wrong
from treadle.serve.llm.readers import ModelReader, read_ranks, read_vectors
from treadle.serve.llm.requests import TextRequest, read_chat, read_completion, read_object
from treadle.serve.llm.speakers import Event, Job, Piece, Speaker, TokenMetrics, Usage
from treadle.serve.protocol import Disconnected, RequestRefusal, Response, json_response
from treadle.serve.reception import Receive, Reception, Scope, Send, check_method

A = TypeVar("A")
M = TypeVar("M", Speaker, ModelReader)
_DOES: dict[type[object], str] = {
    Speaker: "continues text",
    ModelReader: "makes vectors of texts",
}
_SERVED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/models"),
    *("/health", "/metrics"),
)
_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class LanguageApplication(Reception):
    """Answers for language models.

    Args:
        models: that continue text, and that make vectors of it, with names that differ.
        limits: of requests.
        access: who may ask; anybody if left out.
    """

    def __init__(
        self,
        models: Sequence[Speaker | ModelReader],
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        super().__init__(limits, access)
        counts = TokenMetrics(self.metrics)
        self._models = {model.name: model for model in models}
        for model in models:
            model.open(self.metrics, counts, self.limits.waiting)

    def close(self) -> None:
        """End the models' threads."""
        for model in self._models.values():
            model.close()

    def refused(self, refusal: RequestRefusal) -> Response:
        """An error as clients of OpenAI's interface read it."""
        return json_response(error_content(refusal), refusal.status, *refusal.headers)

    async def answered(
        self, parts: list[str], scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """The answer; None where it has been sent."""
        match parts[1:] if parts[:1] == ["v1"] else parts:
            case ["chat", "completions"]:
                return await self._speak(read_chat, scope, receive, send)
            case ["completions"]:
                return await self._speak(read_completion, scope, receive, send)
            case ["embeddings"]:
                return await self._read(read_vectors, ModelReader.embedded, scope, receive)
            case ["rerank"]:
                return await self._read(read_ranks, ModelReader.ranked, scope, receive)
            case [] | [""]:
                answer = json_response({"models": list(self._models), "addresses": _SERVED})
            case ["models"]:
                listed = [_described(each) for each in self._models.values()]
                answer = json_response({"object": "list", "data": listed})
            case ["models", *name] if name:
                answer = json_response(_described(self._known("/".join(name))))
            case ["health"]:
                status = "ending" if self.draining else "ok"
                answer = json_response({"status": status}, 503 if self.draining else 200)
            case ["metrics"]:
                answer = self.metrics_response()
            case _:
                theirs = "; Ollama's interface is not there" if parts[:1] == ["api"] else ""
                where = shorten(f"/{'/'.join(parts)}")
                told = f"there is nothing at {where}{theirs}, but {', '.join(_SERVED)}"
                raise RequestRefusal(404, told)
        check_method(scope["method"], "GET", "HEAD")
        return answer

    def _known(self, name: object) -> Speaker | ModelReader:
        """A model by its name."""
        found = self._models.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(self._models)
            told = f"there is no model {shorten(name)}, but {known}"
            raise Wrong(told, "model", "model_not_found", status=404)
        return found

    def _meant(self, content: Mapping[str, Any], kind: type[M]) -> M:
        """The model that a request names; without a name the only one of its kind."""
        name = content.get("model")
        fitting = [each for each in self._models.values() if isinstance(each, kind)]
        if name is None and len(fitting) == 1:
            return fitting[0]
        found = self._known(name)
        if not isinstance(found, kind):
            others = ", ".join(each.name for each in fitting) or "none here"
            told = f"the model {found.name} {_DOES[type(found)]}, {others} {_DOES[kind]}"
            raise Wrong(told, "model", "model_not_supported")
        return found

    async def _content(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """The JSON of a request."""
        check_method(scope["method"], "POST")
        held = self.admitted(dict(scope["headers"]))
        try:
            body, _ = await self.body(scope, receive)
            return read_object(body, self.limits.json)
        finally:
            self.given_back(held)

    async def _speak(
        self,
        read: Callable[[Mapping[str, Any]], TextRequest],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> Response | None:
        content = await self._content(scope, receive)
        speaker = self._meant(content, Speaker)
        with _counted(speaker) as counted:
            response = await _answered(speaker, read(content), receive, send)
            counted.status = 200 if response is None else response.status
            return response

    async def _read(
        self,
        read: Callable[[Mapping[str, Any]], A],
        answer: Callable[[ModelReader, A], Coroutine[Any, Any, Response]],
        scope: Scope,
        receive: Receive,
    ) -> Response:
        content = await self._content(scope, receive)
        reader = self._meant(content, ModelReader)
        with _counted(reader) as counted:
            response = await _unless_gone(answer(reader, read(content)), receive)
            counted.status = response.status
            return response


class _Counted:
    """A request; what became of it is counted at its end. 499: the client has gone."""

    status = 499


@contextmanager
def _counted(model: Speaker | ModelReader) -> Iterator[_Counted]:
    counted, started = _Counted(), time.perf_counter()
    try:
        yield counted
    except RequestRefusal as refusal:
        counted.status = refusal.status
        raise
    finally:
        model.metrics.answered(counted.status)
        model.metrics.seconds.observe(time.perf_counter() - started)


async def _unless_gone(answer: Coroutine[Any, Any, Response], receive: Receive) -> Response:
    """Await an answer as long as the client waits for it.

    Raises:
        Refusal: it cannot be computed.
        Disconnected: the client has gone.
    """
    events: asyncio.Queue[Event] = asyncio.Queue()
    watching = asyncio.ensure_future(_vanished(receive, events))
    computing = asyncio.ensure_future(answer)
    try:
        await asyncio.wait((watching, computing), return_when=asyncio.FIRST_COMPLETED)
        if not computing.done():
            raise Disconnected
        return computing.result()
    except (RequestRefusal, Disconnected):
        raise
    except Exception as error:
        raise _failed(error) from None
    finally:
        watching.cancel()
        computing.cancel()


async def _answered(
    speaker: Speaker, asked: TextRequest, receive: Receive, send: Send
) -> Response | None:
    """The answer to a request; None where it was sent piece by piece."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def tell(event: Event) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody is waiting
            loop.call_soon_threadsafe(events.put_nowait, event)

    job = speaker.ask(asked, tell)
    watching = asyncio.ensure_future(_vanished(receive, events))
    done = False
    try:
        await _next(events)  # it has begun
        writer = AnswerWriter(asked, speaker.name, speaker.model.tokenizer)
        if asked.stream:
            await _streamed(writer, asked, events, send)
            done = True
            return None
        pieces: list[Piece] = []
        while not isinstance(told := await _next(events), Usage):
            if isinstance(told, Piece):
                pieces.append(told)
        done = True
        return json_response(writer.whole(pieces, told))
    finally:
        watching.cancel()
        if not done:
            _cancelled(loop, job)


def _cancelled(loop: asyncio.AbstractEventLoop, job: Job) -> None:
    """End a job, for which a step may have to end first: not in the loop."""
    with suppress(RuntimeError):
        loop.run_in_executor(None, job.cancel)


async def _vanished(receive: Receive, events: asyncio.Queue[Event]) -> None:
    """Tell when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    events.put_nowait(Disconnected())


async def _next(events: asyncio.Queue[Event]) -> Piece | Usage | None:
    """Return the next event of a job.

    Raises:
        Refusal: it cannot be answered.
        Disconnected: the client has gone.
    """
    told = await events.get()
    if isinstance(told, RequestRefusal | Disconnected):
        raise told
    if isinstance(told, BaseException):
        raise _failed(told)
    return told


def _failed(error: BaseException) -> RequestRefusal:
    """Return the refusal that tells a client of an error that is not its own."""
    get_logger().error("a request failed", exc_info=error)
    return RequestRefusal(500, f"the request failed: {type(error).__name__}")


async def _streamed(
    writer: AnswerWriter, asked: TextRequest, events: asyncio.Queue[Event], send: Send
) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(_STREAM)})

    async def write(chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    count = asked.count * max(1, len(asked.prompts))
    for chunk in writer.opening(count):
        await write(chunk)
    try:
        while not isinstance(told := await _next(events), Usage):
            if isinstance(told, Piece):
                for chunk in writer.chunks(told):
                    await write(chunk)
        for chunk in writer.closing(told):
            await write(chunk)
    except RequestRefusal as refusal:  # the status has been sent
        await write(event(error_content(refusal)))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _described(model: Speaker | ModelReader) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "treadle",
        "context_length": model.length,
    }


__all__ = ["LanguageApplication"]
