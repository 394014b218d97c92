"""The process: binds the port, serves until it is told to end, and lets requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import uvicorn

from treadle.base.errors import LoadError
from treadle.serve.access import Access
from treadle.serve.application import Application
from treadle.serve.connection import Config, Connection
from treadle.serve.limits import Limits
from treadle.serve.models import Servable
from treadle.serve.reception import Reception

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK = 0.02
"""Seconds between looks at whether all requests are done."""
_LAST = 0.2
"""Seconds for which clients that are connected can still ask, to be told that the server ends."""
_PARTING = 0.5
"""Seconds for clients to close connections that were closed here."""
_SO_ATTACH_FILTER = 26
"""Linux's `socket(7)`; Python has no name for it."""
_BPF_RETURN = 0x06
"""`BPF_RET | BPF_K`: how many bytes of a packet pass."""


class Beside(Protocol):
    """A server of another protocol, for the same application in the same event loop."""

    async def start(self) -> None:
        """Take requests.

        Raises:
            OSError: its port cannot be had.
        """

    async def drain(self) -> None:
        """Say that the server ends, and finish what is under way."""

    async def end(self, at_once: bool = False) -> None:
        """Close the port."""


class Server(uvicorn.Server):
    """uvicorn's, which ends in another order.

    At the first signal the server says that it is not ready, takes no new requests and finishes
    those under way; then it closes its port. At the second one it does not wait any more. Whoever
    has connected is answered, and no connection is reset while its client still sends.

    Args:
        app: that answers.
        beside: that ends with this one.
    """

    config: Config

    def __init__(self, app: Reception, beside: Sequence[Beside] = ()) -> None:
        super().__init__(Config(app, app.limits))
        self.app, self.beside = app, beside
        self.cut = 0
        """Requests that were not done in time."""
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the event loop, and not again when the server has ended."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Only that one gets signals.
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """End, once requests under way are answered; at once if called again."""
        if self._draining is None:
            self.app.draining = self.config.draining = True
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            self.should_exit = True

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.app.limits.grace
        for other in self.beside:
            await other.drain()
        last = loop.time() + _LAST if self.server_state.connections else 0.0
        while not self.should_exit and loop.time() < until:
            if not self.app.in_flight and loop.time() >= last:
                break
            await asyncio.sleep(_LOOK)
        self.cut = self.app.in_flight
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take those who have connected already, close the port, and part with all."""
        loop = asyncio.get_running_loop()
        for sock in sockets or ():
            _let_nobody_in(sock)
        waiting = [made for sock in sockets or () for made in _accepted(sock)]
        for server in self.servers:
            server.close()
        for made in waiting:
            await loop.connect_accepted_socket(self._connection, made)
        hurried = bool(self.cut) or self.force_exit
        ends = [asyncio.create_task(other.end(hurried)) for other in self.beside]
        if not hurried:
            until = loop.time() + _PARTING
            while loop.time() < until and self._part():
                await asyncio.sleep(_LOOK)
        await asyncio.gather(*ends)
        await super().shutdown(sockets)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    def _part(self) -> bool:
        """End connections that wait for a request; whether there are any left."""
        held = list(self.server_state.connections)
        for connection in held:
            if isinstance(connection, Connection):
                connection.part()
        return bool(held)


def _let_nobody_in(sock: socket.socket) -> None:
    """Drop what comes to a socket that listens; it goes on with connections that are made already.

    Whoever connects between the last `accept` and the close would be reset. Where the first packet
    is dropped, the system of the client tries again, and is refused.
    """
    if not sys.platform.startswith("linux"):
        return
    drop_all = np.frombuffer(struct.pack("=HBBI", _BPF_RETURN, 0, 0, 0), np.uint8)
    program = struct.pack("@HP", 1, drop_all.__array_interface__["data"][0])
    with contextlib.suppress(OSError):  # some sandboxes have no filters
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _accepted(sock: socket.socket) -> Iterator[socket.socket]:
    """Connections that the system has made, and nobody has taken."""
    while True:
        try:
            made, _ = sock.accept()
        except OSError:  # there are no more
            return
        made.setblocking(False)
        yield made


def bind(host: str, port: int) -> socket.socket:
    """A socket of this address, which nobody can connect to yet; port 0 takes a free one.

    Raises:
        LoadError: the address is another program's, or not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With the protocol by name, or asyncio leaves TCP_NODELAY off.
        made = socket.socket(family, kind, protocol or socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
    except (OSError, OverflowError) as error:
        raise _taken(f"{host}:{port}", error) from error
    return made


def bind_grpc(host: str, port: int | None) -> AbstractContextManager[socket.socket | None]:
    """A socket that keeps an address for gRPC, whose server binds it by itself; None for no port.

    Raises:
        LoadError: the extra `grpc` is not installed, or the address cannot be had.
    """
    if port is None:
        return contextlib.nullcontext()
    _calls()
    return bind(host, port)


def _taken(address: str, error: Exception) -> LoadError:
    return LoadError("serve", f"cannot listen at {address}: {error}", hint="choose another --port")


def url_of(sock: socket.socket) -> str:
    """The address of a server."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(sock: socket.socket) -> bool:
    """Return whether a server is for programs of this machine alone."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def serve(
    models: Sequence[Servable],
    sock: socket.socket,
    limits: Limits | None = None,
    ready: Callable[[Server], None] | None = None,
    access: Access | None = None,
    grpc_sock: socket.socket | None = None,
) -> int:
    """Serve models until SIGTERM or SIGINT.

    Args:
        models: with names and versions that differ; later versions are the default ones.
        sock: of `bind`.
        limits: of requests.
        ready: called in the event loop when requests are taken.
        access: who may ask; anybody if left out.
        grpc_sock: of `bind_grpc`; None for HTTP alone.

    Returns:
        The number of requests that were cut off, for lack of time, when the server ended.

    Raises:
        LoadError: another program has begun to listen at the address.
    """
    app = Application(models, limits, access)
    beside = [] if grpc_sock is None else [_calls()(app, grpc_sock)]
    return run(app, sock, ready, beside)


def _calls() -> Callable[[Application, socket.socket], Beside]:
    """The class that answers over gRPC, for those who have its packages and ask for it.

    Raises:
        LoadError: the extra `grpc` is not installed.
    """
    try:
        from treadle.serve.rpc.calls import Calls
    except ModuleNotFoundError as error:
        raise LoadError("serve", str(error), hint="pip install 'treadle[grpc]'") from error
    return Calls


def run(
    app: Reception,
    sock: socket.socket,
    ready: Callable[[Server], None] | None = None,
    beside: Sequence[Beside] = (),
) -> int:
    """Serve an application until SIGTERM or SIGINT; see `serve`.

    Args:
        app: that answers.
        sock: of `bind`.
        ready: called in the event loop when requests are taken.
        beside: servers of other protocols that start and end with this one.
    """
    server = Server(app, beside)

    async def serving_alone() -> None:
        for other in beside:
            await other.start()
        serving = asyncio.ensure_future(server.serve(sockets=[sock]))
        while not server.started and not serving.done():
            await asyncio.sleep(_LOOK)
        if ready is not None and not serving.done():
            ready(server)
        await serving

    try:
        asyncio.run(serving_alone())
    except OSError as error:
        raise _taken(url_of(sock), error) from error
    finally:
        app.close()
    return server.cut


__all__ = ["Beside", "Server", "bind", "bind_grpc", "is_loopback", "run", "serve", "url_of"]
