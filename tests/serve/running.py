"""Servers in a thread of the test's process, and a plain client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.serve.access import Access
from treadle.serve.application import Application
from treadle.serve.limits import Limits
from treadle.serve.models import Program, Servable, ServedModel, Shapes
from treadle.serve.reception import Reception
from treadle.serve.server import Server, _calls, bind, run

Array = np.ndarray[Any, Any]


@dataclass
class Running:
    """A server that listens."""

    port: int
    server: Server
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    grpc_port: int = 0

    def stop(self) -> None:
        """What a signal does."""
        self.loop.call_soon_threadsafe(self.server.stop)


@contextmanager
def running(
    models: Sequence[Servable],
    limits: Limits | None = None,
    access: Access | None = None,
    grpc: bool = False,
) -> Iterator[Running]:
    app = Application(models, limits, access)
    with running_application(app, grpc) as made:
        yield made


@contextmanager
def running_application(app: Reception, grpc: bool = False) -> Iterator[Running]:
    second = bind("127.0.0.1", 0) if grpc else None
    beside = [_calls()(app, second)] if second else []
    grpc_port = second.getsockname()[1] if second else 0
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    listening = threading.Event()
    found: list[tuple[Server, asyncio.AbstractEventLoop]] = []

    def ready(server: Server) -> None:
        found.append((server, asyncio.get_running_loop()))
        listening.set()

    thread = threading.Thread(target=run, args=(app, sock, ready, beside))
    thread.start()
    assert listening.wait(300)
    made = Running(port, *found[0], thread, grpc_port)
    try:
        yield made
    finally:
        if thread.is_alive():
            made.stop()
        thread.join(300)
        assert not thread.is_alive()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        length = int(self.headers.get("inference-header-content-length", len(self.body)))
        return json.loads(self.body[:length])

    @property
    def tensors(self) -> bytes:
        return self.body[int(self.headers["inference-header-content-length"]) :]


def ask(
    port: int,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    method: str | None = None,
) -> Answer:
    """One request on a connection of its own; what is no bytes is sent as JSON."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        verb = method or ("GET" if body is None else "POST")
        connection.request(verb, path, body, headers or {})
        answer = connection.getresponse()
        names = {key.lower(): value for key, value in answer.getheaders()}
        return Answer(answer.status, names, answer.read())
    finally:
        connection.close()


def double(arrays: Sequence[Array]) -> list[Array]:
    """The model of most tests."""
    return [np.ascontiguousarray(x + x) for x in arrays]


def doubling(
    shapes: Sequence[tuple[int, ...]] = ((2, 3),),
    dtype: str = "float32",
    most: int = 1,
    program: Program = double,
    version: str = "1",
) -> ServedModel:
    """A model `m` with an input x and an output y."""
    kind = np.dtype(dtype)
    programs: dict[Shapes, Program] = {(shape,): program for shape in shapes}
    return ServedModel("m", version, [("x", kind)], [("y", kind)], programs, most)


def infer(x: Array, **more: Any) -> dict[str, Any]:
    """The JSON of a request."""
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}
    return {"inputs": [entry], **more}
