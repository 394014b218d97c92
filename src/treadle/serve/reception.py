"""Parts that applications of the server share: access, bodies on their way, answers, the end.

It runs under any ASGI server. `treadle.serve.connection` hands bodies over without copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from treadle.serve.access import Access
from treadle.serve.limits import Limits
from treadle.serve.metrics import Metrics
from treadle.serve.protocol import Disconnected, RequestRefusal, Response, error_response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
INCOMING = "treadle.incoming"
"""Key under which a connection leaves an `Incoming` in the scope's state."""


class Incoming:
    """A body that a connection writes to memory as it arrives.

    Attributes:
        memory: all of it; complete when the application is told that no more comes.
        gone: whether the client has closed the connection.
    """

    __slots__ = ("gone", "memory")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.gone = False


class Reception(ABC):
    """An ASGI application with limits.

    Args:
        limits: of requests.
        access: who may ask; anybody if left out.

    Attributes:
        access: who may ask.
        draining: whether new requests are refused, because the server ends.
        in_flight: requests being read, run or answered.
    """

    def __init__(self, limits: Limits | None = None, access: Access | None = None) -> None:
        self.limits = limits or Limits()
        self.access = access or Access()
        self.metrics = Metrics()
        self.draining = False
        self.in_flight = 0
        self._held = 0
        """Bytes of all bodies."""
        self.metrics.in_flight.set_function(lambda: self.in_flight)

    @abstractmethod
    def close(self) -> None:
        """End the models' threads."""

    @abstractmethod
    async def answered(
        self, parts: list[str], scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """The answer to a request that was let in; None where it has been sent.

        Raises:
            Refusal: it is not to be answered.
        """

    def refused(self, refusal: RequestRefusal) -> Response:
        """An answer that says why there is none."""
        return error_response(refusal)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an ASGI scope."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.flight(), suppress(Disconnected):
            response = await self._let_in(scope, receive, send)
            if response is not None:
                await sent(send, response, with_body=scope["method"] != "HEAD")

    @contextmanager
    def flight(self) -> Iterator[None]:
        """Count a request while it is read, run or answered: the server waits for it."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        try:
            self.access.check(scope["method"], scope["path"], dict(scope["headers"]))
            return await self.answered(scope["path"].strip("/").split("/"), scope, receive, send)
        except RequestRefusal as refusal:
            self.metrics.refused.labels(str(refusal.status)).inc()
            return self.refused(refusal)

    # -- bodies --------------------------------------------------------------------------------

    def admitted(self, headers: Mapping[bytes, bytes]) -> int:
        """Bytes to set aside for a request's body; whoever has them gives them back.

        Raises:
            Refusal: it is too long, or there is no room.
        """
        if self.draining:
            raise RequestRefusal(503, "the server is about to end", (b"connection", b"close"))
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise RequestRefusal(415, "the body is compressed: send it as it is")
        limits, length = self.limits, headers.get(b"content-length")
        size = limits.body if length is None else int(length)
        if size > limits.body:
            raise RequestRefusal(413, f"the body has {size} bytes, {limits.body} are taken")
        return self.reserved(size)

    def reserved(self, size: int) -> int:
        """Reserve `size` bytes, which the caller gives back.

        Raises:
            Refusal: there is no room.
        """
        if self._held + size > self.limits.bodies:
            raise RequestRefusal(503, "too many bytes are under way", (b"retry-after", b"1"))
        self._held += size
        return size

    def given_back(self, held: int) -> None:
        """Bytes of a body that is done with."""
        self._held -= held

    async def body(self, scope: Scope, receive: Receive) -> tuple[memoryview, Incoming | None]:
        """All of a request's body."""
        # Taken out, so that the memory is free when the answer is there, whoever has the scope.
        incoming: Incoming | None = scope.get("state", {}).pop(INCOMING, None)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.body:
                raise RequestRefusal(413, f"the body has more than {self.limits.body} bytes")
            more = message.get("more_body", False)
        if incoming is not None:
            return incoming.memory, incoming
        return memoryview(b"".join(parts)), None

    def metrics_response(self) -> Response:
        """Return the metrics, for a scraper."""
        headers = ((b"content-type", self.metrics.content_type),)
        return Response(200, headers, (self.metrics.text(),))


def check_method(method: str, *allowed: str) -> None:
    """Refuse requests of another kind.

    Raises:
        Refusal: the address is for other methods.
    """
    if method not in allowed:
        header = b"allow", ", ".join(allowed).encode()
        raise RequestRefusal(405, f"{method} is not for this address, but {allowed[0]}", header)


async def _live(receive: Receive, send: Send) -> None:
    """Startup and shutdown, in which nothing is left to be done."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def sent(send: Send, response: Response, with_body: bool = True) -> None:
    """Send an answer."""
    headers = [*response.headers, (b"content-length", str(response.length).encode())]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    parts = response.parts if with_body else ()
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    last = parts[-1] if parts else b""
    await send({"type": "http.response.body", "body": last, "more_body": False})


__all__ = ["INCOMING", "Incoming", "Message", "Reception", "check_method", "sent"]
