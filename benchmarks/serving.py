"""What `treadle serve` adds to a model: latency under one client, throughput under several.

The model runs in this process, and behind a server in another one; blocks of both take turns, so
that what else the machine does meets both. Clients are processes of their own. They send binary
tensors over a connection that stays open, and the time that a client's own thread computes is
taken off its latency.

    python benchmarks/serving.py [--rounds 5] [--seconds 2] [--clients 8] [--max-batch 1]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from peer_own import load, tensor
from workloads import WORKLOADS, data_of

from treadle import jit
from treadle.engine.package.models import read_models
from treadle.engine.pipeline import Stages

WARM_UP = 20
"""Calls of either before any is timed."""


def dumped(workload: str, path: Path) -> np.ndarray:
    """Write a workload's model to a file; its input."""
    work = WORKLOADS[workload]
    model, data = load(work.model), data_of(work)[0]
    model.eval()
    traced = jit.trace(symbolic=True, capture_as_const=True)(lambda x: model(x))
    traced(tensor(data))
    traced.dump(str(path), arg_names=["x"], output_names=["y"])
    return data


@contextmanager
def server(path: Path, max_batch: int, *more: str) -> Iterator[int]:
    """The port of a server in another process."""
    command = [sys.executable, "-m", "treadle", "serve", f"model={path}", "--port", "0"]
    command += ["--max-batch", str(max_batch), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = None
            while found is None and (line := process.stdout.readline()):
                found = re.search(r"listening at .*:(\d+)$", line.strip())
            if found is None:
                raise SystemExit("the server has not started")
            yield int(found[1])
        finally:
            process.send_signal(signal.SIGTERM)


def request(datatype: str, **arrays: np.ndarray) -> bytes:
    """A whole request, headers included; all inputs are of one type of the protocol."""
    content = {
        "inputs": [
            {
                "name": name,
                "shape": array.shape,
                "datatype": datatype,
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in arrays.items()
        ],
        "parameters": {"binary_data_output": True},
    }
    head, body = json.dumps(content).encode(), b"".join(a.tobytes() for a in arrays.values())
    lines = [
        "POST /v2/models/model/infer HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(head) + len(body)}",
        f"Inference-Header-Content-Length: {len(head)}",
    ]
    return "\r\n".join((*lines, "", "")).encode() + head + body


def client(pipe: Connection, port: int, sent: Sequence[bytes]) -> None:
    """Ask in turns until told to stop; wall and own times of each request."""
    turns = cycle(sent)
    while (until := pipe.recv()) is not None:
        times: list[tuple[float, float]] = []
        # One that is idle for long is closed by the server.
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while time.perf_counter() < until or not times:
                wall, own = time.perf_counter(), time.thread_time()
                ask(connection, next(turns))
                times.append((time.perf_counter() - wall, time.thread_time() - own))
        pipe.send(times)


def ask(connection: socket.socket, sent: bytes) -> bytes:
    """One request's answer."""
    connection.sendall(sent)
    answer = received(connection)
    while b"\r\n\r\n" not in answer:
        answer += received(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = max(int(n) for n in re.findall(rb"content-length: (\d+)", head))
    while len(body) < length:
        body += received(connection)
    return body


def received(connection: socket.socket) -> bytes:
    found = connection.recv(1 << 16)
    if not found:
        raise SystemExit("the server has closed the connection")
    return found


class Clients:
    """Processes that ask at the same time, each its own requests in turns."""

    def __init__(self, stack: ExitStack, port: int, requests: Sequence[Sequence[bytes]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for sent in requests:
            own, other = context.Pipe()
            process = context.Process(target=client, args=(other, port, sent), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(own.send, None)
            self.pipes.append(own)

    def block(self, seconds: float) -> tuple[list[tuple[float, float]], float]:
        """Times of all requests of a block, and requests per second."""
        started = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(started + seconds)
        times = [t for pipe in self.pipes for t in pipe.recv()]
        return times, len(times) / (time.perf_counter() - started)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds and requests per second, medians over rounds."""
    found: dict[str, list[float]] = {k: [] for k in ("alone", "asked", "own", "free", "served")}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder) / "model.tm"
        data = dumped(options.workload, path)
        run = Stages(read_models(path)[0].graph).running.run
        port = stack.enter_context(server(path, options.max_batch))
        one = Clients(stack, port, [[request("FP32", x=data)]])
        many = Clients(stack, port, [[request("FP32", x=data)]] * options.clients)
        for _ in range(WARM_UP):
            run([data])
        one.block(0.5)
        many.block(0.5)
        for _ in range(options.rounds):
            times = alone(run, data, options.seconds)
            found["alone"].append(1e3 * statistics.median(times))
            asked, _ = one.block(options.seconds)
            found["asked"].append(1e3 * statistics.median(wall - own for wall, own in asked))
            found["own"].append(1e3 * statistics.median(own for _, own in asked))
            found["free"].append(len(times) / sum(times))
            found["served"].append(many.block(options.seconds)[1])
    result = {key: statistics.median(values) for key, values in found.items()}
    pairs = zip(found["asked"], found["alone"], strict=True)
    result["added"] = statistics.median(a - b for a, b in pairs)
    shares = zip(found["served"], found["free"], strict=True)
    result["kept"] = statistics.median(a / b for a, b in shares)
    return result


def alone(run: object, data: np.ndarray, seconds: float) -> list[float]:
    """Times of the model in this process."""
    assert callable(run)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        run([data])
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="I2", help="of workloads.py, an inference")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--max-batch", type=int, default=1)
    options = parser.parse_args()
    found = measure(options)
    title = WORKLOADS[options.workload].title
    print(
        f"| model, {os.cpu_count()} cores | alone, ms | served, ms | added, ms | client's own, ms "
        f"| alone, 1/s | {options.clients} clients, 1/s | kept |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {title}, rows {options.max_batch} | {found['alone']:.2f} | {found['asked']:.2f} | "
        f"{found['added']:.2f} | {found['own']:.2f} | {found['free']:.1f} | "
        f"{found['served']:.1f} | {found['kept']:.2f} |"
    )


if __name__ == "__main__":
    main()
