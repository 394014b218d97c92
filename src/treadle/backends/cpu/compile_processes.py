"""More processes that compile, for programs with many new kernels.

Jobs wait in one queue, longest first, from which this process takes, too; so a helper that starts
slowly, or dies, costs nothing but its own share. Helpers start while the jobs are still written.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import IO

from treadle.backends.cpu.host import available_cores

WORTHWHILE = 12
"""Jobs for each process more: below, they are done before a helper has started."""
_LENGTH = struct.Struct("<q")
_SERVER = "treadle.backends.cpu.llvm_compile"

Job = tuple[str, str]
"""The name of a module, and its text."""


class CompileProcesses:
    """A queue of jobs and the helpers that empty it.

    Args:
        expected: how many jobs there will be.
        target: triple, processor and features.
        helpers: how many processes; by default what the cores and the number of jobs suggest.
    """

    def __init__(
        self, expected: int, target: tuple[str, str, str], helpers: int | None = None
    ) -> None:
        self._jobs: deque[Job] = deque()
        self._given = threading.Event()
        self._target = target
        self._made: dict[str, bytes] = {}
        if helpers is None:
            helpers = min(available_cores() - 1, expected // WORTHWHILE)
        self._threads = [
            threading.Thread(target=self._drive, name="treadle-compile", daemon=True)
            for _ in range(helpers)
        ]

    def __enter__(self) -> CompileProcesses:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._jobs.clear()
        self._given.set()
        for thread in self._threads:
            thread.join()

    def give(self, jobs: Iterable[Job]) -> None:
        """All the jobs, in the order they are to be begun."""
        self._jobs.extend(jobs)
        self._given.set()

    def next(self) -> Job | None:
        """The next job nobody has begun."""
        try:
            return self._jobs.popleft()
        except IndexError:
            return None

    def results(self) -> dict[str, bytes]:
        """Return the code that the helpers have made, after waiting for those at work."""
        for thread in self._threads:
            thread.join()
        return self._made

    def _drive(self) -> None:
        """One helper: give it jobs until there are no more, or it fails."""
        server = _server_path()
        if not sys.executable or server is None:
            return
        # -S -E: no site packages are sought; the server is told where they are.
        command = [sys.executable, "-S", "-E", server, *sys.path]
        with contextlib.suppress(OSError, struct.error, EOFError):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            with process:
                self._converse(process.stdin, process.stdout)

    def _converse(self, to: IO[bytes] | None, back: IO[bytes] | None) -> None:
        if to is None or back is None:
            return
        _send(to, *(part.encode() or b" " for part in self._target))
        self._given.wait()
        while (job := self.next()) is not None:
            _send(to, job[1].encode())
            answer = _receive(back)
            if answer[:1] == b"o":
                self._made[job[0]] = answer[1:]
        _send(to, b"")


def _server_path() -> str | None:
    """The file of the server; None where the package is not on a file system."""
    spec = importlib.util.find_spec(_SERVER)
    return spec.origin if spec is not None and os.path.isfile(spec.origin or "") else None


def _send(stream: IO[bytes], *parts: bytes) -> None:
    stream.write(b"".join(_LENGTH.pack(len(part)) + part for part in parts))
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
    part = stream.read(length)
    if len(part) < length:
        raise EOFError
    return part
