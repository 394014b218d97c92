"""`treadle warm`: what it compiles lies in the cache, where other processes find it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.cli import main

_USES_TWO = """
import numpy, treadle, treadle.functional as F
from treadle.backends.cpu.native import toolchain
x = treadle.tensor(numpy.ones((64, 64), "float32"))
F.exp(x), F.log(x)
print(toolchain().compiled)
"""
_FEW = """
from itertools import islice
from treadle.cli import main, warm
works = warm._works
warm._works = lambda: islice(works(), 2)
main(["warm"])
"""


def test_later_processes_find_what_it_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "TREADLE_CACHE_DIR": str(tmp_path)}
    said = [_printed([sys.executable, "-c", _FEW], environment) for _ in range(2)]
    assert "kernels compiled in" in said[0] and said[0].endswith(str(tmp_path))
    assert said[1].startswith("all kernels were there")
    assert _printed([sys.executable, "-c", _USES_TWO], environment) == "0"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "TREADLE_CACHE_DIR": str(tmp_path / "file" / "cache")}
    command = [sys.executable, "-c", _FEW]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300)
    assert "kernels cannot be kept in" in done.stderr.decode()
    assert not done.stdout


@pytest.mark.long
def test_all_of_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm"]) == 0
    assert "kernels" in capsys.readouterr().out


def _printed(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=300)
    return done.stdout.decode().strip()
