"""Limits of the server: sizes, times and numbers, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep clients from taking the server's memory and time.

    Attributes:
        body: bytes of a request.
        json: bytes of JSON in it, which is parsed in one go while other clients wait.
        bodies: bytes of all requests that are being read, or wait.
        header: bytes of its line and headers.
        seconds: in which a request has to arrive, and a client has to take its answer.
        idle: seconds that a connection stays open between requests.
        connections: at a time; where there is no more room, the one that waits for a request for
            longest makes way.
        client: connections of one address, in the same way.
        waiting: requests per model that wait.
        delay: seconds that a request waits for others to be joined with.
        grace: seconds for requests under way when the server is told to end.
    """

    body: int = 64 * _MIB
    json: int = 16 * _MIB
    bodies: int = 512 * _MIB
    header: int = 32 * 1024
    seconds: float = 30.0
    idle: float = 60.0
    connections: int = 512
    client: int = 256
    waiting: int = 64
    delay: float = 0.0
    grace: float = 30.0


__all__ = ["Limits"]
