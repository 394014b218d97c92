"""Calls of the gRPC service, answered by the application that answers HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf import json_format

from treadle.serve import descriptions
from treadle.serve.application import Application, Served, refusing
from treadle.serve.protocol import RequestRefusal
from treadle.serve.rpc.conversion import request_of, response_of
from treadle.serve.rpc.messages import SERVICE, message, pool

Context = Any  # of grpc.aio, which has no types
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
ENDING = RequestRefusal(503, "the server is about to end")
Answers = asyncio.Queue["asyncio.Task[Any] | None"]
"""Answers that a stream will have, in order; None behind the last one."""


class Service:
    """The methods, by name; those that the descriptor has and this class lacks are refused.

    Args:
        app: with the models.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._streams: set[Answers] = set()
        self._reading = asyncio.Semaphore(max(1, app.limits.bodies // app.limits.body))

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the methods, as a server of gRPC takes them."""
        found = {}
        for method in pool().FindServiceByName(SERVICE).methods:
            given = message(method.input_type.name)
            if method.name == "ModelInfer":
                # A stream of one request: its bytes are read when there is room for them.
                made = grpc.stream_unary_rpc_method_handler(self._infer, given.FromString, _octets)
            elif method.name == "ModelStreamInfer":
                made = grpc.stream_stream_rpc_method_handler(
                    self._infer_stream, given.FromString, _octets
                )
            else:
                read = _reading(getattr(self, method.name), message(method.output_type.name))
                made = grpc.unary_unary_rpc_method_handler(read, given.FromString, _octets)
            found[method.name] = made
        return grpc.method_handlers_generic_handler(SERVICE, found)

    # -- what can be read, by the protocol's names ---------------------------------------------

    def ServerLive(self, asked: Any) -> dict[str, Any]:
        """Say that the process answers."""
        return {"live": True}

    def ServerReady(self, asked: Any) -> dict[str, Any]:
        """Say if requests are taken."""
        return {"ready": not self._app.draining}

    def ModelReady(self, asked: Any) -> dict[str, Any]:
        """Say if a model takes requests."""
        self._served(asked)
        return {"ready": not self._app.draining}

    def ServerMetadata(self, asked: Any) -> dict[str, Any]:
        """Name, version, extensions."""
        return descriptions.server()

    def ModelMetadata(self, asked: Any) -> dict[str, Any]:
        """Inputs and outputs."""
        return self._app.metadata(self._served(asked))

    def ModelConfig(self, asked: Any) -> dict[str, Any]:
        """Triton's configuration."""
        return {"config": self._app.configuration(self._served(asked))}

    def ModelStatistics(self, asked: Any) -> dict[str, Any]:
        """Triton's statistics, of one version, of all, or of all models."""
        if not asked.name:
            return self._app.statistics(self._app.all_served())
        served = self._served(asked)
        return self._app.statistics([served] if asked.version else self._app.all_served(asked.name))

    def RepositoryIndex(self, asked: Any) -> dict[str, Any]:
        """All models; none comes or goes while the server runs."""
        models = [served.model for served in self._app.all_served()]
        return {
            "models": [{"name": m.name, "version": m.version, "state": "READY"} for m in models]
        }

    def _served(self, asked: Any) -> Served:
        return self._app.served(asked.name, asked.version or None)

    # -- inference -----------------------------------------------------------------------------

    async def _infer(self, requests: AsyncIterator[Any], context: Context) -> Any:
        with self._app.flight():
            try:
                asked = await self._arrived(requests)
                return await self._inferred(asked)
            except RequestRefusal as refusal:
                await refuse(context, refusal)

    async def _arrived(self, requests: AsyncIterator[Any]) -> Any:
        """The request of a call; so many are read at a time that all of them fit."""
        if self._app.draining:
            raise ENDING
        seconds = self._app.limits.seconds
        try:
            await asyncio.wait_for(self._reading.acquire(), seconds)
            try:
                return await asyncio.wait_for(anext(requests), seconds)
            finally:
                self._reading.release()
        except TimeoutError:
            raise RequestRefusal(408, f"the request did not arrive in {seconds:g} s") from None
        except StopAsyncIteration:
            raise RequestRefusal(400, "the call holds no request") from None

    async def _inferred(self, asked: Any) -> Any:
        started, status = time.perf_counter(), 499
        held = self._app.reserved(asked.ByteSize())
        try:
            served = self._app.served(asked.model_name, asked.model_version or None)
            try:
                with refusing(served):
                    model = served.model
                    request = request_of(asked, model.inputs, model.outputs)
                    outputs = await served.results(request)
                    made = response_of(served.about, request, outputs)
                status = 200
                return made
            except RequestRefusal as refusal:
                status = refusal.status
                raise
            finally:
                served.answered(status, time.perf_counter() - started)
        finally:
            self._app.given_back(held)

    # -- streams -------------------------------------------------------------------------------

    async def _infer_stream(
        self, requests: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        """Answers in the order of requests, which may be under way together."""
        answers: Answers = asyncio.Queue()
        room = asyncio.Semaphore(self._app.limits.waiting)
        reader = asyncio.create_task(self._read_stream(requests, answers, room))
        self._streams.add(answers)
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
                room.release()
        finally:
            self._streams.discard(answers)
            reader.cancel()
            while not answers.empty():
                if (left := answers.get_nowait()) is not None:
                    left.cancel()
        if self._app.draining:
            await refuse(context, ENDING)

    async def _read_stream(
        self, requests: AsyncIterator[Any], answers: Answers, room: asyncio.Semaphore
    ) -> None:
        await room.acquire()
        async for asked in requests:
            answers.put_nowait(asyncio.create_task(self._answered(asked)))
            await room.acquire()
        answers.put_nowait(None)

    async def _answered(self, asked: Any) -> Any:
        """The answer to a request of a stream, which goes on whatever it is."""
        made = message("ModelStreamInferResponse")()
        with self._app.flight():
            try:
                made.infer_response.CopyFrom(await self._inferred(asked))
            except RequestRefusal as refusal:
                made.error_message = str(refusal)
                made.infer_response.id = asked.id
        return made

    def end_streams(self) -> None:
        """End streams behind the answers to what they have been asked."""
        for answers in self._streams:
            answers.put_nowait(None)


def _reading(content: Callable[[Any], dict[str, Any]], answer: Any) -> Callable[..., Any]:
    """A call that answers with an object of JSON as a message."""

    async def read(asked: Any, context: Context) -> Any:
        try:
            return json_format.ParseDict(content(asked), answer())
        except RequestRefusal as refusal:
            await refuse(context, refusal)

    return read


def _octets(made: Any) -> bytes:
    data: bytes = made.SerializeToString()
    return data


async def refuse(context: Context, refusal: RequestRefusal) -> None:
    """End a call with the status of gRPC that is closest to HTTP's."""
    await context.abort(_CODES.get(refusal.status, grpc.StatusCode.UNKNOWN), str(refusal))


__all__ = ["ENDING", "Service", "refuse"]
