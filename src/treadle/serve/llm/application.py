"""Addresses of OpenAI's interface, and requests on their way to language models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from treadle.base.files.strict_json import shorten
from treadle.base.log import get_logger
from treadle.serve.access import Access
from treadle.serve.limits import Limits
from treadle.serve.llm.answers import Writer, error_content, event
from treadle.serve.llm.requests import Asked, Wrong, read_chat, read_completion, read_object
from treadle.serve.llm.speakers import Event, Job, Piece, Speaker, TokenMetrics, Usage
from treadle.serve.protocol import Disconnected, Refusal, Response, json_response
from treadle.serve.reception import Receive, Reception, Scope, Send, check_method

_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class LanguageApplication(Reception):
    """Answers for language models.

    Args:
        speakers: with names that differ.
        limits: of requests.
        access: who may ask; anybody if left out.
    """

    def __init__(
        self,
        speakers: Sequence[Speaker],
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        super().__init__(limits, access)
        counts = TokenMetrics(self.metrics)
        self._speakers = {speaker.name: speaker for speaker in speakers}
        for speaker in speakers:
            speaker.open(self.metrics, counts, self.limits.waiting)

    def close(self) -> None:
        """End the models' threads."""
        for speaker in self._speakers.values():
            speaker.close()

    def refused(self, refusal: Refusal) -> Response:
        """An error as clients of OpenAI's interface read it."""
        return json_response(error_content(refusal), refusal.status, *refusal.headers)

    async def answered(
        self, parts: list[str], scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """The answer; None where it has been sent."""
        match parts:
            case ["v1", "chat", "completions"]:
                return await self._speak(read_chat, scope, receive, send)
            case ["v1", "completions"]:
                return await self._speak(read_completion, scope, receive, send)
            case ["v1", "models"]:
                listed = [_described(each) for each in self._speakers.values()]
                answer = json_response({"object": "list", "data": listed})
            case ["v1", "models", *name] if name:
                answer = json_response(_described(self._speaker("/".join(name))))
            case ["health"]:
                status = "ending" if self.draining else "ok"
                answer = json_response({"status": status}, 503 if self.draining else 200)
            case ["metrics"]:
                answer = self.metrics_response()
            case _:
                raise Refusal(404, "there is nothing at this address; see /v1/models")
        check_method(scope["method"], "GET", "HEAD")
        return answer

    def _speaker(self, name: object) -> Speaker:
        """A model by its name; the only one also without."""
        if name is None and len(self._speakers) == 1:
            return next(iter(self._speakers.values()))
        found = self._speakers.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(self._speakers)
            told = f"there is no model {shorten(name)}, but {known}"
            raise Wrong(told, "model", "model_not_found", status=404)
        return found

    async def _speak(
        self, read: Any, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        check_method(scope["method"], "POST")
        held = self.admitted(dict(scope["headers"]))
        try:
            body, _ = await self.body(scope, receive)
            content = read_object(body, self.limits.json)
        finally:
            self.given_back(held)
        speaker = self._speaker(content.get("model"))
        started, status = time.perf_counter(), 499  # 499: the client has gone
        try:
            response = await _answered(speaker, read(content), receive, send)
            status = 200 if response is None else response.status
            return response
        except Refusal as refusal:
            status = refusal.status
            raise
        finally:
            speaker.metrics.answered(status)
            speaker.metrics.seconds.observe(time.perf_counter() - started)


async def _answered(
    speaker: Speaker, asked: Asked, receive: Receive, send: Send
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
        writer = Writer(asked, speaker.name, speaker.model.tokenizer)
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
    """What a job tells next.

    Raises:
        Refusal: it cannot be answered.
        Disconnected: the client has gone.
    """
    told = await events.get()
    if isinstance(told, Refusal | Disconnected):
        raise told
    if isinstance(told, BaseException):
        get_logger().error("a request failed", exc_info=told)
        raise Refusal(500, f"the request failed: {type(told).__name__}")
    return told


async def _streamed(writer: Writer, asked: Asked, events: asyncio.Queue[Event], send: Send) -> None:
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
    except Refusal as refusal:  # the status has been sent
        await write(event(error_content(refusal)))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _described(speaker: Speaker) -> dict[str, Any]:
    return {
        "id": speaker.name,
        "object": "model",
        "created": speaker.created,
        "owned_by": "treadle",
        "context_length": speaker.model.engine.length,
    }


__all__ = ["LanguageApplication"]
