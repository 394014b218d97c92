"""The server of gRPC beside that of HTTP: its port, who is let in, its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from treadle.serve.application import Application
from treadle.serve.protocol import RequestRefusal
from treadle.serve.rpc.messages import SERVICE, pool
from treadle.serve.rpc.service import ENDING, Service, refuse

_HEALTH = (f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady", f"/{health.SERVICE_NAME}/")
"""Methods that need no token: whoever starts and stops servers asks that."""
_PARTING = 0.5
"""Seconds in which clients hear that the server ends."""
_QUIET, _LOOK = 0.1, 0.02
"""Seconds without a call after which no more are awaited, and between looks."""


class Calls:
    """A server of gRPC for the models of an application.

    Args:
        app: that answers.
        sock: bound to the address; closed when the server has it.
    """

    def __init__(self, app: Application, sock: socket.socket) -> None:
        self._app, self._sock = app, sock
        self._service, self._doorkeeper = Service(app), _Doorkeeper(app)
        self._health = health.aio.HealthServicer()
        self._server: Any = None

    async def start(self) -> None:
        """Take calls.

        Raises:
            OSError: the port cannot be had.
        """
        limits = self._app.limits
        options = [
            ("grpc.max_receive_message_length", limits.body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.header),
            ("grpc.so_reuseport", 0),
            ("grpc.max_connection_idle_ms", round(1000 * limits.idle)),
        ]
        self._server = server = grpc.aio.server(
            interceptors=[self._doorkeeper],
            options=options,
            maximum_concurrent_rpcs=limits.connections,
        )
        server.add_generic_rpc_handlers((self._service.handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, pool=_described())
        host, port = self._sock.getsockname()[:2]
        try:
            server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen at port {port}") from error
        self._sock.close()
        await server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Say that the server ends; calls under way go on, streams end behind their answers."""
        await self._health.enter_graceful_shutdown()
        self._service.end_streams()

    async def end(self, at_once: bool = False) -> None:
        """Close the port; clients that are connected are told to go elsewhere.

        gRPC cancels calls that come while it stops, which says nothing to their clients. So calls
        are held until all who ask wait for an answer. They get it when connections take no more:
        what a client asks next goes to another server.
        """
        if self._server is None:
            return
        loop, door = asyncio.get_running_loop(), self._doorkeeper
        until = loop.time() + (0 if at_once else _PARTING)
        door.held = asyncio.Event()
        while loop.time() < min(until, door.last + _QUIET):
            await asyncio.sleep(_LOOK)
        stopping = asyncio.create_task(self._server.stop(0 if at_once else _PARTING))
        await asyncio.sleep(_LOOK)
        door.held.set()
        await stopping


class _Doorkeeper(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the token, and all at the end.

    Attributes:
        last: when somebody called, on the event loop's clock.
        held: once the server ends, what calls wait for before they are told so.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self.last = 0.0
        self.held: asyncio.Event | None = None

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        self.last = asyncio.get_running_loop().time()
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if self.held is not None:
            await self.held.wait()
            return _refusing(handler, ENDING)
        if handler_call_details.method.startswith(_HEALTH):
            return handler
        given = dict(handler_call_details.invocation_metadata).get("authorization", "")
        try:
            self._app.access.check_token(given.encode())
        except RequestRefusal as refusal:
            self._app.metrics.refused.labels(str(refusal.status)).inc()
            return _refusing(handler, refusal)
        return handler


def _refusing(handler: Any, refusal: RequestRefusal) -> Any:
    """A method of the same kind that ends every call."""

    async def refused(_: Any, context: grpc.aio.ServicerContext) -> None:
        await refuse(context, refusal)

    async def refused_stream(_: Any, context: grpc.aio.ServicerContext) -> Any:
        await refuse(context, refusal)
        yield

    return handler._replace(
        unary_unary=handler.unary_unary and refused,
        stream_unary=handler.stream_unary and refused,
        unary_stream=handler.unary_stream and refused_stream,
        stream_stream=handler.stream_stream and refused_stream,
    )


def _described() -> DescriptorPool:
    """Return the descriptors that reflection shows, to grpcurl for example."""
    made = DescriptorPool()
    ours = pool().FindServiceByName(SERVICE).file
    for file in (ours, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        copied = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(copied)
        made.Add(copied)
    return made


__all__ = ["Calls"]
