"""The key-value server of a job: small values that processes leave for one another.

It speaks XML-RPC, as MegEngine's does, through Python's own library. Values are JSON, so that
reading one runs nothing. Within a job only those who know its token are answered.
"""

from __future__ import annotations

import base64
import fcntl
import json
import secrets
import socket
import socketserver
import struct
import threading
import time
import xmlrpc.client
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

from treadle.base.env import COMM_TIMEOUT
from treadle.runtime.comm.api import CommunicationError, Communicator

__all__ = ["Client", "Server"]

_HERE = "127.0.0.1"
_LOOPBACK = "127."
_GET_ADDRESS = 0x8915
"""Number of the request for an interface's address (SIOCGIFADDR of Linux)."""
_BYTES = "\N{NULL}bytes"
"""Key of a JSON object that stands for bytes."""


def _encode(value: Any) -> str:
    try:
        return json.dumps(value, default=_special)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"values of the key-value server are numbers, texts, bytes, lists and dicts: {error}"
        ) from None


def _special(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    raise TypeError(f"got {type(value).__name__}")


def _decode(text: str) -> Any:
    def special(found: dict[str, Any]) -> Any:
        return base64.b64decode(found[_BYTES]) if found.keys() == {_BYTES} else found

    return json.loads(text, object_hook=special)


class _Listener(socketserver.ThreadingMixIn, SimpleXMLRPCServer):
    """One thread per connection: a call may wait for another client's."""

    daemon_threads = True


class _Store:
    """Values and barriers by key."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, str] = {}
        self._barriers: dict[str, list[int]] = {}

    def connect(self) -> bool:
        """Return True: the server answers."""
        return True

    def set(self, key: str, text: str) -> bool:
        """Keep a value."""
        with self._changed:
            self._values[key] = text
            self._changed.notify_all()
        return True

    def get(self, key: str, seconds: float, take: bool) -> str:
        """The value of a key, waited for; `""` where it does not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, seconds):
                return ""
            return self._values.pop(key) if take else self._values[key]

    def barrier(self, key: str, size: int, seconds: float) -> bool:
        """Wait until so many have come; the key can then be used again."""
        with self._changed:
            # A barrier is a list of its own: those who wait hold on to theirs.
            come = self._barriers.setdefault(key, [0])
            come[0] += 1
            if come[0] >= size:
                del self._barriers[key]
                self._changed.notify_all()
            return self._changed.wait_for(lambda: come[0] >= size, seconds)


class Server:
    """A key-value server in a thread of this process.

    Args:
        port: where it listens; 0 picks a free port.
        host: its address; that of this machine alone by default.
        token: what clients must know.

    Attributes:
        py_server_port: the port.
        mm_server_port: the same: MPI needs no server.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0, host: str = _HERE, token: str = "") -> None:
        class Handler(SimpleXMLRPCRequestHandler):
            rpc_paths = (f"/{token}",)

        self._listener = _Listener((host, port), Handler, logRequests=False, allow_none=True)
        self._listener.register_instance(_Store())
        self.py_server_port = int(self._listener.server_address[1])
        self.mm_server_port = self.py_server_port
        thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown()
        self._listener.server_close()


class Client:
    """A connection to a server; threads may share one.

    Args:
        master_ip, port: the server's address.
        token: the secret that the server asks for.

    Raises:
        CommunicationError: no server answers there, or a value does not come in time.
    """

    def __init__(self, master_ip: str, port: int, token: str = "") -> None:
        self.master_ip, self.port = master_ip, port
        self._url = f"http://{master_ip}:{port}/{token}"
        self._local = threading.local()
        self._patience = float(COMM_TIMEOUT.get())
        self.connect()

    def connect(self) -> None:
        """Check that the server answers."""
        self._call("connect")

    def close(self) -> None:
        """Close this thread's connection; another call opens it again."""
        proxy = self._local.__dict__.pop("proxy", None)
        if proxy is not None:
            proxy("close")()

    def _call(self, name: str, *args: Any) -> Any:
        own = self._local.__dict__
        if "proxy" not in own:  # One per thread: a call that waits must not keep others from it.
            own["proxy"] = xmlrpc.client.ServerProxy(self._url, allow_none=True)
        try:
            return getattr(own["proxy"], name)(*args)
        except (OSError, xmlrpc.client.Error) as error:
            raise CommunicationError(
                "Client",
                f"the key-value server at {self.master_ip}:{self.port} does not answer: {error}",
            ) from error

    def get_mm_server_port(self) -> int:
        """The server's port."""
        return self.port

    def user_set(self, key: str, val: Any) -> None:
        """Set a key's value: numbers, texts, bytes, lists and dicts; a tuple becomes a list."""
        self._call("set", key, _encode(val))

    def user_get(self, key: str) -> Any:
        """Wait until a key has a value, and return that."""
        return self._value(key, False)

    def user_pop(self, key: str) -> Any:
        """Wait until a key has a value, remove and return that."""
        return self._value(key, True)

    def _value(self, key: str, take: bool) -> Any:
        text = self._call("get", key, self._patience, take)
        if not text:
            raise CommunicationError(
                "Client", f"no value was set for {key!r} within {self._patience:g} s"
            )
        return _decode(text)

    def group_barrier(self, key: str, size: int) -> None:
        """Wait until `size` clients have come to the barrier of this key."""
        if not self._call("barrier", key, size, self._patience):
            raise CommunicationError(
                "Client", f"fewer than {size} clients came to {key!r} within {self._patience:g} s"
            )

    def bcast_val(self, val: Any, key: str, size: int) -> Any:
        """One client's value, for `size` clients: all others pass None."""
        if val is not None:
            self.user_set(f"{key}:bcast", val)
        self.group_barrier(f"{key}:sent", size)
        found = self.user_get(f"{key}:bcast")
        self.group_barrier(f"{key}:received", size)
        return found

    def set_is_grad(self, key: str, is_grad: bool) -> None:
        """Say whether what is sent under a key wants a gradient."""
        self.user_set(f"{key}:is_grad", is_grad)

    def check_is_grad(self, key: str) -> bool:
        """Wait for the answer that `set_is_grad` gives, remove and return it."""
        return bool(self.user_pop(f"{key}:is_grad"))

    def set_remote_tracer(self, key: str, tracer_set: list[str]) -> None:
        """Say which tracers see what is sent under a key."""
        self.user_set(f"{key}:tracer", list(tracer_set))

    def check_remote_tracer(self, key: str) -> list[str]:
        """Wait for the answer that `set_remote_tracer` gives, remove and return it."""
        return list(self.user_pop(f"{key}:tracer"))


# -- that of a job -----------------------------------------------------------------------------


class _Job:
    """The server of this job, if this is rank 0, and how to reach it."""

    server: Server | None = None
    client: Client | None = None
    where: tuple[str, int, str] = ("", 0, "")


def open_for(world: Communicator, port: int = 0) -> None:
    """Start the server of a job on rank 0 and tell all where it is."""
    told = None
    if world.rank == 0:
        token = secrets.token_hex(16)
        alone = len(set(world.machines)) == 1
        host = _HERE if alone else reachable(world.machines[0])
        _Job.server = Server(port, host, token)
        told = host, _Job.server.py_server_port, token
    _Job.client = None
    _Job.where = world.broadcast_value(told, 0)


def join(master_ip: str, port: int, first: bool) -> Client:
    """Become a client of the server at which the processes of a job meet.

    Args:
        master_ip, port: where it listens.
        first: whether this process starts one there if nobody has.

    Raises:
        CommunicationError: nobody answers in time.
    """
    deadline = time.monotonic() + float(COMM_TIMEOUT.get())
    while True:
        try:
            _Job.client = Client(master_ip, port)
            break
        except CommunicationError:
            if time.monotonic() > deadline:
                raise
            if first:
                with suppress(OSError):  # Another machine's, or somebody has started one meanwhile.
                    _Job.server = Server(port, master_ip)
            time.sleep(0.05)
    _Job.where = master_ip, port, ""
    return _Job.client


class MeetingPlace:
    """The place in a server where the processes of a group meet.

    Setting a key waits until each of them has set one, so nobody reads one of an earlier job.

    Args:
        client: of the server.
        name: of the group.
        size: how many processes it has.
    """

    def __init__(self, client: Client, name: str, size: int) -> None:
        self._client, self._name, self._size = client, f"treadle/{name}", size

    def set(self, key: str, value: str, /) -> None:
        """Set a key, and wait for the others."""
        self._client.user_set(f"{self._name}/{key}", value)
        self._client.group_barrier(self._name, self._size)

    def get(self, key: str, /) -> bytes:
        """A key's value."""
        return str(self._client.user_get(f"{self._name}/{key}")).encode()


def reachable(name: str) -> str:
    """Return the name by which other machines reach this one, or an address where the name means
    nothing.

    Names of machines are often known to nobody, or stand for the loopback network.
    """
    with suppress(OSError):
        if not socket.gethostbyname(name).startswith(_LOOPBACK):
            return name
    return next((a for a in _addresses() if not a.startswith(_LOOPBACK)), name)


def _addresses() -> Iterator[str]:
    """The IPv4 addresses of this machine's interfaces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            request = struct.pack("256s", interface.encode()[:15])
            with suppress(OSError):  # It has none.
                yield socket.inet_ntoa(fcntl.ioctl(probe, _GET_ADDRESS, request)[20:24])


def address() -> tuple[str, int]:
    """Host and port of the job's server."""
    host, port, _ = _Job.where
    return ("localhost" if host == _HERE else host), port


def client() -> Client:
    """Return this process's connection to the job's server."""
    if _Job.client is None:
        _Job.client = Client(*_Job.where)
    return _Job.client


def close() -> None:
    """Close the connection to the server, and the server itself where it runs here."""
    if _Job.client is not None:
        _Job.client.close()
    if _Job.server is not None:
        _Job.server.close()
    _Job.server = _Job.client = None
    _Job.where = ("", 0, "")
