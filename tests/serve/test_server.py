"""The server as clients on sockets see it."""

from __future__ import annotations

import gc
import http.client
import json
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.serve.running import Array, Running, ask, double, doubling, infer, running

from treadle.base.errors import OutOfMemory
from treadle.serve.datatypes import DTYPES
from treadle.serve.limits import Limits
from treadle.serve.models import ServedModel

INFER = "/v2/models/m/infer"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = infer(X)
LIMITS = Limits(body=100_000, json=50_000)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    until = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One for all tests that do not end it."""
    same = [
        ServedModel(name, "1", [("x", dtype)], [("y", dtype)], {((2, 3),): list})
        for name, dtype in DTYPES.items()
    ]
    with running([doubling(), doubling(version="2"), *same], LIMITS) as made:
        yield made


def receive(sock: socket.socket) -> bytes:
    """All until the server closes."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=300)


# -- the protocol ----------------------------------------------------------------------------------


def test_the_server_tells_what_it_is_and_how_it_is(server: Running) -> None:
    about = ask(server.port, "/v2").json
    assert about["name"] == "treadle" and "binary_tensor_data" in about["extensions"]
    for path, content in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
        ("/v2/models/m/versions/1/ready", {"name": "m", "ready": True}),
    ):
        answer = ask(server.port, path)
        assert (answer.status, answer.json) == (200, content)
        assert answer.headers["content-type"] == "application/json"


def test_a_model_tells_what_it_takes(server: Running) -> None:
    end = {"datatype": "FP32", "shape": [2, 3]}
    for path in ("/v2/models/m", "/v2/models/m/versions/1", "/v2/models/m/"):
        assert ask(server.port, path).json == {
            "name": "m",
            "versions": ["1", "2"],
            "platform": "treadle",
            "inputs": [{"name": "x", **end}],
            "outputs": [{"name": "y", **end}],
        }


@pytest.mark.parametrize(
    ("path", "version"), [(INFER, "2"), ("/v2/models/m/versions/1/infer", "1")]
)
def test_a_model_runs(server: Running, path: str, version: str) -> None:
    answer = ask(server.port, path, {**GOOD, "id": "seven"})
    assert answer.status == 200
    entry = {"name": "y", "shape": [2, 3], "datatype": "FP32", "data": (2 * X).ravel().tolist()}
    about = {"model_name": "m", "model_version": version, "id": "seven"}
    assert answer.json == {**about, "outputs": [entry]}


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items())
def test_bytes_go_in_and_out_for_every_element_type(
    server: Running, name: str, dtype: np.dtype
) -> None:
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype)
    parameters = {"binary_data_size": x.nbytes}
    entry = {"name": "x", "shape": [2, 3], "datatype": name, "parameters": parameters}
    head = json.dumps({"inputs": [entry], "outputs": [_as_bytes("y")]}).encode()
    path, header = f"/v2/models/{name}/infer", "Inference-Header-Content-Length"
    answer = ask(server.port, path, head + x.tobytes(), {header: str(len(head))})
    bare = ask(server.port, path, x.tobytes(), {header: "0"})
    for found in (answer, bare):
        assert found.status == 200
        assert found.headers["content-type"] == "application/octet-stream"
        assert found.tensors == x.tobytes()
        assert found.json["outputs"][0] == {**entry, "name": "y"}


def _as_bytes(name: str) -> dict[str, object]:
    return {"name": name, "parameters": {"binary_data": True}}


def test_binary_tensors_are_not_copied_on_their_way_in() -> None:
    seen = []

    def program(arrays: Sequence[Array]) -> list[Array]:
        seen.append(arrays[0].flags.owndata or arrays[0].ctypes.data % 64)
        return double(arrays)

    model = doubling([(50_000,)], program=program)
    x = np.arange(50_000, dtype=np.float32)
    parameters = {"binary_data_size": x.nbytes}
    entry = {"name": "x", "shape": [50_000], "datatype": "FP32", "parameters": parameters}
    head = json.dumps({"inputs": [entry], "outputs": [_as_bytes("y")]}).encode()
    with running([model]) as server:
        for pad in range(3):
            text = head + b" " * pad
            headers = {"Inference-Header-Content-Length": str(len(text))}
            answer = ask(server.port, INFER, text + x.tobytes(), headers)
            assert answer.tensors == (x + x).tobytes()
    assert seen[1:] == [0, 0, 0]


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("GET", "/", 404, "see /v2"),
        ("GET", "/v1/models", 404, "see /v2"),
        ("GET", "/v2/models", 404, "see /v2"),
        ("GET", "/v2/models/q", 404, "no model 'q'"),
        ("GET", "/v2/models/%ff%00..", 404, "no model"),
        ("GET", "/v2/models/m/versions/9", 404, "no version '9' of m, but 1, 2"),
        ("GET", "/v2/models/m/versions", 404, "address"),
        ("GET", "/v2/models/m/a/b/ready", 404, "address"),
        ("POST", "/v2/models/q/infer", 404, "no model 'q'"),
        ("GET", INFER, 405, "POST"),
        ("POST", "/v2/models/m", 405, "GET"),
        ("DELETE", "/v2/health/ready", 405, "GET"),
        ("PUT", "/metrics", 405, "GET"),
    ],
)
def test_wrong_addresses_and_methods(
    server: Running, method: str, path: str, status: int, told: str
) -> None:
    answer = ask(server.port, path, method=method)
    assert answer.status == status and told in answer.json["error"]
    assert ("allow" in answer.headers) == (status == 405)


def test_head_has_the_headers_of_get(server: Running) -> None:
    answer = ask(server.port, "/v2", method="HEAD")
    assert answer.status == 200 and not answer.body
    assert answer.headers["content-length"] == str(len(ask(server.port, "/v2").body))


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b"{", {}, 400, "malformed"),
        (infer(X[:1]), {}, 400, "not [1, 3]"),
        (GOOD, {"Content-Encoding": "gzip"}, 415, "compressed"),
        (b" " * 60_000, {}, 413, "send binary data"),
        (b"x" * 100_001, {}, 413, "100000 are taken"),
        (GOOD, {"Inference-Header-Content-Length": "99999"}, 400, "in a body of"),
    ],
)
def test_bad_requests_leave_the_server_as_it_was(
    server: Running, body: object, headers: dict[str, str], status: int, told: str
) -> None:
    answer = ask(server.port, INFER, body, headers)
    assert answer.status == status and told in answer.json["error"]
    assert ask(server.port, INFER, GOOD).status == 200


# -- HTTP ------------------------------------------------------------------------------------------


def test_a_connection_stays_open_after_answers_and_refusals(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    text = json.dumps(GOOD)
    try:
        connection.connect()
        sock = connection.sock
        for body, status in ((text, 200), ("{", 400), (b"x" * 300_000, 413), (text, 200)):
            connection.request("POST", INFER, body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status and connection.sock is sock
    finally:
        connection.close()


def test_answers_do_not_wait_for_acknowledgements(server: Running) -> None:
    # Headers and body are sent one after the other; a delayed acknowledgement takes 40 ms.
    before = set(server.server.server_state.connections)
    with connect(server):
        eventually(lambda: bool(set(server.server.server_state.connections) - before))
        (made,) = set(server.server.server_state.connections) - before
        sock = made.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_chunked_bodies_are_taken_up_to_the_limit(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    text = json.dumps(GOOD).encode()
    try:
        for parts, status in (([text[:7], text[7:]], 200), ([b"x" * 50_000] * 3, 413)):
            connection.request("POST", INFER, iter(parts), encode_chunked=True)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
    finally:
        connection.close()


def test_requests_may_be_sent_before_answers_have_come(server: Running) -> None:
    text = json.dumps(GOOD).encode()
    length = str(len(text)).encode()
    one = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Length: " + length
    last = one + b"\r\nConnection: close\r\n\r\n" + text
    with connect(server) as sock:
        sock.sendall((one + b"\r\n\r\n" + text) * 3 + last)
        assert receive(sock).count(b"HTTP/1.1 200 OK") == 4


def test_a_client_that_asks_first_is_told_to_go_on_or_why_not(server: Running) -> None:
    text = json.dumps(GOOD).encode()
    for length, first in ((len(text), b"100 Continue"), (10**9, b"413")):
        lines = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n"
        with connect(server) as sock:
            sock.sendall(lines.encode() + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
            assert first in sock.recv(1000)
            if first.startswith(b"100"):
                sock.sendall(text)
                assert b"200 OK" in receive(sock)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400 Bad Request"),
        (b"GET \xff\xfe HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400 Bad Request"),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (
            b"POST /v2 HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"400 Bad Request",
        ),
        (b"GET /v2 HTTP/1.1\r\nA: " + b"a" * 40_000, b"431 Request Header Fields Too Large"),
        (b"GET /" + b"a" * 40_000, b"431 Request Header Fields Too Large"),
    ],
)
def test_what_is_no_request_is_answered_and_closed(
    server: Running, sent: bytes, told: bytes
) -> None:
    with connect(server) as sock:
        sock.sendall(sent)
        assert told in receive(sock)


def test_mutated_requests_never_break_the_server(server: Running) -> None:
    text = json.dumps(GOOD).encode()
    lines = [f"POST {INFER} HTTP/1.1", "Host: a", f"Content-Length: {len(text)}", "", ""]
    whole, generator = "\r\n".join(lines).encode() + text, random.Random(1)
    for _ in range(150):
        mutated = bytearray(whole)
        for _ in range(generator.randrange(1, 5)):
            mutated[generator.randrange(len(mutated))] = generator.randrange(256)
        with connect(server) as sock:
            sock.sendall(mutated)
            sock.shutdown(socket.SHUT_WR)
            receive(sock)
    eventually(lambda: server.server.app.in_flight == 0)
    assert ask(server.port, INFER, GOOD).status == 200


# -- slow clients, lost clients, too many ----------------------------------------------------------


def test_requests_that_arrive_too_slowly_end() -> None:
    begun = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
    with running([doubling()], Limits(seconds=0.2)) as server:
        for sent, told in (
            (b"", b""),
            (b"GET /v2", b"408 Request Timeout"),
            (begun.encode(), b"408 Request Timeout"),
            (begun.encode() + b"\r\n{", b"408 Request Timeout"),
            (begun.replace("1000", str(10**9)).encode() + b"\r\n{", b"413"),
        ):
            with connect(server) as sock:
                sock.sendall(sent)
                found = receive(sock)
                assert told in found and bool(told) == bool(found)
        assert ask(server.port, INFER, GOOD).status == 200
        eventually(lambda: server.server.app.in_flight == 0)


def test_an_answer_that_nobody_takes_ends() -> None:
    large = np.zeros((2, 3), np.float32)

    def program(arrays: Sequence[Array]) -> list[Array]:
        return [np.zeros(8_000_000, np.float32)]

    model = doubling(program=program)
    text = json.dumps(infer(large, parameters={"binary_data_output": True})).encode()
    lines = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n"
    with running([model], Limits(seconds=0.2)) as server, connect(server) as sock:
        sock.sendall(lines.encode() + text)
        connections = server.server.server_state.connections
        eventually(lambda: len(connections) == 1)
        eventually(lambda: not connections)


def gated(model_gate: threading.Event, entered: threading.Event) -> ServedModel:
    """A model that waits in its runs, the warm-up excepted."""

    def program(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0].any():
            entered.set()
            assert model_gate.wait(300)
        return double(arrays)

    return doubling([(1, 3), (2, 3)], program=program)


def test_nothing_is_run_for_clients_that_have_gone() -> None:
    gate, entered = threading.Event(), threading.Event()
    text = json.dumps(GOOD).encode()
    lines = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n"
    with running([gated(gate, entered)]) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(ask, server.port, INFER, GOOD)
        assert entered.wait(300)
        with connect(server) as sock:
            sock.sendall(lines.encode() + text)
            eventually(lambda: server.server.app.in_flight == 2)
        eventually(lambda: len(server.server.server_state.connections) == 1)
        gate.set()
        assert first.result().status == 200
        with connect(server) as sock:  # One that goes in the middle of its request.
            sock.sendall(lines.encode() + text[:5])
            eventually(lambda: server.server.app.in_flight > 0)
        runs = "treadle_run_seconds_count"
        assert f'{runs}{{model="m",version="1"}} 1.0' in ask(server.port, "/metrics").body.decode()


def test_more_requests_than_may_wait_are_refused() -> None:
    gate, entered = threading.Event(), threading.Event()
    with (
        running([gated(gate, entered)], Limits(waiting=1)) as server,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(ask, server.port, INFER, GOOD)
        assert entered.wait(300)
        second = pool.submit(ask, server.port, INFER, GOOD)
        eventually(lambda: b'treadle_waiting{model="m",version="1"} 1.0' in metrics(server))
        refused = ask(server.port, INFER, GOOD)
        assert refused.status == 429 and refused.headers["retry-after"] == "1"
        gate.set()
        assert (first.result().status, second.result().status) == (200, 200)


def metrics(server: Running) -> bytes:
    return ask(server.port, "/metrics").body


def test_bytes_of_all_requests_together_are_limited() -> None:
    gate, entered = threading.Event(), threading.Event()
    with (
        running([gated(gate, entered)], Limits(body=1000, bodies=1000)) as server,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(ask, server.port, INFER, json.dumps(GOOD).encode().ljust(900))
        assert entered.wait(300)
        assert ask(server.port, INFER, json.dumps(GOOD).encode().ljust(900)).status == 503
        gate.set()
        assert first.result().status == 200
        assert ask(server.port, INFER, json.dumps(GOOD).encode().ljust(900)).status == 200


# -- models that fail, batches, metrics, the end ---------------------------------------------------


def test_a_model_that_fails_is_answered_for(capsys: pytest.CaptureFixture[str]) -> None:
    def program(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0][0, 0] == 1:
            raise OutOfMemory("model", "there is no room", saw="/a/secret/path")
        if arrays[0][0, 0] == 2:
            raise ValueError("/a/secret/path")
        return [x / 0 if x[0, 0] == 3 else x for x in arrays]

    with running([doubling(program=program)]) as server:
        answers = [ask(server.port, INFER, infer(np.full((2, 3), n))) for n in (1, 2, 0)]
        with np.errstate(divide="ignore"):
            answers.append(ask(server.port, INFER, infer(np.full((2, 3), 0))))
    assert [a.status for a in answers] == [500, 500, 200, 200]
    assert answers[0].json == {"error": "T15 model: there is no room"}
    assert answers[1].json == {"error": "the request failed: ValueError"}
    assert "secret" in capsys.readouterr().err


def test_a_request_is_freed_when_it_is_answered() -> None:
    seen: list[weakref.ref[Array]] = []

    def program(arrays: Sequence[Array]) -> list[Array]:
        seen.append(weakref.ref(arrays[0]))
        if arrays[0].any():
            raise OutOfMemory("model", "there is no room")
        return double(arrays)

    with running([doubling(program=program)]) as server:
        seen.clear()
        gc.disable()  # Requests are large, so they must not wait to be collected.
        try:
            answers = [ask(server.port, INFER, infer(np.full((2, 3), n))) for n in (0, 1)]
            eventually(lambda: not any(ref() is not None for ref in seen))
        finally:
            gc.enable()
    assert [a.status for a in answers] == [200, 500] and len(seen) == 2


def test_joined_requests_get_their_own_rows() -> None:
    batches: list[int] = []

    def program(arrays: Sequence[Array]) -> list[Array]:
        batches.append(len(arrays[0]))
        time.sleep(0.002)
        return double(arrays)

    model = doubling([(n, 3) for n in (1, 2, 4, 8)], most=8, program=program)
    batches.clear()

    def client(number: int) -> None:
        generator = np.random.default_rng(number)
        for _ in range(20):
            rows = int(generator.integers(1, 4))
            x = generator.standard_normal((rows, 3)).astype(np.float32)
            answer = ask(server.port, INFER, infer(x))
            assert answer.status == 200
            found = np.array(answer.json["outputs"][0]["data"], np.float32).reshape(rows, 3)
            assert (found == 2 * x).all()

    with running([model]) as server, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(client, n) for n in range(8)]:
            done.result()
    assert max(batches) >= 4, "requests of eight clients were never joined"


def test_requests_are_counted(server: Running) -> None:
    with running([doubling()]) as fresh:
        for body in (GOOD, GOOD, b"{"):
            ask(fresh.port, INFER, body)
        ask(fresh.port, "/nowhere")
        answer = ask(fresh.port, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = answer.body.decode().splitlines()
    label = 'model="m",version="1"'
    for line in (
        'treadle_requests_total{model="m",status="200",version="1"} 2.0',
        'treadle_requests_total{model="m",status="400",version="1"} 1.0',
        'treadle_refused_total{status="404"} 1.0',
        f"treadle_request_seconds_count{{{label}}} 3.0",
        f"treadle_queue_seconds_count{{{label}}} 2.0",
        f"treadle_run_seconds_count{{{label}}} 2.0",
        f"treadle_batch_rows_sum{{{label}}} 2.0",
        f"treadle_waiting{{{label}}} 0.0",
        "treadle_in_flight 1.0",
    ):
        assert line in lines


def test_the_server_ends_when_requests_under_way_are_answered() -> None:
    gate, entered = threading.Event(), threading.Event()
    with running([gated(gate, entered)]) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(ask, server.port, INFER, GOOD)
        assert entered.wait(300)
        server.stop()
        eventually(lambda: ask(server.port, "/v2/health/ready").status == 503)
        assert ask(server.port, "/v2/models/m/ready").status == 503
        assert ask(server.port, "/v2/health/live").status == 200
        refused = ask(server.port, INFER, GOOD)
        assert refused.status == 503 and refused.headers["connection"] == "close"
        gate.set()
        assert first.result().status == 200
        server.thread.join(300)
        assert server.server.cut == 0
        with pytest.raises(ConnectionRefusedError):
            connect(server)


def test_requests_that_take_longer_than_the_grace_are_cut_off() -> None:
    gate, entered = threading.Event(), threading.Event()
    with (
        running([gated(gate, entered)], Limits(grace=0.1)) as server,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(ask, server.port, INFER, GOOD)
        assert entered.wait(300)
        server.stop()
        assert first.result().status == 503
        gate.set()
        server.thread.join(300)
        assert server.server.cut == 1
