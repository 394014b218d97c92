"""The command line: what it prints, what it leaves on disk, what it says of misuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import treadle.functional as F
from treadle.backends.codegen import tuned
from treadle.backends.cpu import tuning_record
from treadle.backends.cpu.compiler import NativeCompiler
from treadle.backends.program import Limits, Tuned
from treadle.base.version import VERSION
from treadle.cli import bench, main

SMALL = (
    bench.Example("product", F.matmul, ((61, 40), (40, 50))),
    bench.Example("sum", F.sum, ((64, 64),)),
)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Short examples, no probes (what they find is kept), a record of its own."""
    monkeypatch.setattr(bench, "EXAMPLES", SMALL)
    monkeypatch.setattr(NativeCompiler, "limits", lambda _, anew=False: Limits(1e11, 2e10))
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    before = tuned.installed()
    tuned.install({})
    yield
    tuned.install(before)


def test_info_tells_versions_machine_and_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 2048)
    assert main(["info"]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if " " in line)
    assert rows["treadle"] == VERSION
    assert rows["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert rows["cache"] == f"{tmp_path}: 1 files, 2.0 KiB"
    assert {"NumPy", "processor", "instructions", "threads", "tuned", "reference"} <= set(rows)


def test_bench_holds_kernels_against_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "the machine at best: 100 GFLOP/s (float32), 20.0 GB/s" in lines
    assert lines[-3].split() == ["kernel", "time", "GFLOP/s", "GB/s", "roofline"]
    assert [line.split()[0] for line in lines[-2:]] == ["product", "sum"]
    assert all(line.endswith("%") for line in lines[-2:])


def test_tuning_the_examples_asks_about_their_products(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "--tune", "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    assert "contraction 1x61x50x40 float32" in out
    assert "product" in out  # the table follows


def test_tuning_a_script_runs_it_even_if_its_programs_are_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np, treadle as mge\n"
        "import treadle.functional as F\n"
        "f = mge.jit.compile(lambda x: F.relu(F.matmul(x, x)))\n"
        "y = f(mge.tensor(np.ones((37, 37), 'float32')))\n"
        "print(__name__, sys.argv[1:], y.numpy().max())\n"
        "sys.exit(0)\n"
    )
    for _ in range(2):
        assert main(["bench", "--tune", "--seconds", "0", str(script), "a", "--b"]) == 0
        out = capsys.readouterr().out
        assert "__main__ ['a', '--b'] 37.0" in out
        assert "1/1  " in out and "contraction 1x37x37x37" in out
        assert "product" not in out


def test_a_script_that_fails_is_not_silent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(SystemExit, match="3"):
        main(["bench", "--tune", str(script)])


def test_a_script_without_products_has_nothing_to_tune(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('hello')\n")
    assert main(["bench", "--tune", str(script)]) == 0
    assert "no contraction with a choice was compiled" in capsys.readouterr().out


def test_a_script_is_for_tuning_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "script.py"]) == 1
    assert "add --tune" in capsys.readouterr().err


def test_what_came_of_a_question_is_one_line() -> None:
    assert bench.describe(Tuned("q", None, 2e-3, 2e-3, 5)) == (
        "q: 2.00 ms, none of 5 is clearly better"
    )
    assert bench.describe(Tuned("q", {"depth": 8}, 2e-3, 1e-3, 5)) == (
        "q: 2.00 ms -> 1.00 ms (2.00 times as fast) with depth 8"
    )


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["bench", "--nonsense"]], ids=str)
def test_misuse_ends_with_the_usual_status(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treadle", "--version"], capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == f"treadle {VERSION}"


def test_the_record_says_whose_it_is() -> None:
    assert tuning_record.write({"avx2 x": {"depth": 1}})
    content = json.loads(tuning_record.path().read_text())
    assert sorted(content) == ["choices", "format", "machine"]
