"""Starts interpreters that run pages, with this Treadle and none of the user's settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import treadle

RUNNER = Path(__file__).with_name("run_page.py")
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("MGE_", "TREADLE_"))},
    "PYTHONPATH": os.pathsep.join(
        map(str, (Path(treadle.__file__).parents[1], RUNNER.parent, RUNNER.parents[2] / "docs"))
    ),
}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments; warnings are errors."""
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


class Runner:
    """Runs pages in forks of one process: what all of them import is imported once."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", str(RUNNER), "--serve"]
        self._process = subprocess.Popen(
            command,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, output: Path, page: Path, *words: str) -> int:
        """The exit status of a run that prints to a file; errors end the runner."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        try:
            print(json.dumps([[str(page), *words], str(output)]), file=asked, flush=True)
            return int(answers.readline())
        except BaseException:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()
