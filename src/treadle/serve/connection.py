"""Connections that defend themselves, and read bodies straight into memory that models read.

uvicorn's own connection hands bodies on in pieces of 64 KiB and stops reading in between; for an
image of 600 KB that takes longer than the rest of the server together. This one receives the rest
of a body whose length is known into one block of memory. It also ends requests that arrive too
slowly and lines that are too long, which uvicorn leaves to a proxy; it makes way for others while
it waits for a request, and reads on a little where it is closed before a request is complete, since
the client would not see the answer otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools
import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from treadle.serve.limits import Limits
from treadle.serve.protocol import HEADER_LENGTH
from treadle.serve.reception import INCOMING, Incoming

_SCRATCH = 16 * 1024
_ALIGNMENT = 64
_NEW = 0.25
"""Seconds in which a connection that was just made is expected to bring a request."""


class Config(uvicorn.Config):
    """uvicorn's, with our limits for our connections."""

    def __init__(self, app: Any, limits: Limits) -> None:
        super().__init__(
            app,
            http=Connection,
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=max(1, round(limits.idle)),
            timeout_graceful_shutdown=1,
        )
        self.limits = limits
        self.draining = False
        """True if every answer is the last one of its connection."""
        self.clients: Counter[str] = Counter()
        """Connections by the address of their clients."""


class _Transport:
    """A connection's transport, whose `close` asks the connection."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.raw = transport
        self.write = transport.write
        self.close = close
        self.ending = False

    def is_closing(self) -> bool:
        return self.ending or self.raw.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """One client's connection."""

    config: Config

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        self._ends = _Transport(transport, self._close)
        super().connection_made(cast(asyncio.Transport, self._ends))
        self._limits = self.config.limits
        self._waiting: float | None = self.loop.time()
        """Since when for a request; None while there is one."""
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._head = 0
        """Bytes of the line and headers so far."""
        self._left: int | None = None
        """Bytes of a body of known length that have not come."""
        self._memory: memoryview | None = None
        """Destination of the bytes; None where nobody reads them."""
        self._incoming: Incoming | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """Of a request."""
        self._taking: asyncio.TimerHandle | None = None
        """Of an answer."""
        self._arm()
        self._address = self.client[0] if self.client else ""
        self.config.clients[self._address] += 1
        self._find_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application that nobody waits for the answer."""
        self.config.clients[self._address] -= 1
        if not self.config.clients[self._address]:
            del self.config.clients[self._address]
        self._disarm()
        self._unwatch()
        if self._incoming is not None:
            self._incoming.gone = True
        self._incoming = self._memory = None
        super().connection_lost(exc)

    # -- room ----------------------------------------------------------------------------------

    def _find_room(self) -> None:
        """Close a waiting connection, or refuse this one, where there are too many."""
        limits, held = self._limits, cast("set[Connection]", self.connections)
        if self.config.clients[self._address] > limits.client:
            held = {c for c in held if c._address == self._address}
        elif len(held) <= limits.connections:
            return
        waiting = [c for c in held if c is not self and c._waiting is not None]
        if waiting:
            min(waiting, key=lambda c: c._waiting or 0.0).leave()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections")

    def leave(self) -> None:
        """End at once, whatever the client does."""
        self._waiting = None
        self._ends.raw.abort()

    def part(self) -> None:
        """End once the request under way is answered, or the client has taken notice.

        Who has just connected is about to ask, and waits to be told that the server ends.
        """
        if self._waiting is not None:
            if self._last is None and self.loop.time() < self._waiting + _NEW:
                return
            self._linger(self._limits.seconds)
        elif self._last is not None:
            self._last.keep_alive = False

    def shutdown(self) -> None:
        """Close now if no request is under way, else part as `part` does."""
        if self._waiting is not None:
            self._ends.raw.close()
        else:
            self.part()

    def _close(self) -> None:
        """Close; where the client may still send, it gets to see the answer before."""
        last = self._last
        if last is None or last.more_body or self._head:
            self._linger(self._limits.seconds)
        else:
            self._ends.raw.close()

    def _linger(self, seconds: float) -> None:
        """Say that nothing more is written, and read on until the client closes."""
        if self._ends.is_closing():
            return
        self._ends.ending, self._waiting = True, self._waiting or self.loop.time()
        self._memory, self._left = None, None
        self._disarm()
        self._unset_keepalive_if_required()
        raw = self._ends.raw
        raw.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(seconds, raw.abort)

    # -- reading -------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        if not self._left:
            return self._scratch
        if self.cycle.response_complete:
            self._memory = None  # The request was refused; what is left of it goes nowhere.
        return self._scratch[: self._left] if self._memory is None else self._memory

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` that have come: head, or body."""
        if self._ends.ending:
            return
        if self._left:
            self._filled(nbytes)
            if not self._left:
                # The parser has not seen the body, so a new one reads what follows.
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.on_message_complete()
            return
        if self._deadline is None:
            self._arm()
        self._head += nbytes
        self.data_received(bytes(self._scratch[:nbytes]))
        if self._head > self._limits.header:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too long")

    def on_headers_complete(self) -> None:
        """Prepare for the body."""
        self._head = 0
        self._waiting = None
        headers = dict(self.headers)
        length = headers.get(b"content-length")
        self._left, self._memory, self._incoming = None, None, None
        if length is not None:
            self._left = size = int(length)
            if size <= self._limits.body:
                self._memory = _memory(size, headers.get(HEADER_LENGTH, b""))
                self._incoming = Incoming(self._memory)
                self.scope["state"][INCOMING] = self._incoming
        super().on_headers_complete()
        if self.config.draining:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take what came together with the headers, or a chunk of a body of unknown length."""
        if self._left is None:
            self._head = 0
            super().on_body(body)
            return
        if self._memory is not None:
            self._memory[: len(body)] = body
        self._filled(len(body))

    def _filled(self, nbytes: int) -> None:
        self._left = (self._left or 0) - nbytes
        if self._memory is not None:
            self._memory = self._memory[nbytes:]

    def on_message_complete(self) -> None:
        """Take note that the request is complete."""
        self._head = 0
        self._disarm()
        self._left = self._memory = None
        super().on_message_complete()
        self.cycle.more_body = False  # uvicorn leaves it where the answer is there already.

    # -- limits --------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self._limits.seconds, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        """Close or refuse a request that has not arrived in time."""
        self._deadline = None
        if self._busy:
            self._arm()  # Reading waits for the answer before.
        elif self._last is None and not self._head:
            self._ends.raw.close()  # It was opened, and never used.
        else:
            told = f"the request has not arrived within {self._limits.seconds:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, told)

    @property
    def _last(self) -> RequestResponseCycle | None:
        """The last request whose headers have come."""
        return self.cycle

    @property
    def _busy(self) -> bool:
        """True if a request that has arrived is being answered."""
        last = self._last
        return last is not None and not last.response_complete and not last.more_body

    @property
    def _answered_early(self) -> bool:
        """True if a request that has not arrived as a whole has an answer: a refusal."""
        last = self._last
        return last is not None and last.more_body and last.response_started

    def pause_writing(self) -> None:
        """Start the clock for a client that does not take what is sent."""
        super().pause_writing()
        self._watch()

    def on_response_complete(self) -> None:
        """Take note that the answer is written, if not yet sent."""
        self._incoming = None
        if not self.pipeline:
            self._waiting = self.loop.time()
        self._watch()
        super().on_response_complete()

    def _watch(self) -> None:
        if self._taking is None and self.transport.get_write_buffer_size():
            self._taking = self.loop.call_later(self._limits.seconds, self._untaken)

    def resume_writing(self) -> None:
        """Stop the clock for clients that do not read, as this one reads again."""
        super().resume_writing()
        self._unwatch()

    def _unwatch(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _untaken(self) -> None:
        self._taking = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that does not parse as HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer without the application, and close."""
        if self.transport.is_closing():
            return
        if self._busy or self._answered_early:
            self.transport.close()  # Another answer would end in the middle of this one.
            return
        body = json.dumps({"error": text}).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        tail = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write((head + tail).encode() + body)
        self.transport.close()


def _memory(size: int, header_length: bytes) -> memoryview:
    """Memory for a body, so that the first tensor behind its JSON is aligned."""
    raw = np.empty(size + 2 * _ALIGNMENT, np.uint8)
    json_length = int(header_length) if header_length.isdigit() and len(header_length) < 20 else 0
    start = -(raw.ctypes.data + json_length) % _ALIGNMENT
    return raw[start : start + size].data


__all__ = ["Config", "Connection"]
