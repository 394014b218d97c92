"""The rendezvous of several processes, which are not supported yet: names that say so."""

from __future__ import annotations

from treadle.base.errors import UnsupportedOp

__all__ = ["Client", "Server"]


class Server:
    """A rendezvous that processes connect to; raises `UnsupportedOp`."""

    def __init__(self, port: int = 0) -> None:
        raise _unsupported("Server", f"port {port}")


class Client:
    """A connection to the rendezvous; raises `UnsupportedOp`."""

    def __init__(self, master_ip: str, port: int) -> None:
        raise _unsupported("Client", f"{master_ip}:{port}")


def _unsupported(name: str, saw: str) -> UnsupportedOp:
    return UnsupportedOp(
        name,
        "several processes are not supported yet",
        saw=saw,
        hint="run in one process, which may use all cores",
    )
