"""The server among clients that mean it ill, or do not care: real sockets, many of them."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.serve.running import Array, Running, ask, double, doubling, infer, running

from treadle.cli.serve import access_of
from treadle.serve import server as serving
from treadle.serve.access import Access
from treadle.serve.limits import Limits

INFER = "/v2/models/m/infer"
GOOD = infer(np.arange(6, dtype=np.float32).reshape(2, 3))
TEXT = json.dumps(GOOD).encode()


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def receive(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def head(path: str = INFER, *lines: str) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: a", *lines, "", "")).encode()


# -- connections that do nothing -------------------------------------------------------------------


@pytest.mark.parametrize("limits", [Limits(connections=40), Limits(client=40)])
@pytest.mark.parametrize("begun", [b"", b"POST /v2/mod", b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_idle_connections_shut_nobody_out(limits: Limits, begun: bytes) -> None:
    """Never used, with half a line, or kept after an answer."""
    with running([doubling()], limits) as server:
        held = []
        try:
            for _ in range(100):
                held.append(connect(server))
                held[-1].sendall(begun)
                if begun.endswith(b"\r\n\r\n"):  # it is idle once it has its answer
                    assert held[-1].recv(12) == b"HTTP/1.1 200"
            for _ in range(5):
                assert ask(server.port, INFER, GOOD).status == 200
            assert len(server.server.server_state.connections) <= 41
        finally:
            for sock in held:
                sock.close()


def test_connections_that_are_busy_keep_their_place() -> None:
    gate = threading.Event()

    def program(arrays: Sequence[Array]) -> list[Array]:
        gate.wait(60)
        return double(arrays)

    model = doubling()
    model._programs = dict.fromkeys(model._programs, program)
    with running([model], Limits(client=3)) as server, ThreadPoolExecutor() as pool:
        first = [pool.submit(ask, server.port, INFER, GOOD) for _ in range(3)]
        until = time.monotonic() + 60
        while server.server.app.in_flight < 3 and time.monotonic() < until:
            time.sleep(0.01)
        with connect(server) as sock:
            sock.sendall(head(INFER, f"Content-Length: {len(TEXT)}") + TEXT)
            assert receive(sock).startswith(b"HTTP/1.1 503")
        gate.set()
        assert [each.result().status for each in first] == [200] * 3


# -- bodies that are too large ---------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["keep-alive", "close"])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_is_too_large_ends_in_an_answer(kept: str, chunked: bool) -> None:
    """And not in a reset, although the client writes all of it before it reads."""
    part, parts = b"x" * (1 << 20), 70
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {parts << 20}"
    with running([doubling()], Limits(body=1 << 20)) as server, connect(server) as sock:
        sock.sendall(head(INFER, length, f"Connection: {kept}"))
        for _ in range(parts):
            sock.sendall(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        if chunked:
            sock.sendall(b"0\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert receive(sock).startswith(b"HTTP/1.1 413")


def test_it_is_refused_before_it_comes() -> None:
    with running([doubling()], Limits(body=1000)) as server, connect(server) as sock:
        sock.sendall(head(INFER, "Content-Length: 1000000000"))
        assert sock.recv(1000).startswith(b"HTTP/1.1 413")


def test_nobody_sends_on_for_ever() -> None:
    with running([doubling()], Limits(body=1000, seconds=0.5)) as server, connect(server) as sock:
        sock.sendall(head(INFER, "Transfer-Encoding: chunked", "Connection: close"))
        until = time.monotonic() + 60
        with pytest.raises(OSError):
            while time.monotonic() < until:
                sock.sendall(b"400\r\n%s\r\n" % (b"x" * 1024))


# -- pages in browsers, tokens ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "models.example:80"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Origin": "http://evil.example", "Content-Type": "text/plain"}, 403),
        ({"Origin": "null", "Content-Type": "text/plain"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_of_others_are_not_answered(headers: dict[str, str], status: int) -> None:
    ran = []

    def program(arrays: Sequence[Array]) -> list[Array]:
        ran.append(arrays)
        return double(arrays)

    access = Access(hosts=["models.example"])
    with running([doubling(program=program)], access=access) as server:
        before = len(ran)
        assert ask(server.port, INFER, GOOD, headers).status == status
        assert (len(ran) > before) is (status == 200)


def test_a_token_is_asked_for() -> None:
    with running([doubling()], access=Access("secret")) as server:
        for path, body in (("/v2", None), ("/metrics", None), (INFER, GOOD)):
            for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
                refused = ask(server.port, path, body, given)
                assert refused.status == 401 and refused.headers["www-authenticate"] == "Bearer"
            right = {"Authorization": "Bearer secret"}
            assert ask(server.port, path, body, right).status == 200
        assert ask(server.port, "/v2/health/ready").status == 200


@pytest.mark.parametrize(
    ("address", "names", "hosts", "warned"),
    [
        ("127.0.0.1", [], {"localhost"}, False),
        ("127.0.0.1", ["a.example"], {"localhost", "a.example"}, False),
        ("0.0.0.0", [], None, True),
        ("0.0.0.0", ["a.example"], {"localhost", "a.example"}, True),
    ],
)
def test_who_listens_to_a_network_is_told(
    address: str,
    names: list[str],
    hosts: set[str] | None,
    warned: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Room:
        Access = Access
        is_loopback = staticmethod(serving.is_loopback)

    with serving.bind(address, 0) as sock:
        assert access_of(Room, sock, "", names)._hosts == hosts
        assert ("TREADLE_SERVE_TOKEN" in capsys.readouterr().err) is warned
        assert access_of(Room, sock, "t", names)._expected == b"Bearer t"
        assert not capsys.readouterr().err


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
def test_nobody_is_reset_when_the_server_ends_under_load(kept: bool) -> None:
    """Clients that ask without pause are answered, then refused by number, then find no server."""
    found: Counter[str] = Counter()
    over = threading.Event()

    def client(server: Running) -> None:
        closing = "keep-alive" if kept else "close"
        request = head(INFER, f"Content-Length: {len(TEXT)}", f"Connection: {closing}") + TEXT
        while not over.is_set():
            try:
                with connect(server) as sock:
                    answered = True
                    while answered:
                        sock.sendall(request)
                        answer = sock.recv(65536)
                        while answer and not answer.endswith(b"}"):
                            answer += sock.recv(65536)
                        found[answer[9:12].decode() or "end"] += 1
                        answered = kept and answer[9:12] == b"200"
            except ConnectionRefusedError:
                found["refused"] += 1
                return
            except OSError as error:
                found[type(error).__name__] += 1

    with running([doubling()]) as server, ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(client, server) for _ in range(8)]
        time.sleep(0.3)
        server.stop()
        server.thread.join(60)
        over.set()
        for each in clients:
            each.result(60)
    assert found["200"] and found["refused"] + found["503"]
    assert not set(found) - {"200", "503", "refused", "end"}, found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's socket filters")
def test_who_comes_at_the_last_moment_is_refused_and_not_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the last connection that is taken and the close of the port."""
    found: list[str] = []
    accepted = serving._accepted

    def client(port: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
                sock.sendall(b"GET /v2 HTTP/1.1\r\n")
                found.append(str(sock.recv(100)))
        except OSError as error:
            found.append(type(error).__name__)

    threads: list[threading.Thread] = []

    def late(sock: socket.socket) -> Iterator[socket.socket]:
        yield from accepted(sock)
        threads.append(threading.Thread(target=client, args=sock.getsockname()[1:]))
        threads[-1].start()
        time.sleep(0.2)

    monkeypatch.setattr(serving, "_accepted", late)
    with running([doubling()]) as server:
        server.stop()
        server.thread.join(60)
    for thread in threads:
        thread.join(60)
    assert found == ["ConnectionRefusedError"]
