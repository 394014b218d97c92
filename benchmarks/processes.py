"""Processes of frameworks, each in an interpreter of its own, that take turns in short blocks."""

from __future__ import annotations

import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from workloads import EXPORTED, TITLES, WORKLOADS, modes_of

HERE = Path(__file__).resolve().parent
BLOCK = 0.4
"""Seconds of a turn."""
PAUSE = 0.3
"""Seconds before one: threads of others spin for a while behind their last call, on the cores of
whoever comes next (ResNet-50 took 39 ms behind ONNX Runtime's, 33 behind nobody's)."""
TUNED = {  # keeps large results of PyTorch from faulting pages at every op
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "200000000",
}


@dataclass
class Row:
    """One framework in one mode on one workload; times in seconds per item."""

    peer: str
    mode: str
    version: str
    first: float
    results: np.ndarray
    times: list[float] = field(default_factory=list)
    memory: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def quick(self) -> float:
        """The 20th percentile."""
        return sorted(self.times)[len(self.times) // 5]

    def difference(self, other: Row) -> float:
        """Largest difference of results, relative to their size."""
        if self.results.shape != other.results.shape:
            return float("inf")
        scale = max(float(np.abs(other.results).max()), 1e-30)
        return float(np.abs(self.results - other.results).max()) / scale


@dataclass
class Worker:
    """A process that is ready to be timed."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    row: Row


class Bench:
    """Starts processes and has them take turns.

    Args:
        pythons: interpreter by framework; this one where none is named.
        threads: for every framework.
        folder: of exported models.
        caches: an empty folder, to start without compiled code; "" for the frameworks' own.
    """

    def __init__(
        self, pythons: Mapping[str, str], threads: int, folder: Path, caches: str = ""
    ) -> None:
        self._pythons = pythons
        self._threads = threads
        self._folder = folder
        self._caches = caches
        self._missing: dict[str, str] = {}
        self._made = 0

    def measure(self, key: str, seconds: float, peers: tuple[str, ...]) -> list[Row]:
        """Time all frameworks on a workload."""
        started = [self._start(p, key, mode) for p in peers for mode in modes_of(p, key)]
        workers = [worker for worker in started if worker is not None]
        for _ in range(max(1, round(seconds / BLOCK))):
            for worker in workers:
                time.sleep(PAUSE)
                worker.pipe.send(BLOCK)
                worker.row.times += [t / WORKLOADS[key].items for t in worker.pipe.recv()]
        for worker in workers:
            worker.pipe.send(None)
            worker.row.memory = worker.pipe.recv()
            worker.process.wait()
        return [worker.row for worker in workers]

    def _start(self, peer: str, key: str, mode: str) -> Worker | None:
        """A process that has made its first calls; None, and a line, where that failed."""
        if peer in self._missing:
            return None
        file = ""
        if peer in EXPORTED:
            file = self._exported(key)
            if not file:
                self._say(peer, "", "needs models that PyTorch exports")
                return None
        ours, theirs = mp.Pipe()
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                [self._python(peer), str(HERE / "serve.py"), str(number)],
                pass_fds=(number,),
                env=self._environment(peer),
                stdout=sys.stderr,
            )
        try:
            ours.send((peer, key, mode, self._threads, file))
            found = ours.recv()
        except (EOFError, ConnectionError):
            found = {"failed": f"its process ended with {process.wait()}"}
        if "first" in found:
            results = np.frombuffer(found["results"], "float32").astype("float64")
            row = Row(peer, mode, found["version"], found["first"], results)
            return Worker(process, ours, row)
        process.wait()
        if "missing" in found:
            self._missing[peer] = found["missing"]
            self._say(peer, "", f"is left out: {found['missing']}")
        else:
            self._say(peer, f" {mode} on {key}", f"failed: {found['failed']}")
        return None

    def _exported(self, key: str) -> str:
        """The model of a workload as a file, made by PyTorch unless it is there; "" on failure."""
        if "export" in self._missing:
            return ""
        command = [self._python("torch"), str(HERE / "export.py"), key, str(self._folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            self._missing["export"] = "failed"
            return ""
        return done.stdout.decode().strip().rpartition("\n")[2]

    def _python(self, peer: str) -> str:
        return self._pythons.get(peer, sys.executable)

    def _environment(self, peer: str) -> dict[str, str]:
        # Set to nothing, the allocator's settings would count as 0.
        found = {name: value for name, value in os.environ.items() if name not in TUNED}
        threads = str(self._threads)
        found |= {"OMP_NUM_THREADS": threads, "TREADLE_NUM_THREADS": threads}
        # First calls are those of an installed package, whose sources Python has compiled.
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        if peer == "torch":
            found |= TUNED
        if self._caches:
            self._made += 1
            fresh = Path(self._caches, str(self._made))
            found["TREADLE_CACHE_DIR"] = str(fresh / "treadle")
            found["TORCHINDUCTOR_CACHE_DIR"] = str(fresh / "inductor")
        return found

    @staticmethod
    def _say(peer: str, what: str, text: str) -> None:
        print(f"{TITLES[peer]}{what} {text}", file=sys.stderr)
