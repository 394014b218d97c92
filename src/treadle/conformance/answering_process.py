"""A process that answers each line with a line of JSON, and may crash or hang on the way."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping
from typing import IO, Any, cast


class AnsweringProcess:
    """Started at the first question, and anew after one that killed it or made it hang.

    Args:
        command: what is run; its first line is an answer to nobody, see `start`.
        environment: its variables; None: those of this process.
        quiet: what it says about errors is dropped.
    """

    def __init__(
        self, *command: str, environment: Mapping[str, str] | None = None, quiet: bool = False
    ) -> None:
        self.process: subprocess.Popen[str] | None = None
        self._command = command
        self._environment = environment
        self._errors = subprocess.DEVNULL if quiet else None

    def start(self) -> dict[str, Any]:
        """Start it; its first line."""
        self.process = process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=self._environment,
        )
        return self._answer(process, 600)

    def ask(self, line: str, seconds: float) -> dict[str, Any]:
        """Return the process's answer to a line, or {"lost": reason} if there is none in time."""
        if self.process is None:
            self.start()
        process = self.process
        if process is None or process.stdin is None:
            return {"lost": "it does not start"}
        with contextlib.suppress(BrokenPipeError):  # What ended says so below.
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return self._answer(process, seconds)

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # What was not read is lost.
                        pipe.close()
            self.process = None

    def _answer(self, process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
        output, lines = cast(IO[str], process.stdout), queue.Queue[str]()
        reader = threading.Thread(target=lambda: lines.put(output.readline()), daemon=True)
        reader.start()
        line, waited = None, 0.0
        while line is None and waited < seconds:
            # In turns: where both processes are stopped, the time until they go on is one turn.
            turn = min(seconds - waited, 1.0)
            with contextlib.suppress(queue.Empty):
                line = lines.get(timeout=turn)
            waited += turn
        if line is None:
            self.stop()
            return {"lost": f"no answer in {seconds:.0f} s"}
        if not line:
            code = process.wait()
            self.stop()
            return {"lost": f"the process ended with {code}"}
        answer: dict[str, Any] = json.loads(line)
        return answer
