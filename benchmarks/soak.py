"""Does anything pile up? Trains and serves for as long as asked, and watches both processes.

    python benchmarks/soak.py [--minutes 60] [--every 1]

One process trains a small convolutional network without end: batches of changing sizes come from
two loader workers, steps run op by op and compiled, weights are saved and read back, and a program
for new sizes is made now and then and forgotten. Another one serves a model to four clients, some
of whose requests are wrong. Every so often a line says what each of them holds: memory, threads,
open files, children. At the end the last third is compared with the second, the first being for
caches to fill: more than 5 % and 8 MiB of memory, one thread or child more, or more files than
connections account for, is a leak.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import psutil

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.data import DataLoader, RandomSampler
from treadle.data.dataset import ArrayDataset
from treadle.optimizer import SGD

SIZES = (8, 12, 16, 20)
"""Batches, in turn: each has a program of its own."""
ALLOWED_SHARE, ALLOWED_MEMORY = 1.05, 8 << 20
CLIENTS = 4
PROGRAMS = 40
"""Distinct programs that come and go; the compiler remembers parts of the last few hundred."""


@dataclass(frozen=True)
class Burden:
    """What a process holds: bytes of memory, threads, open files, children."""

    memory: int
    threads: int
    files: int
    children: int


def burden(process: psutil.Process) -> Burden:
    """Of one process; the memory of its children is theirs, who live for one epoch."""
    memory, children = process.memory_info().rss, process.children(recursive=True)
    return Burden(memory, process.num_threads(), process.num_fds(), len(children))


class Net(M.Module):
    """Two convolutions with a norm between them, and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = M.Conv2d(1, 8, 3, padding=1), M.BatchNorm2d(8)
        self.second, self.head = M.Conv2d(8, 16, 3, padding=1), M.Linear(16, 4)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(F.relu(self.second(x)).mean(axis=(2, 3)))


def train_for_ever(folder: Path) -> None:
    """Until the process is ended; writes the number of its steps where others can read it."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(240, 1, 16, 16)).astype("float32")
    data = ArrayDataset(images, rng.integers(0, 4, 240).astype("int32"))
    net = Net()
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.loss.cross_entropy(net(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    compiled, steps, turn = mge.jit.compile(step), 0, 0
    while True:
        size = SIZES[turn % len(SIZES)]
        sampler = RandomSampler(data, batch_size=size, seed=turn)
        for x, y in DataLoader(data, sampler, num_workers=2):
            (step if steps % 5 == 0 else compiled)(mge.tensor(x), mge.tensor(y)).item()
            steps += 1
        fresh = mge.jit.compile(lambda x, k=turn % PROGRAMS: F.tanh(net(x) * k).sum())
        fresh(mge.tensor(images[: 1 + turn % 3]))
        mge.save(net.state_dict(), str(folder / "net.mge"))
        net.load_state_dict(mge.load(str(folder / "net.mge")))
        (folder / "steps").write_text(str(steps))
        turn += 1


def dump_model(folder: Path) -> Path:
    """What is served: ten numbers in, ten out."""
    layer = M.Linear(10, 10)

    @mge.jit.trace(symbolic=True, capture_as_const=True)
    def model(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(layer(x))

    model(mge.tensor(np.ones((1, 10), np.float32)))
    path = folder / "model.tm"
    model.dump(str(path), arg_names=["x"], output_names=["y"])
    return path


def ask_for_ever(port: int, number: int, count: list[int], over: threading.Event) -> None:
    """One client: of every ten requests one is wrong."""
    url = f"http://127.0.0.1:{port}/v2/models/m/infer"
    while not over.is_set():
        wrong = count[number] % 10 == 9
        shape = [1, 11 if wrong else 10]
        entry = {"name": "x", "shape": shape, "datatype": "FP32", "data": [0.5] * 10}
        request = urllib.request.Request(url, json.dumps({"inputs": [entry]}).encode())
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        if status != (400 if wrong else 200):
            raise SystemExit(f"a request was answered with {status}")
        count[number] += 1


def watch(
    processes: dict[str, subprocess.Popen[str]],
    given: argparse.Namespace,
    folder: Path,
    count: list[int],
) -> dict[str, list[Burden]]:
    """Lines as time goes by; what each process held at each."""
    seen: dict[str, list[Burden]] = {name: [] for name in processes}
    end = time.monotonic() + given.minutes * 60
    while time.monotonic() < end:
        time.sleep(given.every * 60)
        line = []
        for name, process in processes.items():
            if process.poll() is not None:
                raise SystemExit(f"the process that {name} ended with {process.returncode}")
            now = burden(psutil.Process(process.pid))
            seen[name].append(now)
            line.append(
                f"{name}: {now.memory / 2**20:.1f} MiB, {now.threads} threads, {now.files} files, "
                f"{now.children} children"
            )
        steps = (folder / "steps").read_text() if (folder / "steps").exists() else "0"
        print(f"{steps} steps, {sum(count)} requests; " + "; ".join(line), flush=True)
    return seen


def leaks(name: str, seen: list[Burden]) -> list[str]:
    """What the last third holds more of than the second, at the least: connections come and go."""
    third = len(seen) // 3
    before, after = seen[third : 2 * third], seen[-third:]
    found = []
    for place, field in enumerate(fields(Burden)):
        was, now = (min(astuple(b)[place] for b in part) for part in (before, after))
        grown = now > was
        if field.name == "memory":
            grown = now > was * ALLOWED_SHARE and now > was + ALLOWED_MEMORY
        elif field.name == "files":
            grown = now > was + CLIENTS  # That many connections may be open at any time.
        if grown:
            found.append(f"{name}: {field.name} went from {was:,.0f} to {now:,.0f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=1.0, help="minutes between two lines")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    mge.set_default_device("cpux")
    if given.train:
        train_for_ever(given.train)
    with tempfile.TemporaryDirectory() as name:
        folder, over = Path(name), threading.Event()
        model = dump_model(folder)
        trains = subprocess.Popen([sys.executable, __file__, "--train", name], text=True)
        command = [sys.executable, "-m", "treadle", "serve", f"m={model}", "--port", "0"]
        serves = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = [serves.stdout.readline() for _ in range(2)] if serves.stdout else []
        port, count = int(lines[1].rpartition(":")[2]), [0] * CLIENTS
        clients = [
            threading.Thread(target=ask_for_ever, args=(port, i, count, over), daemon=True)
            for i in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        try:
            seen = watch({"trains": trains, "serves": serves}, given, folder, count)
        finally:
            over.set()
            for client in clients:
                client.join()
            for process in (trains, serves):
                process.send_signal(signal.SIGTERM)
                process.wait(60)
    found = [leak for name, burdens in seen.items() for leak in leaks(name, burdens)]
    print("\n".join(found) if found else "nothing piled up")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
